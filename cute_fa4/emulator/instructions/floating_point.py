"""Floating-point arithmetic in f32, f32x2 and f64 (PTX ISA, "Floating-Point Instructions").

Operands pass through ``in`` and results through ``out``: .ftz turns subnormals into zeros of the same sign, .sat
clamps to [0, 1] and turns NaN into +0, and a NaN result is always 0x7fffffff (the section's canonical NaN).
Rounding is part of the meaning and happens once: see rounding.py. For products and quotients, .ftz flushes results
that are below the smallest normal number after rounding without subnormals: rounding.flush_tiny.
"""

import numpy as np

from cute_fa4.emulator.instructions.instruction_table import lanes
from cute_fa4.emulator.machine.rounding import (
    canonical,
    finish,
    flush,
    odd_div,
    odd_sqrt,
    sum_f32,
    sum_f64,
    to_f32,
)

ROUNDING = [".rn", ".rz", ".rm", ".rp"]
NEAREST_BY_DEFAULT = ["", *ROUNDING]
FTZ = ["", ".ftz"]
SAT = ["", ".sat"]

# --- f32 and f32x2: sums and products ------------------------------------------------------------


@lanes(
    "add{r}{ftz}{sat}.f32",
    r=NEAREST_BY_DEFAULT,
    ftz=FTZ,
    sat=SAT,
    types="f32 <- f32 f32",
    c="d = out{ftz}{sat}(add{r}(in{ftz}(a), in{ftz}(b)))",
)
def add_f32(a, b, *, r, ftz, sat):
    """a + b. PTX ISA, add."""
    return finish(sum_f32(flush(a, ftz), flush(b, ftz), r), ftz, sat)


@lanes(
    "sub{r}{ftz}{sat}.f32",
    r=NEAREST_BY_DEFAULT,
    ftz=FTZ,
    sat=SAT,
    types="f32 <- f32 f32",
    c="d = out{ftz}{sat}(add{r}(in{ftz}(a), -in{ftz}(b)))",
)
def sub_f32(a, b, *, r, ftz, sat):
    """a - b. PTX ISA, sub."""
    return finish(sum_f32(flush(a, ftz), -flush(b, ftz), r), ftz, sat)


@lanes(
    "mul{r}{ftz}{sat}.f32",
    r=NEAREST_BY_DEFAULT,
    ftz=FTZ,
    sat=SAT,
    types="f32 <- f32 f32",
    c="d = out{ftz}{sat}(mul{r}{ftz}(in{ftz}(a), in{ftz}(b)))",
)
def mul_f32(a, b, *, r, ftz, sat):
    """a * b: 48 bits, exact in float64, rounded once. PTX ISA, mul."""
    return finish(to_f32(np.float64(flush(a, ftz)) * flush(b, ftz), r, ftz), ftz, sat)


@lanes(
    "fma{r}{ftz}{sat}.f32",
    "mad{r}{ftz}{sat}.f32",
    r=ROUNDING,
    ftz=FTZ,
    sat=SAT,
    types="f32 <- f32 f32 f32",
    c="d = out{ftz}{sat}(fma{r}{ftz}(in{ftz}(a), in{ftz}(b), in{ftz}(c)))",
)
def fma_f32(a, b, c, *, r, ftz, sat):
    """a * b + c, rounded once. PTX ISA, fma and mad."""
    product = np.float64(flush(a, ftz)) * flush(b, ftz)
    return finish(sum_f32(product, flush(c, ftz), r, ftz), ftz, sat)


def _register_packed(name, scalar, c, sources, rounding):
    lanes(
        name + "{r}{ftz}.f32x2",
        r=rounding,
        ftz=FTZ,
        types="f32x2 <-" + " f32x2" * sources,
        c=c,
    )(scalar)


def add_f32x2(a, b, *, r, ftz):
    """Both halves: a + b. PTX ISA, add."""
    return add_f32(a, b, r=r, ftz=ftz, sat="")


def sub_f32x2(a, b, *, r, ftz):
    """Both halves: a - b. PTX ISA, sub."""
    return sub_f32(a, b, r=r, ftz=ftz, sat="")


def mul_f32x2(a, b, *, r, ftz):
    """Both halves: a * b. PTX ISA, mul."""
    return mul_f32(a, b, r=r, ftz=ftz, sat="")


def fma_f32x2(a, b, c, *, r, ftz):
    """Both halves: a * b + c, rounded once. PTX ISA, fma."""
    return fma_f32(a, b, c, r=r, ftz=ftz, sat="")


