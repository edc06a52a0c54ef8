"""Exponents relative to a reference from earlier tiles: the tile's maximum leaves the critical path from S to P.

    exact     maximum of the tile -> reference -> P = 2^(c s - reference)      no P before the last score
    lagged    P = 2^(c s - reference) -> row sum -> reference of the next tile

P in bf16 and sums in float32 have the range of float32. A reference that is off by 2^64 costs no precision: P and the
row sum are larger by the same factor, and the final division cancels it. So the reference needs no maximum. The
row sum, which is computed anyway, is at least the largest P and at most that times the number of keys:

    first tile of a row     its maximum; with first_reference="quarter", if the tile is whole, that of its first quarter
    later tiles             the reference stays, while the row sum stays below 2^32
    row sum above 2^32      it moves up by the exponent of the row sum: this, too, needs no multiplication of P
    row sum above 2^64      a score exceeds all earlier tiles by so much that O may have overflowed: the work tile
                            is rerun with the exact maximum (`work/checked.py`)

first_reference="quarter", a candidate of the tuning table: a first tile that every row sees whole refers to its first
quarter, 32 of 128 scores, and P begins once they are loaded. Larger scores in the same tile act like larger scores in
a later tile: P and the row sum grow by the same factor, and the row sum shows when it is too large. So a work tile is
rerun if a key after the first 32 exceeds them by more than 44 nats; a first key with all the weight is one of these 32.
A sink is a score of the reference, too.
If 32 scores are -inf, so is the reference: the exponentials are infinite, and the work tile is rerun. A NaN in the key
tile makes the row sum NaN, and the rerun returns NaN. The full maximum is kept for (FA4Config.refers_to_quarter)

    functions of scores         they may hide the first 32 keys of every row
    masks with a lower bound    their first tile is masked
    sums in P V                 there is no sum before the first P V
    pairs of CTAs, no mask      long rows would take longer (two_tiles/pair/schedule.py)

With P over S masked tiles lag, too, if every row with keys has seen some of an earlier tile: the first tile under a
causal mask, a whole tile under a mask with a lower bound. A row that sees no key of a tile needs no reference there:
its P is 0.

A row sum that has failed becomes NaN and stays NaN, so one check at the end suffices. Rows without a visible key in
the first tile (a score_mod may return -inf) have the reference -inf: their next exponentials are infinite, and they
fail likewise. In fp16 P has 5 bits of exponent: there the maximum is exact (two_tiles/schedule.py).
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, select_

from ...layouts.scalars import choose, minimum
from ..instructions import exp2
from ..work import results, rows
from .row_math import RowState, row_maximum

RENEWED_FROM = 2.0**32  # row sum
FAILED_FROM = 2.0**64


def exact_end(cfg, work, begin, end):
    """End of a warpgroup's exact tiles among its whole ones from `begin` on: one tile; all if nothing lags."""
    if not cfg.schedule.lags:
        return end
    exact = 0 if cfg.refers_to_quarter else 1
    return choose(work.again != 0, end, minimum(begin + exact, end))


def begins_here(work, first, end):
    """Whether the whole key tiles begin with a tile that takes its reference from its first quarter."""
    return (first < end) & (work.again == 0)


def begin(work, first, stride, end):
    """Where the remaining whole tiles begin."""
    return choose(work.again != 0, end, first + stride)


def begun(cfg, state: RowState, scores: list, scale_log2) -> RowState:
    """The state with a reference from some scores of a row's first key tile, and from the sink."""
    row_max, row_sum = row_maximum(scores, state.row_max), state.row_sum
    if cfg.sink:
        row_sum = row_sum * exp2.hardware((state.row_max - row_max) * scale_log2)
    return RowState(row_max, row_sum)


def masked_exact_end(cfg, work, whole_begin, whole_end, begin, end):
    """End of the exact tiles among a warpgroup's masked key tiles, `begin` to `end`, which follow the whole ones.

    No tile is if whole tiles exist, which every row has seen; all are if none exists and rows begin in different tiles.
    """
    if cfg.mask.has_lower_bound:
        first = end
    else:
        first = minimum(begin + 1, end)
    return choose(work.again != 0, end, choose(whole_end > whole_begin, minimum(begin, end), first))


def masked_begin(begin, exact_end, stride, end):
    """Where the remaining masked tiles begin: after the exact one, if any."""
    return choose(exact_end >= end, end, choose(exact_end > begin, begin + stride, begin))


def of_visible(bias, bands):
    """The bias of a tile's exponentials; 0 for a row that sees no key of it, which may lack a reference: P is 0.

    A row that sees some of it has seen earlier keys. Its reference is -inf if a function of scores hid all of those:
    its exponentials are infinite, and it fails.
    """
    [(_, hi)] = bands
    return choose(hi > 0, bias, Float32(0.0))


@cute.jit
def renewed(state: RowState, scale_log2: Float32) -> tuple:
    """-> (the state with the reference for the next key tile, rescale factor of O)."""
    row_max, row_sum, factor = state.row_max, state.row_sum, Float32(1.0)
    if row_sum > RENEWED_FROM:
        exponent = (row_sum.bitcast(Int32) >> 23) - 127
        factor = ((127 - exponent) << 23).bitcast(Float32)
        row_max = row_max + exponent.to(Float32) / scale_log2
        if row_sum > FAILED_FROM:
            factor, row_sum = Float32(1.0), Float32.inf - Float32.inf
        row_sum = row_sum * factor
    return RowState(row_max, row_sum), factor


def checked(cfg, state: RowState) -> RowState:
    """The state after lagged tiles, before tiles with a maximum: a failed row stays failed.

    Under a larger maximum an infinite O would stay infinite, but a row sum above 2^64 would shrink again.
    """
    return RowState(state.row_max, kept(cfg, state.row_sum)) if cfg.schedule.lags else state


def kept(cfg, row_sum: Float32) -> Float32:
    """A row sum about to be rescaled; NaN, which stays, where it has failed."""
    if not cfg.schedule.lags:
        return row_sum
    return select_(row_sum > FAILED_FROM, Float32.inf - Float32.inf, row_sum)


def failed(cfg, args, work, i, row_sum: Float32):
    """Whether a thread's row of query tile i must be computed again, by its sum at the end of a work tile."""
    if not cfg.schedule.lags:
        return False
    return _failed(cfg, args, work, i, row_sum)


@cute.jit
def _failed(cfg: cutlass.Constexpr, args, work, i: Int32, row_sum: Float32) -> cutlass.Boolean:
    thread, _, _ = cute.arch.thread_idx()
    place = rows.row_of(cfg, work, i, thread % cfg.tiles.rows_per_q_tile)
    good = row_sum <= FAILED_FROM  # false for NaN
    return (work.again == 0) & results.is_row(cfg, args, work, place) & (not good)
