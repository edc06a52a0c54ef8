"""Split keys: a block of queries is run as several parts, each over some of its key tiles; combine/ merges them.

Eleven key tiles of a sequence, seven of a shorter one, four parts each:

    even        part 0          part 1          part 2          part 3
    11 tiles    0  1  2         3  4  5         6  7  8         9  10
     7 tiles    0  1            2  3            4  5            6

    tiles_each  part 0          part 1          part 2          part 3
    = 4         0  1  2  3      4  5  6  7      8  9  10        -
                0  1  2  3      4  5  6         -               -

Even parts follow from the sequence's own length, so a batch of unequal lengths has work for every part. With tiles_each
the cut of a sequence depends on nothing else in the batch, nor on the number of parts: the same sequence gives the same
bits in every batch. A part without keys stores zeros and a log-sum-exp of -inf, which weigh nothing.

The parts of a block follow one another in the grid, so they start together and read different keys. A CTA may take
several of them, one after the other (runs.py). Where they are a
cluster, they merge their results themselves (few_rows/cluster.py) and take key tiles in turn: a CTA then knows its
first key tile before it knows how long the sequence is (taken_in_turn):

    in a cluster   rank 0          rank 1          rank 2          rank 3
    11 tiles       0  4  8         1  5  9         2  6 10         3  7
     7 tiles       0  4            1  5            2  6            3
"""

from dataclasses import dataclass, replace

import cutlass.cute as cute
from cutlass import Int32

from ...layouts.scalars import choose, maximum, minimum
from .blocks import turn_from
from .kv_range import TileRange
from .runs import Runs, number_of, runs_of_block
from .tile import WorkTile


@dataclass(frozen=True)
class Splits:
    """How blocks are split. Partial results lie one part after the other."""

    number: Int32  # parts of a block
    divisor: object  # the same, as the divisor of the kernel
    tiles_each: Int32  # key tiles of a part; 0: even parts
    rows_apart: Int32  # from one part's partial results to the next's: sequences of dense queries, rows of packed ones
    runs: Runs | None = None  # where a CTA takes several parts

    @staticmethod
    def of(split: tuple, rows_apart: Int32) -> "Splits":
        """split: as SM100Kernel.__call__ has it."""
        number, tiles_each, *run = split
        runs = Runs.of(number, tiles_each, *run) if run else None
        divisor = cute.fast_divmod_create_divisor_v2(number)
        return Splits(number, divisor, tiles_each, rows_apart, runs)

    def ctas_of_block(self):
        """CTAs for each block."""
        return self.number if self.runs is None else runs_of_block(self.number, self.runs.parts)

    def block_and_part(self, number):
        """Number in the grid -> (block, the first part of the CTA)."""
        if self.runs is not None:
            return self.runs.block_and_part(number)
        return divmod(number, self.divisor)

    def first_of(self, cfg, tile: WorkTile, tiles: TileRange, part) -> tuple[WorkTile, TileRange]:
        """The first work tile of a CTA that begins with a part, and its key tiles; tiles: of the block."""
        if self.runs is None:
            return replace(tile, part=part), self.tiles_of(tiles, part)
        return self.part_of_run(tile, tiles, self.runs.first_of(part, tiles, cfg.sink))

    def next_of(self, tile: WorkTile, tiles: TileRange) -> tuple[WorkTile, TileRange]:
        """The work tile after one of a run that is followed, likewise."""
        return self.part_of_run(tile, tiles, self.runs.next_of(tile.part, tiles))

    def part_of_run(self, tile: WorkTile, tiles: TileRange, word) -> tuple[WorkTile, TileRange]:
        return replace(tile, part=word), self.tiles_of(tiles, number_of(word))

    def tiles_of(self, tiles: TileRange, part) -> TileRange:
        """The key tiles of a part. The last one takes what is left, so that no key is ever left out."""
        each, more = divmod(tiles.count, self.divisor)
        even_first = tiles.first + part * each + minimum(part, more)
        even_end = even_first + each + choose(part < more, 1, 0)
        end = tiles.first + tiles.count
        fixed_first = minimum(maximum(tiles.first, part * self.tiles_each), end)
        fixed_end = minimum(end, (part + 1) * self.tiles_each)
        fixed_end = choose(part == self.number - 1, end, fixed_end)
        first = choose(self.tiles_each > 0, fixed_first, even_first)
        end = choose(self.tiles_each > 0, fixed_end, even_end)
        return TileRange(first, maximum(end - first, 0))


def taken_in_turn(tiles: TileRange, rank, number: int) -> TileRange:
    """Turns of rank `rank` of `number` in the key tiles: in turn n it takes key tile n * number + rank.

    A rank may have none.

    >>> turns = [taken_in_turn(TileRange(2, 11), rank, 4) for rank in range(4)]  # rank 0 takes 4, 8, 12; rank 1 5, 9
    >>> [(each.first, each.count) for each in turns]
    [(1, 3), (1, 2), (0, 3), (0, 3)]
    """
    first = turn_from(tiles.first, rank, number)
    return TileRange(first, turn_from(tiles.first + tiles.count, rank, number) - first)
