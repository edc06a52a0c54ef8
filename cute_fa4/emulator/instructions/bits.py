"""Logic, shifts, bit fields and byte selection.

PTX ISA, "Logic and Shift Instructions", "Integer Arithmetic Instructions" (popc to bmsk), prmt.
"""

import numpy as np

from cute_fa4.emulator.instructions.instruction_table import instruction, lanes

WORDS = "b16 b32 b64"


@lanes("and.{t}", t=WORDS + " pred", types="{t} <- {t} {t}", c="d = a & b")
def and_(a, b):
    """Bitwise and. PTX ISA, and."""
    return a & b


@lanes("or.{t}", t=WORDS + " pred", types="{t} <- {t} {t}", c="d = a | b")
def or_(a, b):
    """Bitwise or. PTX ISA, or."""
    return a | b


@lanes("xor.{t}", t=WORDS + " pred", types="{t} <- {t} {t}", c="d = a ^ b")
def xor(a, b):
    """Bitwise exclusive or. PTX ISA, xor."""
    return a ^ b


@lanes("not.{t}", t=WORDS + " pred", types="{t} <- {t}", c="d = ~a")
def not_(a):
    """All bits inverted. PTX ISA, not."""
    return ~a


@lanes("cnot.{t}", t=WORDS, types="{t} <- {t}", c="d = a == 0")
def cnot(a):
    """1 when a is 0, else 0: C's logical not. PTX ISA, cnot."""
    return a == 0


@lanes(
    "lop3.b32",
    types="b32 <- b32 b32 b32 b32",
    c="d = (-(h >> 7 & 1) & a & b & c) | (-(h >> 6 & 1) & a & b & ~c) | (-(h >> 5 & 1) & a & ~b & c)"
    " | (-(h >> 4 & 1) & a & ~b & ~c) | (-(h >> 3 & 1) & ~a & b & c) | (-(h >> 2 & 1) & ~a & b & ~c)"
    " | (-(h >> 1 & 1) & ~a & ~b & c) | (-(h & 1) & ~a & ~b & ~c)",
)
def lop3(a, b, c, table):
    """Bit i of the result is bit 4 a_i + 2 b_i + c_i of the table. PTX ISA, lop3."""
    result = np.zeros_like(a)
    for bit in range(32):
        i, one = np.uint32(bit), np.uint32(1)
        row = (a >> i & one) << np.uint32(2) | (b >> i & one) << one | (c >> i & one)
        result |= (table >> row & one) << i
    return result


SHIFT_AMOUNT = {".clamp": lambda n: np.minimum(n, 32), ".wrap": lambda n: n & 31}


@instruction("lop3.or.b32", "lop3.and.b32")
def lop3_predicate(warp, ins):
    """d|p, a, b, c, table, q: d as lop3, p = (d is not 0) combined with q. PTX ISA, lop3."""
    target, *sources, q = ins.operands
    result = lop3(*(warp.read32(source) for source in sources))
    warp.write32(target.first, result)
    nonzero = int(np.packbits(result != 0, bitorder="little").view("<u4")[0])
    with_q = warp.read_pred(q)
    warp.write_pred(target.second, nonzero | with_q if ".or." in ins.opcode else nonzero & with_q)


# --- extension -------------------------------------------------------------------------------------


@lanes("szext{mode}.u32", mode=".clamp .wrap", types="u32 <- u32 u32", c="d = zext{mode}(a, b)")
@lanes("szext{mode}.s32", mode=".clamp .wrap", types="s32 <- s32 u32", c="d = sext{mode}(a, b)")
def szext(a, b, *, mode):
    """The low b bits of a, extended with zeros or their sign; b is clamped to 32 or taken modulo 32. PTX ISA, szext."""
    unused = np.uint32(32) - SHIFT_AMOUNT[mode](b)
    wide = np.int64 if a.dtype.kind == "i" else np.uint64
    field = a.astype(wide) << (unused.astype(wide) + wide(32))
    return np.where(unused == 32, wide(0), field >> (unused.astype(wide) + wide(32)))


# --- shifts: amounts at or above the width shift everything out ---------------------------------------


@lanes("shl.b16", types="b16 <- b16 u32", c="d = b < 16 ? a << b : 0")
@lanes("shl.b32", types="b32 <- b32 u32", c="d = b < 32 ? a << (b & 31) : 0")
@lanes("shl.b64", types="b64 <- b64 u32", c="d = b < 64 ? a << (b & 63) : 0")
def shl(a, b):
    """Shift left; 0 for amounts at or above the width. PTX ISA, shl."""
    width = 8 * a.dtype.itemsize
    amount = np.minimum(b, width - 1).astype(a.dtype)
    return np.where(b < width, a << amount, a.dtype.type(0))


