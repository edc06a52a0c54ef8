"""Load warp of the kernel of all gradients (joint.py): K and V once, then rows and columns of Q and dO.

    K rows  Q rows 0 | V  dO rows 0 | K columns | dO columns 0  Q rows 1  Q columns 0  dO rows 1 | dO columns 1 ...

Each copy has one place, which MMAs free in this order: dV, S, dK, dP. The parts of L and delta come with the rows of Q,
in two places, because dP reads them after S.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ...layouts.swizzle import ROWS_PER_PERIOD
from ...tma import copies
from ..blueprint.chip import F32_BYTES
from . import joint, operands, pair
from .joint import DO_COLUMNS, DO_ROWS, K_COLUMNS, K_ROWS, Q_COLUMNS, Q_ROWS, V_ROWS
from .load import other_rows, own_rows
from .operands import OwnerArgs
from .owner import ROWS
from .work import Place, Work, line_of_tile, q_head


def load_own(cfg, owner, args: OwnerArgs, cta, work: Work, which: int):
    """Rows of K or V of this CTA, or half of the columns of K, of both."""
    first, length, row = own_rows(owner, work)
    at = cta.base + owner.own_offset(which)
    nbytes = owner.columns_of_keys.nbytes if which == K_COLUMNS else owner.own_tiles[which].nbytes
    mbarrier = pair.own_full(owner, cta, which).arrive_and_expect(which, nbytes)
    if which != K_COLUMNS:
        rows = first, length, row
        operands.load(cfg, args.own[which], at, mbarrier, work.sequence, rows, work.head)
        return
    for half in range(owner.ctas):
        rows = first, length, row + (half - work.rank) * ROWS
        to, column = (
            at + half * (owner.columns_of_keys.nbytes // owner.ctas),
            column_of(owner, work),
        )
        operands.load(cfg, args.columns, to, mbarrier, work.sequence, rows, work.head, column)


def column_of(owner, work: Work):
    """The first column of this CTA's half."""
    return work.rank * (joint.DEPTH // owner.ctas)


def load_copy(cfg, owner, args: OwnerArgs, cta, work: Work, at: tuple, which: int):
    """Rows or columns of a tile of queries, when their place is free. at: (turn, place)"""
    n, place = at
    cta.other_empty.wait(which, (n & 1) ^ 1)
    of_rows, i = which in (Q_ROWS, DO_ROWS), 0 if which in (Q_ROWS, Q_COLUMNS) else 1
    stats_bytes = owner.stats * F32_BYTES * (which == Q_ROWS)
    mbarrier = cta.other_full.arrive_and_expect(which, owner.copy_bytes + stats_bytes)
    to = cta.ring_address + which * owner.copy_bytes
    first, length, row = other_rows(owner, work, place)
    head = q_head(owner, work, place)
    of_cta = work.rank * owner.tiles[0].rows
    if of_rows:
        rows = first, length, row + of_cta
        operands.load(cfg, args.others[i], to, mbarrier, work.sequence, rows, head)
    else:
        rows, column = (first, length, row), column_of(owner, work)
        operands.load(cfg, args.summed[i], to, mbarrier, work.sequence, rows, head, column)
    if which == Q_ROWS:
        line = work.sequence.stats_tile + line_of_tile(owner, place)
        to = cta.stats_address + (n & 1) * stats_bytes
        group = of_cta // ROWS_PER_PERIOD
        for part in range(2):
            at = to + part * owner.part_bytes
            copies.load_tile(args.parts, Float32, at, mbarrier, group, (part, line, head))


@cute.jit
def run(cfg: cutlass.Constexpr, owner: cutlass.Constexpr, args: OwnerArgs, cta, work: Work):
    """Everything that a CTA copies in."""
    place = Place.of(work)
    if work.count > 0:
        at = (Int32(0), place)
        load_own(cfg, owner, args, cta, work, K_ROWS)
        load_copy(cfg, owner, args, cta, work, at, Q_ROWS)
        load_own(cfg, owner, args, cta, work, V_ROWS)
        load_copy(cfg, owner, args, cta, work, at, DO_ROWS)
        load_own(cfg, owner, args, cta, work, K_COLUMNS)
    for n in cutlass.range(work.count, unroll=1):
        following = place.next(work)
        load_copy(cfg, owner, args, cta, work, (n, place), DO_COLUMNS)
        if n + 1 < work.count:
            load_copy(cfg, owner, args, cta, work, (n + 1, following), Q_ROWS)
        load_copy(cfg, owner, args, cta, work, (n, place), Q_COLUMNS)
        if n + 1 < work.count:
            load_copy(cfg, owner, args, cta, work, (n + 1, following), DO_ROWS)
        place = following
