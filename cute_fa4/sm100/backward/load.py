"""Load warp: the own tiles once, then the ring: two tiles of the other side for every turn.

    own 0 | other 0 of the first tile | own 1 | other 1 of the first tile | other 0, other 1 of the next ...

The first product needs own 0 and other 0, the second one the rest. Where keys are owned, L and delta of the queries
come with other 0, on the same barrier; in a pair L with the rows for S, and delta with those for dP.

Own tiles that move to tensor memory (own_tile.py) take the last slots of their ring, which wait for the move.

In a pair (pair.py) a CTA loads its half of the rows for S or dP, and its half of the columns for a sum, as parts of
their own. Columns come a turn later: in the order in which the tensor core frees single places (Owner.parts).
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32

from ...layouts.swizzle import ROWS_PER_PERIOD
from ...tma import copies
from ..blueprint.chip import F32_BYTES
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


def load_part(
    cfg, owner, args: OwnerArgs, cta, work: Work, place: Place, slots: tuple, number: int
):
    """A part of a tile of the other side, where there is room."""
    part = owner.parts[number]
    i, numbers = part.tile, owner.stats_of(number)
    nbytes = owner.slot_bytes(number) + numbers * F32_BYTES
    mbarrier = cta.other_full.arrive_and_expect(operands.ring_index(owner, slots, number), nbytes)
    address = operands.ring_address(owner, cta, slots, number)
    head = q_head(owner, work, place) if owner.owns_keys else kv_head(owner, args.sizes, work)
    first, length, row = other_rows(owner, work, place)
    operand, column = args.others[i], 0
    if owner.ctas > 1 and part.made:
        row = row + rank_row(owner, work)
    elif owner.ctas > 1:
        operand = args.summed[owner.results.index(i)]
        column = work.rank * owner.summed_tile(i).cols
    of = work.sequence
    operands.load(cfg, operand, address, mbarrier, of, (first, length, row), head, column)
    if numbers:
        line = work.sequence.stats_tile + line_of_tile(owner, place)
        to, first = operands.stats_address(owner, cta, slots, i), 0
        if owner.ctas > 1:
            group = (row_in_line(owner, place, 0) + rank_row(owner, work)) // ROWS_PER_PERIOD
            copies.load_tile(args.parts, Float32, to, mbarrier, group, (i, line, head))
            return
        if owner.subtracts:
            first = STATS + row_in_line(owner, place, 0) * NUMBERS_A_ROW
        operands.load_stats(owner, args.stats[head, line, None], first, to, mbarrier)


def rank_row(owner, work: Work):
    """Which row of a tile is the first of this CTA of a pair."""
    return work.rank * owner.tiles[0].rows


def await_room(owner, cta, slots: tuple, number: int):
    cta.other_empty.wait(operands.ring_index(owner, slots, number), slots[number].phase)


def first_slots(owner) -> tuple:
    """Where the first turn loads. It leaves a late part out, which begins one slot earlier."""
    return tuple(
        slot.previous(slots) if part.late else slot
        for slot, slots, part in zip(
            operands.first_slots(owner, 1), owner.slots, owner.parts, strict=True
        )
    )


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    owner: cutlass.Constexpr,
    args: OwnerArgs,
    cta,
    work: Work,
    also: cutlass.Constexpr = None,
):
    """Everything that a CTA copies in. also: what it loads after the first turn, a function of the other arguments."""
    # before: the place of the turn before, for late parts
    slots, place = first_slots(owner), Place.of(work)
    before = place
    for n in cutlass.range(work.count, unroll=1):
        for number in cutlass.range_constexpr(len(owner.parts)):
            i = owner.parts[number].tile
            if cutlass.const_expr(owner.parts[number].late):
                if n > 0:
                    await_room(owner, cta, slots, number)
                    load_part(cfg, owner, args, cta, work, before, slots, number)
            else:
                await_room(owner, cta, slots, number)
                if cutlass.const_expr(owner.parts[number].made):
                    if n == 0:
                        load_own(cfg, owner, args, cta, work, i)
                    if cutlass.const_expr(i in owner.moved):
                        if n == owner.first_over_own(i):
                            cta.own_moved.wait(owner.moved.index(i), 0)
                load_part(cfg, owner, args, cta, work, place, slots, number)
        if cutlass.const_expr(also is not None):
            if n == 0:
                also(cfg, owner, args, cta, work)
        slots, before, place = operands.next_slots(owner, slots), place, place.next(work)
    for number in cutlass.range_constexpr(len(owner.parts)):
        if cutlass.const_expr(owner.parts[number].late):
            if work.count > 0:
                await_room(owner, cta, slots, number)
                load_part(cfg, owner, args, cta, work, before, slots, number)
