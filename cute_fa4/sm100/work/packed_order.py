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
are at its end. The load warp holds 32 sequences, a lane each, and looks up the next 32 when a block lies behind them:
the blocks that a CTA runs have rising numbers. Where one has not, it begins again.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...layouts.scalars import choose, maximum, minimum
from .sequence import Lengths, Sequence, find_sequence
from .tile import WorkTile
from .tile_order import blocks, fitting_rows, tile_of_block

LANES = 32
MOST_SECTION_BITS = 7  # sections of up to 128 heads


def grid_size(cfg, total_q, batch, max_seqlen_q, heads):
    """Number of CTAs, at least one for each block: sum of ceil(l / P) <= min(total / P + batch, batch * longest)."""
    whole = total_q // cfg.tiles.positions_per_cta
    # More blocks a sequence give more than the first bound, and perhaps more than 32 bits hold.
    longest = minimum(blocks(cfg, max_seqlen_q), whole // maximum(batch, 1) + 2)
    most = minimum(whole + batch, batch * longest)
    return most * (heads // cfg.heads_per_tile)


@dataclass(frozen=True)
class PackedOrder:
    """How CTA numbers are taken apart, besides the lengths of the sequences."""

    num_sequences: Int32
    num_heads: Int32  # scheduled, of a sequence


@dataclass(frozen=True)
class Held:
    """32 sequences that follow one another, a lane each."""

    first: Int32  # sequence of lane 0
    ctas_before: Int32  # of all sequences before it
    ends: Int32  # CTAs of this lane's sequence and of those before it in the warp
    sequence: Sequence  # of this lane; beyond the last sequence that one, with no CTAs

    @staticmethod
    def none() -> "Held":
        """No sequences: the state before the first 32 are looked up."""
        return Held(Int32(-LANES), Int32(0), Int32(0), Sequence.empty())


def sum_up_to(number):
    """The sum over this lane and those before it."""
    lane = cute.arch.lane_idx()
    for distance in (1, 2, 4, 8, 16):
        other = cute.arch.shuffle_sync_up(number, distance)
        number = number + choose(lane >= distance, other, 0)
    return number


def hold_sequences(cfg, lengths: Lengths, seqlen_k, order: PackedOrder, first, ctas_before) -> Held:
    """Look up sequences `first` to `first` + 31, all at once."""
    mine = first + cute.arch.lane_idx()
    last = order.num_sequences - 1
    own = find_sequence(cfg, lengths, minimum(mine, last), Int32(0), seqlen_k)
    ctas = choose(mine < order.num_sequences, blocks(cfg, own.seqlen_q) * order.num_heads, 0)
    return Held(first, ctas_before, sum_up_to(ctas), own)


@cute.jit
def find_block(
    cfg: cutlass.Constexpr,
    lengths: Lengths,
    seqlen_k: Int32,
    order: PackedOrder,
    cta: Int32,
    held: Held,
) -> tuple[WorkTile, Sequence, Held]:
    """What CTA number `cta` works on. Every lane of the warp calls it with the same number. seqlen_k: as find_sequence.

    A CTA of no sequence gets the last one, from behind its last row on.
    """
    if cta < held.ctas_before:
        held = Held.none()
    following = held.ctas_before + cute.arch.shuffle_sync(held.ends, LANES - 1)
    while (following <= cta) & (held.first + LANES < order.num_sequences):
        held = hold_sequences(cfg, lengths, seqlen_k, order, held.first + LANES, following)
        following = following + cute.arch.shuffle_sync(held.ends, LANES - 1)
    inside = cta - held.ctas_before
    whole = Int32(cute.arch.popc(cute.arch.vote_ballot_sync(held.ends <= inside)))
    lane = minimum(whole, minimum(order.num_sequences - held.first, LANES) - 1)
    of = Sequence(held.first + lane, *(cute.arch.shuffle_sync(x, lane) for x in _rest(held)))
    inside = inside - choose(lane > 0, cute.arch.shuffle_sync(held.ends, maximum(lane - 1, 0)), 0)
    tile = work_tile(cfg, of, maximum(inside, 0), order.num_heads)
    return tile, of, held


def _rest(held: Held) -> tuple:
    of = held.sequence
    return of.q_first_row, of.seqlen_q, of.k_first_row, of.num_keys, of.key_limit


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
