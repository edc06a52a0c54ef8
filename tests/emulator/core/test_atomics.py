"""atom and red of every type, in vectors and in packed pairs, and the carry flag, against Python's arithmetic."""

import numpy as np
import pytest

from cute_fa4.emulator.ptx.errors import EmulatorError
from tests.emulator.core.ptx_bench import run_ptx
from tests.emulator.instructions.exact import BF16, F16, exact_round, value

FORMATS = {"f16": F16, "bf16": BF16}
# Zero, the smallest subnormal, one, one and a half ulp more, the largest, infinity, NaN, and the negative ones.
CODES = {
    "f16": [0, 1, 0x03FF, 0x3C00, 0x3C01, 0x4900, 0x7BFF, 0x7C00, 0x7E01],
    "bf16": [0, 1, 0x007F, 0x3F80, 0x3F81, 0x4120, 0x7F7F, 0x7F80, 0x7FC1],
}


def number(code, kind):
    """A Fraction, or a float that is infinite or NaN."""
    x = value(code, FORMATS[kind])
    return float(x) if isinstance(x, str) else x


def combined(operation, kind, old, new):
    """The code of old op new: sums rounded once; minima and maxima prefer numbers to NaN, and -0 is less than +0."""
    x, y = number(old, kind), number(new, kind)
    nan = [isinstance(each, float) and each != each for each in (x, y)]
    if operation == "add":
        infinite = [each for each in (x, y) if isinstance(each, float)]
        if any(nan) or len(infinite) == 2 and x != y:
            return 0x7FFF
        if infinite:
            return old if isinstance(x, float) else new
        return exact_round(x + y, FORMATS[kind], zero_sign=old >> 15 & new >> 15)
    if all(nan):
        return 0x7FFF
    if any(nan):
        return new if nan[0] else old
    key = lambda code, each: (each, -(code >> 15))
    pick = min if operation == "min" else max
    return pick((key(old, x), old), (key(new, y), new))[1]


def all_pairs(kind, multiple):
    """All pairs of the codes above, and zeros up to a multiple."""
    codes = np.array([c | s for c in CODES[kind] for s in (0, 0x8000)], np.uint16)
    pairs = (x.reshape(-1) for x in np.meshgrid(codes, codes))
    return tuple(np.ascontiguousarray(np.pad(x, (0, -len(x) % multiple))) for x in pairs)


def listed(names):
    """The operand of one or several registers."""
    return names[0] if len(names) == 1 else "{" + ", ".join(names) + "}"


# What follows the space in an opcode -> (registers, bits of one). The words of a vector come in two orders.
SHAPES = {
    "{op}.noftz.{t}": (1, 16),
    "{op}.noftz.{t}x2": (1, 32),
    "{op}.noftz.v2.{t}": (2, 16),
    "v4.{t}.{op}.noftz": (4, 16),
    "{op}.noftz.v8.{t}": (8, 16),
    "{op}.noftz.L2::cache_hint.v4.{t}x2": (4, 32),
    "v2.{t}x2.{op}.noftz": (2, 32),
}


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_halves(shape, kind):
    """Each element is atomic: all pairs of the codes above. atom returns the old values."""
    count, bits = SHAPES[shape]
    nbytes = count * bits // 8
    old, new = all_pairs(kind, 16 * nbytes)
    bank = "%rs" if bits == 16 else "%r"
    target, source = ([f"{bank}{first + i}" for i in range(count)] for first in (0, 8))
    moves = list(enumerate(zip(target, source, strict=True)))
    hint = ", %rd9" if "hint" in shape else ""
    # add alone for scalars and pairs: PTX has min and max of vectors only.
    for operation in ("add", "min", "max") if "v" in shape else ("add",):
        opcode = shape.format(op=operation, t=kind)
        wanted = [
            combined(operation, kind, *row) for row in zip(old.tolist(), new.tolist(), strict=True)
        ]
        for instruction in ("atom", "red"):
            result = f"{listed(target)}, " if instruction == "atom" else ""
            memory, returned = old.copy(), old.copy()
            run_ptx(
                f"""
                mov.u32 %r31, %tid.x; mul.wide.u32 %rd4, %r31, {nbytes}; mov.b64 %rd9, 0;
                ld.param.b64 %rd1, [p0]; ld.param.b64 %rd2, [p1]; ld.param.b64 %rd3, [p2];
                add.s64 %rd1, %rd1, %rd4; add.s64 %rd2, %rd2, %rd4; add.s64 %rd3, %rd3, %rd4;
                {"".join(f"ld.global.b{bits} {s}, [%rd2+{bits // 8 * i}];" for i, (_, s) in moves)}
                {"".join(f"ld.global.b{bits} {t}, [%rd3+{bits // 8 * i}];" for i, (t, _) in moves)}
                {instruction}.global.{opcode} {result}[%rd1], {listed(source)}{hint};
                {"".join(f"st.global.b{bits} [%rd3+{bits // 8 * i}], {t};" for i, (t, _) in moves)}
                """,
                memory, new, returned, threads=2 * len(old) // nbytes,
            )  # fmt: skip
            assert memory.tolist() == wanted, opcode
            np.testing.assert_array_equal(returned, old)


