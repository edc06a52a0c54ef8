"""Load warp: the own tiles once, then the ring: two tiles of the other side for every turn.

    own 0 | other 0 of the first tile | own 1 | other 1 of the first tile | other 0, other 1 of the next ...

The first product needs own 0 and other 0, the second one the rest. Where keys are owned, L and delta of the queries
come with other 0, on the same barrier.

Own tiles that move to tensor memory (own_tile.py) take the last slots of their ring, which wait for the move.

In a pair (pair.py) a CTA loads its half of the rows for S or dP, and its half of the columns for a sum, into one slot.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32

from ...tma import copies
from . import operands, pair
from .operands import OwnerArgs
from .owner import STATS
from .subtracted_sizes import NUMBERS_A_ROW
from .work import Place, Work, kv_head, line_of_tile, q_head, row_in_line


def own_rows(owner, work: Work) -> tuple:
    of = work.sequence
    if owner.owns_keys:
        return of.first_k, of.length_k, work.row
    return of.first_q, of.length_q, work.row


def other_rows(owner, work: Work, place: Place) -> tuple:
    of = work.sequence
    if owner.owns_keys:
        return of.first_q, of.length_q, place.tile * owner.other_rows
    return of.first_k, of.length_k, place.tile * owner.other_rows


def load_own(cfg, owner, args: OwnerArgs, cta, work: Work, i: int):
    tile = owner.own_tiles[i]
    mbarrier = pair.own_full(owner, cta, i).arrive_and_expect(i, tile.nbytes)
    address = cta.base + owner.own_offset(i)
    rows = own_rows(owner, work)
    operands.load(cfg, args.own[i], address, mbarrier, work.sequence, rows, work.head)


def load_other(cfg, owner, args: OwnerArgs, cta, work: Work, place: Place, slots: tuple, i: int):
    """Tile i of the other side, where there is room."""
    with_stats = owner.owns_keys and i == 0
    nbytes = owner.slot_bytes(i) + owner.stats * 4 * with_stats
    mbarrier = cta.other_full.arrive_and_expect(operands.ring_index(owner, slots, i), nbytes)
    address = operands.ring_address(owner, cta, slots, i)
    head = q_head(owner, work, place) if owner.owns_keys else kv_head(owner, args.sizes, work)
    rows = other_rows(owner, work, place)
    if owner.ctas > 1:
        load_halves(cfg, owner, args, address, mbarrier, work, (rows, head), i)
    else:
        operands.load(cfg, args.others[i], address, mbarrier, work.sequence, rows, head)
    if with_stats:
        line = work.sequence.stats_tile + line_of_tile(owner, place)
        to = cta.stats_address + slots[0].index * (owner.stats * 4)
        first = 0
        if owner.ctas > 1:
            first = STATS + (row_in_line(owner, place, 0) + rank_row(owner, work)) * NUMBERS_A_ROW
            copies.load_tile(args.parts, Float32, to, mbarrier, line, (head,), first)
            return
        if owner.subtracts:
            first = STATS + row_in_line(owner, place, 0) * NUMBERS_A_ROW
        operands.load_stats(owner, args.stats[head, line, None], first, to, mbarrier)


def rank_row(owner, work: Work):
    """Which row of a tile is the first of this CTA of a pair."""
    return work.rank * owner.tiles[0].rows


def load_halves(cfg, owner, args: OwnerArgs, address, mbarrier, work: Work, where: tuple, i: int):
    """This CTA's halves of tile i. where: (rows of the whole tile, head)."""
    (first, length, row), head = where
    if i < len(owner.own_tiles):
        own = first, length, row + rank_row(owner, work)
        operands.load(cfg, args.others[i], address, mbarrier, work.sequence, own, head)
    if i in owner.results:
        operand, column = (
            args.summed[owner.results.index(i)],
            work.rank * owner.summed_tile(i).cols,
        )
        to = address + owner.summed_offset(i)
        rows = first, length, row
        operands.load(cfg, operand, to, mbarrier, work.sequence, rows, head, column)


@cute.jit
def run(cfg: cutlass.Constexpr, owner: cutlass.Constexpr, args: OwnerArgs, cta, work: Work):
    """Everything that a CTA copies in."""
    slots, place = operands.first_slots(1), Place.of(work)
    for n in cutlass.range(work.count, unroll=1):
        for i in cutlass.range_constexpr(2):
            cta.other_empty.wait(operands.ring_index(owner, slots, i), slots[i].phase)
            if cutlass.const_expr(i < len(owner.own_tiles)):
                if n == 0:
                    load_own(cfg, owner, args, cta, work, i)
            if cutlass.const_expr(i in owner.moved):
                if n == owner.first_over_own(i):
                    cta.own_moved.wait(owner.moved.index(i), 0)
            load_other(cfg, owner, args, cta, work, place, slots, i)
        slots, place = operands.next_slots(owner, slots), place.next(work)
