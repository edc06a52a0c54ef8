"""Lists of the tiles that a CTA processes, where the forward pass had lists of key blocks.

Two launches turn the lists of a call into these (sm100/work/lists), one for each owner:

    owner     one list for each                entries are tiles of
    queries   head and tile of 128 queries     keys
    keys      key-value head and tile of keys  queries, each with a head of the group

    bits of an entry    0: whether the block is full   1 to 20: tile   21 to 30: head within the group

The grid begins with the lists that have the most tiles, where a call has an order of the lists (work/lists/longest.py).

Full blocks come first. In their tiles mask_mod is not evaluated, unless the end of a sequence cuts the tile. Where
tiles of the other side have 64 rows (wide head dims), a CTA takes each entry twice, for both halves of its tile.
"""

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32

from ...layouts.scalars import minimum
from .config import TILE_BITS


@dataclass(frozen=True)
class TileLists:
    """Int32 tensors: counts (batch, heads, tiles), entries (batch, heads, tiles, room of a list).

    Batch and heads may be 1: the lists are then those of every sequence or head.

    order  of the grid: numbers of lists (of all sequences and heads, one after the other); empty: the order of work.py
    """

    counts: cute.Tensor
    entries: cute.Tensor
    order: cute.Tensor | None = None

    @cute.jit
    def placed(self, block: Int32, tile: Int32, of_sequence: Int32) -> tuple:
        """-> (tile, head of all sequences) of a block of the grid. tile, of_sequence: without an order."""
        if Int32(self.order.shape[0]) > 0:
            number, tiles = Int32(self.order[block]), Int32(self.counts.shape[2])
            of_sequence, tile = number // tiles, number % tiles
        return tile, of_sequence

    def of(self, sequence, head, tile, halved: bool) -> "TileList":
        """The list of a tile, which the tensors have. halved: tiles of the other side are halves of those in it."""
        batch, heads = (Int32(self.counts.shape[i]) for i in range(2))
        at = minimum(sequence, batch - 1), minimum(head, heads - 1), tile
        count, entries = Int32(self.counts[at]), self.entries[(*at, None)]
        return HalvedList(count * 2, entries) if halved else TileList(count, entries)


@dataclass(frozen=True)
class TileList:
    """The list of a CTA: `count` of the entries."""

    count: Int32
    entries: cute.Tensor

    def entry(self, number):
        """Entry `number`, or the last one that there is room for."""
        return Int32(self.entries[minimum(number, Int32(self.entries.shape[0]) - 1)])


@dataclass(frozen=True)
class HalvedList(TileList):
    """The same in half tiles, numbered as such."""

    def entry(self, number):
        whole = TileList.entry(self, number // 2)
        return whole + ((tile_of(whole) + number % 2) << 1)


def tile_of(entry):
    return (entry >> 1) & ((1 << TILE_BITS) - 1)


@dataclass(frozen=True)
class ListedPlace:
    """Where a role is in a list; otherwise like work.Place. ahead: the next entry, read a turn before its use."""

    number: Int32
    entry: Int32
    ahead: Int32

    @property
    def tile(self):
        return tile_of(self.entry)

    @property
    def turn(self):
        return self.entry >> (1 + TILE_BITS)

    @property
    def is_full(self):
        return (self.entry & 1) == 1

    @staticmethod
    def of(tiles: TileList) -> "ListedPlace":
        return ListedPlace(Int32(0), tiles.entry(Int32(0)), tiles.entry(Int32(1)))

    def next(self, work) -> "ListedPlace":
        """work: a work.Work with a list."""
        return ListedPlace(self.number + 1, self.ahead, work.tiles.entry(self.number + 2))
