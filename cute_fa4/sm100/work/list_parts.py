"""Parts of long lists of key blocks: what an entry of the order says, and where partial results are.

work/lists/cut.py sorts work tiles and cuts the longest lists. A list of nine key tiles in two parts, and one that is
not cut, in a launch of four CTAs at most:

    entry          0            1            2           3
    work tile      5            5            2           -1: none
    part, parts    0, 2         1, 2         0, 1
    slot           0            0
    turns          0 to 4       5 to 8       all

A part takes its turns (block_lists.py) and writes its normalized O and its log-sum-exp to slot + part of a workspace,
in float32. The merge kernel (combine/) then writes the rows of work tile 5. A list that is not cut goes to O at once.
"""

from dataclasses import dataclass, replace

import cutlass.cute as cute
from cutlass import Int32

from ...layouts.scalars import choose, minimum, quotient
from ..blueprint.listed import ORDER_WORDS
from .kv_range import TileRange
from .tile import WorkTile


@dataclass(frozen=True)
class ListParts:
    """The workspace, float32.

    o    (slots, rows of a CTA, columns of O)
    lse  (slots, rows of a CTA), natural logarithm
    """

    o: cute.Tensor
    lse: cute.Tensor


@dataclass(frozen=True)
class Entry:
    """An entry of the order; Int32."""

    tile: Int32  # number of the work tile; negative: there is none
    part: Int32
    parts: Int32
    slot: Int32  # of part 0

    @staticmethod
    def at(order: cute.Tensor, number) -> "Entry":
        return Entry(*(Int32(order[number, word]) for word in range(ORDER_WORDS)))

    def of(self, tile: WorkTile, tiles: TileRange, uniform) -> tuple[WorkTile, TileRange]:
        """The part of a work tile that takes these turns. uniform: makes a number uniform for the compiler."""
        parts = choose(self.parts > 1, self.parts, 1)
        each = quotient(tiles.count, parts)
        more = tiles.count - each * parts
        part = choose(self.parts > 1, self.part, 0)
        first = uniform(part * each + minimum(part, more))
        count = uniform(each + choose(part < more, 1, 0))
        said = choose(self.parts > 1, 2 * (self.slot + part) + choose(part == 0, 2, 3), 0)
        return replace(tile, part=said), TileRange(first, count, whole=tiles.whole)


# --- WorkTile.part: 0 for a whole list, otherwise the slot of the part and whether it begins the list


def is_part(part):
    return part > 0


def is_whole(part):
    return part == 0


def slot_of(part):
    return part // 2 - 1


def begins_list(part):
    return part % 2 == 0