@lanes("shr.{t}", t="u16 s16 b16", types="{t} <- {t} u32", c="d = a >> (b < 16 ? b : 31)")
@lanes("shr.{t}", t="u32 b32", types="{t} <- {t} u32", c="d = b < 32 ? a >> (b & 31) : 0")
@lanes("shr.{t}", t="u64 b64", types="{t} <- {t} u32", c="d = b < 64 ? a >> (b & 63) : 0")
@lanes("shr.s32", types="s32 <- s32 u32", c="d = a >> (b < 31 ? b : 31)")
@lanes("shr.s64", types="s64 <- s64 u32", c="d = a >> (b < 63 ? b : 63)")
def shr(a, b):
    """Shift right, filling with the sign for .s types; amounts clamp at the width. PTX ISA, shr."""
    width = 8 * a.dtype.itemsize
    last = a >> np.minimum(b, width - 1).astype(a.dtype)
    return np.where((b < width) | (a < 0), last, a.dtype.type(0))


@lanes(
    "shf.l{mode}.b32",
    mode=".clamp .wrap",
    types="b32 <- b32 b32 u32",
    c="d = ((u64)b << 32 | a) << amount{mode}(c) >> 32",
)
def shf_l(a, b, c, *, mode):
    """Upper word of [b:a] shifted left by c, clamped to 32 or taken modulo 32. PTX ISA, shf."""
    pair = b.astype(np.uint64) << np.uint64(32) | a
    return pair << SHIFT_AMOUNT[mode](c).astype(np.uint64) >> np.uint64(32)


@lanes(
    "shf.r{mode}.b32",
    mode=".clamp .wrap",
    types="b32 <- b32 b32 u32",
    c="d = ((u64)b << 32 | a) >> amount{mode}(c)",
)
def shf_r(a, b, c, *, mode):
    """Lower word of [b:a] shifted right by c, clamped to 32 or taken modulo 32. PTX ISA, shf."""
    pair = b.astype(np.uint64) << np.uint64(32) | a
    return pair >> SHIFT_AMOUNT[mode](c).astype(np.uint64)


# --- counting and finding --------------------------------------------------------------------------


def bit_matrix(a):
    """bool[lanes, width]: column i is bit i."""
    width = 8 * a.dtype.itemsize
    return (a[:, None] >> np.arange(width, dtype=a.dtype) & a.dtype.type(1)).astype(bool)


def highest_bit(a):
    """Position of the highest set bit; -1 for 0."""
    set_bits = bit_matrix(a)
    return np.where(set_bits.any(1), set_bits.shape[1] - 1 - set_bits[:, ::-1].argmax(1), -1)


@lanes("popc.b32", types="u32 <- b32", c="d = __builtin_popcount(a)")
@lanes("popc.b64", types="u32 <- b64", c="d = __builtin_popcountll(a)")
def popc(a):
    """Number of set bits. PTX ISA, popc."""
    return bit_matrix(a).sum(1)


@lanes("clz.b32", types="u32 <- b32", c="d = a ? __builtin_clz(a) : 32")
@lanes("clz.b64", types="u32 <- b64", c="d = a ? __builtin_clzll(a) : 64")
def clz(a):
    """Number of zero bits above the highest set bit. PTX ISA, clz."""
    return 8 * a.dtype.itemsize - 1 - highest_bit(a)


@lanes(
    "bfind{shiftamt}.{t}",
    shiftamt=["", ".shiftamt"],
    t="u32 s32 u64 s64",
    types="u32 <- {t}",
    c="d = bfind{shiftamt}_{t}(a)",
)
def bfind(a, *, shiftamt):
    """Position of the highest bit that is not a copy of the sign; 0xffffffff if there is none.

    .shiftamt: the left shift that would bring this bit to the top. PTX ISA, bfind.
    """
    unsigned = a.view(f"u{a.dtype.itemsize}")
    position = highest_bit(np.where(a < 0, ~unsigned, unsigned))
    found = 8 * a.dtype.itemsize - 1 - position if shiftamt else position
    return np.where(position < 0, -1, found).astype(np.uint32)


@lanes("brev.b32", types="b32 <- b32", c="d = reverse32(a)")
@lanes("brev.b64", types="b64 <- b64", c="d = reverse64(a)")
def brev(a):
    """Bits in reverse order. PTX ISA, brev."""
    columns = bit_matrix(a)[:, ::-1]
    weights = a.dtype.type(1) << np.arange(columns.shape[1], dtype=a.dtype)
    return (columns * weights).sum(1, dtype=a.dtype)


@lanes("fns.b32", types="b32 <- b32 b32 s32", c="d = fns(a, b, c)")
def fns(mask, base, offset):
    """Position of the offset-th set bit of mask counted from bit base; 0xffffffff if there is none.

    offset > 0 searches upward and offset < 0 downward, both starting with bit base itself; offset 0 asks
    whether bit base is set. base must be below 32. PTX ISA, fns.
    """
    found = np.full(mask.shape, 0xFFFFFFFF, np.uint32)
    for lane, (m, start, n) in enumerate(
        zip(mask.tolist(), base.tolist(), offset.tolist(), strict=True)
    ):
        start = min(start, 32)
        step, wanted = (-1, -n) if n < 0 else (1, n or 1)
        positions = (
            range(start, start + 1) if n == 0 else range(start, 32 if step > 0 else -1, step)
        )
        hits = [p for p in positions if p < 32 and m >> p & 1]
        if len(hits) >= wanted:
            found[lane] = hits[wanted - 1]
    found[offset == -(2**31)] = 0  # measured on an H200
    return found


