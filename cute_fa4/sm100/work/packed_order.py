"""Block of the grid -> (sequence, head, query block) of packed queries, whose lengths are on the device only.

The sequences follow one another, each with the blocks it has: a batch of one long sequence and many short ones launches
hardly more CTAs than have rows. Blocks of 256 rows, sequences of 600, 0 and 100 queries, two heads:

    CTA           0   1   2   3   4   5   6   7
    sequence      0   0   0   0   0   0   2   2
    head          0   0   0   1   1   1   0   1
    block         0   1   2   0   1   2   0   0       without a mask: CTAs that run together read the same keys

    head          0   1   0   1   0   1   0   1
    block         2   2   1   1   0   0   0   0       under a mask: the longest blocks of a section of heads first

The host knows the number of rows and of sequences, so the grid is an upper bound; the blocks beyond the last sequence
are at its end. The sequence of a CTA is looked up by the load warp (line.py); its blocks have rising numbers.
"""

from dataclasses import dataclass

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
    # More blocks a sequence give more than the first bound, and perhaps more than 32 bits hold.
    longest = minimum(blocks(cfg, max_seqlen_q), whole // maximum(batch, 1) + 2)
    most = minimum(whole + batch, batch * longest)
    return most * (heads // cfg.heads_per_tile)


@dataclass(frozen=True)
class PackedOrder:
    """How CTA numbers are taken apart, besides the lengths of the sequences."""

    num_sequences: Int32
    num_heads: Int32  # scheduled, of a sequence

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
    """What CTA number `cta` works on. Every lane of the warp calls it with the same number. seqlen_k: as find_sequence.

    A CTA of no sequence gets the last one, from behind its last row on.
    """
    of, inside, held = line.find(cfg, lengths, Int32(0), seqlen_k, order, (), cta, held)
    tile = work_tile(cfg, of, maximum(inside, 0), order.num_heads)
    return tile, of, held


def block_of(cfg, inside, num_blocks, heads, num_keys):
    """CTA `inside` of a sequence -> (scheduled head, query block).

    Under a mask a section has a power of two of heads, as many as have their keys in L2 together, and one at least.
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
    """The share of CTA `inside` of a sequence. One beyond it begins behind the last row."""
    num_blocks = blocks(cfg, of.seqlen_q)
    head, block = block_of(cfg, inside, num_blocks, heads, of.num_keys)
    beyond = inside >= num_blocks * heads
    block = choose(beyond, num_blocks, block)
    return tile_of_block(cfg, block, choose(beyond, 0, head), of.batch)
