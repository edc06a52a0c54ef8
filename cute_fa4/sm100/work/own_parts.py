"""Parts of the keys that one CTA takes one after the other, and what it keeps from one part to the next.

A block of queries sees key tiles 1 to 10, in parts of four tiles, counted from the first key of the sequence:

    work tile     0          1             2
    key tiles     1  2  3    4  5  6  7    8  9  10
    part          begins     -             ends

Each part is a work tile of its own, with new row maxima and a new O. Correction merges it into the sum of those before,
and the part that ends its block goes to O (two_tiles/own_parts/). Parts without keys are left out. Between two parts
the sums wait in the CTA's place of a workspace. Only the thread that wrote them reads them, and there are no more
CTAs at work than SMs, so they stay in L2.
"""

from dataclasses import dataclass, replace

import cutlass.cute as cute
from cutlass import Int32

from ...layouts.scalars import choose, minimum
from .kv_range import TileRange
from .tile import Work, WorkTile


@dataclass(frozen=True)
class OwnParts:
    """How the blocks of a launch are cut, and the workspace, float32.

    o    (CTAs, query tiles, columns of O / SUMS_OF_ACCESS, rows of a tile, SUMS_OF_ACCESS): sums of results. So the
         accesses of a warp are contiguous
    lse  (CTAs, rows of a CTA): of the part, from softmax to correction
    """

    tiles_each: Int32
    divisor: object  # the same, as the divisor of the kernel
    o: cute.Tensor
    lse: cute.Tensor

    @staticmethod
    def of(split: tuple) -> "OwnParts":
        """split: as SM100Kernel.__call__ has it."""
        tiles_each, o, lse = split
        return OwnParts(tiles_each, cute.fast_divmod_create_divisor_v2(tiles_each), o, lse)

    def first_of(self, tile: WorkTile, tiles: TileRange) -> tuple[WorkTile, TileRange]:
        """The first part of a block that sees these key tiles."""
        begun, _ = divmod(tiles.first, self.divisor)
        end = tiles.first + tiles.count
        until = minimum(end, (begun + 1) * self.tiles_each)
        return replace(tile, part=part_of(end, True)), TileRange(tiles.first, until - tiles.first)

    def next_of(self, work: Work) -> Work:
        """The part after this one, which does not end its block."""
        end, first = end_of_block(work.tile.part), work.tiles.first + work.tiles.count
        tiles = TileRange(first, minimum(end - first, self.tiles_each))
        return replace(work, tile=replace(work.tile, part=part_of(end, False)), tiles=tiles)


# --- WorkTile.part: the end of the block's key tiles, and whether the part begins the block


def part_of(end, begins):
    return end * 2 + choose(begins, 0, 1)


def end_of_block(part):
    return part // 2


def begins_block(part):
    return part % 2 == 0


def ends_block(part, tiles: TileRange):
    return tiles.first + tiles.count >= end_of_block(part)


def is_followed(part, tiles: TileRange):
    return tiles.first + tiles.count < end_of_block(part)