_register_packed(
    "add", add_f32x2, "d = out{ftz}(add{r}(in{ftz}(a), in{ftz}(b)))", 2, NEAREST_BY_DEFAULT
)
_register_packed(
    "sub", sub_f32x2, "d = out{ftz}(add{r}(in{ftz}(a), -in{ftz}(b)))", 2, NEAREST_BY_DEFAULT
)
_register_packed(
    "mul", mul_f32x2, "d = out{ftz}(mul{r}{ftz}(in{ftz}(a), in{ftz}(b)))", 2, NEAREST_BY_DEFAULT
)
_register_packed(
    "fma", fma_f32x2, "d = out{ftz}(fma{r}{ftz}(in{ftz}(a), in{ftz}(b), in{ftz}(c)))", 3, ROUNDING
)


# --- f32 with operands of half precision ------------------------------------------------------------

# PTX ISA, "Mixed Precision Floating-Point Instructions": the half operands are converted exactly, and the rest is
# f32 arithmetic, including subnormals. The first operands are halves, the addend is f32. There is no .ftz.
HALVES = "f16 bf16"


@lanes(
    "add{r}{sat}.f32.{t}",
    r=NEAREST_BY_DEFAULT,
    sat=SAT,
    t=HALVES,
    types="f32 <- {t} f32",
    c="d = out{sat}(add{r}(a, b))",
)
def add_f32_half(a, b, *, r, sat):
    """a + b with a half a, in f32. PTX ISA, mixed precision add."""
    return add_f32(a, b, r=r, ftz="", sat=sat)


@lanes(
    "sub{r}{sat}.f32.{t}",
    r=NEAREST_BY_DEFAULT,
    sat=SAT,
    t=HALVES,
    types="f32 <- {t} f32",
    c="d = out{sat}(add{r}(a, -b))",
)
def sub_f32_half(a, b, *, r, sat):
    """a - b with a half a, in f32. PTX ISA, mixed precision sub."""
    return sub_f32(a, b, r=r, ftz="", sat=sat)


@lanes(
    "fma{r}{sat}.f32.{t}",
    r=ROUNDING,
    sat=SAT,
    t=HALVES,
    types="f32 <- {t} {t} f32",
    c="d = out{sat}(fma{r}(a, b, c))",
)
def fma_f32_half(a, b, c, *, r, sat):
    """a * b + c with halves a and b, in f32, rounded once. PTX ISA, mixed precision fma."""
    return fma_f32(a, b, c, r=r, ftz="", sat=sat)


# --- f32: quotient, root, sign -------------------------------------------------------------------


@lanes(
    "div{r}{ftz}.f32",
    r=ROUNDING,
    ftz=FTZ,
    types="f32 <- f32 f32",
    c="d = out{ftz}(div{r}{ftz}(in{ftz}(a), in{ftz}(b)))",
)
def div_f32(a, b, *, r, ftz):
    """a / b. PTX ISA, div."""
    return finish(to_f32(odd_div(flush(a, ftz), flush(b, ftz)), r, ftz), ftz)


@lanes(
    "rcp{r}{ftz}.f32",
    r=ROUNDING,
    ftz=FTZ,
    types="f32 <- f32",
    c="d = out{ftz}(div{r}{ftz}(1.0f, in{ftz}(a)))",
)
def rcp_f32(a, *, r, ftz):
    """1 / a. PTX ISA, rcp."""
    return div_f32(np.ones_like(a), a, r=r, ftz=ftz)


@lanes(
    "sqrt{r}{ftz}.f32",
    r=ROUNDING,
    ftz=FTZ,
    types="f32 <- f32",
    c="d = out{ftz}(sqrt{r}(in{ftz}(a)))",
)
def sqrt_f32(a, *, r, ftz):
    """Square root; sqrt(-0) = -0, of other negative values NaN. PTX ISA, sqrt."""
    return finish(to_f32(odd_sqrt(flush(a, ftz)), r), ftz)


@lanes("abs{ftz}.f32", ftz=FTZ, types="f32 <- f32", c="d = out(fabsf(in{ftz}(a)))")
def abs_f32(a, *, ftz):
    """|a|. PTX ISA, abs."""
    return canonical(np.abs(flush(a, ftz)))


@lanes("neg{ftz}.f32", ftz=FTZ, types="f32 <- f32", c="d = out(-in{ftz}(a))")
def neg_f32(a, *, ftz):
    """-a. PTX ISA, neg."""
    return canonical(-flush(a, ftz))


