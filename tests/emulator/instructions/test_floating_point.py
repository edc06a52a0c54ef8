"""Floating-point arithmetic against exact fractions rounded once, in every direction."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cute_fa4.emulator.instructions import instruction_table
from tests.emulator.instructions.exact import BF16, F16, F32, F64, exact_round, value
from tests.emulator.instructions.lane_cases import operands, operation, run_numpy

ROUNDING = [".rn", ".rz", ".rm", ".rp"]
FORMAT = {"f32": F32, "f64": F64, "f16": F16, "bf16": BF16}
NAN = {"f32": 0x7FFFFFFF, "f64": 0xFFF8000000000000, "f16": 0x7FFF, "bf16": 0x7FFF}
# Exact fractions cost about 10 us each: half of the lanes are special values against each other.
LANES = 512


def sign_bit(bits, fmt):
    return int(bits) >> (fmt[3] - 1)


def as_float(v):
    return float(v) if isinstance(v, str) else float(np.clip(float(v), -1, 1)) if v else 0.0


def exact_fma(a, b, c, t, rounding):
    """Code of a * b + c from the codes a, b, c, rounded once."""
    fmt = FORMAT[t]
    x, y, z = (value(v, fmt) for v in (a, b, c))
    product_sign = sign_bit(a, fmt) ^ sign_bit(b, fmt)
    infinity = fmt[2] + 1
    if "nan" in (x, y, z):
        return NAN[t]
    if isinstance(x, str) or isinstance(y, str):  # an infinite product
        if x == 0 or y == 0 or (isinstance(z, str) and sign_bit(c, fmt) != product_sign):
            return NAN[t]
        return infinity | product_sign << (fmt[3] - 1)
    if isinstance(z, str):
        return int(c)
    zero_sign = int(rounding == ".rm")
    if x * y == 0 and z == 0 and product_sign == sign_bit(c, fmt):
        zero_sign = product_sign
    return exact_round(x * y + z, fmt, rounding, zero_sign)


def exact_mul(a, b, t, rounding):
    """Code of a * b: a fused sum with a zero of the product's sign."""
    fmt = FORMAT[t]
    zero = (sign_bit(a, fmt) ^ sign_bit(b, fmt)) << (fmt[3] - 1)
    return exact_fma(a, b, zero, t, rounding)


def exact_add(a, b, t, rounding):
    one = {"f32": 0x3F800000, "f64": 0x3FF0000000000000, "f16": 0x3C00, "bf16": 0x3F80}[t]
    return exact_fma(a, one, b, t, rounding)


def exact_sub(a, b, t, rounding):
    return exact_add(a, int(b) ^ 1 << (FORMAT[t][3] - 1), t, rounding)


ORACLES = {
    "add": (exact_add, 2),
    "sub": (exact_sub, 2),
    "mul": (exact_mul, 2),
    "fma": (exact_fma, 3),
}


def codes(kind, register):
    """Register array -> codes of its elements as Python integers."""
    mask = (1 << {"f16": 16, "bf16": 16}.get(kind.name, 64)) - 1
    element = np.dtype(f"u{kind.element.itemsize}")
    return [x & mask for x in register.view(element).tolist()]


def check(opcode, oracle, lanes=LANES, seed=0, sources=None):
    """Compare all elements of the operation's result with oracle(*source codes)."""
    op = operation(opcode, 1, sources)
    registers = operands(op, np.random.default_rng(seed), lanes)
    (got,) = run_numpy(op, registers)
    columns = [codes(kind, r) for kind, r in zip(op.sources, registers, strict=True)]
    for g, *row in zip(codes(op.results[0], got), *columns, strict=True):
        wanted = oracle(*row)
        assert g == wanted, f"{opcode} {[hex(x) for x in row]} -> {g:#x}, exact {wanted:#x}"


@pytest.mark.parametrize("r", ROUNDING)
@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("t", ["f32", "f32x2"])
def test_f32_results_are_the_exact_ones_rounded_once(name, r, t):
    oracle, sources = ORACLES[name]
    check(f"{name}{r}.{t}", lambda *row: oracle(*row, "f32", r), sources=sources)


def widened(code, t):
    """f32 code of a half-precision number: the same number, a NaN stays one."""
    if t == "bf16":
        return int(code) << 16
    bits = np.array([code], np.uint16).view(np.float16).astype(np.float32)
    return int(bits.view(np.uint32)[0])


