"""f64 arithmetic in a direction, and conversions that clamp, against exact fractions and Python's integers."""

import math
from fractions import Fraction

import numpy as np
import pytest

from tests.emulator.instructions.exact import F32, F64, exact_round, value
from tests.emulator.instructions.lane_cases import operands, operation, run_numpy

WAYS = [".rz", ".rm", ".rp"]
LANES = 1024


def finite_rows(op, lanes=LANES):
    """(operand bits, their Fractions, result bits) of lanes whose operands are finite."""
    registers = operands(op, np.random.default_rng(3), lanes)
    (got,) = run_numpy(op, registers)
    for row, result in zip(
        zip(*(r.tolist() for r in registers), strict=True), got.tolist(), strict=True
    ):
        numbers = [value(bits, F64) for bits in row]
        if all(isinstance(x, Fraction) for x in numbers):
            yield row, numbers, result


def signs(row):
    return [bits >> 63 for bits in row]


@pytest.mark.parametrize("way", WAYS)
def test_products_and_quotients_are_rounded_once(way):
    for row, (x, y), got in finite_rows(operation(f"mul{way}.f64")):
        assert got == exact_round(x * y, F64, way, zero_sign=signs(row)[0] ^ signs(row)[1])
    for row, (x, y), got in finite_rows(operation(f"div{way}.f64")):
        if y:
            assert got == exact_round(x / y, F64, way, zero_sign=signs(row)[0] ^ signs(row)[1])
    for _, (x,), got in finite_rows(operation(f"rcp{way}.f64")):
        if x:
            assert got == exact_round(1 / x, F64, way)


@pytest.mark.parametrize("name", ["fma", "mad"])
@pytest.mark.parametrize("way", WAYS)
def test_sums_of_products_are_rounded_once(name, way):
    """An exact zero: -0 of two negative zeros, and under .rm of unlike signs, too."""
    for row, (x, y, z), got in finite_rows(operation(f"{name}{way}.f64")):
        a, b, c = signs(row)
        like = (a ^ b) == c and x * y == 0
        zero_sign = c if like else int(way == ".rm")
        assert got == exact_round(x * y + z, F64, way, zero_sign=zero_sign)