@pytest.mark.parametrize("space", ["global", "shared", ""])
def test_compare_and_swap_of_16_bits_and_exchange_of_128(space):
    """One lane of 32 wins a swap; an exchange of 128 bits passes a word from lane to lane."""
    halves, out = np.array([7, 7], np.uint16), np.zeros(32, np.uint32)
    generic = "cvta.shared.u64 %rd1, %rd1;" if space == "" else ""
    dot = f".{space}" if space else ""
    address = {
        "global": "ld.param.b64 %rd1, [p0];",
        "shared": "mov.u32 %r2, dyn; cvt.u64.u32 %rd1, %r2; mov.b16 %rs1, 7; st.shared.b16 [%rd1], %rs1;",
        "": "mov.u32 %r2, dyn; cvt.u64.u32 %rd1, %r2; mov.b16 %rs1, 7; st.shared.b16 [%rd1], %rs1;",
    }[space]
    run_ptx(
        f"""
        {address} {generic}
        mov.u32 %r3, %laneid; cvt.u16.u32 %rs2, %r3; mov.b16 %rs3, 7; add.u16 %rs2, %rs2, 100;
        atom{dot}.cas.b16 %rs4, [%rd1], %rs3, %rs2; cvt.u32.u16 %r4, %rs4;
        ld.param.b64 %rd5, [p1]; mul.wide.u32 %rd6, %r3, 4; add.s64 %rd5, %rd5, %rd6; st.global.b32 [%rd5], %r4;
        """,
        halves, out, shared=64,
    )  # fmt: skip
    assert out.tolist() == [7] + [100] * 31
    if space == "global":
        assert halves.tolist() == [100, 7]


