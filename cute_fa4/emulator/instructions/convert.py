"""Conversions between number formats (PTX ISA, cvt).

to an integer      rounded by .rni .rzi .rmi .rpi, clamped to the type; NaN becomes 0, or the value with only
                   the top bit set when the source is f64 or the result has 64 bits
to a float         rounded once by .rn .rz .rm .rp; NaN becomes the format's canonical NaN, except that from f64
                   it keeps its sign and highest payload bits, and that tf32 has separate rules (H200)
to a packed pair   cvt.rn.bf16x2.f32 d, a, b: a goes to the UPPER half of d, b to the lower
.sat               [0, 1] for floats (NaN: +0), the type's range for integers
.relu              negative values and -0 become +0, NaN stays
.satfinite         beyond the largest finite value: that value
.ftz               f32 subnormals count as zeros, read or written
"""

import itertools

import numpy as np

from cute_fa4.emulator.instructions.instruction_table import lanes
from cute_fa4.emulator.machine.rounding import (
    BF16,
    E4M3,
    E5M2,
    F16,
    F32,
    INTEGRAL,
    TF32,
    canonical,
    decode,
    direction,
    encode,
    finish,
    flush,
    nan_of_f64,
    odd_sum,
    saturate,
    split,
    sum_f64,
    to_f32,
    to_integer,
)
from cute_fa4.emulator.machine.rounding import relu as clamp_negative

ROUNDING = [".rn", ".rz", ".rm", ".rp"]
INTEGRAL_ROUNDING = [".rni", ".rzi", ".rmi", ".rpi"]
FTZ = ["", ".ftz"]
SAT = ["", ".sat"]
RELU = ["", ".relu"]
SATFINITE = ["", ".satfinite"]
FORMATS = {"f16": F16, "bf16": BF16, "e4m3": E4M3, "e5m2": E5M2}
DTYPES = {
    f"{kind}{bits}": np.dtype(f"{'i' if kind == 's' else 'u'}{bits // 8}")
    for kind in "us"
    for bits in (8, 16, 32, 64)
}
NARROW = "u8 s8 u16 s16 u32 s32"
WIDE = "u64 s64"

# --- integer to integer -----------------------------------------------------------------------------


@lanes("cvt.{d}.{s}", d=DTYPES, s=DTYPES, types="{d} <- {s}", c="d = ({d})a")
def integer(a, *, d):
    """Sign- or zero-extension, or the low bits."""
    return a.astype(DTYPES[d])


def integer_sat(a, *, d):
    """The nearest value of the result's type."""
    info = np.iinfo(DTYPES[d])
    return np.array([min(max(x, info.min), info.max) for x in a.tolist()], DTYPES[d])


for _d, _s in itertools.product(DTYPES, DTYPES):
    if not np.can_cast(
        DTYPES[_s], DTYPES[_d]
    ):  # PTX has .sat only where values can be out of range
        lanes(
            f"cvt.sat.{_d}.{_s}",
            d=[_d],
            types=f"{_d} <- {_s}",
            c="d = a > 0 && (u64)a > (u64)MAX_{d} ? MAX_{d} : a < 0 && (s64)a < (s64)MIN_{d} ? MIN_{d} : ({d})a",
        )(integer_sat)


# --- float to integer -------------------------------------------------------------------------------


def top_bit(dtype):
    """The integer with only the top bit set: what NaN becomes when f64 or 64 bits are involved."""
    info = np.iinfo(dtype)
    return info.min if info.min < 0 else info.max // 2 + 1


@lanes(
    "cvt{r}{ftz}{sat}.{d}.f32",
    r=INTEGRAL_ROUNDING,
    ftz=FTZ,
    sat=SAT,
    d=DTYPES,
    types="{d} <- f32",
    c="d = {d}_of(round{r}((f64)in{ftz}(a)), NAN_{d})",
)
def integer_of_f32(a, *, r, ftz, d):
    """f32 -> integer."""
    dtype = DTYPES[d].type
    return to_integer(np.float64(flush(a, ftz)), dtype, r, top_bit(dtype) if d in WIDE else 0)


@lanes(
    "cvt{r}{sat}.{d}.f16",
    r=INTEGRAL_ROUNDING,
    sat=SAT,
    d=DTYPES,
    types="{d} <- f16",
    c="d = {d}_of(round{r}((f64)a), NAN_{d})",
)
@lanes(
    "cvt{r}.{d}.bf16",
    r=INTEGRAL_ROUNDING,
    d="u16 s16 u32 s32 u64 s64",
    types="{d} <- bf16",
    c="d = {d}_of(round{r}((f64)a), NAN_{d})",
)
def integer_of_half(a, *, r, d):
    """f16 or bf16 -> integer."""
    return integer_of_f32(a, r=r, ftz="", d=d)


