"""Moves, packing and selection: bits arrive where PTX says, and nothing else changes them."""

import numpy as np
import pytest

from tests.emulator.instructions.lane_cases import operands, operation, run_numpy

LANES = 256


@pytest.mark.parametrize("t", "b16 b32 b64 u16 u32 u64 s16 s32 s64 f32 f64 pred".split())
def test_mov_keeps_every_bit(t):
    # signalling NaNs included: a move is no arithmetic
    op = operation(f"mov.{t}", 1, 1)
    (register,) = operands(op, np.random.default_rng(0), LANES)
    wanted = register & np.uint32(0xFFFF) if t.endswith("16") else register
    np.testing.assert_array_equal(run_numpy(op, [register])[0], wanted)


@pytest.mark.parametrize(
    "opcode, items, bits",
    [
        ("mov.b16", 2, 8),
        ("mov.b32", 4, 8),
        ("mov.b32", 2, 16),
        ("mov.b64", 2, 32),
        ("mov.b64", 4, 16),
    ],
)
def test_the_first_item_is_the_least_significant(opcode, items, bits):
    pack, unpack = operation(opcode, 1, items), operation(opcode, items, 1)
    parts = operands(pack, np.random.default_rng(1), LANES)
    (whole,) = run_numpy(pack, parts)
    mask = (1 << bits) - 1
    rows = zip(*(part.tolist() for part in parts), strict=True)
    assert whole.tolist() == [
        sum((x & mask) << bits * i for i, x in enumerate(row)) for row in rows
    ]
    for part, back in zip(parts, run_numpy(unpack, [whole]), strict=True):
        np.testing.assert_array_equal(back, part & np.uint32(mask))


@pytest.mark.parametrize("t", ["b16", "b32", "b64", "f32", "s64"])
def test_selp_takes_the_first_where_the_predicate_is_true(t):
    op = operation(f"selp.{t}")
    a, b, p = operands(op, np.random.default_rng(2), LANES)
    wanted = np.array(
        [x if c else y for x, y, c in zip(a.tolist(), b.tolist(), p.tolist(), strict=True)], a.dtype
    )
    wanted = wanted & a.dtype.type(0xFFFF) if t == "b16" else wanted
    np.testing.assert_array_equal(run_numpy(op, [a, b, p])[0], wanted)


def test_slct_of_floats_sends_minus_zero_to_the_first_and_nan_to_the_second():
    c = np.array([1.0, 0.0, -0.0, -1.0, np.nan, 1e-45, -1e-45], np.float32)
    a, b = np.full(7, 1, np.uint32), np.full(7, 2, np.uint32)
    assert run_numpy(operation("slct.b32.f32"), [a, b, c.view(np.uint32)])[0].tolist() == [
        1,
        1,
        1,
        2,
        2,
        1,
        2,
    ]
    # .ftz takes -1e-45 as -0
    assert run_numpy(operation("slct.ftz.b32.f32"), [a, b, c.view(np.uint32)])[0].tolist() == [
        1,
        1,
        1,
        2,
        2,
        1,
        1,
    ]


def test_slct_of_integers_asks_for_the_sign():
    c = np.array([0, 1, -1, -(2**31)], np.int32).view(np.uint32)
    a, b = np.full(4, 1, np.uint32), np.full(4, 2, np.uint32)
    assert run_numpy(operation("slct.u32.s32"), [a, b, c])[0].tolist() == [1, 1, 2, 2]
