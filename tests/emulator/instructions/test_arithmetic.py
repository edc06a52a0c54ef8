"""Integer arithmetic against Python's integers, which have no width."""

import numpy as np
import pytest

from tests.emulator.instructions.lane_cases import operands, operation, run_numpy

TYPES = {f"{kind}{bits}": (kind == "s", bits) for kind in "us" for bits in (16, 32, 64)}


def wrap(x, signed, bits):
    """x modulo 2^bits, in the range of the type."""
    x &= (1 << bits) - 1
    return x - (1 << bits) if signed and x >> (bits - 1) else x


def truncated(a, b):
    """Quotient toward zero; -1 (all ones) for b == 0, the emulator's choice where PTX leaves it open."""
    return (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1) if b else -1


ORACLES = {
    "add": lambda a, b, bits: a + b,
    "sub": lambda a, b, bits: a - b,
    "mul.lo": lambda a, b, bits: a * b,
    "mul.hi": lambda a, b, bits: a * b >> bits,
    "mad.lo": lambda a, b, c, bits: a * b + c,
    "mad.hi": lambda a, b, c, bits: (a * b >> bits) + c,
    "div": lambda a, b, bits: truncated(a, b),
    "rem": lambda a, b, bits: a - b * truncated(a, b) if b else -1,
    "min": lambda a, b, bits: min(a, b),
    "max": lambda a, b, bits: max(a, b),
    "sad": lambda a, b, c, bits: c + abs(a - b),
}


def integers(operation, registers):
    """Per source a list of Python integers."""
    return [kind.decode(r).tolist() for kind, r in zip(operation.sources, registers, strict=True)]


def results(operation, registers):
    """The results as a list of Python integers."""
    (register,) = run_numpy(operation, registers)
    return operation.results[0].decode(register).tolist()


# 1024 lanes: 512 pairs or triples of special values (limits, powers of two and neighbours), 512 random ones.
@pytest.mark.parametrize("t", TYPES)
@pytest.mark.parametrize("name", ORACLES)
def test_results_are_the_exact_ones_modulo_the_width(name, t):
    signed, bits = TYPES[t]
    op = operation(f"{name}.{t}")
    registers = operands(op, np.random.default_rng(0), 1024)
    wanted = [
        wrap(ORACLES[name](*row, bits), signed, bits)
        for row in zip(*integers(op, registers), strict=True)
    ]
    assert results(op, registers) == wanted


@pytest.mark.parametrize("t", ["u16", "s16", "u32", "s32"])
@pytest.mark.parametrize("name", ["mul.wide", "mad.wide"])
def test_wide_products_are_exact(name, t):
    signed, bits = TYPES[t]
    op = operation(f"{name}.{t}")
    registers = operands(op, np.random.default_rng(1), 1024)
    rows = zip(*integers(op, registers), strict=True)
    assert results(op, registers) == [wrap(a * b + sum(c), signed, 2 * bits) for a, b, *c in rows]


@pytest.mark.parametrize("t", ["s16", "s32", "s64"])
@pytest.mark.parametrize("name, function", [("abs", abs), ("neg", lambda x: -x)])
def test_magnitude_and_negation_keep_the_most_negative_value(name, function, t):
    _, bits = TYPES[t]
    op = operation(f"{name}.{t}")
    registers = operands(op, np.random.default_rng(2), 256)
    (values,) = integers(op, registers)
    assert -(1 << bits - 1) in values
    assert results(op, registers) == [wrap(function(x), True, bits) for x in values]


@pytest.mark.parametrize(
    "name, function", [("add.sat", lambda a, b: a + b), ("sub.sat", lambda a, b: a - b)]
)
def test_saturating_sums_clamp_to_32_bits(name, function):
    op = operation(f"{name}.s32")
    registers = operands(op, np.random.default_rng(3), 1024)
    rows = zip(*integers(op, registers), strict=True)
    assert results(op, registers) == [
        min(max(function(a, b), -(2**31)), 2**31 - 1) for a, b in rows
    ]


@pytest.mark.parametrize("t", ["s32", "s16x2"])
@pytest.mark.parametrize("name, function", [("min", min), ("max", max)])
def test_relu_makes_negative_results_zero(name, function, t):
    op = operation(f"{name}.relu.{t}")
    registers = operands(op, np.random.default_rng(4), 512)
    rows = zip(*integers(op, registers), strict=True)
    assert results(op, registers) == [max(function(a, b), 0) for a, b in rows]


@pytest.mark.parametrize("name", ["add", "min", "max"])
@pytest.mark.parametrize("t", ["u16x2", "s16x2"])
def test_packed_halves_do_not_touch_each_other(name, t):
    scalar = operation(f"{name}.{t[:3]}")
    packed = operation(f"{name}.{t}")
    a, b = operands(packed, np.random.default_rng(5), 512)
    (both,) = run_numpy(packed, [a, b])
    for shift in (0, 16):
        halves = [register >> np.uint32(shift) & np.uint32(0xFFFF) for register in (a, b)]
        (half,) = run_numpy(scalar, halves)
        np.testing.assert_array_equal(both >> np.uint32(shift) & np.uint32(0xFFFF), half)
