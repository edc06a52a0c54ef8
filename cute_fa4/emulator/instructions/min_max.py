"""Floating-point minimum and maximum (PTX ISA, min and max).

    operands       plain           .NaN
    one is NaN     the other       NaN        a NaN result is the canonical one
    both NaN       NaN             NaN
    -0 and +0      -0 is less      -0 is less

.abs compares magnitudes; .xorsign.abs also gives the result the exclusive or of the operands' signs.
"""

import numpy as np

from cute_fa4.emulator.instructions.half_precision import read as _read
from cute_fa4.emulator.instructions.instruction_table import lanes
from cute_fa4.emulator.machine.rounding import BF16, F16, canonical, encode, flush, maximum, minimum

FTZ = ["", ".ftz"]
NAN = ["", ".NaN"]


def _f32(pick, a, b, ftz, nan):
    return pick(flush(a, ftz), flush(b, ftz), nan)


def _xorsign(pick, a, b, ftz, nan):
    a, b = flush(a, ftz), flush(b, ftz)
    negative = np.signbit(a) ^ np.signbit(b)
    return canonical(
        np.copysign(
            pick(np.abs(a), np.abs(b), nan), np.where(negative, -1.0, 1.0).astype(np.float32)
        )
    )


def _register_f32(name, c, pick):
    choices = {"ftz": FTZ, "nan": NAN}

    @lanes(
        name + "{ftz}{nan}.f32",
        **choices,
        types="f32 <- f32 f32",
        c=f"d = {c}{{nan}}(in{{ftz}}(a), in{{ftz}}(b))",
    )
    def two(a, b, *, ftz, nan):
        """The smaller or larger of two."""
        return _f32(pick, a, b, ftz, nan)

    @lanes(
        name + "{ftz}{nan}.f32",
        **choices,
        types="f32 <- f32 f32 f32",
        c=f"d = {c}{{nan}}({c}{{nan}}(in{{ftz}}(a), in{{ftz}}(b)), in{{ftz}}(c))",
    )
    def three(a, b, c, *, ftz, nan):
        """The smallest or largest of three (sm_100 and later)."""
        return _f32(pick, _f32(pick, a, b, ftz, nan), c, ftz, nan)

    @lanes(
        name + "{ftz}{nan}.abs.f32",
        **choices,
        types="f32 <- f32 f32 f32",
        c=f"d = {c}{{nan}}({c}{{nan}}(fabsf(in{{ftz}}(a)), fabsf(in{{ftz}}(b))), fabsf(in{{ftz}}(c)))",
    )
    def three_magnitudes(a, b, c, *, ftz, nan):
        """The smallest or largest magnitude of three (sm_100 and later)."""
        return three(np.abs(a), np.abs(b), np.abs(c), ftz=ftz, nan=nan)

    @lanes(
        name + "{ftz}{nan}.xorsign.abs.f32",
        **choices,
        types="f32 <- f32 f32",
        c=f"f32 x = in{{ftz}}(a), y = in{{ftz}}(b), m = {c}{{nan}}(fabsf(x), fabsf(y));"
        " d = out(f32_bits(bits(m) | ((bits(x) ^ bits(y)) & 0x80000000u)))",
    )
    def xorsign(a, b, *, ftz, nan):
        """The smaller or larger magnitude with the exclusive or of the signs."""
        return _xorsign(pick, a, b, ftz, nan)


def _register_others(name, c, pick):
    @lanes(name + ".f64", types="f64 <- f64 f64", c=f"d = {c}64(a, b)")
    def two_f64(a, b):
        """The smaller or larger of two."""
        return pick(a, b)

    @lanes(
        name + "{ftz}{nan}.{t}",
        ftz=FTZ,
        nan=NAN,
        t="f16 f16x2",
        types="{t} <- {t} {t}",
        c=f"d = f16_rn({c}{{nan}}(in16{{ftz}}(a), in16{{ftz}}(b)))",
    )
    def two_f16(a, b, *, ftz, nan):
        """The smaller or larger of two halves; .ftz: a subnormal half counts as zero."""
        return encode(pick(_read(a, ftz), _read(b, ftz), nan), F16)

    @lanes(
        name + "{nan}.{t}",
        nan=NAN,
        t="bf16 bf16x2",
        types="{t} <- {t} {t}",
        c=f"d = bf16_rn({c}{{nan}}(a, b))",
    )
    def two_bf16(a, b, *, nan):
        """The smaller or larger of two bf16."""
        return encode(pick(a, b, nan), BF16)

    @lanes(
        name + "{ftz}{nan}.xorsign.abs.{t}",
        ftz=FTZ,
        nan=NAN,
        t="f16 f16x2",
        types="{t} <- {t} {t}",
        c=f"f32 x = in16{{ftz}}(a), y = in16{{ftz}}(b), m = {c}{{nan}}(fabsf(x), fabsf(y));"
        " d = f16_rn(f32_bits(bits(m) | ((bits(x) ^ bits(y)) & 0x80000000u)))",
    )
    def xorsign_f16(a, b, *, ftz, nan):
        """The smaller or larger magnitude with the exclusive or of the signs."""
        return encode(_xorsign(pick, _read(a, ftz), _read(b, ftz), "", nan), F16)

    @lanes(
        name + "{nan}.xorsign.abs.{t}",
        nan=NAN,
        t="bf16 bf16x2",
        types="{t} <- {t} {t}",
        c=f"f32 m = {c}{{nan}}(fabsf(a), fabsf(b));"
        " d = bf16_rn(f32_bits(bits(m) | ((bits(a) ^ bits(b)) & 0x80000000u)))",
    )
    def xorsign_bf16(a, b, *, nan):
        """The smaller or larger magnitude with the exclusive or of the signs."""
        return encode(_xorsign(pick, a, b, "", nan), BF16)


for _name, _c, _pick in (("min", "minimum", minimum), ("max", "maximum", maximum)):
    _register_f32(_name, _c, _pick)
    _register_others(_name, _c, _pick)
