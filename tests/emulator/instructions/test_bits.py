"""Logic, shifts and bit fields against the bit-by-bit definitions of the PTX ISA, in Python integers."""

import numpy as np
import pytest

from cute_fa4.emulator.instructions.bits import PRMT_SELECTORS
from tests.emulator.instructions.lane_cases import operands, operation, run_numpy

LANES = 512  # half special values against each other, half random


def check(opcode, oracle, seed=0):
    """oracle(width, signed, *source integers) -> result integer, compared modulo the result's width."""
    op = operation(opcode)
    registers = operands(op, np.random.default_rng(seed), LANES)
    sources = [kind.decode(r).tolist() for kind, r in zip(op.sources, registers, strict=True)]
    width = 8 * op.sources[0].decode(registers[0]).dtype.itemsize
    result_width = {1: 32, 2: 64}[op.results[0].rows] if op.results[0].register_bits > 16 else 16
    signed = op.sources[0].name.startswith("s")
    (got,) = run_numpy(op, registers)
    wanted = [
        oracle(width, signed, *row) & (1 << result_width) - 1 for row in zip(*sources, strict=True)
    ]
    assert got.tolist() == wanted


@pytest.mark.parametrize("width", [16, 32, 64])
def test_logic(width):
    check(f"and.b{width}", lambda w, s, a, b: a & b)
    check(f"or.b{width}", lambda w, s, a, b: a | b)
    check(f"xor.b{width}", lambda w, s, a, b: a ^ b)
    check(f"not.b{width}", lambda w, s, a: ~a)
    check(f"cnot.b{width}", lambda w, s, a: int(a == 0))


def test_predicate_logic():
    a, b = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    for opcode, wanted in {
        "and.pred": [0, 0, 0, 1],
        "or.pred": [0, 1, 1, 1],
        "xor.pred": [0, 1, 1, 0],
    }.items():
        assert run_numpy(operation(opcode), [a, b])[0].tolist() == wanted
    assert run_numpy(operation("not.pred"), [a])[0].tolist() == [1, 1, 0, 0]


def test_lop3_looks_every_bit_up_in_the_table():
    def lop3(width, signed, a, b, c, table):
        bit = lambda x, i: x >> i & 1
        return sum(bit(table, 4 * bit(a, i) + 2 * bit(b, i) + bit(c, i)) << i for i in range(32))

    check("lop3.b32", lop3)


def test_the_table_of_lop3_for_a_function_is_the_function_of_three_constants():
    # PTX ISA lop3: immLut = F(0xF0, 0xCC, 0xAA); here F = (a & b) ^ ~c.
    a, b, c = operands(operation("lop3.b32", sources=4), np.random.default_rng(0), LANES)[:3]
    table = np.full(LANES, (0xF0 & 0xCC) ^ (~0xAA & 0xFF), np.uint32)
    np.testing.assert_array_equal(
        run_numpy(operation("lop3.b32"), [a, b, c, table])[0], (a & b) ^ ~c
    )


@pytest.mark.parametrize("width", [16, 32, 64])
def test_shifts_clamp_at_the_width(width):
    check(f"shl.b{width}", lambda w, s, a, n: a << min(n, w))
    for kind in "ubs":
        check(f"shr.{kind}{width}", lambda w, s, a, n: a >> min(n, w))


@pytest.mark.parametrize(
    "mode, amount", [("clamp", lambda n: min(n, 32)), ("wrap", lambda n: n % 32)]
)
def test_funnel_shifts(mode, amount):
    check(f"shf.l.{mode}.b32", lambda w, s, a, b, n: ((b << 32 | a) << amount(n)) >> 32)
    check(f"shf.r.{mode}.b32", lambda w, s, a, b, n: (b << 32 | a) >> amount(n))


@pytest.mark.parametrize("width", [32, 64])
def test_counting(width):
    check(f"popc.b{width}", lambda w, s, a: bin(a).count("1"))
    check(f"clz.b{width}", lambda w, s, a: w - a.bit_length())
    check(f"brev.b{width}", lambda w, s, a: int(f"{a:0{w}b}"[::-1], 2))


