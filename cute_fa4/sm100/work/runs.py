"""Runs of parts: a CTA takes several parts of a block's keys, one after the other, and stores a partial result of each.

Eleven key tiles of a sequence in parts of two and runs of four parts; a mask hides the first three tiles:

    CTA          0                            1
    part         0     1     2     3          4     5     6     7
    key tiles    -     3     4 5   6 7        8 9   10    -     -
    Q            .     begins      ends       begins ends
    work tile    .     0     1     2          0     1     .     .

A part with keys is a work tile of its own, so how many parts a run has changes no bit: it is a number of the launch.
Between two parts of a run nothing waits: the next part is known without a claim and without the length of the sequence,
and Q stays in shared memory. The work tile beside parts without keys writes their log-sum-exp, -inf, too; a run without
keys is one work tile. Part 0 is always one if there is a sink, which it counts.
"""

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32

from ...layouts.scalars import choose, maximum, minimum
from .kv_range import TileRange

# WorkTile.part, from the lowest bit on: flags, parts without keys next to the own part, its number.
BEGINS, FOLLOWED = 1, 2
BEFORE, AFTER, NUMBER = 2, 7, 12  # first bits
MOST = (1 << AFTER - BEFORE) - 1  # parts of a run


@dataclass(frozen=True)
class Runs:
    """Parts of a block, and of each of its runs; divisors by these, by the runs of a block and by tiles of a part."""

    number: Int32
    parts: Int32
    tiles_each: Int32
    by_parts: object
    by_runs: object
    by_tiles: object

    @staticmethod
    def of(number: Int32, tiles_each: Int32, parts: Int32) -> "Runs":
        """tiles_each: key tiles of a part; 0: even parts, in runs of one."""
        runs, each = runs_of_block(number, parts), maximum(tiles_each, 1)
        divisors = (cute.fast_divmod_create_divisor_v2(n) for n in (parts, runs, each))
        return Runs(number, parts, tiles_each, *divisors)

    def block_and_part(self, number):
        """Number of the CTA in the grid -> (block, the first part of its run)."""
        block, run = divmod(number, self.by_runs)
        return block, run * self.parts

    def first_of(self, begin, tiles: TileRange, has_sink: bool):
        """-> WorkTile.part of the first work tile of the run that begins with part `begin`; tiles: of the block."""
        seen, _ = divmod(tiles.first, self.by_tiles)
        part = minimum(maximum(seen, begin), self.end_of(begin) - 1)
        if has_sink:
            part = choose(begin == 0, 0, part)
        return self.word(part, begin, tiles) + (part - begin << BEFORE)

    def next_of(self, word, tiles: TileRange):
        """-> WorkTile.part of the work tile after this one, which is followed."""
        part = number_of(word) + 1 + empty_after(word)
        run, _ = divmod(part, self.by_parts)
        return self.word(part, run * self.parts, tiles)

    def end_of(self, begin):
        return minimum(begin + self.parts, self.number)

    def word(self, part, begin, tiles: TileRange):
        seen, _ = divmod(tiles.first, self.by_tiles)
        following, end = maximum(part + 1, seen), self.end_of(begin)
        followed = (following < end) & (following * self.tiles_each < tiles.first + tiles.count)
        begins = (part == begin) | (part * self.tiles_each <= tiles.first)
        empty = choose(followed, following, end) - part - 1
        flags = choose(begins, BEGINS, 0) + choose(followed, FOLLOWED, 0)
        return (part << NUMBER) + (empty << AFTER) + flags


def runs_of_block(number, parts):
    """Runs of a block of `number` parts."""
    return (number + parts - 1) // parts


def number_of(word):
    """The number of the part."""
    return word >> NUMBER


def empty_after(word):
    """Parts without keys after it."""
    return word >> AFTER & MOST


def parts_of(word) -> tuple:
    """-> (the first, the end) of the parts whose log-sum-exp the work tile writes: its own, and those without keys."""
    number = number_of(word)
    return number - (word >> BEFORE & MOST), number + 1 + empty_after(word)


def begins_q(word):
    """0 or 1: whether Q is loaded for this work tile, if it has keys."""
    return word & BEGINS


def ends_q(word):
    """0 or 1: whether no work tile of the run follows, which would use Q, too."""
    return word >> 1 & 1 ^ 1


def is_followed(word):
    """Whether the CTA takes another part of the block next."""
    return word & FOLLOWED != 0
