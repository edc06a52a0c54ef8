"""Arithmetic of the online softmax on one row of scores in registers; it uses no barrier.

A row is processed tile by tile. With m the running maximum, kept in raw score units, and c = scale log2(e):

    P = 2^(c s - c m),  row_sum = row_sum 2^(c m_old - c m_new) + sum(P),  O = O 2^(c m_old - c m_new) + P V

The maximum may lag: while it would move by less than `rescale_log2` in log2 units, the old one is kept, the factor
is exactly 1 and O needs no rescale. P then reaches at most 2^rescale_log2; the final division cancels the factor.
A row that has seen no key yet has m = -inf and uses 0 in its place, so that -inf - (-inf) never happens.

c m has 24 bits, and its rounding error is a factor of P. So |c m| has a limit for each dtype of P
(blueprint/problem.py); beyond it the result of a row shows it:

    c m > limit     P may have overflowed: the row sum becomes NaN after the last key, and so do out and LSE
    c m < -limit    P = 2^(c s + limit), at most 1 and mostly 0. A later key within the limit finds O and row sum
                    finite; without one the row sum becomes 0 after the last key, as for a row without keys

Where P has eight bits, it is lifted: P = 2^(c s - c m + lift), so that the largest P is near the largest e4m3 number,
and small ones lose less below the smallest. O and the row sum carry the same factor, which the quotient cancels.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, select_
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T

from ...dtypes import DTYPES, is_quantized
from ..instructions import exp2

LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class RowState:
    """State of a softmax thread from tile to tile: its row's maximum (raw scores) and sum of P."""

    row_max: Float32
    row_sum: Float32

    @staticmethod
    def empty() -> "RowState":
        return RowState(-Float32.inf, Float32(0.0))


