"""setp and set against Python's comparisons, selp and slct against a conditional."""

import itertools
import math
import operator

import numpy as np
import pytest

from cute_fa4.emulator.instructions import instruction_table
from tests.emulator.instructions.lane_cases import (
    BF16_SPECIAL,
    F16_SPECIAL,
    operands,
    operation,
    run_numpy,
)

BASE = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
UNSIGNED_NAMES = {"lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge}
LANES = 512


def python_values(op, registers, count=2):
    return [
        kind.decode(r).tolist()
        for kind, r in zip(op.sources[:count], registers[:count], strict=True)
    ]


@pytest.mark.parametrize("t", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_integer_comparisons(t):
    names = BASE | (UNSIGNED_NAMES if t[0] == "u" else {})
    for name, compare in names.items():
        op = operation(f"setp.{name}.{t}")
        registers = operands(op, np.random.default_rng(0), LANES)
        wanted = [compare(a, b) for a, b in zip(*python_values(op, registers), strict=True)]
        assert run_numpy(op, registers)[0].tolist() == wanted, name


def float_oracle(name):
    """The comparison of the PTX ISA table: ordered false on NaN, unordered true on NaN, num, nan."""
    nan = lambda a, b: math.isnan(a) or math.isnan(b)
    if name in ("num", "nan"):
        return lambda a, b: nan(a, b) == (name == "nan")
    if name in BASE:
        return lambda a, b: not nan(a, b) and BASE[name](a, b)
    return lambda a, b: nan(a, b) or BASE[name[:2]](a, b)


FLOAT_NAMES = [*BASE, *(name + "u" for name in BASE), "num", "nan"]


@pytest.mark.parametrize("t", ["f32", "f64", "f16", "bf16"])
def test_float_comparisons(t):
    for name in FLOAT_NAMES:
        op = operation(f"setp.{name}.{t}")
        registers = operands(op, np.random.default_rng(1), LANES)
        compare = float_oracle(name)
        wanted = [compare(a, b) for a, b in zip(*python_values(op, registers), strict=True)]
        assert run_numpy(op, registers)[0].tolist() == wanted, name


@pytest.mark.parametrize("t, smallest_normal", [("f32", 2.0**-126), ("f16", 2.0**-14)])
def test_ftz_compares_subnormals_as_zero(t, smallest_normal):
    flush = lambda x: 0.0 if abs(x) < smallest_normal else x
    for name in FLOAT_NAMES:
        op = operation(f"setp.{name}.ftz.{t}")
        registers = operands(op, np.random.default_rng(2), LANES)
        compare = float_oracle(name)
        wanted = [
            compare(flush(a), flush(b)) for a, b in zip(*python_values(op, registers), strict=True)
        ]
        assert run_numpy(op, registers)[0].tolist() == wanted, name


@pytest.mark.parametrize(
    "word, combine", [("and", operator.and_), ("or", operator.or_), ("xor", operator.xor)]
)
@pytest.mark.parametrize("t", ["s32", "f32"])
def test_the_second_result_combines_the_negated_comparison(t, word, combine):
    op = operation(f"setp.lt.{word}.{t}", results=2)
    registers = operands(op, np.random.default_rng(3), LANES)
    c = registers[2].tolist()
    less = [float_oracle("lt")(a, b) for a, b in zip(*python_values(op, registers), strict=True)]
    p, q = run_numpy(op, registers)
    assert p.tolist() == [combine(x, y) for x, y in zip(less, c, strict=True)]
    assert q.tolist() == [combine(not x, y) for x, y in zip(less, c, strict=True)]


def test_both_results_without_a_combination_are_opposite():
    op = operation("setp.geu.f32", results=2)
    p, q = run_numpy(op, operands(op, np.random.default_rng(4), LANES))
    assert (p != q).all() and p.any() and q.any()


TRUE = {"u32": 0xFFFFFFFF, "s32": 0xFFFFFFFF, "f32": 0x3F800000, "u16": 0xFFFF, "s16": 0xFFFF}
TRUE |= {"f16": 0x3C00, "bf16": 0x3F80}
WORDS = {"": None, "and": operator.and_, "or": operator.or_, "xor": operator.xor}


def sets(pairs):
    """(opcode, comparison, word, .ftz, result, source) of every set."""
    for op in instruction_table.lane_operations():
        if op.opcode.startswith("set.") and op.opcode.endswith("x2") == pairs:
            _, *words, result, source = op.opcode.split(".")
            word = next((w for w in words if w in WORDS), "")
            yield op, words[0], word, ".ftz" if "ftz" in words else "", result, source


@pytest.mark.parametrize("source", "u16 s16 b16 u32 s32 b32 u64 s64 b64 f32 f64 f16 bf16".split())
def test_set_writes_what_setp_says(source):
    """True is all ones, or one in a floating-point type; every type that may be written."""
    chosen = [row for row in sets(pairs=False) if row[-1] == source]
    assert len(chosen) >= 40
    for op, name, word, ftz, result, _ in chosen:
        registers = operands(op, np.random.default_rng(5), 128)
        setp = operation(f"setp.{name}{word and '.' + word}{ftz}.{source}")
        truth = run_numpy(setp, registers)[0]
        wanted = np.where(truth, np.uint32(TRUE[result]), np.uint32(0))
        np.testing.assert_array_equal(run_numpy(op, registers)[0], wanted, op.opcode)


def pairs_of_halves(t):
    """Registers a, b: every special half with every other one, in the lower and, in another order, the upper half."""
    special = np.array(F16_SPECIAL if t == "f16" else BF16_SPECIAL, np.uint32)
    a, b = (x.reshape(-1) for x in np.meshgrid(special, special))
    return a | a[::-1] << np.uint32(16), b | np.roll(b, 7) << np.uint32(16)


@pytest.mark.parametrize("t", ["f16", "bf16"])
def test_pairs_are_compared_half_by_half(t):
    """setp writes p for the lower half and q for the upper one, set a number into each; both as the scalar setp."""
    a, b = pairs_of_halves(t)
    c = np.arange(len(a)) % 3 == 0

    def scalar(name, word, ftz, shift):
        op = operation(f"setp.{name}{word and '.' + word}{ftz}.{t}")
        halves = [x >> np.uint32(shift) & np.uint32(0xFFFF) for x in (a, b)]
        return run_numpy(op, [*halves, c][: len(op.sources)])[0]

    for name, word, ftz in itertools.product(
        FLOAT_NAMES, WORDS, ("", ".ftz")[: 2 if t == "f16" else 1]
    ):
        op = operation(f"setp.{name}{word and '.' + word}{ftz}.{t}x2", results=2)
        got = run_numpy(op, [a, b, c][: len(op.sources)])
        for p, shift in zip(got, (0, 16), strict=True):
            np.testing.assert_array_equal(p, scalar(name, word, ftz, shift), op.opcode)
    for op, name, word, ftz, result, source in sets(pairs=True):
        if source == f"{t}x2":
            true = TRUE[t] if result == source else 0xFFFF
            low, high = (np.where(scalar(name, word, ftz, n), true, 0) for n in (0, 16))
            got = run_numpy(op, [a, b, c][: len(op.sources)])[0]
            np.testing.assert_array_equal(got, (high << 16 | low).astype(np.uint32), op.opcode)


def test_every_comparison_has_every_combination():
    names = {
        op.opcode for op in instruction_table.lane_operations() if op.opcode.startswith("setp.")
    }
    plain = [name.split(".") for name in names if not {"and", "or", "xor"} & set(name.split("."))]
    for setp, compare, *rest in plain:
        for word in ("and", "or", "xor"):
            assert ".".join((setp, compare, word, *rest)) in names