@lanes("copysign.f32", types="b32 <- b32 b32", c="d = (a & 0x80000000u) | (b & 0x7fffffffu)")
def copysign_f32(a, b):
    """b with the sign of a (in this order). PTX ISA, copysign."""
    return (a & 0x80000000) | (b & 0x7FFFFFFF)


@lanes("copysign.f64", types="b64 <- b64 b64", c="d = (a & 1ull << 63) | (b & ~(1ull << 63))")
def copysign_f64(a, b):
    """b with the sign of a (in this order). PTX ISA, copysign."""
    return (a & np.uint64(1 << 63)) | (b & np.uint64((1 << 63) - 1))


CLASSES = {
    "finite": ("isfinite(a)", np.isfinite),
    "infinite": ("isinf(a)", np.isinf),
    "number": ("!isnan(a)", lambda a: ~np.isnan(a)),
    "notanumber": ("isnan(a)", np.isnan),
    "normal": (  # a zero counts as normal: measured on an H200
        "isnormal(a) || a == 0",
        lambda a: np.isfinite(a) & ((np.abs(a) >= np.finfo(a.dtype).tiny) | (a == 0)),
    ),
    "subnormal": (
        "a != 0 && isfinite(a) && !isnormal(a)",
        lambda a: (a != 0) & (np.abs(a) < np.finfo(a.dtype).tiny),
    ),
}
for _name, (_c, _test) in CLASSES.items():
    for _t in ("f32", "f64"):
        lanes(f"testp.{_name}.{_t}", types=f"pred <- {_t}", c=f"d = {_c}")(
            lambda a, test=_test: test(a)
        )


# --- f64 -----------------------------------------------------------------------------------------


@lanes("add{r}.f64", r=NEAREST_BY_DEFAULT, types="f64 <- f64 f64", c="d = out64(sum64{r}(a, b))")
def add_f64(a, b, *, r):
    """a + b. PTX ISA, add."""
    return canonical(sum_f64(a, b, r))


@lanes("sub{r}.f64", r=NEAREST_BY_DEFAULT, types="f64 <- f64 f64", c="d = out64(sum64{r}(a, -b))")
def sub_f64(a, b, *, r):
    """a - b. PTX ISA, sub."""
    return canonical(sum_f64(a, -b, r))


@lanes("mul{r}.f64", r=["", ".rn"], types="f64 <- f64 f64", c="d = out64(a * b)")
def mul_f64(a, b):
    """a * b to nearest even. PTX ISA, mul."""
    return canonical(a * b)


@lanes("fma.rn.f64", "mad.rn.f64", types="f64 <- f64 f64 f64", c="d = out64(fma(a, b, c))")
def fma_f64(a, b, c):
    """a * b + c, rounded once, to nearest even: computed with Python integers. PTX ISA, fma."""
    return canonical(
        np.array(
            [_fma(x, y, z) for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)]
        )
    )


def _fma(x, y, z):
    if not np.isfinite([x, y, z]).all():
        product = (
            x * y if np.isinf([x, y]).any() else 0.0 * x * y
        )  # a finite product cannot beat an infinite z
        return product + z
    (p, q), (r, s), (t, u) = (v.as_integer_ratio() for v in (x, y, z))
    numerator, denominator = p * r * u + t * q * s, q * s * u
    if numerator == 0:
        return x * y * 0.0 + z if x * y == 0 or z == 0 else 0.0
    try:
        return numerator / denominator  # Python's int / int rounds once, to nearest even
    except OverflowError:
        return float("inf") if numerator > 0 else float("-inf")


@lanes("div.rn.f64", types="f64 <- f64 f64", c="d = out64(a / b)")
def div_f64(a, b):
    """a / b to nearest even. PTX ISA, div."""
    return canonical(a / b)


@lanes("rcp.rn.f64", types="f64 <- f64", c="d = out64(1.0 / a)")
def rcp_f64(a):
    """1 / a to nearest even. PTX ISA, rcp."""
    return canonical(1.0 / a)


@lanes("sqrt.rn.f64", types="f64 <- f64", c="d = out64(sqrt(a))")
def sqrt_f64(a):
    """Square root to nearest even. PTX ISA, sqrt."""
    return canonical(np.sqrt(a))


@lanes("abs.f64", types="f64 <- f64", c="d = out64(fabs(a))")
def abs_f64(a):
    """|a|. PTX ISA, abs."""
    return canonical(np.abs(a))


@lanes("neg.f64", types="f64 <- f64", c="d = out64(-a)")
def neg_f64(a):
    """-a. PTX ISA, neg."""
    return canonical(-a)
