"""Products of parts of words, and video instructions, against Python's integers."""

import itertools
import operator

import numpy as np
import pytest

from cute_fa4.emulator.instructions import instruction_table
from cute_fa4.emulator.ptx.errors import UnknownInstruction
from tests.emulator.instructions.lane_cases import operands, operation
from tests.emulator.instructions.test_arithmetic import integers, results, wrap

SIGNS = ("u32", "s32")


def parts(word, bits, signed):
    """The parts of a 32-bit word, the lowest first."""
    return [wrap(word >> at, signed, bits) for at in range(0, 32, bits)]


def clamp(x, signed, bits=32):
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return min(max(x, low), high)


def check(opcode, oracle, lanes=512):
    """Special values against each other, then random ones."""
    op = operation(opcode)
    registers = operands(op, np.random.default_rng(0), lanes)
    wanted = [oracle(*row) for row in zip(*integers(op, registers), strict=True)]
    signed, bits = op.results[0].name[0] == "s", int(op.results[0].name[1:])
    assert results(op, registers) == [wrap(x, signed, bits) for x in wanted], opcode


@pytest.mark.parametrize("of_a, of_b", list(itertools.product(SIGNS, SIGNS)))
def test_dot_products(of_a, of_b):
    def dot(a, b, c, bits, first):
        x, y = parts(a, bits, of_a == "s32"), parts(b, 8, of_b == "s32")[first:]
        return c + sum(p * q for p, q in zip(x, y, strict=False))

    check(f"dp4a.{of_a}.{of_b}", lambda a, b, c: dot(a, b, c, 8, 0))
    check(f"dp2a.lo.{of_a}.{of_b}", lambda a, b, c: dot(a, b, c, 16, 0))
    check(f"dp2a.hi.{of_a}.{of_b}", lambda a, b, c: dot(a, b, c, 16, 2))


@pytest.mark.parametrize("t", SIGNS)
def test_products_of_24_bits(t):
    def product(a, b):
        return wrap(a, t == "s32", 24) * wrap(b, t == "s32", 24)

    check(f"mul24.lo.{t}", product)
    check(f"mul24.hi.{t}", lambda a, b: product(a, b) >> 16)
    check(f"mad24.lo.{t}", lambda a, b, c: product(a, b) + c)
    check(f"mad24.hi.{t}", lambda a, b, c: (product(a, b) >> 16) + c)
    if t == "s32":
        check(
            "mad24.hi.sat.s32",
            lambda a, b, c: clamp(wrap(product(a, b) >> 16, True, 32) + c, True),
        )
        check("mad.hi.sat.s32", lambda a, b, c: clamp((a * b >> 32) + c, True))


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_extension_of_the_low_bits(mode):
    for t in SIGNS:

        def extended(a, b, signed=t == "s32"):
            n = min(b, 32) if mode == "clamp" else b % 32
            return wrap(a, signed, n) if n else 0

        check(f"szext.{mode}.{t}", extended)


# --- video --------------------------------------------------------------------------------------------

OPERATIONS = {
    "vadd": lambda x, y: x + y,
    "vsub": lambda x, y: x - y,
    "vabsdiff": lambda x, y: abs(x - y),
    "vmin": min,
    "vmax": max,
    "vavrg": lambda x, y: (x + y + (x + y >= 0)) >> 1,
}
TYPES = list(itertools.product(SIGNS, SIGNS, SIGNS))


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "vavrg"])
def test_scalar_video_instructions(name):
    """Modulo 2^32, whatever the types of the operands are."""
    for d, a, b in TYPES:
        check(f"{name}.{d}.{a}.{b}", OPERATIONS[name], lanes=64)
        check(f"{name}.{d}.{a}.{b}.add", lambda x, y, c: OPERATIONS[name](x, y) + c, lanes=64)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", OPERATIONS)
def test_video_instructions_of_parts(name, count):
    bits = 32 // count
    for (d, a, b), mode in itertools.product(TYPES, ("", ".sat", ".add")):

        def oracle(x, y, c, d=d, a=a, b=b, mode=mode):
            of_parts = zip(parts(x, bits, a == "s32"), parts(y, bits, b == "s32"), strict=True)
            each = [OPERATIONS[name](p, q) for p, q in of_parts]
            if mode == ".add":
                return c + sum(each)
            if mode == ".sat":
                each = [clamp(p, d == "s32", bits) for p in each]
            return sum(wrap(p, False, bits) << bits * i for i, p in enumerate(each))

        check(f"{name}{count}.{d}.{a}.{b}{mode}", oracle, lanes=64)


@pytest.mark.parametrize("count", [2, 4])
def test_comparisons_of_parts(count):
    bits = 32 // count
    for a, b, name, mode in itertools.product(
        SIGNS, SIGNS, ("eq", "ne", "lt", "le", "gt", "ge"), ("", ".add")
    ):

        def oracle(x, y, c, a=a, b=b, name=name, mode=mode):
            of_parts = zip(parts(x, bits, a == "s32"), parts(y, bits, b == "s32"), strict=True)
            each = [int(getattr(operator, name)(p, q)) for p, q in of_parts]
            return c + sum(each) if mode else sum(p << bits * i for i, p in enumerate(each))

        check(f"vset{count}.{a}.{b}.{name}{mode}", oracle, lanes=64)


@pytest.mark.parametrize(
    "opcode, why",
    [
        ("vmad.s32.s32.s32", "of the scalar video"),
        ("vadd.u32.u32.u32.sat", "what an H200 computes is not"),
    ],
)
def test_video_instructions_without_a_meaning_say_so(opcode, why):
    with pytest.raises(UnknownInstruction, match=f"refuses the PTX instruction {opcode}: {why}"):
        instruction_table.lookup(opcode)