def row_maximum(scores: list, start):
    """max(start, scores), NaN if one of them is: four chains of 3-input maxima, or one chain for few scores."""
    if len(scores) < 8:
        largest = start
        for i in range(0, len(scores) - 1, 2):
            largest = _max3(largest, scores[i], scores[i + 1])
        return largest if len(scores) % 2 == 0 else cute.arch.fmax(largest, scores[-1], nan=True)
    chains = [_max3(start, scores[0], scores[1])]
    chains += [cute.arch.fmax(scores[2 * i], scores[2 * i + 1], nan=True) for i in range(1, 4)]
    for i in range(8, len(scores), 2):
        chains[i // 2 % 4] = _max3(chains[i // 2 % 4], scores[i], scores[i + 1])
    return cute.arch.fmax(_max3(chains[0], chains[1], chains[2]), chains[3], nan=True)


def _max3(a, b, c):
    """The largest of three, NaN if one of them is."""
    return Float32(
        llvm.inline_asm(
            T.f32(),
            [Float32(v).ir_value() for v in (a, b, c)],
            "max.NaN.f32 $0, $1, $2, $3;",
            "=f,f,f,f",
            has_side_effects=False,
            is_align_stack=False,
            asm_dialect=llvm.AsmDialect.AD_ATT,
        )
    )


@cute.jit
def update_maximum(row_max, tile_max, scale_log2, rescale_log2: cutlass.Constexpr):
    """-> (maximum to keep, the same with 0 for -inf, factor for row_sum and O)."""
    safe = tile_max if tile_max != -Float32.inf else Float32(0.0)
    moved_log2 = (row_max - safe) * scale_log2
    factor = exp2.hardware(moved_log2)
    new_max = tile_max
    if moved_log2 >= -rescale_log2:
        new_max = row_max
        safe = row_max
        factor = Float32(1.0)
    return new_max, safe, factor


def exponent_bias(cfg, safe_max, scale_log2):
    """The bias added to scaled scores: P = 2^(c s + bias), lifted."""
    bias = cute.arch.fmin(-safe_max * scale_log2, Float32(cfg.score_limit_log2), nan=True)
    return bias + cfg.p_lift_log2 if cfg.p_lift_log2 else bias


def closed(cfg, row_max, row_sum, scale_log2):
    """The row sum after a row's last key: NaN under a maximum above the limit, 0 under one below."""
    reach, limit = row_max * scale_log2, Float32(cfg.score_limit_log2)
    row_sum = select_(reach < -limit, row_sum * 0.0, row_sum)
    return select_(reach > limit, Float32.inf - Float32.inf, row_sum)


@cute.jit
def merged(a: RowState, b: RowState, scale_log2: Float32):
    """The state of a row whose keys are split between two states: -> (state, weight of a, weight of b).

    A state that has seen no key has weight 0. If neither has seen a key, the result is empty and both weights are 0.
    """
    row_max = cute.arch.fmax(a.row_max, b.row_max)
    safe = row_max if row_max != -Float32.inf else Float32(0.0)
    of_a = exp2.hardware((a.row_max - safe) * scale_log2)
    of_b = exp2.hardware((b.row_max - safe) * scale_log2)
    return RowState(row_max, of_a * a.row_sum + of_b * b.row_sum), of_a, of_b


def log2_of_sum(row_sum: Float32, lift_log2: float):
    """log2 of a row sum whose exponentials were lifted by 2^lift_log2."""
    total = cute.math.log2(row_sum, fastmath=True)
    return total - lift_log2 if lift_log2 else total


@cute.jit
def inverse(row_sum: Float32) -> Float32:
    """1 / row sum; 0 for a row that has seen no key."""
    out = Float32(0.0)
    if row_sum != 0.0:  # also true for NaN, which belongs in the output
        out = cute.arch.rcp_approx(row_sum)
    return out


def scaled_exponents(scores: list, scale_log2, bias) -> list:
    """scale_log2 * s + bias for every score, two at a time."""
    scale, bias = (scale_log2, scale_log2), (bias, bias)
    out = []
    for i in range(0, len(scores), 2):
        out += cute.arch.fma_packed_f32x2((scores[i], scores[i + 1]), scale, bias)
    return out


def multiplied(values: list, factor) -> list:
    """factor * v for every value, two at a time."""
    out = []
    for i in range(0, len(values), 2):
        out += cute.arch.mul_packed_f32x2((values[i], values[i + 1]), (factor, factor))
    return out


def products(a: list, b: list) -> list:
    """a * b for every pair of values, two at a time."""
    out = []
    for i in range(0, len(a), 2):
        out += cute.arch.mul_packed_f32x2((a[i], a[i + 1]), (b[i], b[i + 1]))
    return out


def differences(a: list, b: list) -> list:
    """a - b for every pair of values, two at a time."""
    out = []
    for i in range(0, len(a), 2):
        out += cute.arch.sub_packed_f32x2((a[i], a[i + 1]), (b[i], b[i + 1]))
    return out


def weighted_sum(a: list, b: list, of_a, of_b) -> list:
    """of_a * a + of_b * b for every pair of values, two at a time."""
    first, out = multiplied(a, of_a), []
    for i in range(0, len(b), 2):
        out += cute.arch.fma_packed_f32x2((b[i], b[i + 1]), (of_b, of_b), (first[i], first[i + 1]))
    return out


def exponentials(exponents: list, emulated: frozenset) -> list:
    """2^x for every x; the pairs whose number is in `emulated` on the FMA units."""
    out = []
    for pair in range(len(exponents) // 2):
        x, y = exponents[2 * pair], exponents[2 * pair + 1]
        out += (
            exp2.emulated_pair(x, y) if pair in emulated else (exp2.hardware(x), exp2.hardware(y))
        )
    return out


def powers(scores: list, scale_log2, bias, emulated: frozenset) -> list:
    """2^(scale_log2 s + bias) for every score: exponents of at most 127."""
    return exponentials(scaled_exponents(scores, scale_log2, bias), emulated)


def saturated_powers(scores: list, scale_log2, bias, emulated: frozenset) -> list:
    """The same for exponents of any size: infinity beyond the range of float32."""
    out = []
    for pair in range(len(scores) // 2):
        two = scores[2 * pair : 2 * pair + 2]
        if pair in emulated:
            out += exp2.saturated_pair(two, scale_log2, bias)
        else:
            out += map(exp2.hardware, scaled_exponents(two, scale_log2, bias))
    return out


def add_values(sums: list, values: list) -> list:
    """Add a multiple of eight values to four packed f32 accumulators; [] starts new ones."""
    sums = list(sums)
    for i in range(0, len(values), 2):
        pair = (values[i], values[i + 1])
        if len(sums) < 4:
            sums.append(pair)
        else:
            sums[i // 2 % 4] = cute.arch.add_packed_f32x2(sums[i // 2 % 4], pair)
    return sums


def row_total(sums: list):
    """The row sum: the sum of its four accumulators."""
    total = cute.arch.add_packed_f32x2(
        cute.arch.add_packed_f32x2(sums[0], sums[1]), cute.arch.add_packed_f32x2(sums[2], sums[3])
    )
    return total[0] + total[1]


def pack(values: list, dtype: str) -> list:
    """Round to a dtype, the first value in the low bits of the first word; "f32": one word per value, unrounded.

    A word holds two 16-bit values, four 8-bit values, or eight 4-bit values. For eight and four bits, overflow
    saturates at the largest number.
    """
    if dtype == "f32":
        return [value.bitcast(cutlass.Int32) for value in values]
    if DTYPES[dtype].in_byte > 1:
        return [_pack_eight(values[i : i + 8], dtype) for i in range(0, len(values), 8)]
    if is_quantized(dtype):
        return [_pack_four(values[i : i + 4], dtype) for i in range(0, len(values), 4)]
    instruction = f"cvt.rn.{DTYPES[dtype].ptx_name}x2.f32"
    return [_pack(values[i], values[i + 1], instruction) for i in range(0, len(values), 2)]


def _pack_four(values: list, dtype: str):
    return _pack_pairs(values, dtype, ".b16 low, high", ("low", "high"))


def _pack_eight(values: list, dtype: str):
    return _pack_pairs(values, dtype, ".b8 byte<4>", ("byte0", "byte1", "byte2", "byte3"))


def _pack_pairs(values: list, dtype: str, registers: str, names: tuple):
    """A word of numbers that are converted two at a time, into registers of these names."""
    convert = f"cvt.rn.satfinite.{DTYPES[dtype].ptx_name}x2.f32"
    pairs = "".join(f"{convert} {x}, ${2 * i + 2}, ${2 * i + 1};\n" for i, x in enumerate(names))
    return cutlass.Int32(
        llvm.inline_asm(
            T.i32(),
            [Float32(value).ir_value() for value in values],
            f"{{\n.reg {registers};\n{pairs}mov.b32 $0, {{{', '.join(names)}}};\n}}",
            ",".join(["=r"] + ["f"] * len(values)),
            has_side_effects=False,
            is_align_stack=False,
            asm_dialect=llvm.AsmDialect.AD_ATT,
        )
    )


def _pack(low, high, instruction: str):
    return cutlass.Int32(
        llvm.inline_asm(
            T.i32(),
            [Float32(high).ir_value(), Float32(low).ir_value()],
            f"{instruction} $0, $1, $2;",
            "=r,f,f",
            has_side_effects=False,
            is_align_stack=False,
            asm_dialect=llvm.AsmDialect.AD_ATT,
        )
    )
