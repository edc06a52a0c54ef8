"""cvt.rs: two f32 -> f16x2 or bf16x2 with stochastic rounding (PTX ISA, cvt).

    random bits    of a (upper half)   of b (lower half)
    f16x2          bits 16 to 28       bits 0 to 12
    bf16x2         bits 16 to 31       bits 0 to 15

They are added to the magnitude below the last bit of the result, and lower bits are truncated: a value a third of
the way up becomes the upper neighbor for a third of the random numbers. Below the smallest normal number the last
bit is that of subnormals. Bits 13 to 15 and 29 to 31 of f16x2 are ignored, as in hardware; the ISA requires zeros.

Public emulations that were compared with a B200 and a B300 (quack's and FlashInfer's) agree on this. They disagree
on the random bits of the conversions of four values, to 8 and 4 bits; these have no meaning here.
"""

import numpy as np

from cute_fa4.emulator.instructions.instruction_table import lanes, refuse
from cute_fa4.emulator.machine.rounding import BF16, F16, encode
from cute_fa4.emulator.machine.rounding import relu as clamp_negative

FORMATS = {"f16": (F16, 13), "bf16": (BF16, 16)}

refuse(
    r"cvt\.rs.*x4\.f32",
    "which random bits each of its four values uses is not documented in words, and published emulations disagree",
)


def stochastic(x, random, fmt, bits, satfinite):
    """Codes of fmt (uint32) of float32 x with random integers of this many bits."""
    x = np.asarray(x, np.float64)
    size = np.abs(np.where(np.isfinite(x), x, 0.0))
    exponent = np.maximum(np.frexp(size)[1] - 1, fmt.min_exponent)
    quantum = exponent - fmt.mantissa_bits
    noise = np.asarray(random).astype(np.int64) & (1 << bits) - 1
    units = np.floor(np.ldexp(size, -quantum) + np.ldexp(noise.astype(np.float64), -bits))
    rounded = np.ldexp(units, quantum)
    beyond = fmt.largest if satfinite else np.inf
    rounded = np.where(np.isinf(x) | (rounded > fmt.largest), beyond, rounded)
    rounded = np.where(np.isnan(x), np.nan, rounded)
    return encode(np.copysign(rounded, x), fmt, satfinite=satfinite)


@lanes(
    "cvt.rs{relu}{satfinite}.{d}x2.f32",
    relu=["", ".relu"],
    satfinite=["", ".satfinite"],
    d=FORMATS,
    types="b32 <- f32 f32 b32",
    c="d = (u32){d}_rs{satfinite}(positive{relu}(a), c >> 16) << 16 | {d}_rs{satfinite}(positive{relu}(b), c)",
)
def half_pair_of_f32(a, b, c, *, relu, satfinite, d):
    """Two f32 and random bits -> f16x2 or bf16x2: a into the upper half."""
    fmt, bits = FORMATS[d]
    upper, lower = (
        stochastic(clamp_negative(x, relu), r, fmt, bits, bool(satfinite))
        for x, r in ((a, c >> np.uint32(16)), (b, c))
    )
    return upper << np.uint32(16) | lower
