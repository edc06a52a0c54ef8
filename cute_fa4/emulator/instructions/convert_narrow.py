"""Conversions from and to formats of 4 and 6 bits, scales of ue8m0, and 8-bit formats with bf16 (PTX ISA, cvt).

    format   elements of an operand                     values                              too large, NaN
    e2m1x2   .b8: two nibbles, a in the upper           0 0.5 1 1.5 2 3 4 6, and negative   the largest, +6
    e2m3x2   .b16: the low 6 bits of two bytes          steps of 1/8, at most 7.5           the largest, +7.5
    e3m2x2   .b16: the same                             steps of 1/16, at most 28           the largest, +28
    s2f6x2   .b16: two bytes                            the signed byte / 64                (a source only)
    ue8m0x2  .b16: two bytes                            2^(code - 127), 0xff is NaN         0xff; .satfinite: 0xfe

.scaled::n2::ue8m0 multiplies each element by the scale in the same half of its last operand and rounds once.
A conversion to ue8m0 ignores the sign; values below 2^-127 become code 0 (as in cuda_fp8.hpp).
"""

import numpy as np

from cute_fa4.emulator.instructions.instruction_table import lanes
from cute_fa4.emulator.machine.rounding import BF16, E4M3, E5M2, F16, Format, decode, encode
from cute_fa4.emulator.machine.rounding import relu as clamp_negative

E2M1 = Format(1, 0, 6.0, 0x7, 4, infinite=False)
E2M3 = Format(3, 0, 7.5, 0x1F, 6, infinite=False)
E3M2 = Format(2, -2, 28.0, 0x1F, 6, infinite=False)
FORMATS = {"e2m1": E2M1, "e2m3": E2M3, "e3m2": E3M2, "e4m3": E4M3, "e5m2": E5M2}
HALVES = {"f16": F16, "bf16": BF16}
RELU, SATFINITE = ["", ".relu"], ["", ".satfinite"]
SIX = "e2m3 e3m2"


def finite(code, fmt):
    """Codes of a format without NaN and infinities -> float32."""
    code = np.asarray(code).astype(np.int64)
    magnitude = code & (1 << fmt.width - 1) - 1
    biased = magnitude >> fmt.mantissa_bits
    units = magnitude - (np.maximum(biased, 1) - 1 << fmt.mantissa_bits)
    size = np.ldexp(
        units.astype(np.float64), np.maximum(biased, 1) - 1 + fmt.min_exponent - fmt.mantissa_bits
    )
    return np.where(code >> fmt.width - 1 & 1, -size, size).astype(np.float32)


def element(code, kind):
    """Codes of any of the formats of the table -> float32."""
    if kind == "s2f6":
        return np.asarray(code).astype(np.uint8).view(np.int8).astype(np.float32) / np.float32(64)
    fmt = FORMATS[kind]
    return decode(code, fmt) if fmt in (E4M3, E5M2) else finite(code, fmt)


def split_pair(a, kind):
    """(upper, lower) codes of a packed pair."""
    shift, mask = (4, 0xF) if kind == "e2m1" else (8, 0xFF)
    a = np.asarray(a).astype(np.uint32)
    return a >> np.uint32(shift) & np.uint32(mask), a & np.uint32(mask)


def scale_of(code):
    """ue8m0 -> float64."""
    code = np.asarray(code).astype(np.float64)
    return np.where(code == 255, np.nan, 2.0 ** (code - 127))


# --- to narrow formats --------------------------------------------------------------------------------