# --- fields ---------------------------------------------------------------------------------------


def places(x, word):
    """Positions and lengths of bfe and bfi: the low 8 bits for 32-bit words, all 32 for 64-bit ones (H200)."""
    return x if word.dtype.itemsize == 8 else x & 255


@lanes("bfe.{t}", t="u32 s32", types="{t} <- {t} u32 u32", c="d = bfe_{t}(a, b & 255, c & 255)")
@lanes("bfe.{t}", t="u64 s64", types="{t} <- {t} u32 u32", c="d = bfe_{t}(a, b, c)")
def bfe(a, b, c):
    """c bits of a from bit b on, extended with zeros or (.s) with the field's top bit.

    According to the PTX ISA only the low 8 bits of b and c count. This holds for 32-bit words, but an H200 uses all
    32 bits of them for 64-bit words (measured), and so does this function. Bits beyond the word are copies of its
    sign (.s) or 0. PTX ISA, bfe.
    """
    wide = np.int64 if a.dtype.kind == "i" else np.uint64
    position, length = places(b, a).astype(wide), places(c, a).astype(wide)
    field = a.astype(wide)
    field = np.where(
        (position > 63) & (field >= 0), wide(0), field >> np.minimum(position, wide(63))
    )
    unused = wide(64) - np.clip(length, wide(1), wide(64))
    return np.where(length == 0, wide(0), field << unused >> unused)


@lanes(
    "bfi.b32",
    types="b32 <- b32 b32 u32 u32",
    c="u64 m = field_mask(c & 255, h & 255); d = (b & ~m) | ((u64)a << (c & 63) & m)",
)
@lanes(
    "bfi.b64",
    types="b64 <- b64 b64 u32 u32",
    c="u64 m = field_mask(c, h); d = (b & ~m) | (a << (c & 63) & m)",
)
def bfi(a, b, c, h):
    """b with its h bits from bit c on replaced by the low h bits of a; c and h count as in bfe. PTX ISA, bfi."""
    wide = np.uint64
    position, length = places(c, a).astype(wide), places(h, a).astype(wide)
    ones = np.where(length > 63, ~wide(0), (wide(1) << np.minimum(length, wide(63))) - wide(1))
    shift = np.minimum(position, wide(63))
    mask = np.where(position > 63, wide(0), ones << shift)
    return (b.astype(wide) & ~mask) | (a.astype(wide) << shift & mask)


@lanes("bmsk{mode}.b32", mode=".clamp .wrap", types="b32 <- u32 u32", c="d = bmsk{mode}(a, b)")
def bmsk(a, b, *, mode):
    """b set bits from bit a on; a and b clamp at 32 or are taken modulo 32. PTX ISA, bmsk."""
    position, length = SHIFT_AMOUNT[mode](a), SHIFT_AMOUNT[mode](b)
    one = np.uint64(1)
    return ((one << length.astype(np.uint64)) - one) << position.astype(np.uint64)


# Byte selectors of prmt: for selector value s = c & 3, the source byte of each result byte.
PRMT_MODES = {
    ".f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    ".b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    ".rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    ".ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    ".ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    ".rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}


@lanes("prmt.b32", types="b32 <- b32 b32 b32", c="d = prmt(a, b, c)")
def prmt(a, b, c):
    """Result byte i is byte (c >> 4 i & 7) of [b:a], or its sign bit in all places when bit 4 i + 3 is set.

    PTX ISA, prmt.
    """
    pair = b.astype(np.uint64) << np.uint64(32) | a
    result = np.zeros(a.shape, np.uint64)
    for i in range(4):
        selector = c.astype(np.uint64) >> np.uint64(4 * i)
        byte = pair >> (selector & np.uint64(7)) * np.uint64(8) & np.uint64(0xFF)
        sign = np.where(byte >> np.uint64(7), np.uint64(0xFF), np.uint64(0))
        result |= np.where(selector & np.uint64(8), sign, byte) << np.uint64(8 * i)
    return result


# The four selector nibbles of each s, packed as prmt's own c, sixteen bits per s.
PRMT_SELECTORS = {
    mode: sum(
        source << 4 * i + 16 * s for s, row in enumerate(rows) for i, source in enumerate(row)
    )
    for mode, rows in PRMT_MODES.items()
}


@lanes(
    "prmt.b32{mode}",
    mode=PRMT_MODES,
    types="b32 <- b32 b32 b32",
    c="d = prmt(a, b, prmt{mode} >> 16 * (c & 3))",
)
def prmt_mode(a, b, c, *, mode):
    """prmt with one of four fixed selections, chosen by c & 3. PTX ISA, prmt."""
    table = np.uint64(PRMT_SELECTORS[mode])
    return prmt(
        a,
        b,
        (table >> (c & 3).astype(np.uint64) * np.uint64(16) & np.uint64(0xFFFF)).astype(np.uint32),
    )