# f32 results with half operands: PTX ISA, "Mixed Precision Floating-Point Instructions".
MIXED = {
    "add": (exact_add, "ab", "a"),
    "sub": (exact_sub, "ab", "a"),
    "fma": (exact_fma, "abc", "ab"),
}


@pytest.mark.parametrize("t", ["f16", "bf16"])
@pytest.mark.parametrize("r", ROUNDING)
@pytest.mark.parametrize("name", MIXED)
def test_mixed_precision_is_f32_arithmetic_on_widened_operands(name, r, t):
    oracle, sources, halves = MIXED[name]

    def wanted(*row):
        wide = [widened(x, t) if s in halves else x for s, x in zip(sources, row, strict=True)]
        return oracle(*wide, "f32", r)

    check(f"{name}{r}.f32.{t}", wanted)


@pytest.mark.parametrize("name", MIXED)
def test_mixed_precision_saturates_rounds_to_nearest_by_default_and_has_no_ftz(name):
    half, one, three, tiny = 0x3F00, 0x3F80, 0x40400000, 0x0001  # bf16, bf16, f32, bf16 subnormal
    first = [np.array([x], np.uint32) for x in (one, three)]
    if name == "fma":
        first.insert(0, np.array([half], np.uint32))
    (got,) = run_numpy(operation(f"{name}.rn.sat.f32.bf16"), first)
    assert got[0] == (0 if name == "sub" else 0x3F800000)  # 1 - 3 and 1 + 3, clamped to [0, 1]
    kept = [np.array([x], np.uint32) for x in (tiny, 0)]
    if name == "fma":
        kept.insert(0, np.array([one], np.uint32))
    else:
        assert instruction_table.is_lanes(f"{name}.f32.bf16")
    (got,) = run_numpy(operation(f"{name}.rn.f32.bf16"), kept)
    assert got[0] == tiny << 16
    assert not instruction_table.is_lanes(f"{name}.rn.ftz.f32.bf16")


@given(
    st.lists(st.integers(0, 2**32 - 1), min_size=3, max_size=3),
    st.integers(-30, 30),
    st.sampled_from(ROUNDING),
)
@settings(max_examples=300)
def test_fused_sums_that_nearly_cancel_are_rounded_once(codes_abc, ulps, r):
    """c within a few ulps of -a b: the sum lives in the low bits of the product."""
    a, b, _ = (np.array([x], np.uint32) for x in codes_abc)
    with np.errstate(all="ignore"):
        product = (a.view(np.float32) * b.view(np.float32)).view(np.uint32)
    c = ((product ^ np.uint32(0x80000000)).astype(np.int64) + ulps).astype(np.uint32)
    (got,) = run_numpy(operation(f"fma{r}.f32"), [a, b, c])
    assert got[0] == exact_fma(int(a[0]), int(b[0]), int(c[0]), "f32", r)


def test_fused_and_separate_rounding_differ():
    # (1 + 2^-12)^2 - (1 + 2^-11) = 2^-24: rounding the product to f32 first loses it.
    a = np.array([1 + 2.0**-12], np.float32).view(np.uint32)
    c = np.array([-(1 + 2.0**-11)], np.float32).view(np.uint32)
    (fused,) = run_numpy(operation("fma.rn.f32"), [a, a, c])
    assert fused.view(np.float32)[0] == 2.0**-24
    (product,) = run_numpy(operation("mul.rn.f32"), [a, a])
    assert run_numpy(operation("add.rn.f32"), [product, c])[0].view(np.float32)[0] == 0


def test_fma_through_float64_would_round_twice():
    # a b + c = 1 + 2^-24 + 2^-60 lies just above a tie: to nearest it goes up; float64 drops 2^-60 and ties to even.
    a, b, c = (np.array([x], np.float32).view(np.uint32) for x in (2.0**-30, 2.0**-30, 1.0))
    tie = np.array([1 + 2.0**-23], np.float32)
    (got,) = run_numpy(operation("fma.rn.f32"), [a, b, c])
    assert got.view(np.float32)[0] == 1.0
    c2 = np.array([2.0**-24], np.float32).view(np.uint32)
    x = np.array([1 + 2.0**-23], np.float32).view(np.uint32)  # odd last bit
    y = np.array([1.0], np.float32).view(np.uint32)
    (up,) = run_numpy(operation("fma.rn.f32"), [x, y, c2])
    assert up.view(np.float32)[0] == tie[0] + 2.0**-23


