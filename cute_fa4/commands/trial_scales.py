"""Scales of 8-bit tensors for the calls of `check --load` (trials.py), as the configuration requires.

small letters of descales    (sequences, key/value heads)
capital letters              one per token and head, a list of (tokens, heads) per sequence
x and y                      powers of two per 32 values of q and k, a list of (tokens, heads, depth / 32)
"""

from __future__ import annotations

import torch

from cute_fa4.layouts.block_scales import BLOCK

OF_BLOCKS = {"x": "q", "y": "k"}  # letter -> its tensor
# P is off by 2^-4 of a weight (docs/numerics.md), out by an average of values of size 1, which scales make 1.5
ALLOWED_ERROR = 0.11
ALLOWED_LSE_ERROR = 1.2e-2  # exponentials in f16


def drawn(config, queries, keys, heads: int, heads_kv: int, generator) -> dict:
    """letter of descales -> its scales: from 0.5 to 1.5; block scales are 1/2, 1 or 2."""
    rows = {"Q": (queries, heads), "K": (keys, heads_kv), "V": (keys, heads_kv)}
    rows |= {"x": rows["Q"], "y": rows["K"]}

    def numbers(*shape):
        return 0.5 + torch.rand(*shape, generator=generator)

    def powers(n, num_heads):
        sizes = n, num_heads, config.qk_depth // BLOCK
        return torch.exp2(torch.randint(-1, 2, sizes, generator=generator).float())

    found = {}
    for name in config.descales:
        if name in rows:
            lengths, num_heads = rows[name]
            made = powers if name in OF_BLOCKS else numbers
            found[name] = [made(n, num_heads) for n in lengths]
        else:
            found[name] = numbers(len(keys), heads_kv)
    return found


def of_sequence(scales: dict, name: str, b: int, group: int) -> torch.Tensor:
    """The factors of q, k or v of a sequence: (tokens or 1, heads or 1, depth or 1), float64.

    group: query heads per key/value head; q has query heads
    """
    for letter, of in OF_BLOCKS.items():
        if of == name and letter in scales:
            return scales[letter][b].double().repeat_interleave(BLOCK, -1)
    if name.upper() in scales:
        return scales[name.upper()][b].double()[..., None]
    if name not in scales:
        return torch.ones(1, 1, 1, dtype=torch.float64)
    found = scales[name][b].double()[None, :, None]
    return found.repeat_interleave(group, 1) if name == "q" else found


def multiplied(rows: list, scales: dict, name: str, b: int, group: int = 1) -> torch.Tensor:
    """The scaled rows of a sequence, float64."""
    return rows[b].double() * of_sequence(scales, name, b, group)