@pytest.mark.parametrize("way", WAYS)
def test_roots_are_rounded_once(way):
    """The root's digits as an integer: exact below the unit, and one more digit for what is left over."""
    for row, (x,), got in finite_rows(operation(f"sqrt{way}.f64")):
        if x > 0:
            scaled = x * 4**600
            floor = math.isqrt(scaled.numerator // scaled.denominator)
            exact = Fraction(floor, 2**600)
            inexact = exact * exact != x
            assert got == exact_round(exact + Fraction(inexact, 2**601), F64, way)
        elif x == 0:
            assert got == row[0]


@pytest.mark.parametrize("way", WAYS)
def test_special_values_are_those_of_every_direction(way):
    inf, nan, negative = (np.array([x]).view(np.uint64) for x in (np.inf, np.nan, -1.0))
    one = np.array([1.0]).view(np.uint64)
    zero = np.array([0.0]).view(np.uint64)
    get = lambda name, *r: run_numpy(operation(f"{name}{way}.f64"), r)[0].view(np.float64)[0]
    assert get("mul", inf, negative) == -np.inf and math.isnan(get("mul", inf, zero))
    assert get("div", one, zero) == np.inf and get("div", one, inf) == 0
    assert math.isnan(get("sqrt", negative)) and get("sqrt", inf) == np.inf
    assert get("fma", one, one, inf) == np.inf and math.isnan(get("fma", inf, one, nan))


# --- conversions that clamp -----------------------------------------------------------------------------


def limits(t):
    bits = int(t[1:])
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if t[0] == "s" else (0, (1 << bits) - 1)


@pytest.mark.parametrize("t", ["u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2"])
def test_packed_integers_are_clamped(t):
    """a above b; below 16 bits both below what was in c, which moves up."""
    bits, (low, high) = int(t[1:]), limits(t)
    op = operation(f"cvt.pack.sat.{t}.s32" + (".b32" if bits < 16 else ""))
    registers = operands(op, np.random.default_rng(4), LANES)
    a, b, *c = (k.decode(r).tolist() for k, r in zip(op.sources, registers, strict=True))
    c = c[0] if c else [0] * LANES
    part = lambda x: min(max(x, low), high) & (1 << bits) - 1
    wanted = [
        (old << 2 * bits | part(x) << bits | part(y)) & 0xFFFFFFFF
        for x, y, old in zip(a, b, c, strict=True)
    ]
    assert run_numpy(op, registers)[0].tolist() == wanted


@pytest.mark.parametrize("s", ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"])
def test_integers_saturate_to_zero_or_one(s):
    for d, one in (("f16", 0x3C00), ("f32", 0x3F800000), ("f64", 0x3FF0000000000000)):
        for way in (".rn", *WAYS):
            op = operation(f"cvt{way}.sat.{d}.{s}")
            registers = operands(op, np.random.default_rng(5), 256)
            numbers = op.sources[0].decode(registers[0]).tolist()
            assert run_numpy(op, registers)[0].tolist() == [one if x > 0 else 0 for x in numbers]


TF32 = (10, -126, 0x3FBFF, 19)


@pytest.mark.parametrize("way", [".rn", ".rz", ".rna"])
def test_tf32_stays_finite(way):
    """In units of 2^13; with .relu in either place of the opcode, negative values are zero."""
    spellings = {f"cvt{way}.satfinite.tf32.f32": False}
    if way != ".rna":
        spellings |= {
            f"cvt{way}.satfinite.relu.tf32.f32": True,
            f"cvt{way}.relu.satfinite.tf32.f32": True,
        }
    for opcode, relu in spellings.items():
        op = operation(opcode)
        registers = operands(op, np.random.default_rng(6), LANES)
        for bits, got in zip(
            registers[0].tolist(), run_numpy(op, registers)[0].tolist(), strict=True
        ):
            x = value(bits, F32)
            if x == "nan":  # with .rna the code below, as on an H200
                below = (bits & 0xFFFFE000) - 0x2000
                assert got == (below if way == ".rna" else 0x7FFFE000)
                continue
            sign = bits >> 31
            x = {"inf": Fraction(2) ** 200, "-inf": -(Fraction(2) ** 200)}.get(x, x)
            if relu and sign:
                x, sign = Fraction(0), 0
            code = exact_round(x, TF32, way, zero_sign=sign, satfinite=True)
            assert got == code << 13, opcode


@pytest.mark.parametrize("t, special", [("f16", 0x7C00), ("bf16", 0x7F80)])
def test_halves_of_all_65536_codes(t, special):
    """Unchanged without modifiers, except NaN; integral ones are multiples of one and at most one away."""
    codes = np.arange(1 << 16, dtype=np.uint32)
    (same,) = run_numpy(operation(f"cvt.{t}.{t}"), [codes])
    np.testing.assert_array_equal(same, np.where(codes & 0x7FFF <= special, codes, 0x7FFF))
    x = codes.astype(np.uint16).view(np.float16).astype(float)
    if t == "bf16":
        with np.errstate(invalid="ignore"):
            x = (codes << np.uint32(16)).view(np.float32).astype(float)
    number = codes & 0x7FFF <= special
    for way, rounded in (
        (".rni", np.rint),
        (".rzi", np.trunc),
        (".rmi", np.floor),
        (".rpi", np.ceil),
    ):
        (got,) = run_numpy(operation(f"cvt{way}.{t}.{t}"), [codes])
        y = got.astype(np.uint16).view(np.float16).astype(float)
        if t == "bf16":
            y = (got << np.uint32(16)).view(np.float32).astype(float)
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(y[number], rounded(x)[number])
        assert (got[~number] == 0x7FFF).all()
        if t == "f16":
            (unit,) = run_numpy(operation(f"cvt{way}.sat.f16.f16"), [codes])
            wanted = np.where(rounded(np.where(number, x, 0)) >= 1, 0x3C00, 0)
            np.testing.assert_array_equal(unit, wanted)
    if t == "f16":
        (unit,) = run_numpy(operation("cvt.sat.f16.f16"), [codes])
        wanted = np.where(number & (x > 0), np.where(x >= 1, 0x3C00, codes), 0)
        np.testing.assert_array_equal(unit, wanted)


# --- elements out of bounds -------------------------------------------------------------------------------

OUTSIDE = 0x7FF7  # with either sign; of all 65536 codes the only ones that an H200 takes for it


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("t, one", [("f16", 0x3C00), ("bf16", 0x3F80)])
def test_fma_oob_is_zero_for_elements_out_of_bounds(t, one, relu):
    """As a factor, of all 65536 codes; as the addend, and for all others, the sum is that of fma."""
    codes = np.arange(1 << 16, dtype=np.uint32)
    ones = np.full_like(codes, one)
    nan_addend = np.full_like(codes, 0x7FFF)
    oob, plain = operation(f"fma.rn.oob{relu}.{t}"), operation(f"fma.rn{relu}.{t}")
    outside = codes & 0x7FFF == OUTSIDE
    for sources in ((codes, ones, ones), (ones, codes, ones), (codes, ones, nan_addend)):
        wanted = np.where(outside, 0, run_numpy(plain, sources)[0])
        np.testing.assert_array_equal(run_numpy(oob, sources)[0], wanted)
    sources = (ones, ones, codes)
    np.testing.assert_array_equal(run_numpy(oob, sources)[0], run_numpy(plain, sources)[0])
    packed = operation(f"fma.rn.oob{relu}.{t}x2")
    both = [
        codes | ones << np.uint32(16),
        ones | codes << np.uint32(16),
        ones | ones << np.uint32(16),
    ]
    halves = [
        run_numpy(oob, [x >> np.uint32(n) & np.uint32(0xFFFF) for x in both])[0] for n in (0, 16)
    ]
    np.testing.assert_array_equal(
        run_numpy(packed, both)[0], halves[0] | halves[1] << np.uint32(16)
    )
