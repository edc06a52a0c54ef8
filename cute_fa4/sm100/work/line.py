"""Sequences of which only the device knows how long they are, one behind the other on a line: who is at number n?

An order says how long a sequence is on its line, by `of_sequence`: so many CTAs (packed_order.py), or so many key tiles
(shared_order.py). The load warp holds 32 sequences, a lane each, and looks up the next 32 when a number lies behind
them: the numbers that a CTA asks for rise. Where one does not, it begins again.

    lane        0      1      2     ...  31          sequences 32 to 63, of 3, 0, 2, ... on a line that has 40 before
    ends        3      3      5                      by lane: of this one and of those before it in the warp
    number 44   44 - 40 = 4: two ends are not beyond it, so sequence 34, and there number 1
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...layouts.scalars import choose, maximum, minimum
from .sequence import Lengths, Sequence, find_sequence

LANES = 32


@dataclass(frozen=True)
class Held:
    """32 sequences that follow one another, a lane each."""

    first: Int32  # sequence of lane 0
    before: Int32  # on the line, of all sequences before it
    ends: Int32  # of this lane's sequence and of those before it in the warp
    sequence: (
        Sequence  # of this lane; beyond the last sequence that one, of which nothing is on the line
    )

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


def hold_sequences(cfg, lengths: Lengths, seqlen_q, seqlen_k, order, sizes, first, before) -> Held:
    """Look up sequences `first` to `first` + 31, all at once."""
    mine = first + cute.arch.lane_idx()
    last = order.num_sequences - 1
    own = find_sequence(cfg, lengths, minimum(mine, last), seqlen_q, seqlen_k)
    number = choose(mine < order.num_sequences, order.of_sequence(cfg, own, sizes), 0)
    return Held(first, before, sum_up_to(number), own)


@cute.jit
def find(
    cfg: cutlass.Constexpr,
    lengths: Lengths,
    seqlen_q: Int32,
    seqlen_k: Int32,
    order,
    sizes,
    number: Int32,
    held: Held,
) -> tuple[Sequence, Int32, Held]:
    """-> (sequence at `number`, number within it, what is held now). Every lane of the warp calls it alike.

    Behind the last sequence: that one, and a number beyond what it has. seqlen_q, seqlen_k: as find_sequence;
    sizes: of the mask.
    """
    if number < held.before:
        held = Held.none()
    following = held.before + cute.arch.shuffle_sync(held.ends, LANES - 1)
    while (following <= number) & (held.first + LANES < order.num_sequences):
        held = hold_sequences(
            cfg, lengths, seqlen_q, seqlen_k, order, sizes, held.first + LANES, following
        )
        following = following + cute.arch.shuffle_sync(held.ends, LANES - 1)
    inside = number - held.before
    whole = Int32(cute.arch.popc(cute.arch.vote_ballot_sync(held.ends <= inside)))
    lane = minimum(whole, minimum(order.num_sequences - held.first, LANES) - 1)
    of = Sequence(held.first + lane, *(cute.arch.shuffle_sync(x, lane) for x in _rest(held)))
    inside = inside - choose(lane > 0, cute.arch.shuffle_sync(held.ends, maximum(lane - 1, 0)), 0)
    return of, inside, held


def _rest(held: Held) -> tuple:
    of = held.sequence
    return of.q_first_row, of.seqlen_q, of.k_first_row, of.num_keys, of.key_limit
