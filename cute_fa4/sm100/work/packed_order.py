"""Block of the grid -> (sequence, head, query block) of packed queries, whose lengths are on the device only.

The sequences follow one another, each with its blocks: a batch of one long sequence and many short ones launches hardly
more CTAs than have rows. The sequence with the most keys comes first, so that a launch ends with short blocks, whatever
the order of the batch is. Blocks of 256 rows, sequences of 100, 0 and 600 queries and keys, two heads:

    CTA           0   1   2   3   4   5   6   7
    sequence      2   2   2   2   2   2   0   0
    head          0   0   0   1   1   1   0   1
    block         0   1   2   0   1   2   0   0       without a mask: CTAs that run together read the same keys

    head          0   1   0   1   0   1   0   1
    block         2   2   1   1   0   0   0   0       under a mask: the longest blocks of a section of heads first

The host knows the number of rows and of sequences, so the grid is an upper bound; the blocks after the last sequence
are at its end. The load warp looks up the sequence of a CTA (line.py); the numbers of its blocks ascend.

A warp sees 32 sequences. A larger batch is ordered group by group, and a group is as many as a warp holds at once. All
groups have one size, so that the last group is not a single long sequence.
"""

from dataclasses import dataclass
from typing import ClassVar

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...layouts.scalars import choose, maximum, minimum
from . import line
from .sequence import Lengths, Sequence
from .tile import WorkTile
from .tile_order import blocks, fitting_rows, tile_of_block

MOST_SECTION_BITS = 7  # sections of up to 128 heads


def grid_size(cfg, total_q, batch, max_seqlen_q, heads):
    """Number of blocks, at least those that exist: sum of ceil(l / P) <= min(total / P + batch, batch * longest)."""
    whole = total_q // cfg.tiles.positions_per_block
    # More blocks per sequence exceed the first bound, and their product may exceed 32 bits.
    longest = minimum(blocks(cfg, max_seqlen_q), whole // maximum(batch, 1) + 2)
    most = minimum(whole + batch, batch * longest)
    return most * (heads // cfg.heads_per_tile)


def sequences_held(batch):
    """Sequences that a warp orders at once.

    >>> sequences_held(20), sequences_held(33), sequences_held(64)
    (20, 17, 32)
    """
    holds = (batch + line.LANES - 1) // line.LANES
    return (batch + holds - 1) // maximum(holds, 1)


def in_order(keys: list[int]) -> list[int]:
    """Sequences with these numbers of keys, in the order of the kernel; for host code that asks what the kernel does.

    >>> in_order([100, 0, 600])
    [2, 0, 1]
    """
    held, found = sequences_held(len(keys)), []
    for first in range(0, len(keys), max(held, 1)):
        here = range(first, min(first + held, len(keys)))
        found += sorted(here, key=lambda sequence: (-keys[sequence], sequence))
    return found


@dataclass(frozen=True)
class PackedOrder:
    """How CTA numbers are decomposed, together with the lengths of the sequences."""

    num_sequences: Int32
    num_heads: Int32  # scheduled, of a sequence
    held: Int32  # of sequences_held

    longest_first: ClassVar[bool] = True

    def of_sequence(self, cfg, of: Sequence, sizes):
        """CTAs of a sequence."""
        return blocks(cfg, of.seqlen_q) * self.num_heads


@cute.jit
def find_block(
    cfg: cutlass.Constexpr,
    lengths: Lengths,
    seqlen_k: Int32,
    order: PackedOrder,
    cta: Int32,
    held: line.Held,
) -> tuple[WorkTile, Sequence, line.Held]:
    """The work of CTA number `cta`. Every lane of the warp makes the same call. seqlen_k: as in find_sequence.

    A CTA without a sequence gets the last one, and begins after its last row.
    """
    of, inside, held = line.find(cfg, lengths, Int32(0), seqlen_k, order, (), cta, held)
    tile = work_tile(cfg, of, maximum(inside, 0), order.num_heads)
    return tile, of, held


def numbered(cfg, order: PackedOrder, longest, number) -> WorkTile:
    """The work tile with this number among those of sequences that are all as long as the longest one.

    work/lists/longest.py sorts these numbers. A tile may begin after the last row of its sequence.
    """
    num_blocks = maximum(blocks(cfg, longest), 1)
    rest, block = number // num_blocks, number % num_blocks
    return tile_of_block(cfg, block, rest % order.num_heads, rest // order.num_heads)


def block_of(cfg, inside, num_blocks, heads, num_keys):
    """CTA `inside` of a sequence -> (scheduled head, query block).

    Under a mask the heads of a section are a power of two: as many as have their keys in L2 together, at least one.
    """
    num_blocks = maximum(num_blocks, 1)
    row = inside // num_blocks
    if not cfg.unequal_blocks:
        return row, inside - row * num_blocks
    bits = 0
    for more in range(1, MOST_SECTION_BITS + 1):
        bits = bits + choose(num_keys <= fitting_rows(cfg) >> more, 1, 0)
    first_head = row >> bits << bits
    inside = inside - first_head * num_blocks
    width = maximum(minimum(1 << bits, heads - first_head), 1)
    row = inside // width
    return first_head + inside - row * width, num_blocks - 1 - row


def work_tile(cfg, of: Sequence, inside, heads) -> WorkTile:
    """The work tile of CTA `inside` of a sequence. A number beyond the sequence begins after the last row."""
    num_blocks = blocks(cfg, of.seqlen_q)
    head, block = block_of(cfg, inside, num_blocks, heads, of.num_keys)
    beyond = inside >= num_blocks * heads
    block = choose(beyond, num_blocks, block)
    return tile_of_block(cfg, block, choose(beyond, 0, head), of.batch)