@lanes(
    "cvt.rn.satfinite{relu}.{d}x2.f32",
    relu=RELU,
    d="e2m1",
    types="u8 <- f32 f32",
    c="d = {d}_rn(positive{relu}(a)) << 4 | {d}_rn(positive{relu}(b))",
)
@lanes(
    "cvt.rn.satfinite{relu}.{d}x2.f32",
    relu=RELU,
    d=SIX,
    types="b16 <- f32 f32",
    c="d = {d}_rn(positive{relu}(a)) << 8 | {d}_rn(positive{relu}(b))",
)
def narrow_pair_of_f32(a, b, *, relu, d):
    """Two f32 -> a pair: a into the upper element, b into the lower."""
    upper, lower = (
        encode(clamp_negative(x, relu), FORMATS[d], satfinite=True).astype(np.uint32)
        for x in (a, b)
    )
    return upper << np.uint32(4 if d == "e2m1" else 8) | lower


@lanes(
    "cvt.rn.satfinite{relu}.{d}x2.{s}x2",
    relu=RELU,
    d="e2m1",
    s="f16 bf16",
    types="u8 <- b32",
    c="f32 x = f32_of_{s}(a >> 16), y = f32_of_{s}((u16)a); "
    "d = {d}_rn(positive{relu}(x)) << 4 | {d}_rn(positive{relu}(y))",
)
@lanes(
    "cvt.rn.satfinite{relu}.{d}x2.{s}x2",
    relu=RELU,
    d=SIX,
    s="f16 bf16",
    types="b16 <- b32",
    c="f32 x = f32_of_{s}(a >> 16), y = f32_of_{s}((u16)a); "
    "d = {d}_rn(positive{relu}(x)) << 8 | {d}_rn(positive{relu}(y))",
)
@lanes(
    "cvt.rn.satfinite{relu}.{d}x2.{s}x2",
    relu=RELU,
    d="e4m3 e5m2",
    s=["bf16"],
    types="b16 <- b32",
    c="f32 x = f32_of_{s}(a >> 16), y = f32_of_{s}((u16)a); "
    "d = (u16){d}_rn_satfinite(positive{relu}(x)) << 8 | {d}_rn_satfinite(positive{relu}(y))",
)
def narrow_pair_of_half_pair(a, *, relu, d, s):
    """f16x2 or bf16x2 -> a pair, halves in place."""
    upper, lower = (decode(x, HALVES[s]) for x in (a >> np.uint32(16), a & np.uint32(0xFFFF)))
    return narrow_pair_of_f32(upper, lower, relu=relu, d=d)


# --- from narrow formats ------------------------------------------------------------------------------


@lanes(
    "cvt.rn{relu}.{d}x2.{s}x2",
    relu=RELU,
    d="f16 bf16",
    s=["e2m1"],
    types="b32 <- u8",
    c="d = (u32){d}_rn(positive{relu}(f32_of_{s}(a >> 4))) << 16 | {d}_rn(positive{relu}(f32_of_{s}(a)))",
)
@lanes(
    "cvt.rn{relu}.{d}x2.{s}x2",
    relu=RELU,
    d="f16 bf16",
    s=SIX,
    types="b32 <- b16",
    c="d = (u32){d}_rn(positive{relu}(f32_of_{s}(a >> 8))) << 16 | {d}_rn(positive{relu}(f32_of_{s}((u8)a)))",
)
@lanes(
    "cvt.rn{relu}.{d}x2.{s}x2",
    relu=RELU,
    d=["bf16"],
    s="e4m3 e5m2",
    types="b32 <- b16",
    c="d = (u32){d}_rn(positive{relu}(f32_of_{s}(a >> 8))) << 16 | {d}_rn(positive{relu}(f32_of_{s}((u8)a)))",
)
def half_pair_of_narrow_pair(a, *, relu, d, s):
    """A pair -> f16x2 or bf16x2: exact."""
    upper, lower = (
        encode(clamp_negative(element(code, s), relu), HALVES[d]) for code in split_pair(a, s)
    )
    return upper << np.uint32(16) | lower


