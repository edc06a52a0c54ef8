"""f16 and bf16 arithmetic, scalar and packed in pairs (PTX ISA, "Half Precision Floating-Point Instructions").

Operands are decoded exactly to float32, computed in float64 (sums rounded to odd), and rounded once to the format.
NaN results are 0x7fff. min and max are in min_max.py with those of f32.
"""

import numpy as np

from cute_fa4.emulator.instructions.instruction_table import lanes
from cute_fa4.emulator.machine.rounding import (
    BF16,
    F16,
    encode,
    flush_tiny,
    odd_sum,
    saturate,
)
from cute_fa4.emulator.machine.rounding import relu as clamp_negative
from cute_fa4.emulator.ptx.lane_types import TYPES

FTZ = ["", ".ftz"]
SAT = ["", ".sat"]
F16_TYPES = "f16 f16x2"
BF16_TYPES = "bf16 bf16x2"


def read(x, ftz):
    """A decoded f16 operand: with .ftz a subnormal half counts as a zero of the same sign."""
    return np.where(np.abs(x) < 2.0**-14, np.copysign(np.float32(0), x), x) if ftz else x


def to_f16(x, ftz="", sat=""):
    """float64 x (exact or rounded to odd) -> f16 codes."""
    return encode(flush_tiny(saturate(x, sat), F16, "", ftz), F16)


def to_bf16(x):
    """float64 x (exact or rounded to odd) -> bf16 codes."""
    return encode(x, BF16)


# C: the value in f64, rounded to odd into f32, .sat applied, then rounded to the format.
def f16_out(x):
    return "d = f16_rn(tiny16{ftz}(clamp{sat}(f32_odd(" + x + "))))"


def bf16_out(x):
    return "d = bf16_rn(f32_odd(" + x + "))"


A, B, C = ("(f64)in16{ftz}(" + x + ")" for x in "abc")


@lanes(
    "add{r}{ftz}{sat}.{t}",
    r=["", ".rn"],
    ftz=FTZ,
    sat=SAT,
    t=F16_TYPES,
    types="{t} <- {t} {t}",
    c=f16_out(f"odd_sum({A}, {B})"),
)
def add_f16(a, b, *, ftz, sat):
    """a + b. PTX ISA, add."""
    return to_f16(odd_sum(read(a, ftz), read(b, ftz)), ftz, sat)


@lanes(
    "sub{r}{ftz}{sat}.{t}",
    r=["", ".rn"],
    ftz=FTZ,
    sat=SAT,
    t=F16_TYPES,
    types="{t} <- {t} {t}",
    c=f16_out(f"odd_sum({A}, -{B})"),
)
def sub_f16(a, b, *, ftz, sat):
    """a - b. PTX ISA, sub."""
    return to_f16(odd_sum(read(a, ftz), -read(b, ftz)), ftz, sat)


@lanes(
    "mul{r}{ftz}{sat}.{t}",
    r=["", ".rn"],
    ftz=FTZ,
    sat=SAT,
    t=F16_TYPES,
    types="{t} <- {t} {t}",
    c=f16_out(f"{A} * {B}"),
)
def mul_f16(a, b, *, ftz, sat):
    """a * b. PTX ISA, mul."""
    return to_f16(np.float64(read(a, ftz)) * read(b, ftz), ftz, sat)


@lanes(
    "fma.rn{ftz}{sat}.{t}",
    ftz=FTZ,
    sat=SAT,
    t=F16_TYPES,
    types="{t} <- {t} {t} {t}",
    c=f16_out(f"odd_sum({A} * {B}, {C})"),
)
def fma_f16(a, b, c, *, ftz, sat):
    """a * b + c, rounded once. PTX ISA, fma."""
    return to_f16(odd_sum(np.float64(read(a, ftz)) * read(b, ftz), read(c, ftz)), ftz, sat)


@lanes(
    "fma.rn{ftz}.relu.{t}",
    ftz=FTZ,
    t=F16_TYPES,
    types="{t} <- {t} {t} {t}",
    c=f"d = f16_rn(tiny16{{ftz}}(relu(f32_odd(odd_sum({A} * {B}, {C})))))",
)
def fma_relu_f16(a, b, c, *, ftz):
    """max(a * b + c, 0), rounded once; NaN stays. PTX ISA, fma, .relu."""
    return to_f16(
        clamp_negative(odd_sum(np.float64(read(a, ftz)) * read(b, ftz), read(c, ftz))), ftz
    )


