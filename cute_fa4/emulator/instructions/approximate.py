"""Approximate functions: ex2 lg2 rcp rsqrt sqrt sin cos tanh div with .approx or .full.

The hardware's result is any value within the error bound of the PTX ISA. The emulator computes the function in
float64 and rounds once, so it returns the correctly rounded value (half an ulp) in all but about one in 10^8 cases,
and the special values exactly. ``BOUNDS`` holds the hardware's bounds, for comparisons with a GPU.
"""

import numpy as np

from cute_fa4.emulator.instructions.instruction_table import lanes
from cute_fa4.emulator.machine.rounding import BF16, F16, encode, finish, flush

FTZ = ["", ".ftz"]

# Function -> (kind, bound) of the hardware's result against the exact value, as the PTX ISA states them.
# "ulp": units in the last place of f32; "relative", "absolute": of the exact value; normal results.
BOUNDS = {
    "ex2.f32": ("ulp", 2),
    "ex2.f16": ("relative", 2.0**-9.9),
    "ex2.bf16": ("relative", 2.0**-7),
    "lg2.f32": ("absolute in (0.5, 2), else relative", 2.0**-22),
    "rcp.f32": ("ulp", 1),
    "rsqrt.f32": ("relative", 2.0**-22.9),
    "sqrt.f32": ("relative", 2.0**-23),
    "sin.f32": ("absolute in [-2 pi, 2 pi]", 2.0**-20.5),
    "cos.f32": ("absolute in [-2 pi, 2 pi]", 2.0**-20.5),
    "tanh.f32": ("relative", 2.0**-11),
    "tanh.f16": ("absolute", 2.0**-10.987),
    "tanh.bf16": ("absolute", 2.0**-8),
    "div.approx.f32": ("ulp", 2),
    "div.full.f32": ("ulp", 2),
}


def single(function, a, ftz=""):
    """function(float64 a) rounded to float32, with the f32 rules for .ftz and NaN."""
    return finish(function(np.float64(flush(a, ftz))).astype(np.float32), ftz)


@lanes("ex2.approx{ftz}.f32", ftz=FTZ, types="f32 <- f32", c="d = out{ftz}(exp2_f32(in{ftz}(a)))")
def ex2_f32(a, *, ftz):
    """2^a; ex2(-inf) = +0. Hardware: 2 ulp. PTX ISA, ex2."""
    return single(np.exp2, a, ftz)


@lanes("ex2.approx.{t}", t="f16 f16x2", types="{t} <- {t}", c="d = f16_rn(exp2_f32(a))")
def ex2_f16(a):
    """2^a in half precision. Hardware: relative error 2^-9.9. PTX ISA, ex2."""
    return encode(single(np.exp2, a), F16)


@lanes(
    "ex2.approx.ftz.{t}",
    t="bf16 bf16x2",
    types="{t} <- {t}",
    c="d = bf16_rn(out_ftz(exp2_f32(in_ftz(a))))",
)
def ex2_bf16(a):
    """2^a in bf16, subnormals as zero. Hardware: relative error 2^-7. PTX ISA, ex2."""
    return encode(single(np.exp2, a, ".ftz"), BF16)


@lanes(
    "lg2.approx{ftz}.f32", ftz=FTZ, types="f32 <- f32", c="d = out{ftz}((f32)log2((f64)in{ftz}(a)))"
)
def lg2_f32(a, *, ftz):
    """log2(a); lg2(+-0) = -inf, negative values NaN. Hardware: 2^-22. PTX ISA, lg2."""
    return single(np.log2, a, ftz)


@lanes("rcp.approx{ftz}.f32", ftz=FTZ, types="f32 <- f32", c="d = out{ftz}(1.0f / in{ftz}(a))")
def rcp_f32(a, *, ftz):
    """1 / a. Hardware: 1 ulp. PTX ISA, rcp."""
    return single(lambda x: 1.0 / x, a, ftz)


@lanes(
    "rsqrt.approx{ftz}.f32",
    ftz=FTZ,
    types="f32 <- f32",
    c="d = out{ftz}((f32)(1.0 / sqrt((f64)in{ftz}(a))))",
)
def rsqrt_f32(a, *, ftz):
    """1 / sqrt(a); rsqrt(-0) = -inf. Hardware: relative error 2^-22.9. PTX ISA, rsqrt."""
    return single(lambda x: 1.0 / np.sqrt(x), a, ftz)


@lanes("sqrt.approx{ftz}.f32", ftz=FTZ, types="f32 <- f32", c="d = out{ftz}(sqrtf(in{ftz}(a)))")
def sqrt_f32(a, *, ftz):
    """Square root; sqrt(-0) = -0. Hardware: relative error 2^-23. PTX ISA, sqrt."""
    return single(np.sqrt, a, ftz)


@lanes(
    "{f}.approx{ftz}.f32",
    f="sin cos",
    ftz=FTZ,
    types="f32 <- f32",
    c="d = out{ftz}((f32){f}((f64)in{ftz}(a)))",
)
def sin_cos_f32(a, *, f, ftz):
    """sin or cos of radians. Hardware: absolute error 2^-20.5 in [-2 pi, 2 pi]. PTX ISA, sin and cos."""
    return single(getattr(np, f), a, ftz)


@lanes("tanh.approx.f32", types="f32 <- f32", c="d = out((f32)tanh((f64)a))")
def tanh_f32(a):
    """Hyperbolic tangent; subnormals pass. Hardware: relative error 2^-11. PTX ISA, tanh."""
    return single(np.tanh, a)


@lanes(
    "tanh.approx.{t}",
    t="f16 f16x2 bf16 bf16x2",
    types="{t} <- {t}",
    c="d = half_rn_{t}((f32)tanh((f64)a))",
)
def tanh_half(a, *, t):
    """Hyperbolic tangent. Hardware: absolute error 2^-10.987 (f16), 2^-8 (bf16). PTX ISA, tanh."""
    return encode(single(np.tanh, a), F16 if t.startswith("f16") else BF16)


@lanes(
    "div.full{ftz}.f32", ftz=FTZ, types="f32 <- f32 f32", c="d = out{ftz}(in{ftz}(a) / in{ftz}(b))"
)
def div_full(a, b, *, ftz):
    """a / b. Hardware: 2 ulp. PTX ISA, div."""
    return finish(flush(a, ftz) / flush(b, ftz), ftz)


@lanes(
    "div.approx{ftz}.f32",
    ftz=FTZ,
    types="f32 <- f32 f32",
    c="d = out{ftz}(div_approx(in{ftz}(a), in{ftz}(b)))",
)
def div_approx(a, b, *, ftz):
    """a * (1 / b): 0 for 2^126 < |b| < 2^128, NaN there if a is infinite. Hardware: 2 ulp for other |b| >= 2^-126.

    PTX ISA, div.
    """
    a, b = flush(a, ftz), flush(b, ftz)
    reciprocal_lost = (np.abs(b) > 2.0**126) & np.isfinite(b)
    zero = np.copysign(np.float32(0), np.sign(a) * np.sign(b)) * a  # a infinite: NaN
    zero = np.copysign(zero, np.where(np.signbit(a) ^ np.signbit(b), -1.0, 1.0).astype(np.float32))
    return finish(np.where(reciprocal_lost, zero, a / b), ftz)
