"""2^x on the FMA units, for part of a tile: the special-function unit alone would bound the kernel.

An SM of a B200 does 16 exponentials and 8192 tensor-core multiply-adds a clock: for a tile of 128 x 128 scores
at depth 128, the exponentials take as long as both matrix products. So a few pairs of every 64 are computed with
Cody-Waite range reduction, 2^x = 2^floor(x) 2^frac(x), two at a time:

    x >= -127                     below, the exponent field would wrap
    r = x + 1.5 2^23, down        floor(x) sits in the low bits of r
    f = x - (r - 1.5 2^23)        0 <= f < 1
    p = 1 + c1 f + c2 f^2 + c3 f^3
    result = p's bits + (r << 23) floor(x) goes into the exponent

The coefficients minimize the relative error over [0, 1] (8.8e-5, measured by test_exp2.py); rounding P to bf16
costs 3.9e-3, to fp16 4.9e-4.
"""

import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T

POLYNOMIAL = (1.0, 0.6951461434, 0.2275643945, 0.0771190897)  # c0..c3, c0 exact so that 2^0 is 1
SHIFTER = 1.5 * 2.0**23
SMALLEST_EXPONENT = -127.0


def hardware(x):
    """ex2.approx.ftz.f32: 2 ulp."""
    return cute.math.exp2(x, fastmath=True)


def emulated_pair(x, y):
    """(2^x, 2^y) for x, y <= 127, without the special-function unit."""
    xy = (
        cute.arch.fmax(x, Float32(SMALLEST_EXPONENT)),
        cute.arch.fmax(y, Float32(SMALLEST_EXPONENT)),
    )
    shifter = (Float32(SHIFTER), Float32(SHIFTER))
    rounded = cute.arch.add_packed_f32x2(xy, shifter, rnd="rm")
    whole = cute.arch.sub_packed_f32x2(rounded, shifter)
    fraction = cute.arch.sub_packed_f32x2(xy, whole)
    return _powers(fraction, rounded)


LARGEST_EXPONENT = 128.0  # the end of the range of float32
SATURATED_SPAN = LARGEST_EXPONENT - SMALLEST_EXPONENT


def saturated_pair(scores, scale_log2, bias):
    """(2^x, 2^y) for any x, y = scale_log2 * score + bias, one per score. Results beyond 2^128 and of NaN are inf.

    The FMA that computes an exponent x also clamps it on both sides: it computes (128 - x) / 255, saturated to [0, 1],
    so no maximum is needed. Recovering x has an error of 255 / 2^25. Saturation turns NaN into zero (PTX ISA, "fma").
    Because x enters with a minus sign, zero is the largest exponent, so no NaN becomes a finite number.
    """
    scale = -scale_log2 * (1 / SATURATED_SPAN)
    offset = (LARGEST_EXPONENT - bias) * (1 / SATURATED_SPAN)
    inside = tuple(_saturated_fma(score, scale, offset) for score in scores)
    span, up = (Float32(-SATURATED_SPAN),) * 2, Float32(SHIFTER + LARGEST_EXPONENT)
    rounded = cute.arch.fma_packed_f32x2(inside, span, (up, up), rnd="rm")
    minus_whole = cute.arch.sub_packed_f32x2((up, up), rounded)
    fraction = cute.arch.fma_packed_f32x2(inside, span, minus_whole)
    return _powers(fraction, rounded)


def _saturated_fma(a, b, c):
    return Float32(
        llvm.inline_asm(
            T.f32(),
            [Float32(v).ir_value() for v in (a, b, c)],
            "fma.rn.sat.f32 $0, $1, $2, $3;",
            "=f,f,f,f",
            has_side_effects=False,
            is_align_stack=False,
            asm_dialect=llvm.AsmDialect.AD_ATT,
        )
    )


def _powers(fraction, rounded):
    """2^(whole + fraction) for a pair; the whole parts sit in the low bits of `rounded`."""
    c0, c1, c2, c3 = (Float32(c) for c in POLYNOMIAL)
    p = cute.arch.fma_packed_f32x2(fraction, (c3, c3), (c2, c2))
    p = cute.arch.fma_packed_f32x2(p, fraction, (c1, c1))
    p = cute.arch.fma_packed_f32x2(p, fraction, (c0, c0))
    return tuple(_add_exponent(p[i], rounded[i]) for i in range(2))


def _add_exponent(mantissa, rounded):
    return (mantissa.bitcast(Int32) + (rounded.bitcast(Int32) << 23)).bitcast(Float32)


def emulated_pairs(pairs: int, per_64: int, first: int) -> frozenset[int]:
    """Which of `pairs` pairs are emulated: `per_64` of every 64, evenly spread over the pairs from `first` on.

    >>> sorted(emulated_pairs(64, 4, first=16))
    [27, 39, 51, 63]
    """
    number = per_64 * pairs // 64
    window = pairs - first
    return frozenset(first + (i + 1) * window // number - 1 for i in range(number))
