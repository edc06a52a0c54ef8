"""Tensors for trial calls: dtypes by name, and paged caches; and the exception of calls that are not made."""

from __future__ import annotations

import math

import torch

from cute_fa4 import dtypes

DTYPES = dtypes.torch_of(dtypes.DTYPES)


class NotTried(Exception):
    """No default call selects this kernel; the text gives the reason."""


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
