"""Scales of 8-bit tensors for the calls of `check --load` (trials.py): as a configuration has them.

small letters of descales    (sequences, key/value heads)
large ones                   one for each token and head, a list of (tokens, heads) for each sequence
"""

from __future__ import annotations

import torch

# P is off by 2^-4 of a weight (docs/numerics.md), out by an average of values of size 1, which scales make 1.5
ALLOWED_ERROR = 0.11
ALLOWED_LSE_ERROR = 1.2e-2  # powers in f16


def drawn(config, queries, keys, heads: int, heads_kv: int, generator) -> dict:
    """letter of descales -> what it names; numbers from 0.5 to 1.5."""
    rows = {"Q": (queries, heads), "K": (keys, heads_kv), "V": (keys, heads_kv)}

    def numbers(*shape):
        return 0.5 + torch.rand(*shape, generator=generator)

    return {
        name: [numbers(n, rows[name][1]) for n in rows[name][0]]
        if name.isupper()
        else numbers(len(keys), heads_kv)
        for name in config.descales
    }


def of_sequence(scales: dict, name: str, b: int, group: int) -> torch.Tensor:
    """What rows of q, k or v of a sequence are multiplied by: (tokens or 1, heads or 1, 1), float64.

    group: query heads of a key/value head, which q has instead
    """
    if name.upper() in scales:
        return scales[name.upper()][b].double()[..., None]
    if name not in scales:
        return torch.ones(1, 1, 1, dtype=torch.float64)
    found = scales[name][b].double()[None, :, None]
    return found.repeat_interleave(group, 1) if name == "q" else found


def multiplied(rows: list, scales: dict, name: str, b: int, group: int = 1) -> torch.Tensor:
    """The rows of a sequence as they are meant, float64."""
    return rows[b].double() * of_sequence(scales, name, b, group)