def aligned(values):
    storage = np.zeros(values.nbytes + 16, np.uint8)
    start = -storage.ctypes.data % 16
    out = storage[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    out[...] = values
    return out


def test_exchange_and_swap_of_128_bits():
    """Lane l puts (l, l + 100) and gets what lane l - 1 put; the swap replaces what the last lane put, once."""
    word, out = aligned(np.array([5, 6], np.uint64)), aligned(np.zeros((32, 4), np.uint64))
    run_ptx(
        """
        .reg .b128 %q<4>;
        ld.param.b64 %rd1, [p0]; mov.u32 %r1, %laneid; cvt.u64.u32 %rd2, %r1; add.u64 %rd3, %rd2, 100;
        mov.b128 %q0, {%rd2, %rd3};
        atom.global.exch.b128 %q1, [%rd1], %q0;
        mov.b64 %rd4, 31; mov.b64 %rd5, 131; mov.b128 %q2, {%rd4, %rd5};
        atom.global.cas.b128 %q3, [%rd1], %q2, %q0;
        mov.b128 {%rd6, %rd7}, %q1; mov.b128 {%rd8, %rd9}, %q3;
        ld.param.b64 %rd10, [p1]; mul.wide.u32 %rd11, %r1, 32; add.s64 %rd10, %rd10, %rd11;
        st.global.v2.b64 [%rd10], {%rd6, %rd7}; st.global.v2.b64 [%rd10+16], {%rd8, %rd9};
        """,
        word, out,
    )  # fmt: skip
    assert out[:, :2].tolist() == [[5, 6]] + [[n, n + 100] for n in range(31)]
    assert out[:, 2:].tolist() == [[31, 131]] + [[0, 100]] * 31
    assert word.tolist() == [0, 100]


# --- the carry flag -----------------------------------------------------------------------------------

RANDOM = np.random.default_rng(0)
EDGES = [0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF, 0x12345678]


def start(nbytes):
    """PTX: %rd30 is the address of the lane's part of the array of p0."""
    return (
        f"mov.u32 %r31, %laneid; mul.wide.u32 %rd31, %r31, {nbytes}; ld.param.b64 %rd30, [p0];"
        "add.s64 %rd30, %rd30, %rd31;"
    )


def wide_numbers(words):
    """32 pairs of numbers of some 32-bit words; many words are zeros or all ones, so that carries travel."""
    return [
        [int(sum(int(RANDOM.choice(EDGES)) << 32 * i for i in range(words))) for _ in range(2)]
        for _ in range(32)
    ]


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("operation", ["add", "sub"])
def test_sums_of_many_words_carry(operation, bits):
    """Numbers of four words: the first with .cc, two that take and give, the last that takes."""
    words, t = 4, f"{'us'[bits == 64]}{bits}"
    pairs = wide_numbers(words * bits // 32)
    data = np.zeros((32, 2, words), f"u{bits // 8}")
    for lane, pair in enumerate(pairs):
        for side, x in enumerate(pair):
            data[lane, side] = [x >> bits * i & (1 << bits) - 1 for i in range(words)]
    bank, size = ("r", 4) if bits == 32 else ("rd", 8)
    steps = [f"{operation}.cc.{t}", *[f"{operation}c.cc.{t}"] * (words - 2), f"{operation}c.{t}"]
    body = start(2 * words * size)
    for i in range(2 * words):
        body += f"ld.global.b{bits} %{bank}{i}, [%rd30+{size * i}];"
    body += "".join(
        f"{step} %{bank}{i}, %{bank}{i}, %{bank}{words + i};" for i, step in enumerate(steps)
    )
    body += "".join(f"st.global.b{bits} [%rd30+{size * i}], %{bank}{i};" for i in range(words))
    run_ptx(body, data)
    for lane, (x, y) in enumerate(pairs):
        total = (x + y if operation == "add" else x - y) % (1 << bits * words)
        assert sum(int(w) << bits * i for i, w in enumerate(data[lane, 0])) == total


@pytest.mark.parametrize("bits", [32, 64])
def test_products_of_two_words_carry(bits):
    """The 4-word product of 2-word numbers, with mad.lo.cc, madc.hi.cc and madc.hi."""
    pairs = wide_numbers(2 * bits // 32)
    data = np.zeros((32, 4), f"u{bits // 8}")
    for lane, (x, y) in enumerate(pairs):
        data[lane] = [n >> bits * i & (1 << bits) - 1 for n in (x, y) for i in range(2)]
    r, size, t = ("%r", 4, "u32") if bits == 32 else ("%rd", 8, "u64")
    body = start(4 * size)
    body += "".join(f"ld.global.b{bits} {r}{i}, [%rd30+{size * i}];" for i in range(4))
    a0, a1, b0, b1, d0, d1, d2, d3, zero = (f"{r}{i}" for i in range(9))
    body += f"""
        mov.b{bits} {zero}, 0;
        mul.lo.{t} {d0}, {a0}, {b0}; mul.hi.{t} {d1}, {a0}, {b0};
        mad.lo.cc.{t} {d1}, {a0}, {b1}, {d1}; madc.hi.{t} {d2}, {a0}, {b1}, {zero};
        mad.lo.cc.{t} {d1}, {a1}, {b0}, {d1}; madc.hi.cc.{t} {d2}, {a1}, {b0}, {d2}; addc.{t} {d3}, {zero}, {zero};
        mad.lo.cc.{t} {d2}, {a1}, {b1}, {d2}; madc.hi.{t} {d3}, {a1}, {b1}, {d3};
    """
    body += "".join(
        f"st.global.b{bits} [%rd30+{size * i}], {d};" for i, d in enumerate((d0, d1, d2, d3))
    )
    run_ptx(body, data)
    for lane, (x, y) in enumerate(pairs):
        assert sum(int(w) << bits * i for i, w in enumerate(data[lane])) == x * y


def test_a_carry_flag_that_nothing_wrote_is_an_error():
    out = np.zeros(32, np.uint32)
    with pytest.raises(
        EmulatorError, match=r"addc\.u32 reads the carry flag, which no instruction with \.cc"
    ):
        run_ptx("mov.b32 %r1, 1; addc.u32 %r2, %r1, %r1;", out)
    guarded = "mov.u32 %r1, %laneid; setp.lt.u32 %p1, %r1, 3; @%p1 add.cc.u32 %r2, %r1, %r1; addc.u32 %r2, %r1, %r1;"
    with pytest.raises(EmulatorError, match="reads the carry flag"):
        run_ptx(guarded, out)


def test_lop3_with_a_predicate():
    """p is whether d is not zero, combined with q; d may be the sink."""
    out = np.zeros(32, np.uint32)
    run_ptx(
        """
        mov.u32 %r1, %laneid; mov.b32 %r2, 1; mov.b32 %r3, 0; setp.lt.u32 %p1, %r1, 8; mov.b32 %r6, 0;
        lop3.and.b32 %r4|%p2, %r1, %r2, %r3, 0xc0, %p1; lop3.or.b32 _|%p3, %r1, %r2, %r3, 0xc0, !%p1;
        @%p2 or.b32 %r6, %r6, 2; @%p3 or.b32 %r6, %r6, 4; or.b32 %r6, %r6, %r4;
        ld.param.b64 %rd5, [p0]; mul.wide.u32 %rd6, %r1, 4; add.s64 %rd5, %rd5, %rd6; st.global.b32 [%rd5], %r6;
        """,
        out,
    )
    odd, low = np.arange(32) % 2 == 1, np.arange(32) < 8
    assert out.tolist() == (odd + 2 * (odd & low) + 4 * (odd | ~low)).tolist()