@lanes(
    "cvt.rn{satfinite}{relu}.scaled::n2::ue8m0.bf16x2.{s}x2",
    satfinite=SATFINITE,
    relu=RELU,
    s=["e2m1"],
    types="b32 <- u8 b16",
    c="f32 x = f32_of_{s}(a >> 4) * f32_of_ue8m0(b >> 8), y = f32_of_{s}(a) * f32_of_ue8m0((u8)b); "
    "d = (u32)bf16_rn{satfinite}(positive{relu}(x)) << 16 | bf16_rn{satfinite}(positive{relu}(y))",
)
@lanes(
    "cvt.rn{satfinite}{relu}.scaled::n2::ue8m0.bf16x2.{s}x2",
    satfinite=SATFINITE,
    relu=RELU,
    s="e2m3 e3m2 e4m3 e5m2 s2f6",
    types="b32 <- b16 b16",
    c="f32 x = f32_of_{s}(a >> 8) * f32_of_ue8m0(b >> 8), y = f32_of_{s}((u8)a) * f32_of_ue8m0((u8)b); "
    "d = (u32)bf16_rn{satfinite}(positive{relu}(x)) << 16 | bf16_rn{satfinite}(positive{relu}(y))",
)
def scaled_half_pair(a, b, *, satfinite, relu, s):
    """A pair and two scales -> bf16x2: each product rounded once."""
    halves = [
        encode(
            clamp_negative(element(code, s).astype(np.float64) * scale_of(scale), relu),
            BF16,
            satfinite=bool(satfinite),
        )
        for code, scale in zip(split_pair(a, s), split_pair(b, "ue8m0"), strict=True)
    ]
    return halves[0] << np.uint32(16) | halves[1]


# --- scales -------------------------------------------------------------------------------------------


def scale_code(a, r, satfinite):
    """float32 -> ue8m0: the exponent, rounded down (.rz) or up (.rp)."""
    size = np.abs(np.asarray(a).astype(np.float64))
    fraction, exponent = np.frexp(np.where(np.isfinite(size) & (size > 0), size, 1.0))
    up = (fraction > 0.5) & (r == ".rp")
    code = np.clip(exponent - 1 + up + 127, 0, 255)
    code = np.where(size == 0, 0, np.where(np.isfinite(size), code, 255))
    return np.where(np.isnan(size) | (not satfinite), code, np.minimum(code, 254)).astype(np.uint32)


@lanes(
    "cvt{r}{satfinite}.ue8m0x2.f32",
    r=[".rz", ".rp"],
    satfinite=SATFINITE,
    types="b16 <- f32 f32",
    c="d = ue8m0{r}{satfinite}(a) << 8 | ue8m0{r}{satfinite}(b)",
)
def scale_pair_of_f32(a, b, *, r, satfinite):
    """Two f32 -> two scales: a into the upper byte."""
    return scale_code(a, r, satfinite) << np.uint32(8) | scale_code(b, r, satfinite)


@lanes(
    "cvt{r}{satfinite}.ue8m0x2.bf16x2",
    r=[".rz", ".rp"],
    satfinite=SATFINITE,
    types="b16 <- b32",
    c="d = ue8m0{r}{satfinite}(f32_of_bf16(a >> 16)) << 8 | ue8m0{r}{satfinite}(f32_of_bf16((u16)a))",
)
def scale_pair_of_half_pair(a, *, r, satfinite):
    """bf16x2 -> two scales, halves in place."""
    upper, lower = (decode(x, BF16) for x in (a >> np.uint32(16), a & np.uint32(0xFFFF)))
    return scale_pair_of_f32(upper, lower, r=r, satfinite=satfinite)


@lanes(
    "cvt.rn.bf16x2.ue8m0x2",
    types="b32 <- b16",
    c="d = (u32)bf16_rn(f32_of_ue8m0(a >> 8)) << 16 | bf16_rn(f32_of_ue8m0((u8)a))",
)
def half_pair_of_scale_pair(a):
    """Two scales -> bf16x2: exact."""
    upper, lower = (encode(scale_of(code), BF16) for code in split_pair(a, "ue8m0"))
    return upper << np.uint32(16) | lower
