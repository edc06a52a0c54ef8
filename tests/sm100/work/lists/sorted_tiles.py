"""The kernel that sorts work tiles by the lengths of their lists, and what it must return, by Python's own sort."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch

from cute_fa4.calls.launch import function_for
from cute_fa4.sm100.blueprint.listed import CUT_WORDS, ORDER_WORDS
from cute_fa4.sm100.work.lists.config import (
    BlockListsConfig,
    cut_in_order,
    in_order,
    most_cut,
    windows_of,
)
from cute_fa4.system.devices import target_of
from tests.attention.listed import numbers


@dataclass(frozen=True)
class Launch:
    """counts: of partial and full blocks, (batch or 1, heads or 1, query blocks), packed (1, heads or 1, of all).

    sizes          work tiles of a head, heads, sequences, work tiles that share a list
    first_blocks   where the packed lists of a sequence begin; None: they are padded
    offsets        of packed queries, whose work tiles have `rows`; the order has `entries`
    """

    counts: tuple[torch.Tensor, ...]
    sizes: tuple[int, int, int, int]
    first_blocks: list[int] | None = None
    offsets: list[int] | None = None
    rows: int = 0
    entries: int = 0

    def order(self) -> list[int]:
        """The result of the kernel."""
        blocks, heads, batch, of_list = self.sizes
        tiles = blocks * heads * batch
        order = torch.full((self.entries or tiles,), -1, dtype=torch.int32)
        function = function_for(BlockListsConfig("longest"), target_of(order.device))
        first = self.counts[0][0, 0] if self.first_blocks is None else numbers(self.first_blocks)
        flags = len(self.counts), int(self.first_blocks is not None)
        counts = self.counts if len(self.counts) == 2 else self.counts * 2
        offsets = first if self.offsets is None else numbers(self.offsets)
        sizes = blocks, heads, of_list, windows_of(tiles), tiles, self.rows
        function(counts, first, offsets, flags, sizes, order)
        return order.tolist()

    def lengths(self) -> list[int]:
        """Listed key blocks of each work tile: counts below 0 are 0, places outside the tensors the nearest ones."""
        blocks, heads, batch, of_list = self.sizes
        found = []
        for b, h, i in torch.cartesian_prod(*map(torch.arange, (batch, heads, blocks))).tolist():
            at = i // of_list + (0 if self.first_blocks is None else self.first_blocks[b])
            total = 0
            for counts in self.counts:
                place = (
                    max(min(n, size - 1), 0)
                    for n, size in zip((b, h, at), counts.shape, strict=True)
                )
                total += max(int(counts[tuple(place)]), 0)
            found.append(total)
        return found

    def is_right(self) -> bool:
        lengths, (blocks, heads, _, _) = self.lengths(), self.sizes
        if self.offsets is not None:  # tiles without rows come last, after empty lists
            of = [b - a for a, b in pairwise(self.offsets)]
            for tile, length in enumerate(lengths):
                has_rows = tile % blocks * self.rows < of[tile // blocks // heads]
                lengths[tile] = max(length, 1) if has_rows else 0
        return self.order() == in_order(lengths)[: self.entries or None]


def cut(launch: Launch, shares: int, least: int) -> tuple[list, list]:
    """Entries of the order, and of the lists that are cut, by the kernel that cuts them, too."""
    blocks, heads, batch, of_list = launch.sizes
    tiles = blocks * heads * batch
    order = torch.full((tiles + shares, ORDER_WORDS), -9, dtype=torch.int32)
    lists = torch.full((most_cut(shares), CUT_WORDS), -9, dtype=torch.int32)
    function = function_for(BlockListsConfig("cut"), target_of(order.device))
    first = launch.counts[0][0, 0]
    if launch.first_blocks is not None:
        first = numbers(launch.first_blocks)
    flags = len(launch.counts), int(launch.first_blocks is not None)
    counts = launch.counts if len(launch.counts) == 2 else launch.counts * 2
    sizes = blocks, heads, of_list, tiles, shares, least
    function(counts, first, flags, sizes, order, lists)
    return [tuple(x) for x in order.tolist()], [tuple(x) for x in lists.tolist()]


def cuts_right(launch: Launch, shares: int, least: int) -> bool:
    order, lists = cut(launch, shares, least)
    expected = cut_in_order(launch.lengths(), shares, least)
    of_lists = sorted(
        (tile, slot, parts) for tile, part, parts, slot in expected if parts > 1 > part
    )
    number = len(of_lists)
    return (
        order[: len(expected)] == expected
        and all(tile == -1 for tile, *_ in order[len(expected) :])
        and lists[:number] == of_lists
        and all(parts == 0 for *_, parts in lists[number:])
    )


def drawn(*shape: int, most: int = 300, seed: int = 0) -> torch.Tensor:
    """Counts of every size up to `most`, few of them long; some below 0."""
    random = torch.Generator().manual_seed(seed)
    counts = torch.rand(shape, generator=random) ** 3 * most - most / 50
    return counts.floor().int()


LARGEST, SMALLEST = 2**31 - 1, -(2**31)
# More work tiles than threads.
PADDED = Launch((drawn(2, 3, 120), drawn(2, 3, 120, seed=1)), (240, 3, 2, 2))
SHARED = Launch((drawn(1, 1, 333),), (333, 4, 2, 1))
PACKED = Launch((drawn(1, 2, 100), drawn(1, 2, 100, seed=1)), (60, 2, 3, 1), [0, 50, 60, 100])
# Sequences of 700, 0 and 90 queries, 64 of a work tile: of 66 work tiles 26 have rows, of which some lists are empty.
QUERIES = Launch(
    (drawn(3, 2, 11, most=9),),
    (11, 2, 3, 1),
    offsets=[0, 700, 700, 790],
    rows=64,
    entries=2 * (790 // 64 + 3),
)
# Counts and places that are wrong: none leads outside a tensor, and the order still has every work tile.
WRONG = Launch(
    (numbers([[[LARGEST, 3, SMALLEST, 70000, 0, 200000]]]), numbers([[[LARGEST, SMALLEST, 2, 1, 5, 9]]])),
    (6, 1, 3, 1), [-9, LARGEST - 9, 2, 0],
)  # fmt: skip
