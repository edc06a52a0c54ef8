"""setp and set against Python's comparisons, selp and slct against a conditional."""

import math
import operator

import numpy as np
import pytest

from cute_fa4.emulator.instructions import instruction_table
from tests.emulator.instructions.lane_cases import operands, operation, run_numpy

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


@pytest.mark.parametrize(
    "opcode", ["set.lt.u32.s32", "set.gtu.s32.f32", "set.ne.f32.u32", "set.ge.ftz.f32.f32"]
)
def test_set_writes_all_ones_or_one(opcode):
    op = operation(opcode)
    name, *_, result, source = opcode.split(".")[1:]
    setp = operation(
        f"setp.{name}.{source}" if ".ftz" not in opcode else f"setp.{name}.ftz.{source}"
    )
    registers = operands(op, np.random.default_rng(5), LANES)
    truth = run_numpy(setp, registers)[0]
    wanted = np.where(truth, np.uint32(0x3F800000 if result == "f32" else 0xFFFFFFFF), np.uint32(0))
    np.testing.assert_array_equal(run_numpy(op, registers)[0], wanted)


def test_every_comparison_has_every_combination():
    names = {
        op.opcode for op in instruction_table.lane_operations() if op.opcode.startswith("setp.")
    }
    plain = [name.split(".") for name in names if not {"and", "or", "xor"} & set(name.split("."))]
    for setp, compare, *rest in plain:
        for word in ("and", "or", "xor"):
            assert ".".join((setp, compare, word, *rest)) in names