@pytest.mark.parametrize("r", ROUNDING)
def test_f64_sums_are_the_exact_ones_rounded_once(r):
    for name in ("add", "sub"):
        check(f"{name}{r}.f64", lambda *row, o=ORACLES[name][0]: o(*row, "f64", r))


@pytest.mark.parametrize("name", ["mul", "fma"])
def test_f64_products_are_rounded_once_to_nearest(name):
    oracle, sources = ORACLES[name]
    check(f"{name}.rn.f64", lambda *row: oracle(*row, "f64", ".rn"), sources=sources)


@pytest.mark.parametrize("t", ["f16", "f16x2", "bf16", "bf16x2"])
@pytest.mark.parametrize("name", ORACLES)
def test_half_results_are_the_exact_ones_rounded_once(name, t):
    oracle, sources = ORACLES[name]
    scalar = t.removesuffix("x2")
    check(f"{name}.rn.{t}", lambda *row: oracle(*row, scalar, ".rn"), sources=sources)


# --- modifiers ------------------------------------------------------------------------------------


def flushed(code):
    return code if code & 0x7F800000 else code & 0x80000000


def clamped(code):
    v = value(code, F32)
    if v == "nan" or v == "-inf" or (v != "inf" and v <= 0):
        return 0
    return 0x3F800000 if v == "inf" or v > 1 else code


@pytest.mark.parametrize("r", ROUNDING)
@pytest.mark.parametrize("name", ORACLES)
def test_ftz_flushes_operands_and_result(name, r):
    oracle, sources = ORACLES[name]
    check(
        f"{name}{r}.ftz.f32",
        lambda *row: flushed(oracle(*map(flushed, row), "f32", r)),
        sources=sources,
    )


@pytest.mark.parametrize("name", ORACLES)
def test_sat_clamps_to_0_and_1_and_turns_nan_into_0(name):
    oracle, sources = ORACLES[name]
    check(f"{name}.rn.sat.f32", lambda *row: clamped(oracle(*row, "f32", ".rn")), sources=sources)


def test_no_modifier_means_to_nearest():
    for name in ("add", "sub", "mul"):
        for t in ("f32", "f32x2", "f64", "f16", "bf16x2"):
            plain, nearest = operation(f"{name}.{t}"), operation(f"{name}.rn.{t}")
            registers = operands(plain, np.random.default_rng(1), 64)
            np.testing.assert_array_equal(
                run_numpy(plain, registers)[0], run_numpy(nearest, registers)[0]
            )


def test_every_f32_result_that_is_nan_is_the_canonical_one():
    # copysign and moves are bit operations and keep NaN payloads (PTX ISA, copysign, mov)
    for op in instruction_table.lane_operations():
        arithmetic = op.family.rsplit(".", 1)[1] in ("floating_point", "min_max", "approximate")
        if arithmetic and op.results[0].name in ("f32", "f32x2"):
            (got,) = run_numpy(op, operands(op, np.random.default_rng(2), 256))
            got = got.view(np.float32)
            assert set(got[np.isnan(got)].view(np.uint32).tolist()) <= {0x7FFFFFFF}, op.opcode


# --- quotients and roots ----------------------------------------------------------------------------


@pytest.mark.parametrize("r", ROUNDING)
def test_quotients_are_rounded_once(r):
    def exact_div(a, b):
        x, y = value(a, F32), value(b, F32)
        sign = sign_bit(a, F32) ^ sign_bit(b, F32)
        if "nan" in (x, y) or (isinstance(x, str) and isinstance(y, str)) or x == y == 0:
            return NAN["f32"]
        if isinstance(x, str) or y == 0:
            return 0x7F800000 | sign << 31
        return exact_round(Fraction(0) if isinstance(y, str) else x / y, F32, r, sign)

    check(f"div{r}.f32", exact_div, lanes=1024)
    check(f"rcp{r}.f32", lambda a: exact_div(0x3F800000, a))