@lanes(
    "cvt{r}{sat}.{d}.f64",
    r=INTEGRAL_ROUNDING,
    sat=SAT,
    d=DTYPES,
    types="{d} <- f64",
    c="d = {d}_of(round{r}(a), TOP_{d})",
)
def integer_of_f64(a, *, r, d):
    """f64 -> integer."""
    dtype = DTYPES[d].type
    return to_integer(a, dtype, r, top_bit(dtype))


# --- integer to float -------------------------------------------------------------------------------


@lanes("cvt{r}.f32.{s}", r=ROUNDING, s=NARROW, types="f32 <- {s}", c="d = f32{r}((f64)a)")
def f32_of_integer(a, *, r):
    """Integer of at most 32 bits -> f32."""
    return to_f32(a.astype(np.float64), r)


@lanes(
    "cvt{r}.f32.{s}",
    r=ROUNDING,
    s=WIDE,
    types="f32 <- {s}",
    c="d = sum{r}(upper_{s}(a), lower_{s}(a))",
)
def f32_of_wide_integer(a, *, r):
    """64-bit integer -> f32."""
    return to_f32(odd_sum(*split(a)), r)


@lanes("cvt{r}.f64.{s}", r=ROUNDING, s=NARROW, types="f64 <- {s}", c="d = (f64)a")
def f64_of_integer(a):
    """Integer of at most 32 bits -> f64: exact."""
    return a.astype(np.float64)


@lanes(
    "cvt{r}.f64.{s}",
    r=ROUNDING,
    s=WIDE,
    types="f64 <- {s}",
    c="d = sum64{r}(upper_{s}(a), lower_{s}(a))",
)
def f64_of_wide_integer(a, *, r):
    """64-bit integer -> f64."""
    return sum_f64(*split(a), r)


@lanes(
    "cvt{r}.{d}.{s}",
    r=ROUNDING,
    d="f16",
    s=NARROW,
    types="{d} <- {s}",
    c="d = f16{r}(f32_odd((f64)a))",
)
@lanes(
    "cvt{r}.{d}.{s}",
    r=ROUNDING,
    d=["bf16"],
    s="u16 s16 u32 s32",
    types="{d} <- {s}",
    c="d = bf16{r}(f32_odd((f64)a))",
)
def half_of_integer(a, *, r, d):
    """Integer of at most 32 bits -> f16 or bf16."""
    return encode(a.astype(np.float64), FORMATS[d], r)


@lanes(
    "cvt{r}.{d}.{s}",
    r=ROUNDING,
    d="f16 bf16",
    s=WIDE,
    types="{d} <- {s}",
    c="d = {d}{r}(f32_odd(odd_sum(upper_{s}(a), lower_{s}(a))))",
)
def half_of_wide_integer(a, *, r, d):
    """64-bit integer -> f16 or bf16."""
    return encode(odd_sum(*split(a)), FORMATS[d], r)


# --- float to wider float, and to an integral value of the same format --------------------------------


@lanes("cvt{ftz}{sat}.f32.f16", ftz=FTZ, sat=SAT, types="f32 <- f16", c="d = out{sat}(a)")
def f32_of_f16(a, *, sat):
    """f16 -> f32: exact; every f16 is a normal f32, so .ftz has nothing to flush."""
    return finish(a, "", sat)


@lanes("cvt.f32.bf16", types="f32 <- bf16", c="d = a")
def f32_of_bf16(a):
    """bf16 -> f32: the bits become the upper half, NaN payloads included."""
    return a


@lanes(
    "cvt{ftz}{sat}.f64.f32",
    ftz=FTZ,
    sat=SAT,
    types="f64 <- f32",
    c="d = out64{sat}((f64)in{ftz}(a))",
)
def f64_of_f32(a, *, ftz, sat):
    """f32 -> f64: exact."""
    return canonical(saturate(np.float64(flush(a, ftz)), sat))


@lanes("cvt{sat}.f64.f16", sat=SAT, types="f64 <- f16", c="d = out64{sat}((f64)a)")
def f64_of_f16(a, *, sat):
    """f16 -> f64: exact."""
    return canonical(saturate(np.float64(a), sat))


@lanes("cvt.f64.bf16", types="f64 <- bf16", c="d = out64((f64)a)")
def f64_of_bf16(a):
    """bf16 -> f64: exact."""
    return canonical(np.float64(a))


@lanes("cvt.f32.f32", types="b32 <- b32", c="d = a")
def same_f32(a):
    """f32 -> f32 without modifiers: the bits, NaN payloads included (H200)."""
    return a


