"""Rounding, narrow formats and NaN rules of PTX arithmetic, stated in NumPy over float64.

A result that float64 holds exactly, or rounded to odd (``odd_sum``, ``odd_div``, ``odd_sqrt``), is rounded
once, by ``quantize``, to the grid of its format in the direction of the opcode:

    format   mantissa bits   smallest normal   largest         beyond the largest, to nearest
    F32      23              2^-126            2^128 - 2^104   inf
    TF32     10              2^-126            as F32's grid   inf
    F16      10              2^-14             65504           inf
    BF16      7              2^-126            ~3.39e38        inf
    E5M2      2              2^-14             57344           57344 (only .satfinite exists)
    E4M3      3              2^-6              448             448   (only .satfinite exists)

lane_arithmetic.h has the same meanings in C, with different algorithms where they are faster.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

NAN32 = np.uint32(0x7FFFFFFF)  # every f32 instruction that computes returns this NaN
NAN64 = np.uint64(0xFFF8000000000000)


@dataclass(frozen=True)
class Format:
    """A binary floating-point format. nan is the code of its canonical NaN, width its size in bits."""

    mantissa_bits: int
    min_exponent: int
    largest: float
    nan: int
    width: int
    infinite: bool = True


F32 = Format(23, -126, float(2**128 - 2**104), 0x7FFFFFFF, 32)
TF32 = Format(10, -126, float(2**128 - 2**117), 0x7FFFFFFF >> 13, 19)
F16 = Format(10, -14, 65504.0, 0x7FFF, 16)
BF16 = Format(7, -126, float(2**128 - 2**120), 0x7FFF, 16)
E5M2 = Format(2, -14, 57344.0, 0x7F, 8, infinite=False)
E4M3 = Format(3, -6, 448.0, 0x7F, 8, infinite=False)

INTEGRAL: dict[str, Callable] = {
    "n": np.rint,
    "z": np.trunc,
    "m": np.floor,
    "p": np.ceil,
}  # .rn .rz .rm .rp, .rni ...
INTEGRAL["na"] = lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x)  # .rna: ties away from zero


def direction(rounding):
    """ ".rn" -> "n"; ".rzi" -> "z"; "" means .rn."""
    return rounding.removeprefix(".r").removesuffix("i") or "n"


# --- one rounding ---------------------------------------------------------------------------------


def quantize(x, fmt, rounding="", satfinite=False):
    """float64 x on the grid of fmt, as float64; rounding ".rn" ".rz" ".rm" ".rp" ".rna" or ""."""
    x = np.asarray(x, np.float64)
    way = direction(rounding)
    _, exponent = np.frexp(np.where(np.isfinite(x), x, 0.0))  # |x| in [2^(exponent-1), 2^exponent)
    quantum = np.maximum(exponent - 1, fmt.min_exponent) - fmt.mantissa_bits
    rounded = np.ldexp(INTEGRAL[way](np.ldexp(x, -quantum)), quantum)
    outward = {"n": True, "na": True, "z": False, "m": x < 0, "p": x > 0}[way]
    limit = np.where(outward & fmt.infinite & (not satfinite), np.inf, fmt.largest)
    rounded = np.where(np.abs(rounded) > fmt.largest, np.copysign(limit, x), rounded)
    unlimited = fmt.infinite and not satfinite
    return np.where(np.isinf(x), x if unlimited else np.copysign(fmt.largest, x), rounded)


def encode(x, fmt, rounding="", satfinite=False):
    """float64 x -> codes of fmt (uint32), rounded once; NaN becomes the canonical code."""
    y = quantize(x, fmt, rounding, satfinite)
    magnitude = np.where(np.isfinite(y), np.abs(y), 0.0)
    _, exponent = np.frexp(magnitude)
    exponent = np.where(
        magnitude == 0, fmt.min_exponent, np.maximum(exponent - 1, fmt.min_exponent)
    )
    units = np.ldexp(magnitude, fmt.mantissa_bits - exponent).astype(np.uint64)
    code = units + ((exponent - fmt.min_exponent).astype(np.uint64) << np.uint64(fmt.mantissa_bits))
    infinity = (1 << (fmt.width - 1)) - (1 << fmt.mantissa_bits)
    code = np.where(np.isinf(y), np.uint64(infinity), code)
    code = code | (np.signbit(y).astype(np.uint64) << np.uint64(fmt.width - 1))
    return np.where(np.isnan(y), np.uint64(fmt.nan), code).astype(np.uint32)


def nan_of_f64(a, fmt):
    """Codes of fmt (uint32) for float64 NaNs: the sign and the highest payload bits, made quiet (H200)."""
    u, m, width = a.view(np.uint64), fmt.mantissa_bits, fmt.width
    payload = u >> np.uint64(52 - m) & np.uint64((1 << m) - 1)
    magnitude = ((1 << (width - 1)) - (1 << m)) | 1 << (m - 1)
    sign = u >> np.uint64(63) << np.uint64(width - 1)
    return (sign | np.uint64(magnitude) | payload).astype(np.uint32)


def decode(code, fmt):
    """Codes of an 8- or 16-bit format -> float32 (exact)."""
    code = np.asarray(code).astype(np.int64)
    magnitude = code & ((1 << (fmt.width - 1)) - 1)
    fraction, biased = magnitude & ((1 << fmt.mantissa_bits) - 1), magnitude >> fmt.mantissa_bits
    units = np.where(biased == 0, fraction, fraction | 1 << fmt.mantissa_bits)
    value = np.ldexp(
        units.astype(np.float64), np.maximum(biased, 1) - 1 + fmt.min_exponent - fmt.mantissa_bits
    )
    if fmt is E4M3:
        value = np.where(magnitude == 0x7F, np.nan, value)
    else:
        top = (1 << (fmt.width - 1 - fmt.mantissa_bits)) - 1
        value = np.where(biased == top, np.where(fraction == 0, np.inf, np.nan), value)
    return np.where(code >> (fmt.width - 1), -value, value).astype(np.float32)


def flush_tiny(x, fmt, rounding="", ftz=".ftz"):
    """float64 x; with ".ftz", values that round below the smallest normal become zeros of the same sign.

    The comparison uses rounding without a lower limit of the exponent: measured on an H200, where the exact
    2^-126 (1 - 2^-24) becomes 0 and 2^-126 (1 - 2^-46) becomes 2^-126 under .rn.
    """
    if not ftz:
        return x
    unbounded = quantize(x, replace(fmt, min_exponent=-400), rounding)
    tiny = np.abs(unbounded) < 2.0**fmt.min_exponent
    return np.where(tiny, np.copysign(0.0, x), x)


def to_f32(x, rounding="", ftz=""):
    """float64 x (exact or rounded to odd) -> float32; .ftz as flush_tiny."""
    return quantize(flush_tiny(x, F32, rounding, ftz), F32, rounding).astype(np.float32)


def to_f32_odd(x):
    """float64 x -> float32 rounded to odd: exact enough for any later rounding to 22 bits or fewer."""
    toward_zero = quantize(x, F32, ".rz")
    single = toward_zero.astype(np.float32)
    return (single.view(np.uint32) | (toward_zero != x)).astype(np.uint32).view(np.float32)


# --- exact sums, quotients, roots: float64 rounded to odd -----------------------------------------


def _odd(nearest, lost):
    """nearest + lost rounded to odd: when inexact, the neighbour whose last bit is set."""
    u = nearest.view(np.uint64)
    outward = np.signbit(nearest) == np.signbit(lost)
    odd = np.where(outward, u + np.uint64(1), u - np.uint64(1))
    inexact = np.isfinite(nearest) & (lost != 0) & (nearest != 0)
    return np.where(inexact & (u & np.uint64(1) == 0), odd, u).view(np.float64)


def sum_error(x, y, s):
    """The exact error of s = fl(x + y) (Knuth's TwoSum)."""
    t = s - x
    return (x - (s - t)) + (y - t)


def odd_sum(x, y):
    """x + y of float64 arrays, rounded to odd."""
    x, y = np.float64(x), np.float64(y)
    s = x + y
    return _odd(s, sum_error(x, y, s))


def sum_f32(x, y, rounding="", ftz=""):
    """x + y of float64 arrays rounded once to float32; an exact zero of unlike signs is -0 under .rm."""
    x, y = np.float64(x), np.float64(y)
    result = to_f32(odd_sum(x, y), rounding, ftz)
    if direction(rounding) == "m":
        minus = np.signbit(x) | np.signbit(y)
        result = np.where(
            (x == -y) & np.isfinite(x), np.where(minus, np.float32(-0.0), np.float32(0.0)), result
        )
    return result


def odd_div(a, b):
    """a / b of float32 arrays, rounded to odd in float64."""
    a, b = np.float64(a), np.float64(b)
    q = a / b
    # 26-bit halves of q times a 24-bit b are exact: a - q b without a fused multiply-add
    high = (q.view(np.uint64) & np.uint64(0xFFFFFFFFF8000000)).view(np.float64)
    remainder = (a - high * b) - (q - high) * b
    return _odd(q, np.where(b < 0, -remainder, remainder))


def odd_sqrt(a):
    """Square root of a float32 array, rounded to odd in float64."""
    a = np.float64(a)
    q = np.sqrt(a)
    high = (q.view(np.uint64) & np.uint64(0xFFFFFFFFF8000000)).view(np.float64)
    low = q - high
    remainder = ((a - high * high) - 2 * high * low) - low * low
    return _odd(q, remainder)


def in_direction(nearest, lower, upper, rounding):
    """float64 rounded by .rz .rm .rp, given the nearest and whether the exact values are lower or higher than it."""
    way = direction(rounding)
    down = lower & ((way == "m") | ((way == "z") & (nearest > 0)))
    up = upper & ((way == "p") | ((way == "z") & (nearest < 0)))
    below, above = np.nextafter(nearest, -np.inf), np.nextafter(nearest, np.inf)
    return np.where(down, below, np.where(up, above, nearest))


def sum_f64(x, y, rounding=""):
    """x + y of float64 arrays rounded to float64 in a direction."""
    s = x + y
    lost = sum_error(x, y, s)
    way = direction(rounding)
    if way == "n":
        return s
    overflow = np.isinf(s) & np.isfinite(x) & np.isfinite(y)
    lower = np.where(overflow, s > 0, np.isfinite(s) & (lost < 0))  # the exact sum is below s
    upper = np.where(overflow, s < 0, np.isfinite(s) & (lost > 0))
    result = in_direction(s, lower, upper, rounding)
    if way == "m":
        minus = np.signbit(x) | np.signbit(y)
        result = np.where((x == -y) & np.isfinite(x), np.where(minus, -0.0, 0.0), result)
    return result


# --- operand and result modifiers -----------------------------------------------------------------


def flush(x, ftz=".ftz"):
    """float32 x with subnormals replaced by zeros of the same sign, when ftz is ".ftz"."""
    if not ftz:
        return x
    u = x.view(np.uint32)
    subnormal = u & np.uint32(0x7F800000) == 0
    return np.where(subnormal, u & np.uint32(0x80000000), u).astype(np.uint32).view(np.float32)


def canonical(x):
    """float32 or float64 x with every NaN replaced by the NaN that PTX arithmetic returns."""
    nan = NAN32.view(np.float32) if x.dtype == np.float32 else NAN64.view(np.float64)
    return np.where(np.isnan(x), nan, x)


def saturate(x, sat=".sat"):
    """x clamped to [0, 1], NaN and -0 to +0, when sat is ".sat"."""
    return np.where(x > 0, np.minimum(x, x.dtype.type(1)), x.dtype.type(0)) if sat else x


def relu(x, modifier=".relu"):
    """x with negative values and -0 replaced by +0, when modifier is ".relu"; NaN stays."""
    return np.where((x > 0) | np.isnan(x), x, x.dtype.type(0)) if modifier else x


def finish(x, ftz="", sat=""):
    """float32 result as written to a register: canonical NaN, .sat, .ftz."""
    return flush(canonical(saturate(x, sat)), ftz)


# --- minimum, maximum -----------------------------------------------------------------------------


def minimum(a, b, nan=""):
    """PTX min: -0 < +0; one NaN loses, or with nan == ".NaN" wins; two NaN give the canonical one."""
    smaller = np.where((a < b) | ((a == b) & np.signbit(a)), a, b)
    quiet = np.where(np.isnan(a), b, np.where(np.isnan(b), a, smaller))
    return canonical(
        np.where(np.isnan(a) | np.isnan(b), a.dtype.type(np.nan), smaller) if nan else quiet
    )


def maximum(a, b, nan=""):
    """PTX max: the mirror image of minimum."""
    larger = np.where((a > b) | ((a == b) & ~np.signbit(a)), a, b)
    quiet = np.where(np.isnan(a), b, np.where(np.isnan(b), a, larger))
    return canonical(
        np.where(np.isnan(a) | np.isnan(b), a.dtype.type(np.nan), larger) if nan else quiet
    )


# --- integers ---------------------------------------------------------------------------------------


def to_integer(x, dtype, rounding, nan=0):
    """float64 x rounded to an integer by ".rni" ".rzi" ".rmi" ".rpi", clamped to dtype; NaN gives nan."""
    info = np.iinfo(dtype)
    r = INTEGRAL[direction(rounding)](x)
    inside = (r > float(info.min)) & (r < float(info.max))  # float(2^64 - 1) is 2^64: still a clamp
    value = np.where(inside, r, 0).astype(dtype)
    value = np.where(
        r >= float(info.max), dtype(info.max), np.where(inside, value, dtype(info.min))
    )
    return np.where(np.isnan(x), dtype(nan), value).astype(dtype)


def split(x):
    """64-bit integers -> (upper, lower) float64 arrays, both exact, whose sum is the integer."""
    upper = (x >> x.dtype.type(32)).astype(np.float64) * 2.0**32
    lower = (x & x.dtype.type(0xFFFFFFFF)).astype(np.float64)
    return upper, lower
