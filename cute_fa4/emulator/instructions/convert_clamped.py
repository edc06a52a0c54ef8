"""Conversions that clamp: cvt.pack.sat, integers to floats with .sat, tf32 with .satfinite.

    cvt.pack.sat.u16.s32        d, a, b       clamped a in the upper half of d, b in the lower
    cvt.pack.sat.s4.s32.b32     d, a, b, c    c shifted up by two places of four bits, then a, then b
    cvt.rn.sat.f32.s64          d, a          1 above 0, else +0
    cvt.rna.satfinite.tf32.f32  d, a          beyond the largest finite tf32: that value

PTX ISA, "cvt", "cvt.pack".
"""

import numpy as np

from cute_fa4.emulator.instructions.convert import DTYPES, FORMATS, INTEGRAL_ROUNDING, ROUNDING
from cute_fa4.emulator.instructions.instruction_table import lanes
from cute_fa4.emulator.machine.rounding import (
    BF16,
    F16,
    INTEGRAL,
    TF32,
    direction,
    encode,
    flush,
    saturate,
)
from cute_fa4.emulator.machine.rounding import relu as clamp_negative

# --- packed integers ----------------------------------------------------------------------------------


def _limits(t):
    bits = int(t[1:])
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if t[0] == "s" else (0, (1 << bits) - 1)


def _register_pack(t):
    low, high = _limits(t)
    bits = int(t[1:])
    mask = (1 << bits) - 1

    def both(a, b):
        """The clamped a above the clamped b."""
        upper, lower = (np.clip(x.astype(np.int64), low, high) & mask for x in (a, b))
        return (upper << bits | lower).astype(np.uint32)

    def above(a, b, c):
        """The clamped a and b below the bits of c."""
        return c << np.uint32(2 * bits) | both(a, b)

    clamped = (
        f"(u32)(({x} < {low} ? {low} : (s64){x} > {high}ll ? {high} : {x}) & {mask})" for x in "ab"
    )
    upper, lower = clamped
    text = f"{upper} << {bits} | {lower}"
    if bits == 16:
        lanes(f"cvt.pack.sat.{t}.s32", types="b32 <- s32 s32", c=f"d = {text}")(both)
    else:
        lanes(
            f"cvt.pack.sat.{t}.s32.b32",
            types="b32 <- s32 s32 b32",
            c=f"d = c << {2 * bits} | {text}",
        )(above)


for _t in ("u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2"):
    _register_pack(_t)

# --- integers to floats, in [0, 1] ---------------------------------------------------------------------


def _register_unit(t, one, bits):
    def unit(a):
        """1 above 0, else +0: every rounding gives the same."""
        return np.where(a > 0, bits, 0)

    lanes(
        f"cvt{{r}}.sat.{t}.{{s}}",
        r=ROUNDING,
        s=DTYPES,
        types=f"{t} <- {{s}}",
        c=f"d = a > 0 ? {one} : 0",
    )(unit)


for _t, _one, _bits in (("f16", "0x3c00", 0x3C00), ("f32", "1.0f", 1), ("f64", "1.0", 1)):
    _register_unit(_t, _one, _bits)


# --- floats of 16 bits ----------------------------------------------------------------------------------


@lanes("cvt.{t}.{t}", t="f16 bf16", types="{t} <- {t}", c="d = {t}_rn(a)")
def same_half(a, *, t):
    """f16 -> f16 and bf16 -> bf16 without modifiers: the same number; NaN is the canonical one (H200)."""
    return encode(a, FORMATS[t])


@lanes("cvt{r}.ftz.bf16.f32", r=ROUNDING, types="bf16 <- f32", c="d = bf16{r}(in_ftz(a))")
def bf16_of_flushed_f32(a, *, r):
    """f32 -> bf16, subnormals as zero."""
    return encode(flush(a), BF16, r)


@lanes("cvt.sat.f16.f16", types="f16 <- f16", c="d = f16_rn(saturate(a))")
def clamped_f16(a):
    """f16 in [0, 1]; NaN: +0."""
    return encode(saturate(a), F16)


@lanes(
    "cvt{r}.sat.f16.f16",
    r=INTEGRAL_ROUNDING,
    types="f16 <- f16",
    c="d = f16_rn(saturate((f32)round{r}((f64)a)))",
)
def clamped_integral_f16(a, *, r):
    """f16 rounded to 0 or 1; NaN: +0."""
    return encode(saturate(INTEGRAL[direction(r)](a)), F16)


@lanes(
    "cvt{r}.bf16.bf16",
    r=INTEGRAL_ROUNDING,
    types="bf16 <- bf16",
    c="d = bf16_rn((f32)round{r}((f64)a))",
)
def integral_bf16(a, *, r):
    """bf16 rounded to an integral bf16; a zero keeps its sign."""
    return encode(INTEGRAL[direction(r)](a), BF16)


# --- tf32 -----------------------------------------------------------------------------------------------


@lanes(
    "cvt{r}.satfinite{relu}.tf32.f32",
    r=[".rn", ".rz"],
    relu=["", ".relu"],
    types="b32 <- f32",
    c="d = finite_tf32(tf32{r}(positive{relu}(a)))",
)
@lanes(
    "cvt{r}{relu}.satfinite.tf32.f32",
    r=[".rn", ".rz"],
    relu=[".relu"],
    types="b32 <- f32",
    c="d = finite_tf32(tf32{r}(positive{relu}(a)))",
)
@lanes(
    "cvt{r}{relu}.satfinite.tf32.f32",
    r=[".rna"],
    relu=[""],
    types="b32 <- f32",
    c="u32 x = tf32{r}(a); d = x - ((x & 0x7f800000u) == 0x7f800000u ? 0x2000u : 0)",
)
def finite_tf32_of_f32(a, *, r, relu):
    """f32 -> tf32, at most the largest finite value.

    NaN: the canonical one with .rn and .rz. With .rna an H200 takes the code below that of a NaN, as it does for an
    infinity.
    """
    code = encode(clamp_negative(a, relu), TF32, r, satfinite=True) << np.uint32(13)
    if r != ".rna":
        return np.where(np.isnan(a), np.uint32(0x7FFFE000), code)
    cut = a.view(np.uint32) & np.uint32(0xFFFFE000)
    return np.where(np.isnan(a), cut - np.uint32(0x2000), code)