@lanes(
    "cvt{ftz}{sat}.f32.f32",
    ftz=[".ftz"],
    sat=SAT,
    types="f32 <- f32",
    c="d = out{ftz}{sat}(in{ftz}(a))",
)
@lanes(
    "cvt{ftz}{sat}.f32.f32", ftz=[""], sat=[".sat"], types="f32 <- f32", c="d = out{ftz}{sat}(a)"
)
def f32_of_f32(a, *, ftz, sat):
    """The same value, flushed or clamped."""
    return finish(flush(a, ftz), ftz, sat)


@lanes(
    "cvt{r}{ftz}{sat}.f32.f32",
    r=INTEGRAL_ROUNDING,
    ftz=FTZ,
    sat=SAT,
    types="f32 <- f32",
    c="d = out{ftz}{sat}((f32)round{r}((f64)in{ftz}(a)))",
)
def integral_f32(a, *, r, ftz, sat):
    """f32 rounded to an integral f32; a zero keeps its sign."""
    return finish(INTEGRAL[direction(r)](flush(a, ftz)), ftz, sat)


@lanes(
    "cvt{r}{sat}.f64.f64",
    r=INTEGRAL_ROUNDING,
    sat=SAT,
    types="f64 <- f64",
    c="d = out64{sat}(round{r}(a))",
)
def integral_f64(a, *, r, sat):
    """f64 rounded to an integral f64; a zero keeps its sign."""
    return canonical(saturate(INTEGRAL[direction(r)](a), sat))


@lanes(
    "cvt{r}.f16.f16", r=INTEGRAL_ROUNDING, types="f16 <- f16", c="d = f16_rn((f32)round{r}((f64)a))"
)
def integral_f16(a, *, r):
    """f16 rounded to an integral f16; a zero keeps its sign."""
    return encode(INTEGRAL[direction(r)](a), F16)


# --- float to narrower float --------------------------------------------------------------------------


@lanes(
    "cvt{r}{ftz}{sat}.f32.f64",
    r=ROUNDING,
    ftz=FTZ,
    sat=[""],
    types="f32 <- f64",
    c="d = a != a ? f32_bits(nan_of_f64(a, 23, 32)) : out{ftz}(f32{r}{ftz}(a))",
)
@lanes(
    "cvt{r}{ftz}{sat}.f32.f64",
    r=ROUNDING,
    ftz=FTZ,
    sat=[".sat"],
    types="f32 <- f64",
    c="d = out{ftz}{sat}(f32{r}{ftz}(a))",
)
def f32_of_f64(a, *, r, ftz, sat):
    """f64 -> f32."""
    number = finish(to_f32(a, r, ftz), ftz, sat)
    if sat:
        return number
    return np.where(np.isnan(a), nan_of_f64(a, F32), number.view(np.uint32)).view(np.float32)


@lanes(
    "cvt{r}{ftz}{sat}.f16.f32",
    r=ROUNDING,
    ftz=FTZ,
    sat=SAT,
    types="f16 <- f32",
    c="d = f16{r}(clamp{sat}(a))",
)
def f16_of_f32(a, *, r, sat):
    """f32 -> f16. An H200 does not flush the operand with .ftz: .rm and .rp round an f32 subnormal outward."""
    return encode(saturate(a, sat), F16, r)


@lanes(
    "cvt{r}{sat}.f16.f64",
    r=ROUNDING,
    sat=[""],
    types="f16 <- f64",
    c="d = a != a ? (u16)nan_of_f64(a, 10, 16) : f16{r}(f32_odd(a))",
)
@lanes(
    "cvt{r}{sat}.f16.f64",
    r=ROUNDING,
    sat=[".sat"],
    types="f16 <- f64",
    c="d = f16{r}(clamp{sat}(f32_odd(a)))",
)
def f16_of_f64(a, *, r, sat):
    """f64 -> f16, rounded once."""
    code = encode(saturate(a, sat), F16, r)
    return code if sat else np.where(np.isnan(a), nan_of_f64(a, F16), code)


@lanes(
    "cvt{r}.bf16.f64",
    r=ROUNDING,
    types="bf16 <- f64",
    c="d = a != a ? (u16)nan_of_f64(a, 7, 16) : bf16{r}(f32_odd(a))",
)
def bf16_of_f64(a, *, r):
    """f64 -> bf16, rounded once."""
    return np.where(np.isnan(a), nan_of_f64(a, BF16), encode(a, BF16, r))


@lanes("cvt{r}.{d}.f16", r=ROUNDING, d=["bf16"], types="{d} <- f16", c="d = {d}{r}(a)")
@lanes("cvt{r}.{d}.bf16", r=ROUNDING, d=["f16"], types="{d} <- bf16", c="d = {d}{r}(a)")
def half_of_half(a, *, r, d):
    """f16 <-> bf16."""
    return encode(a, FORMATS[d], r)


