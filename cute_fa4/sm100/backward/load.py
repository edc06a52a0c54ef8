"""Load warp: the own tiles once, then the ring: two tiles of the other side for every turn.

    own 0 | other 0 of the first tile | own 1 | other 1 of the first tile | other 0, other 1 of the next ...

The first product needs own 0 and other 0, the second one the rest. Where keys are owned, L and delta of the queries
come with other 0, on the same barrier.

Own tiles that move to tensor memory (own_tile.py) take the last slots of their ring, which wait for the move.
"""

import cutlass
import cutlass.cute as cute

from . import operands
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
    mbarrier = cta.own_full.arrive_and_expect(i, tile.nbytes)
    address = cta.base + owner.own_offset(i)
    rows = own_rows(owner, work)
    operands.load(cfg, args.own[i], address, mbarrier, work.sequence, rows, work.head)


def load_other(cfg, owner, args: OwnerArgs, cta, work: Work, place: Place, slots: tuple, i: int):
    """Tile i of the other side, where there is room."""
    tile, with_stats = owner.tiles[i], owner.owns_keys and i == 0
    nbytes = tile.nbytes + owner.stats * 4 * with_stats
    mbarrier = cta.other_full.arrive_and_expect(operands.ring_index(owner, slots, i), nbytes)
    address = operands.ring_address(owner, cta, slots, i)
    head = q_head(owner, work, place) if owner.owns_keys else kv_head(owner, args.sizes, work)
    rows = other_rows(owner, work, place)
    operands.load(cfg, args.others[i], address, mbarrier, work.sequence, rows, head)
    if with_stats:
        line = work.sequence.stats_tile + line_of_tile(owner, place)
        to = cta.stats_address + slots[0].index * (owner.stats * 4)
        first = 0
        if owner.subtracts:
            first = STATS + row_in_line(owner, place, 0) * NUMBERS_A_ROW
        operands.load_stats(owner, args.stats[head, line, None], first, to, mbarrier)


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
