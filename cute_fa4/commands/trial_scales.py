"""Scales of 8-bit tensors for the calls of `check --load` (trials.py), as the configuration requires.

"head"     (sequences, key/value heads)
"row"      one per token and head, a list of (tokens, heads) per sequence
"block"    powers of two per 32 values of q and k, a list of (tokens, heads, depth / 32)
"""

from __future__ import annotations

import torch

from cute_fa4 import scales
from cute_fa4.layouts.block_scales import BLOCK

# P is off by 2^-4 of a weight (docs/numerics.md), out by an average of values of size 1, which scales make 1.5
ALLOWED_ERROR = 0.11
ALLOWED_LSE_ERROR = 1.2e-2  # exponentials in f16


def drawn(config, queries, keys, heads: int, heads_kv: int, generator) -> dict:
    """(tensor, kind) -> its scales: from 0.5 to 1.5; block scales are 1/2, 1 or 2."""
    rows = {"q": (queries, heads), "k": (keys, heads_kv), "v": (keys, heads_kv)}

    def numbers(*shape):
        return 0.5 + torch.rand(*shape, generator=generator)

    def powers(n, num_heads):
        sizes = n, num_heads, config.qk_depth // BLOCK
        return torch.exp2(torch.randint(-1, 2, sizes, generator=generator).float())

    found = {}
    for tensor, kind in config.descales.given:
        if kind == scales.HEAD:
            found[tensor, kind] = numbers(len(keys), heads_kv)
        else:
            lengths, num_heads = rows[tensor]
            made = powers if kind == scales.BLOCK else numbers
            found[tensor, kind] = [made(n, num_heads) for n in lengths]
    return found


def of_sequence(given: dict, name: str, b: int, group: int) -> torch.Tensor:
    """The factors of q, k or v of a sequence: (tokens or 1, heads or 1, depth or 1), float64.

    group: query heads per key/value head; q has query heads
    """
    if (name, scales.BLOCK) in given:
        return given[name, scales.BLOCK][b].double().repeat_interleave(BLOCK, -1)
    if (name, scales.ROW) in given:
        return given[name, scales.ROW][b].double()[..., None]
    if (name, scales.HEAD) not in given:
        return torch.ones(1, 1, 1, dtype=torch.float64)
    found = given[name, scales.HEAD][b].double()[None, :, None]
    return found.repeat_interleave(group, 1) if name == "q" else found


def multiplied(rows: list, given: dict, name: str, b: int, group: int = 1) -> torch.Tensor:
    """The scaled rows of a sequence, float64."""
    return rows[b].double() * of_sequence(given, name, b, group)