@lanes(
    "cvt{r}{relu}{satfinite}.{d}.f32",
    r=[".rn", ".rz"],
    relu=[".relu"],
    satfinite=SATFINITE,
    d="f16 bf16",
    types="{d} <- f32",
    c="d = {d}{r}{satfinite}(relu(a))",
)
@lanes(
    "cvt{r}{relu}{satfinite}.{d}.f32",
    r=[".rn", ".rz"],
    relu=[""],
    satfinite=[".satfinite"],
    d="f16 bf16",
    types="{d} <- f32",
    c="d = {d}{r}{satfinite}(a)",
)
@lanes(
    "cvt{r}{relu}{satfinite}.{d}.f32",
    r=ROUNDING,
    relu=[""],
    satfinite=[""],
    d="bf16",
    types="{d} <- f32",
    c="d = {d}{r}(a)",
)
def half_of_f32(a, *, r, relu, satfinite, d):
    """f32 -> f16 or bf16."""
    return encode(clamp_negative(a, relu), FORMATS[d], r, bool(satfinite))


@lanes(
    "cvt{r}{relu}{satfinite}.{d}x2.f32",
    r=[".rn", ".rz"],
    relu=RELU,
    satfinite=SATFINITE,
    d="f16 bf16",
    types="b32 <- f32 f32",
    c="d = (u32){d}{r}{satfinite}(positive{relu}(a)) << 16 | {d}{r}{satfinite}(positive{relu}(b))",
)
def pair_of_f32(a, b, *, r, relu, satfinite, d):
    """Two f32 -> f16x2 or bf16x2: a into the upper half, b into the lower."""
    upper, lower = (half_of_f32(x, r=r, relu=relu, satfinite=satfinite, d=d) for x in (a, b))
    return upper << np.uint32(16) | lower


@lanes("cvt{r}{relu}.tf32.f32", r=[".rna"], relu=[""], types="b32 <- f32", c="d = tf32{r}(a)")
@lanes(
    "cvt{r}{relu}.tf32.f32",
    r=[".rn", ".rz"],
    relu=RELU,
    types="b32 <- f32",
    c="d = tf32{r}(positive{relu}(a))",
)
def tf32_of_f32(a, *, r, relu):
    """f32 -> tf32: ten mantissa bits in an f32; .rna sends ties away from zero."""
    code = encode(clamp_negative(a, relu), TF32, r) << np.uint32(13)
    # H200: .rn and .rz give one NaN; .rna truncates the payload, even to that of infinity
    nan = a.view(np.uint32) & np.uint32(0xFFFFE000) if r == ".rna" else np.uint32(0x7FFFE000)
    return np.where(np.isnan(a), nan, code)


# --- 8-bit formats ----------------------------------------------------------------------------------


@lanes(
    "cvt.rn.satfinite{relu}.{d}x2.f32",
    relu=RELU,
    d="e4m3 e5m2",
    types="b16 <- f32 f32",
    c="d = (u16){d}_rn_satfinite(positive{relu}(a)) << 8 | {d}_rn_satfinite(positive{relu}(b))",
)
def fp8_pair_of_f32(a, b, *, relu, d):
    """Two f32 -> e4m3x2 or e5m2x2: a into the upper byte, b into the lower."""
    upper, lower = (encode(clamp_negative(x, relu), FORMATS[d], satfinite=True) for x in (a, b))
    return upper << np.uint32(8) | lower


@lanes(
    "cvt.rn.satfinite{relu}.{d}x2.{s}x2",
    relu=RELU,
    d="e4m3 e5m2",
    s="f16",
    types="b16 <- b32",
    c="f32 x = f32_of_{s}(a >> 16), y = f32_of_{s}((u16)a);"
    " d = (u16){d}_rn_satfinite(positive{relu}(x)) << 8 | {d}_rn_satfinite(positive{relu}(y))",
)
def fp8_pair_of_half_pair(a, *, relu, d, s):
    """f16x2 -> e4m3x2 or e5m2x2, halves in place."""
    upper, lower = decode(a >> np.uint32(16), FORMATS[s]), decode(a & np.uint32(0xFFFF), FORMATS[s])
    return fp8_pair_of_f32(upper, lower, relu=relu, d=d)


@lanes(
    "cvt.rn{relu}.f16x2.{s}x2",
    relu=RELU,
    s="e4m3 e5m2",
    types="b32 <- b16",
    c="d = (u32)f16_rn(positive{relu}(f32_of_{s}(a >> 8))) << 16 | f16_rn(positive{relu}(f32_of_{s}((u8)a)))",
)
def half_pair_of_fp8_pair(a, *, relu, s):
    """e4m3x2 or e5m2x2 -> f16x2: exact."""
    upper, lower = decode(a >> np.uint16(8), FORMATS[s]), decode(a & np.uint16(0xFF), FORMATS[s])
    upper, lower = (
        encode(clamp_negative(upper, relu), F16),
        encode(clamp_negative(lower, relu), F16),
    )
    return upper << np.uint32(16) | lower