@pytest.mark.parametrize("t", ["u32", "s32", "u64", "s64"])
def test_bfind_is_the_highest_bit_that_differs_from_the_sign(t):
    position = lambda a: (~a if a < 0 else a).bit_length() - 1
    check(f"bfind.{t}", lambda w, s, a: position(a))
    check(f"bfind.shiftamt.{t}", lambda w, s, a: w - 1 - position(a) if position(a) >= 0 else -1)


def test_fns_counts_set_bits_from_the_base():
    op = operation("fns.b32")
    mask, base, offset = ([0b10110100], [3], 32)
    wanted = {1: 4, 2: 5, 3: 7, 4: -1, -1: 2, -2: -1, 0: -1}  # bits 2, 4, 5 and 7 are set
    for offset, position in wanted.items():
        registers = [
            np.array(mask, np.uint32),
            np.array(base, np.uint32),
            np.array([offset], np.int32).view(np.uint32),
        ]
        assert run_numpy(op, registers)[0][0] == position & 0xFFFFFFFF


@pytest.mark.parametrize("t", ["u32", "s32", "u64", "s64"])
def test_bfe_is_the_bit_by_bit_definition(t):
    def bfe(width, signed, a, b, c):
        # 64-bit words: all bits of the operands count, measured on an H200
        position, length = (b, c) if width == 64 else (b & 255, c & 255)
        position, length, top = min(position, 64), min(length, 64), width - 1
        sign = a >> min(position + length - 1, top) & 1 if signed and length else 0
        bits = (
            a >> position + i & 1 if i < length and position + i <= top else sign
            for i in range(width)
        )
        return sum(bit << i for i, bit in enumerate(bits))

    check(f"bfe.{t}", bfe)


@pytest.mark.parametrize("width", [32, 64])
def test_bfi_is_the_bit_by_bit_definition(width):
    def bfi(w, signed, a, b, c, d):
        position, length = (c, d) if w == 64 else (c & 255, d & 255)
        for i in range(min(length, w)):
            if position + i < w:
                b = b & ~(1 << position + i) | (a >> i & 1) << position + i
        return b

    check(f"bfi.b{width}", bfi)


@pytest.mark.parametrize(
    "mode, limit", [("clamp", lambda n: min(n, 32)), ("wrap", lambda n: n % 32)]
)
def test_bmsk(mode, limit):
    check(f"bmsk.{mode}.b32", lambda w, s, a, b: ((1 << limit(b)) - 1) << limit(a))


def test_prmt_picks_bytes_and_replicates_signs():
    def prmt(width, signed, a, b, c):
        pair, result = (b << 32 | a).to_bytes(8, "little"), 0
        for i in range(4):
            selector = c >> 4 * i & 15
            byte = pair[selector & 7]
            result |= (255 * (byte >> 7) if selector & 8 else byte) << 8 * i
        return result

    check("prmt.b32", prmt)


# PTX ISA prmt, table of modes: for each value of c[1:0] the source bytes of d.b3 d.b2 d.b1 d.b0.
MODE_TABLE = {
    ".f4e": "3210 4321 5432 6543",
    ".b4e": "5670 6701 7012 0123",
    ".rc8": "0000 1111 2222 3333",
    ".ecl": "3210 3211 3222 3333",
    ".ecr": "0000 1110 2210 3210",
    ".rc16": "1010 3232 1010 3232",
}


@pytest.mark.parametrize("mode", MODE_TABLE)
def test_prmt_modes_are_the_rows_of_the_isa_table(mode):
    rows = MODE_TABLE[mode].split()
    assert PRMT_SELECTORS[mode] == sum(int(row, 16) << 16 * i for i, row in enumerate(rows))
    default, fixed = operation("prmt.b32"), operation(f"prmt.b32{mode}")
    a, b, c = operands(default, np.random.default_rng(0), LANES)
    selectors = np.array([int(rows[x & 3], 16) for x in c.tolist()], np.uint32)
    np.testing.assert_array_equal(
        run_numpy(fixed, [a, b, c])[0], run_numpy(default, [a, b, selectors])[0]
    )
