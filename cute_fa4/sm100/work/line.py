"""Find the sequence at a number on a line of consecutive sequences whose lengths are known on the device only.

An order says how long a sequence is on its line, in `of_sequence`: a number of CTAs (packed_order.py) or of key tiles
(stream_k.py). The load warp holds `order.held` sequences, at most 32, one per lane. It looks up the next ones when
a number lies after them: the numbers that a CTA asks for ascend. After a smaller number the search starts over.

    lane        0      1      2     ...  31          sequences 32 to 63, of 3, 0, 2, ... on a line that has 40 before
    ends        3      3      5                      by lane: of this one and of those before it in the warp
    number 44   44 - 40 = 4: two ends are at most 4, so sequence 34, and number 1 within it

The held sequences lie on the line in batch order, or with the most keys first (`order.longest_first`): a lane then
adds up the lengths of those that go before it, and no data moves.

    keys      200    100    600          of sequences 32, 33, 34; each has 2, 1, 3 on the line
    ends        5      6      3          by lane: 34 goes first, then 32, then 33
"""

from dataclasses import dataclass, replace

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
    before: Int32  # length on the line of all sequences before it
    ends: Int32  # sum over this lane's sequence and those of the warp before it on the line
    sequence: (
        Sequence  # of this lane; of a lane without one the last, of which nothing is on the line
    )

    @staticmethod
    def none(order) -> "Held":
        """No sequences: the state before the first lookup."""
        return Held(Int32(0) - order.held, Int32(0), Int32(0), Sequence.empty())


def sum_up_to(number):
    """The sum over this lane and those before it."""
    lane = cute.arch.lane_idx()
    for distance in (1, 2, 4, 8, 16):
        other = cute.arch.shuffle_sync_up(number, distance)
        number = number + choose(lane >= distance, other, 0)
    return number


@cute.jit
def sum_longest_first(number: Int32, keys: Int32) -> Int32:
    """The sum over this lane and those that go before it: with more keys, or with as many keys and a lower lane."""
    lane = cute.arch.lane_idx()
    total = number
    for distance in cutlass.range(1, LANES, unroll=4):
        source = lane + distance & LANES - 1
        its_keys, its_number = (cute.arch.shuffle_sync(x, source) for x in (keys, number))
        # A lower lane goes before this one with as many keys, too.
        first = its_keys > keys - choose(source < lane, 1, 0)
        total = total + choose(first, its_number, 0)
    return total


def sequences_from(cfg, lengths: Lengths, seqlen_q, seqlen_k, order, first) -> Sequence:
    """Each lane's sequence: number `first` + lane, or the last one of the batch. All are looked up at once."""
    mine, last = first + cute.arch.lane_idx(), order.num_sequences - 1
    return find_sequence(cfg, lengths, minimum(mine, last), seqlen_q, seqlen_k)


def hold_sequences(cfg, lengths: Lengths, seqlen_q, seqlen_k, order, sizes, first, before) -> Held:
    """Look up `order.held` sequences, beginning with `first`."""
    own = sequences_from(cfg, lengths, seqlen_q, seqlen_k, order, first)
    return held_of(cfg, order, sizes, own, first, before)


def held_of(cfg, order, sizes, own: Sequence, first, before) -> Held:
    """The state that holds `order.held` sequences from `first` on. own: from sequences_from."""
    lane = cute.arch.lane_idx()
    mine = first + lane
    if order.longest_first:
        is_one = (mine < order.num_sequences) & (lane < order.held)
        own = replace(own, seqlen_q=choose(is_one, own.seqlen_q, 0))
        number = order.of_sequence(cfg, own, sizes)
        return Held(first, before, sum_longest_first(number, own.num_keys), own)
    return Held(first, before, sum_up_to(on_line(cfg, order, sizes, own, mine)), own)


def on_line(cfg, order, sizes, own: Sequence, mine):
    """Length of sequence `mine` on the line; 0 if there is none."""
    return choose(mine < order.num_sequences, order.of_sequence(cfg, own, sizes), 0)


def held_in_all(order, held: Held):
    """Length on the line of all sequences of the warp."""
    if order.longest_first:
        return cute.arch.warp_redux_sync(held.ends, "max")
    return cute.arch.shuffle_sync(held.ends, LANES - 1)


def lane_at(cfg, order, sizes, held: Held, inside):
    """-> (the lane whose sequence is at number `inside` of those of the warp, the length before that sequence).

    If `inside` is beyond all of them: the lane of the last one, and the length before it.
    """
    last = minimum(order.num_sequences - held.first, order.held) - 1
    if order.longest_first:
        begins = held.ends - order.of_sequence(cfg, held.sequence, sizes)
        is_there = (begins <= inside) & (inside < held.ends)
        lanes = Int32(cute.arch.vote_ballot_sync(is_there))
        lane = choose(lanes != 0, Int32(cute.arch.popc(lanes - 1 & (lanes ^ -1))), last)
        return lane, cute.arch.shuffle_sync(begins, lane)
    whole = Int32(cute.arch.popc(cute.arch.vote_ballot_sync(held.ends <= inside)))
    lane = minimum(whole, last)
    return lane, choose(lane > 0, cute.arch.shuffle_sync(held.ends, maximum(lane - 1, 0)), 0)


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
    """-> (sequence at `number`, number within it, the sequences held now). All lanes of the warp make the same call.

    Beyond the last sequence: that sequence, and a number beyond its length. seqlen_q, seqlen_k: as in find_sequence;
    sizes: of the mask.
    """
    if number < held.before:
        held = Held.none(order)
    following = held.before + held_in_all(order, held)
    while (following <= number) & (held.first + order.held < order.num_sequences):
        held = hold_sequences(
            cfg, lengths, seqlen_q, seqlen_k, order, sizes, held.first + order.held, following
        )
        following = following + held_in_all(order, held)
    inside = number - held.before
    lane, before = lane_at(cfg, order, sizes, held, inside)
    of = Sequence(held.first + lane, *(cute.arch.shuffle_sync(x, lane) for x in _rest(held)))
    return of, inside - before, held


def _rest(held: Held) -> tuple:
    of = held.sequence
    return of.q_first_row, of.seqlen_q, of.k_first_row, of.num_keys, of.key_limit
