"""What trial calls share: dtypes by name, lengths of keys, parts, bounds, paged caches, and calls that are not made."""

from __future__ import annotations

import math

import torch

from cute_fa4 import dtypes

DTYPES = dtypes.torch_of(dtypes.DTYPES)
KEYS = (40, 23)  # of the two sequences; less than a tile, not round
KEYS_OF_PARTS = (150, 135)  # two tiles, so that each of two parts has keys
KEYS_SHARED = (1200, 135)  # one sequence that is worth a stream-K split, and a short one
# 16-bit P and output round to 2^-9 relative each; outputs are averages of values of standard deviation 1.
ALLOWED_ERROR = {"bf16": 2e-2, "fp16": 4e-3}
# float32 sums of exponentials that are off by 9e-5 (reference.EXP2_RELATIVE_ERROR)
ALLOWED_LSE_ERROR = 1e-3


class NotTried(Exception):
    """No default call selects this kernel; the text gives the reason."""


def lengths_of_keys(config) -> tuple[int, int]:
    """Keys of the two sequences, for which a call splits them as the configuration does."""
    if config.share_keys:
        return KEYS_SHARED
    return KEYS_OF_PARTS if config.split_keys else KEYS


def num_splits(config) -> int:
    """The argument of a call that asks for the kernel."""
    if not config.split_keys:
        return 1
    return 0 if config.share_keys else 2


def page_table(lengths, page_size: int) -> torch.Tensor:
    """(sequences, pages): in reverse, so that the order of pages differs from that of keys."""
    counts = [-(-length // page_size) for length in lengths]
    table = torch.zeros(len(counts), max(counts), dtype=torch.int32)
    number = sum(counts)
    for b, count in enumerate(counts):
        for i in range(count):
            number -= 1
            table[b, i] = number
    return table


def pages(rows: list[torch.Tensor], table: torch.Tensor, page_size: int) -> torch.Tensor:
    """A cache (pages, page_size, heads, depth) that holds the sequences, and NaN elsewhere."""
    cache = torch.full((int(table.max()) + 1, page_size, *rows[0].shape[1:]), math.nan).to(
        rows[0].dtype
    )
    for b, sequence in enumerate(rows):
        for i, row in enumerate(sequence):
            cache[table[b, i // page_size], i % page_size] = row
    return cache