@lanes(
    "add{r}.{t}", r=["", ".rn"], t=BF16_TYPES, types="{t} <- {t} {t}", c=bf16_out("odd_sum(a, b)")
)
def add_bf16(a, b):
    """a + b. PTX ISA, add."""
    return to_bf16(odd_sum(a, b))


@lanes(
    "sub{r}.{t}", r=["", ".rn"], t=BF16_TYPES, types="{t} <- {t} {t}", c=bf16_out("odd_sum(a, -b)")
)
def sub_bf16(a, b):
    """a - b. PTX ISA, sub."""
    return to_bf16(odd_sum(a, -b))


@lanes("mul{r}.{t}", r=["", ".rn"], t=BF16_TYPES, types="{t} <- {t} {t}", c=bf16_out("(f64)a * b"))
def mul_bf16(a, b):
    """a * b. PTX ISA, mul."""
    return to_bf16(np.float64(a) * b)


@lanes("fma.rn.{t}", t=BF16_TYPES, types="{t} <- {t} {t} {t}", c=bf16_out("odd_sum((f64)a * b, c)"))
def fma_bf16(a, b, c):
    """a * b + c, rounded once. PTX ISA, fma."""
    return to_bf16(odd_sum(np.float64(a) * b, c))


@lanes(
    "fma.rn.relu.{t}",
    t=BF16_TYPES,
    types="{t} <- {t} {t} {t}",
    c="d = bf16_rn(relu(f32_odd(odd_sum((f64)a * b, c))))",
)
def fma_relu_bf16(a, b, c):
    """max(a * b + c, 0), rounded once; NaN stays. PTX ISA, fma, .relu."""
    return to_bf16(clamp_negative(odd_sum(np.float64(a) * b, c)))


# The code, and that with the other sign, that stands for an element out of bounds (measured on an H200: no other NaN).
OUT_OF_BOUNDS = 0x7FF7
_OUTSIDE = "(((a) & 0x7fff) == 0x7ff7 || ((b) & 0x7fff) == 0x7ff7)"


@lanes(
    "fma.rn.oob{relu}.{t}{pair}",
    relu=["", ".relu"],
    t="f16 bf16",
    pair=["", "x2"],
    types="b16{pair} <- b16{pair} b16{pair} b16{pair}",
    c=f"f64 x = f32_of_{{t}}(a), y = f32_of_{{t}}(b); d = {_OUTSIDE} ? 0 :"
    " {t}_rn(positive{relu}(f32_odd(odd_sum(x * y, f32_of_{t}(c)))))",
)
def fma_oob(a, b, c, *, relu, t):
    """a * b + c, rounded once; +0 where a or b is the NaN of an element out of bounds. PTX ISA, fma, .oob."""
    x, y, z = (TYPES[t].decode(word.astype(np.uint32)).astype(np.float64) for word in (a, b, c))
    total = odd_sum(x * y, z)
    number = encode(clamp_negative(total, relu), F16 if t == "f16" else BF16)
    outside = (a & 0x7FFF == OUT_OF_BOUNDS) | (b & 0x7FFF == OUT_OF_BOUNDS)
    return np.where(outside, 0, number)


@lanes("neg{ftz}.{t}", ftz=FTZ, t=F16_TYPES, types="{t} <- {t}", c="d = f16_rn(-in16{ftz}(a))")
def neg_f16(a, *, ftz):
    """-a. PTX ISA, neg."""
    return encode(-read(a, ftz), F16)


@lanes(
    "abs{ftz}.{t}", ftz=FTZ, t=F16_TYPES, types="{t} <- {t}", c="d = f16_rn(fabsf(in16{ftz}(a)))"
)
def abs_f16(a, *, ftz):
    """|a|. PTX ISA, abs."""
    return encode(np.abs(read(a, ftz)), F16)


@lanes("neg.{t}", t=BF16_TYPES, types="{t} <- {t}", c="d = bf16_rn(-a)")
def neg_bf16(a):
    """-a. PTX ISA, neg."""
    return encode(-a, BF16)


@lanes("abs.{t}", t=BF16_TYPES, types="{t} <- {t}", c="d = bf16_rn(fabsf(a))")
def abs_bf16(a):
    """|a|. PTX ISA, abs."""
    return encode(np.abs(a), BF16)
