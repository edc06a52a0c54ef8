"""Conversions against exact fractions, and against torch where it has the format."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from cute_fa4.emulator.ptx.lane_types import TYPES
from tests.emulator.instructions.exact import BF16, E4M3, E5M2, F16, F32, F64, exact_round, value
from tests.emulator.instructions.lane_cases import (
    F32_SPECIAL,
    operands,
    operation,
    random_values,
    run_numpy,
)

ROUNDING = [".rn", ".rz", ".rm", ".rp"]
FORMAT = {"f32": F32, "f64": F64, "f16": F16, "bf16": BF16, "e4m3": E4M3, "e5m2": E5M2}
NAN = {
    "f32": 0x7FFFFFFF,
    "f64": 0xFFF8000000000000,
    "f16": 0x7FFF,
    "bf16": 0x7FFF,
    "e4m3": 0x7F,
    "e5m2": 0x7F,
}
INTEGERS = [f"{kind}{bits}" for kind in "us" for bits in (8, 16, 32, 64)]
LANES = 512


def limits(t):
    bits = int(t[1:])
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if t[0] == "s" else (0, (1 << bits) - 1)


def source_codes(kind, register):
    bits = {"f16": 16, "bf16": 16}.get(kind.name, 64)
    return [x & (1 << bits) - 1 for x in register.tolist()]


def exact(code, source, target, rounding, satfinite=False):
    """Code in target of the float ``code`` of format source."""
    v = value(code, FORMAT[source])
    fmt = FORMAT[target]
    sign = code >> (FORMAT[source][3] - 1)
    if v == "nan":
        if (
            source == "f64"
        ):  # sign and highest payload bits stay, and it becomes quiet: measured on an H200
            payload = code >> 52 - fmt[0] & (1 << fmt[0]) - 1
            return (
                sign << fmt[3] - 1 | (1 << fmt[3] - 1) - (1 << fmt[0]) | 1 << fmt[0] - 1 | payload
            )
        return NAN[target]
    if isinstance(v, str):
        return fmt[2] + (not satfinite) | sign << (fmt[3] - 1)
    return exact_round(v, fmt, rounding, sign, satfinite)


def check(opcode, source, target, rounding, **options):
    op = operation(opcode)
    registers = operands(op, np.random.default_rng(0), LANES)
    (got,) = run_numpy(op, registers)
    for g, code in zip(got.tolist(), source_codes(op.sources[0], registers[0]), strict=True):
        wanted = exact(code, source, target, rounding, **options)
        assert g == wanted, f"{opcode} {code:#x} -> {g:#x}, exact {wanted:#x}"


# --- float to float ----------------------------------------------------------------------------------


@pytest.mark.parametrize("r", ROUNDING)
@pytest.mark.parametrize(
    "target, source",
    [
        ("f32", "f64"),
        ("f16", "f32"),
        ("f16", "f64"),
        ("bf16", "f32"),
        ("bf16", "f64"),
        ("bf16", "f16"),
        ("f16", "bf16"),
    ],
)
def test_narrowing_rounds_once(target, source, r):
    check(f"cvt{r}.{target}.{source}", source, target, r)


@pytest.mark.parametrize(
    "target, source", [("f32", "f16"), ("f64", "f32"), ("f64", "f16"), ("f64", "bf16")]
)
def test_widening_is_exact(target, source):
    check(f"cvt.{target}.{source}", source, target, ".rn")


def test_bf16_to_f32_moves_the_bits_up():
    codes = np.arange(1 << 16, dtype=np.uint32)
    np.testing.assert_array_equal(
        run_numpy(operation("cvt.f32.bf16"), [codes])[0], codes << np.uint32(16)
    )


@pytest.mark.parametrize("target", ["f16", "bf16"])
@pytest.mark.parametrize("r", [".rn", ".rz"])
def test_satfinite_stops_at_the_largest_finite_value(target, r):
    check(f"cvt{r}.satfinite.{target}.f32", "f32", target, r, satfinite=True)


TORCH = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}


def f32_values(count=4096, seed=0):
    """Special values, all scales, and many within the range of the 8-bit formats; no NaN."""
    bits = random_values(TYPES["f32"], np.random.default_rng(seed), count).astype(np.uint32)
    x = np.concatenate([np.array(F32_SPECIAL, np.uint32), bits]).view(np.float32)
    x = np.concatenate(
        [x, np.random.default_rng(seed).uniform(-500, 500, count).astype(np.float32)]
    )
    return np.resize(x[~np.isnan(x)], count)


@pytest.mark.parametrize("target", ["f16", "bf16"])
def test_to_nearest_agrees_with_torch(target):
    x = f32_values()
    (got,) = run_numpy(operation(f"cvt.rn.{target}.f32"), [x.view(np.uint32)])
    wanted = torch.from_numpy(x).to(TORCH[target]).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("target", ["f16", "bf16"])
def test_a_pair_has_its_first_source_in_the_upper_half(target):
    a, b = f32_values(seed=1), f32_values(seed=2)
    (got,) = run_numpy(operation(f"cvt.rn.{target}x2.f32"), [a.view(np.uint32), b.view(np.uint32)])
    halves = torch.from_numpy(np.stack([b, a], axis=1)).to(TORCH[target]).view(torch.int16).numpy()
    np.testing.assert_array_equal(got, np.ascontiguousarray(halves).view(np.uint32)[:, 0])


@pytest.mark.parametrize("target, largest", [("e4m3", 448.0), ("e5m2", 57344.0)])
def test_fp8_pairs_agree_with_torch_after_clamping(target, largest):
    a, b = f32_values(seed=3), f32_values(seed=4)
    (got,) = run_numpy(
        operation(f"cvt.rn.satfinite.{target}x2.f32"), [a.view(np.uint32), b.view(np.uint32)]
    )
    pairs = torch.from_numpy(np.stack([b, a], axis=1)).clamp(-largest, largest)
    wanted = pairs.to(TORCH[target]).view(torch.uint8).numpy().view(np.uint16)[:, 0]
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("target", ["e4m3", "e5m2"])
def test_fp8_of_f32_rounds_once_and_nan_is_7f(target):
    op = operation(f"cvt.rn.satfinite.{target}x2.f32")
    a, b = operands(op, np.random.default_rng(5), LANES)
    (got,) = run_numpy(op, [a, b])
    for g, x, y in zip(got.tolist(), a.tolist(), b.tolist(), strict=True):
        upper, lower = (exact(code, "f32", target, ".rn", satfinite=True) for code in (x, y))
        assert g == upper << 8 | lower


@pytest.mark.parametrize("source", ["e4m3", "e5m2"])
def test_all_fp8_codes_become_the_halves_that_torch_gives(source):
    codes = np.arange(256, dtype=np.uint32)
    (got,) = run_numpy(operation(f"cvt.rn.f16x2.{source}x2"), [codes << np.uint32(8) | codes])
    wanted = (
        torch.from_numpy(codes.astype(np.uint8))
        .view(TORCH[source])
        .to(torch.float16)
        .view(torch.int16)
        .numpy()
    )
    wanted = wanted.view(np.uint16).astype(np.uint32)
    wanted = np.where((wanted & 0x7FFF) > 0x7C00, np.uint32(0x7FFF), wanted)  # the canonical NaN
    np.testing.assert_array_equal(got, wanted << np.uint32(16) | wanted)


@pytest.mark.parametrize("target", ["e4m3", "e5m2"])
def test_fp8_of_all_halves_is_fp8_of_their_f32_values(target):
    halves = np.arange(1 << 16, dtype=np.uint32)
    (got,) = run_numpy(
        operation(f"cvt.rn.satfinite.{target}x2.f16x2"), [halves << np.uint32(16) | halves]
    )
    (f32,) = run_numpy(operation("cvt.f32.f16"), [halves])
    (wanted,) = run_numpy(operation(f"cvt.rn.satfinite.{target}x2.f32"), [f32, f32])
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    "opcode",
    ["cvt.rn.relu.bf16x2.f32", "cvt.rz.relu.f16x2.f32", "cvt.rn.satfinite.relu.e4m3x2.f32"],
)
def test_relu_makes_negative_values_zero_and_keeps_nan(opcode):
    a = f32_values(seed=6)
    a[:4] = [np.nan, -0.0, -np.inf, -1.0]
    zero = np.where(np.signbit(a) & ~np.isnan(a), np.float32(0), a)
    plain = operation(opcode.replace(".relu", ""))
    (got,) = run_numpy(operation(opcode), [a.view(np.uint32), a[::-1].copy().view(np.uint32)])
    (wanted,) = run_numpy(plain, [zero.view(np.uint32), zero[::-1].copy().view(np.uint32)])
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("r, ties", [(".rn", "even"), (".rna", "away"), (".rz", "zero")])
def test_tf32_keeps_ten_mantissa_bits(r, ties):
    tf32 = (10, -126, 0x3FBFF, 19)
    op = operation(f"cvt{r}.tf32.f32")
    (register,) = operands(op, np.random.default_rng(7), LANES)
    (got,) = run_numpy(op, [register])
    for g, code in zip(got.tolist(), register.tolist(), strict=True):
        v = value(code, F32)
        if v == "nan":
            # measured on an H200: one NaN, except that .rna cuts the payload
            assert g == (code & 0xFFFFE000 if r == ".rna" else 0x7FFFE000)
        elif isinstance(v, str):
            assert g == code
        else:
            assert g == exact_round(v, tf32, r, code >> 31) << 13, f"{code:#x}, ties {ties}"


def test_ftz_and_sat_of_f32_to_f16():
    op = operation("cvt.rn.ftz.sat.f16.f32")
    x = np.array([2.0, 1.0, 0.5, 0.0, -0.0, -3.0, np.nan, np.inf, 2.0**-149], np.float32)
    assert run_numpy(op, [x.view(np.uint32)])[0].tolist() == [
        0x3C00,
        0x3C00,
        0x3800,
        0,
        0,
        0,
        0,
        0x3C00,
        0,
    ]


@pytest.mark.parametrize(
    "r, function", [("rni", round), ("rzi", math.trunc), ("rmi", math.floor), ("rpi", math.ceil)]
)
@pytest.mark.parametrize("t", ["f32", "f64", "f16"])
def test_rounding_to_an_integral_value_keeps_format_and_sign(t, r, function):
    op = operation(f"cvt.{r}.{t}.{t}")
    (register,) = operands(op, np.random.default_rng(8), LANES)
    (got,) = run_numpy(op, [register])
    fmt = FORMAT[t]
    for g, code in zip(got.tolist(), source_codes(op.sources[0], register), strict=True):
        v = value(code, fmt)
        if isinstance(v, str):
            assert g == (NAN[t] if v == "nan" else code)
        else:
            assert g == exact_round(Fraction(function(v)), fmt, ".rn", code >> (fmt[3] - 1))


# --- integers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "r, function", [("rni", round), ("rzi", math.trunc), ("rmi", math.floor), ("rpi", math.ceil)]
)
@pytest.mark.parametrize("source", ["f32", "f64", "f16", "bf16"])
def test_floats_become_clamped_integers(source, r, function):
    for target in INTEGERS:
        if source == "bf16" and target[1:] == "8":
            continue  # PTX has none
        op = operation(f"cvt.{r}.{target}.{source}")
        (register,) = operands(op, np.random.default_rng(9), 256)
        low, high = limits(target)
        nan = 0
        if source == "f64" or target[1:] == "64":  # PTX ISA cvt: only the top bit set
            nan = low if low else high // 2 + 1
        got = op.results[0].decode(run_numpy(op, [register])[0]).tolist()
        for g, code in zip(got, source_codes(op.sources[0], register), strict=True):
            v = value(code, FORMAT[source])
            if isinstance(v, str):
                wanted = {"nan": nan, "inf": high, "-inf": low}[v]
            else:
                wanted = min(max(function(v), low), high)
            assert g == wanted, f"cvt.{r}.{target}.{source} {code:#x}"


@pytest.mark.parametrize("r", ROUNDING)
@pytest.mark.parametrize("target", ["f32", "f64", "f16", "bf16"])
def test_integers_become_floats_rounded_once(target, r):
    for source in INTEGERS:
        if target == "bf16" and source[1:] == "8":
            continue  # PTX has none
        op = operation(f"cvt{r}.{target}.{source}")
        (register,) = operands(op, np.random.default_rng(10), 256)
        (got,) = run_numpy(op, [register])
        for g, x in zip(got.tolist(), op.sources[0].decode(register).tolist(), strict=True):
            assert g == exact_round(Fraction(x), FORMAT[target], r), f"cvt{r}.{target}.{source} {x}"


@pytest.mark.parametrize("target", INTEGERS)
@pytest.mark.parametrize("source", INTEGERS)
def test_integers_wrap_or_with_sat_clamp(target, source):
    op = operation(f"cvt.{target}.{source}")
    (register,) = operands(op, np.random.default_rng(11), 256)
    values = op.sources[0].decode(register).tolist()
    low, high = limits(target)
    got = op.results[0].decode(run_numpy(op, [register])[0]).tolist()
    assert got == [(x - low) % (high - low + 1) + low for x in values]
    if not (low <= limits(source)[0] and limits(source)[1] <= high):  # else PTX has no .sat
        saturating = operation(f"cvt.sat.{target}.{source}")
        got = op.results[0].decode(run_numpy(saturating, [register])[0]).tolist()
        assert got == [min(max(x, low), high) for x in values]


def test_a_signed_byte_fills_its_16_bit_register_with_the_sign():
    x = np.array([-1, 127, 128, -128], np.int32).view(np.uint32)
    assert run_numpy(operation("cvt.s8.s32"), [x])[0].tolist() == [0xFFFF, 0x7F, 0xFF80, 0xFF80]
    assert run_numpy(operation("cvt.u8.u32"), [x])[0].tolist() == [0xFF, 0x7F, 0x80, 0x80]
