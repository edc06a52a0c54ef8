"""The weight lost by 8-bit P, estimated from a few columns, where the row sum is the sum of codes.

Where P V computes the row sum (two_tiles/p_crossed.py), weights whose code is 0 are missing from the sum as well. One
key with most of a row's weight can hide many such: each is less than 2^-18 of it, but rows are long. The order avoids
the sum of all weights. A few columns of each key tile give an estimate of the loss, with instructions on f16x2:

    i      bits of x, log2 of P, read as an f16 number (half_powers.py): P / RATIO to 6 percent, 0 below P = 2^-14 and
           for masked scores
    s      2 - 4 P / 2^-9, clamped to [0, 1]
    lost   = lost * factor + s i       for SAMPLES pairs per key tile, from tile to tile: f16, too
    sum    += lost * RATIO * columns of a tile / sampled columns        once, at the end of a row

               s |      code 0          |   code 2^-9
               1 |----------.           |
                 |            `.        |
               0 |______________`.______|_______________________
                 0       2^-11   2^-10     3 2^-11      2^-9    P

s falls before the code is 2^-9, because codes below 2^-6 overestimate P: with equally many columns in each
octave their sum is too large by 0.14 * 2^-9 for each e-fold, which leaves 0.36 * 2^-9 of the lost 0.5 * 2^-9. The ramp
has 0.38.

For any data the estimate is between 0 and MOST for each column, which is half of the largest possible loss. If the
sampled columns are like the others, its mean is right (docs/numerics.md). f16 holds lost to 2^-11; after
2^18 keys with the largest loss each, it stops growing.
"""

from dataclasses import dataclass

from cutlass import Float32, Int32
from cutlass.cutlass_dsl import T

from . import row_math
from .half_powers import OFFSET, UNIT, _asm, _both_halves
from .row_math import RowState

SAMPLES = 2  # pairs of columns of a key tile
SMALLEST = 2.0**-9  # number of e4m3
RATIO = 1.84  # P / i in the mean
MOST = SMALLEST / 4  # of RATIO s i, where s begins to go down

RESCALE_LOST = """{
.reg .b32 f;
cvt.rn.f16x2.f32 f, $2, $2;
mul.rn.f16x2 $0, $1, f;
}"""
ADD_LOST = f"""{{
.reg .b32 n, i, s, down, from;
cvt.rn.relu.f16x2.f32 n, $2, $1;
shl.b32 i, n, 4;
mov.b32 down, {_both_halves(-4 * RATIO / SMALLEST)};
mov.b32 from, {_both_halves(2.0)};
fma.rn.sat.f16x2 s, i, down, from;
fma.rn.f16x2 $0, s, i, $3;
}}"""
BOTH_LOST = """{
.reg .b16 low, high;
.reg .f32 x, y;
mov.b32 {low, high}, $1;
cvt.f32.f16 x, low;
cvt.f32.f16 y, high;
add.f32 $0, x, y;
}"""


@dataclass(frozen=True)
class SumOfCodes(RowState):
    """For a row whose P is summed by P V. row_sum: of the sink alone; lost: two f16 in a word."""

    lost: Int32


def begun(order, cfg, tmem, state: RowState) -> RowState:
    """The initial state of a row."""
    if order.sum_address(cfg, tmem, 0) is None:
        return state
    return SumOfCodes(state.row_max, state.row_sum, Int32(0))


def before(state: RowState, factor):
    """The loss of earlier key tiles, in the units of this tile; None where softmax sums P."""
    if not isinstance(state, SumOfCodes):
        return None
    return Int32(_asm(T.i32(), [state.lost, factor], RESCALE_LOST, "=r,r,f"))


def after(cfg, state: RowState, row_max, factor, total) -> RowState:
    """The state after a key tile. total: of write_probabilities, the sum of P or the loss of the codes so far."""
    if not isinstance(state, SumOfCodes):
        return RowState(row_max, state.row_sum * factor + total)
    return SumOfCodes(row_max, state.row_sum * factor if cfg.sink else state.row_sum, total)


def ended(cfg, state: RowState) -> RowState:
    """The state after the last key tile: the amount to add to the sum of codes."""
    if not isinstance(state, SumOfCodes):
        return state
    both = Float32(_asm(T.f32(), [state.lost], BOTH_LOST, "=f,r"))
    scale = RATIO * cfg.tiles.BN / (2 * SAMPLES)
    return RowState(state.row_max, state.row_sum + both * scale)


def sampled_columns(columns: int, unit: int, emulated: frozenset) -> tuple[int, ...]:
    """The first columns of the sampled pairs, from units that are computed in f16 anyway, if there are any.

    >>> sampled_columns(128, 4, frozenset(range(8, 32)))
    (56, 104)
    """
    units = sorted(emulated) or range(columns // unit)
    return tuple(unit * units[(2 * n + 1) * len(units) // (2 * SAMPLES)] for n in range(SAMPLES))


def add(lost, scores: list, scale_log2, bias):
    """lost, plus the loss of two more columns."""
    x, y = row_math.scaled_exponents(scores, scale_log2 * UNIT, (bias + OFFSET) * UNIT)
    return Int32(_asm(T.i32(), [Float32(x), Float32(y), lost], ADD_LOST, "=r,f,f,r"))