@pytest.mark.parametrize("r", ROUNDING)
def test_roots_are_rounded_once(r):
    def exact_sqrt(a):
        x = value(a, F32)
        if x in ("inf", 0):
            return a
        if isinstance(x, str) or x < 0:
            return NAN["f32"]
        # floor of the root in units of 2^-200, and a sticky unit below it when inexact: enough for 24 bits
        scaled = x * Fraction(4) ** 200
        root = (
            Fraction(math.isqrt(int(scaled)) * 2 + (math.isqrt(int(scaled)) ** 2 != scaled), 2)
            / Fraction(2) ** 200
        )
        return exact_round(root, F32, r)

    check(f"sqrt{r}.f32", exact_sqrt)


# --- sign, class, order -------------------------------------------------------------------------------


def test_abs_and_neg_change_the_sign_bit_of_numbers():
    nan = lambda a: value(a, F32) == "nan"
    check("abs.f32", lambda a: NAN["f32"] if nan(a) else a & 0x7FFFFFFF)
    check("neg.f32", lambda a: NAN["f32"] if nan(a) else a ^ 0x80000000)
    check("neg.ftz.f32", lambda a: NAN["f32"] if nan(a) else flushed(a) ^ 0x80000000)
    check("copysign.f32", lambda a, b: (a & 0x80000000) | (b & 0x7FFFFFFF))
    for t in ("f16", "bf16"):
        nan = lambda a, t=t: value(a, FORMAT[t]) == "nan"
        check(f"abs.{t}", lambda a, nan=nan: 0x7FFF if nan(a) else a & 0x7FFF)
        check(f"neg.{t}", lambda a, nan=nan: 0x7FFF if nan(a) else a ^ 0x8000)


def test_testp_partitions_the_floats():
    for t in ("f32", "f64"):
        op = operation(f"testp.finite.{t}")
        (register,) = operands(op, np.random.default_rng(3), 256)
        is_a = {
            name: run_numpy(operation(f"testp.{name}.{t}"), [register])[0]
            for name in ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
        }
        np.testing.assert_array_equal(is_a["finite"] | is_a["infinite"], is_a["number"])
        np.testing.assert_array_equal(is_a["number"], ~is_a["notanumber"])
        zero = op.sources[0].decode(register) == 0
        np.testing.assert_array_equal(is_a["normal"] | is_a["subnormal"] | zero, is_a["finite"])
        assert not (is_a["normal"] & is_a["subnormal"]).any() and is_a["subnormal"].any()


def exact_pick(a, b, t, larger, nan_wins):
    """Code of the smaller or larger: by value, then by sign of zero."""
    fmt = FORMAT[t]
    x, y = value(a, fmt), value(b, fmt)
    if "nan" in (x, y):
        return NAN[t] if nan_wins or x == y else (b if x == "nan" else a)
    key = lambda code: (float(value(code, fmt)), -sign_bit(code, fmt))
    return (max if larger else min)(a, b, key=key)


@pytest.mark.parametrize("nan_wins", [False, True])
@pytest.mark.parametrize("t", ["f32", "f16", "bf16", "f64"])
@pytest.mark.parametrize("name", ["min", "max"])
def test_min_max_order_zeros_and_treat_nan_as_asked(name, t, nan_wins):
    if t == "f64" and nan_wins:
        assert not instruction_table.is_lanes(f"{name}.NaN.f64")  # PTX has none
        return
    pick = lambda a, b: exact_pick(a, b, t, name == "max", nan_wins)
    check(f"{name}{'.NaN' * nan_wins}.{t}", pick, lanes=1024, sources=2)
    if t == "f32":
        check(
            f"{name}{'.NaN' * nan_wins}.f32",
            lambda a, b, c: pick(pick(a, b), c),
            lanes=1024,
            sources=3,
        )
        if not nan_wins:
            check(f"{name}.ftz.f32", lambda a, b: pick(flushed(a), flushed(b)), sources=2)


@pytest.mark.parametrize("name", ["min", "max"])
def test_xorsign_abs_orders_magnitudes_and_combines_signs(name):
    def oracle(a, b):
        code = exact_pick(a & 0x7FFFFFFF, b & 0x7FFFFFFF, "f32", name == "max", False)
        return code if code == NAN["f32"] else code | (a ^ b) & 0x80000000

    check(f"{name}.xorsign.abs.f32", oracle, lanes=1024)


# --- approximations ---------------------------------------------------------------------------------


