"""A row's reference from the key tiles before: the maximum of a tile leaves the way from S to P.

    exact     maximum of the tile -> reference -> P = 2^(c s - reference)      nothing of P before the last score
    lagged    P = 2^(c s - reference) -> row sum -> reference of the next tile

P in bf16 and sums in float32 have the range of float32. A reference that lies 2^64 off costs no precision: P is larger
by a factor, the row sum by the same, and the last division takes it out. So the reference needs no maximum at all. The
row sum, which is there anyway, is at least the largest P and at most that times the number of keys:

    first tile of a row     its maximum; where the tile is whole, that of its first quarter
    further ones            the reference stays, while the row sum stays below 2^32
    row sum above 2^32      it moves up by the exponent of the row sum: that, too, needs no multiplication of P
    row sum above 2^64      a score lies so far above all tiles before it that O may have overflowed: the work tile
                            is run again with the exact maximum (work/judged.py)

A first tile that every row sees whole refers to its first quarter, 32 of 128 scores: P begins when they are there.
What lies above them in the same tile is what a tile has above those before it: P is larger by a factor, the row sum by
the same, and the row sum says when it is too large. So a work tile runs twice where a key behind the first 32 lies more
than 44 nats above these; a first key that takes all the weight is one of them. A sink is a score of the reference, too.
32 scores of -inf give the reference -inf, infinite powers and so a second run; NaN among them or behind them makes NaN
of the row sum, and the second run returns it. The maximum of all scores is kept (FA4Config.refers_to_quarter)

    functions of scores         they may hide the first 32 keys of every row
    masks with a lower bound    their first tile is masked
    sums in P V                 there is none before the first product
    pairs of CTAs, no mask      long rows would take longer (two_tiles/pair/schedule.py)

With P over S masked tiles lag, too, behind a tile that every row with keys has seen some of: the first one under a
causal mask, a whole one under a mask with a lower bound. A row that sees nothing of a tile needs no reference there:
its P is 0.

A row sum that has failed becomes NaN and stays NaN, so that one look at the end says it. Rows without a visible key in
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
    """Of the whole key tiles of a warpgroup from `begin` on, the first is exact; all where nothing lags."""
    if not cfg.schedule.lags:
        return end
    exact = 0 if cfg.refers_to_quarter else 1
    return choose(work.again != 0, end, minimum(begin + exact, end))


def begins_here(work, first, end):
    """Whether whole key tiles begin with one that takes its reference from a quarter of it."""
    return (first < end) & (work.again == 0)


def begin(work, first, stride, end):
    """Where the others begin."""
    return choose(work.again != 0, end, first + stride)


def begun(cfg, state: RowState, scores: list, scale_log2) -> RowState:
    """The state with a reference from some scores of a row's first key tile, and from the sink."""
    row_max, row_sum = row_maximum(scores, state.row_max), state.row_sum
    if cfg.sink:
        row_sum = row_sum * exp2.hardware((state.row_max - row_max) * scale_log2)
    return RowState(row_max, row_sum)


def masked_exact_end(cfg, work, whole_begin, whole_end, begin, end):
    """Of the masked key tiles of a warpgroup behind the whole ones, `begin` to `end`, the first few are exact.

    None behind a whole tile, which every row has seen. All where none is whole and rows begin in different tiles.
    """
    if cfg.mask.has_lower_bound:
        first = end
    else:
        first = minimum(begin + 1, end)
    return choose(work.again != 0, end, choose(whole_end > whole_begin, minimum(begin, end), first))


def masked_begin(begin, exact_end, stride, end):
    """Where the others begin: behind the one that is exact, if any."""
    return choose(exact_end >= end, end, choose(exact_end > begin, begin + stride, begin))


def of_visible(bias, bands):
    """The bias of a tile's powers; 0 for a row that sees nothing of it, which may have no reference: P is 0.

    A row that sees some of it has seen others before. Its reference is -inf where a function of scores hid them all:
    its powers are infinite, and it fails.
    """
    [(_, hi)] = bands
    return choose(hi > 0, bias, Float32(0.0))


@cute.jit
def renewed(state: RowState, scale_log2: Float32) -> tuple:
    """-> (the state with the reference for the next key tile, factor for O)."""
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
    """The state behind tiles that lag, before tiles with a maximum: what has failed stays so.

    Under a larger maximum an infinite O would stay infinite, and a row sum above 2^64 come down again.
    """
    return RowState(state.row_max, kept(cfg, state.row_sum)) if cfg.schedule.lags else state


def kept(cfg, row_sum: Float32) -> Float32:
    """A row sum that is about to be rescaled; NaN, which stays, where it has failed."""
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