APPROXIMATIONS = {
    "ex2.approx.f32": lambda x: 2.0**x if x < 1024 else math.inf,
    "lg2.approx.f32": math.log2,
    "rcp.approx.f32": lambda x: 1 / x,
    "rsqrt.approx.f32": lambda x: 1 / math.sqrt(x),
    "sqrt.approx.f32": math.sqrt,
    "sin.approx.f32": math.sin,
    "cos.approx.f32": math.cos,
    "tanh.approx.f32": math.tanh,
}


@pytest.mark.parametrize("opcode", APPROXIMATIONS)
def test_approximations_are_the_function_rounded_to_f32(opcode):
    # libm is within an ulp of f64, so the rounded f32 is off by half an ulp (2^-24, relative) and a trace.
    function = APPROXIMATIONS[opcode]
    x = np.exp(np.random.default_rng(4).uniform(-4, 4, 2048)).astype(np.float32)
    (got,) = run_numpy(operation(opcode), [x.view(np.uint32)])
    exact = np.array([function(v) for v in x.tolist()])
    assert (np.abs(got.view(np.float32) - exact) <= np.abs(exact) * 2.0**-24 * (1 + 2.0**-20)).all()


SPECIAL_RESULTS = {  # PTX ISA tables of special values
    "ex2.approx.f32": [
        (-np.inf, 0.0),
        (-0.0, 1.0),
        (np.inf, np.inf),
        (np.nan, np.nan),
        (128.0, np.inf),
        (-149.0, 2.0**-149),
    ],
    "ex2.approx.ftz.f32": [(2.0**-149, 1.0), (-127.0, 0.0), (-126.0, 2.0**-126), (np.nan, np.nan)],
    "lg2.approx.f32": [
        (-np.inf, np.nan),
        (-1.0, np.nan),
        (-0.0, -np.inf),
        (0.0, -np.inf),
        (np.inf, np.inf),
        (2.0**-149, -149.0),
    ],
    "lg2.approx.ftz.f32": [(2.0**-149, -np.inf), (1.0, 0.0)],
    "rcp.approx.ftz.f32": [
        (-np.inf, -0.0),
        (-0.0, -np.inf),
        (2.0**-149, np.inf),
        (0.0, np.inf),
        (np.inf, 0.0),
        (2.0**127, 0.0),
    ],
    "rsqrt.approx.f32": [(-1.0, np.nan), (-0.0, -np.inf), (0.0, np.inf), (np.inf, 0.0), (4.0, 0.5)],
    "sqrt.approx.f32": [(-1.0, np.nan), (-0.0, -0.0), (0.0, 0.0), (np.inf, np.inf), (4.0, 2.0)],
    "sin.approx.f32": [(-np.inf, np.nan), (-0.0, -0.0), (0.0, 0.0), (np.inf, np.nan)],
    "cos.approx.f32": [(-np.inf, np.nan), (-0.0, 1.0), (0.0, 1.0), (np.inf, np.nan)],
    "tanh.approx.f32": [(-np.inf, -1.0), (-0.0, -0.0), (0.0, 0.0), (np.inf, 1.0), (np.nan, np.nan)],
}


@pytest.mark.parametrize("opcode", SPECIAL_RESULTS)
def test_approximations_of_special_values_are_exact(opcode):
    x, wanted = (
        np.array(column, np.float32) for column in zip(*SPECIAL_RESULTS[opcode], strict=True)
    )
    wanted = np.where(np.isnan(wanted), np.uint32(0x7FFFFFFF), wanted.view(np.uint32))
    np.testing.assert_array_equal(run_numpy(operation(opcode), [x.view(np.uint32)])[0], wanted)


def test_div_approx_loses_quotients_of_divisors_above_2_to_126():
    a = np.array([1.0, -1.0, np.inf, 1.0, 6.0], np.float32).view(np.uint32)
    b = np.array([2.0**127, 2.0**127, 2.0**127, 2.0**126, 3.0], np.float32).view(np.uint32)
    (approx,) = run_numpy(operation("div.approx.f32"), [a, b])
    assert approx.tolist() == [0, 0x80000000, 0x7FFFFFFF, 0x00800000, 0x40000000]
    (full,) = run_numpy(operation("div.full.f32"), [a, b])
    assert full.view(np.float32).tolist() == [2.0**-127, -(2.0**-127), np.inf, 2.0**-126, 2.0]
