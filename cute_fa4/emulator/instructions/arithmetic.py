"""Integer arithmetic, scalar and in packed 16-bit pairs (PTX ISA, "Integer Arithmetic Instructions").

Sums and products wrap modulo 2^width, as in NumPy and (with -fwrapv) in C. carry.py has those with the carry flag.
"""

import numpy as np

from cute_fa4.emulator.instructions.instruction_table import lanes

INTEGERS = "u16 s16 u32 s32 u64 s64"


@lanes("add.{t}", t=[*INTEGERS.split(), "u16x2", "s16x2"], types="{t} <- {t} {t}", c="d = a + b")
def add(a, b):
    """a + b modulo 2^width. PTX ISA, add."""
    return a + b


@lanes("sub.{t}", t=INTEGERS, types="{t} <- {t} {t}", c="d = a - b")
def sub(a, b):
    """a - b modulo 2^width. PTX ISA, sub."""
    return a - b


@lanes(
    "add.sat.s32",
    types="s32 <- s32 s32",
    c="s64 x = (s64)a + b; d = x > INT32_MAX ? INT32_MAX : x < INT32_MIN ? INT32_MIN : (s32)x",
)
def add_sat(a, b):
    """a + b clamped to [-2^31, 2^31 - 1]. PTX ISA, add, .sat."""
    return np.clip(a.astype(np.int64) + b, -(2**31), 2**31 - 1)


@lanes(
    "sub.sat.s32",
    types="s32 <- s32 s32",
    c="s64 x = (s64)a - b; d = x > INT32_MAX ? INT32_MAX : x < INT32_MIN ? INT32_MIN : (s32)x",
)
def sub_sat(a, b):
    """a - b clamped to [-2^31, 2^31 - 1]. PTX ISA, sub, .sat."""
    return np.clip(a.astype(np.int64) - b, -(2**31), 2**31 - 1)


# --- products -----------------------------------------------------------------------------------

WIDER = {"u16": np.uint32, "s16": np.int32, "u32": np.uint64, "s32": np.int64}


def upper_half(a, b):
    """The upper half of the double-width product of two integer arrays."""
    wider = WIDER.get(a.dtype.kind.replace("i", "s") + str(8 * a.dtype.itemsize))
    if wider:
        return (a.astype(wider) * b.astype(wider) >> wider(8 * a.dtype.itemsize)).astype(a.dtype)
    x, y = a.view(np.uint64), b.view(np.uint64)
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    low = (x & mask) * (y & mask)
    middle = (x >> half) * (y & mask) + (low >> half)
    cross = (x & mask) * (y >> half) + (middle & mask)
    upper = (x >> half) * (y >> half) + (middle >> half) + (cross >> half)
    if a.dtype == np.int64:  # two's complement: a = x - 2^64 [a < 0]
        upper = upper - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    return upper.view(a.dtype)


@lanes("mul.lo.{t}", t=INTEGERS, types="{t} <- {t} {t}", c="d = a * b")
def mul_lo(a, b):
    """Lower half of the product. PTX ISA, mul."""
    return a * b


@lanes("mul.hi.{t}", t="u16 s16", types="{t} <- {t} {t}", c="d = ((s64)a * b) >> 16")
@lanes("mul.hi.s32", types="s32 <- s32 s32", c="d = (s64)a * b >> 32")
@lanes("mul.hi.u32", types="u32 <- u32 u32", c="d = (u64)a * b >> 32")
@lanes("mul.hi.s64", types="s64 <- s64 s64", c="d = (__int128)a * b >> 64")
@lanes("mul.hi.u64", types="u64 <- u64 u64", c="d = (unsigned __int128)a * b >> 64")
def mul_hi(a, b):
    """Upper half of the double-width product. PTX ISA, mul."""
    return upper_half(a, b)


@lanes("mul.wide.s16", types="s32 <- s16 s16", c="d = (s32)a * b")
@lanes("mul.wide.u16", types="u32 <- u16 u16", c="d = (u32)a * b")
@lanes("mul.wide.s32", types="s64 <- s32 s32", c="d = (s64)a * b")
@lanes("mul.wide.u32", types="u64 <- u32 u32", c="d = (u64)a * b")
def mul_wide(a, b):
    """The whole product, twice as wide as the sources. PTX ISA, mul."""
    wider = WIDER[a.dtype.kind.replace("i", "s") + str(8 * a.dtype.itemsize)]
    return a.astype(wider) * b.astype(wider)


@lanes("mad.lo.{t}", t=INTEGERS, types="{t} <- {t} {t} {t}", c="d = a * b + c")
def mad_lo(a, b, c):
    """Lower half of the product, plus c. PTX ISA, mad."""
    return a * b + c


@lanes("mad.hi.{t}", t="u16 s16", types="{t} <- {t} {t} {t}", c="d = (((s64)a * b) >> 16) + c")
@lanes("mad.hi.s32", types="s32 <- s32 s32 s32", c="d = (s32)((s64)a * b >> 32) + c")
@lanes("mad.hi.u32", types="u32 <- u32 u32 u32", c="d = (u32)((u64)a * b >> 32) + c")
@lanes("mad.hi.s64", types="s64 <- s64 s64 s64", c="d = (s64)((__int128)a * b >> 64) + c")
@lanes("mad.hi.u64", types="u64 <- u64 u64 u64", c="d = (u64)((unsigned __int128)a * b >> 64) + c")
def mad_hi(a, b, c):
    """Upper half of the product, plus c. PTX ISA, mad."""
    return upper_half(a, b) + c


@lanes("mad.wide.s16", types="s32 <- s16 s16 s32", c="d = (s32)a * b + c")
@lanes("mad.wide.u16", types="u32 <- u16 u16 u32", c="d = (u32)a * b + c")
@lanes("mad.wide.s32", types="s64 <- s32 s32 s64", c="d = (s64)a * b + c")
@lanes("mad.wide.u32", types="u64 <- u32 u32 u64", c="d = (u64)a * b + c")
def mad_wide(a, b, c):
    """The whole product, plus a c of its width. PTX ISA, mad."""
    return mul_wide(a, b) + c


# --- quotients ----------------------------------------------------------------------------------


def divide(a, b):
    """(quotient toward zero, remainder with the sign of a); for b == 0 both have all bits set.

    PTX leaves division by zero unspecified. -2^(n-1) / -1 wraps to -2^(n-1).
    """
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    x, y = (np.where(v < 0, -v, v).view(unsigned) for v in (a, b))
    q, r = x // np.where(y == 0, unsigned.type(1), y), x % np.where(y == 0, unsigned.type(1), y)
    q, r = q.view(a.dtype), r.view(a.dtype)
    q = np.where((a < 0) != (b < 0), -q, q)
    r = np.where(a < 0, -r, r)
    ones = np.array(-1, np.int64).astype(a.dtype)
    return np.where(b == 0, ones, q), np.where(b == 0, ones, r)


@lanes("div.{t}", t="u16 u32 u64", types="{t} <- {t} {t}", c="d = b ? a / b : ({t})-1")
@lanes("div.{t}", t="s16 s32 s64", types="{t} <- {t} {t}", c="d = !b ? -1 : b == -1 ? -a : a / b")
def div(a, b):
    """a / b rounded toward zero. PTX ISA, div."""
    return divide(a, b)[0]


@lanes("rem.{t}", t="u16 u32 u64", types="{t} <- {t} {t}", c="d = b ? a % b : ({t})-1")
@lanes("rem.{t}", t="s16 s32 s64", types="{t} <- {t} {t}", c="d = !b ? -1 : b == -1 ? 0 : a % b")
def rem(a, b):
    """a - b * (a / b): the remainder has the sign of a. PTX ISA, rem."""
    return divide(a, b)[1]


# --- magnitude, order ------------------------------------------------------------------------------


@lanes("abs.{t}", t="s16 s32 s64", types="{t} <- {t}", c="d = a < 0 ? -a : a")
def absolute(a):
    """|a|; -2^(n-1) stays. PTX ISA, abs."""
    return np.where(a < 0, -a, a)


@lanes("neg.{t}", t="s16 s32 s64", types="{t} <- {t}", c="d = -a")
def neg(a):
    """-a; -2^(n-1) stays. PTX ISA, neg."""
    return -a


@lanes(
    "min.{t}",
    t=[*INTEGERS.split(), "u16x2", "s16x2"],
    types="{t} <- {t} {t}",
    c="d = a < b ? a : b",
)
def minimum(a, b):
    """The smaller. PTX ISA, min."""
    return np.minimum(a, b)


@lanes(
    "max.{t}",
    t=[*INTEGERS.split(), "u16x2", "s16x2"],
    types="{t} <- {t} {t}",
    c="d = a > b ? a : b",
)
def maximum(a, b):
    """The larger. PTX ISA, max."""
    return np.maximum(a, b)


@lanes(
    "min.relu.{t}", t="s32 s16x2", types="{t} <- {t} {t}", c="d = a < b ? a : b; d = d < 0 ? 0 : d"
)
def minimum_relu(a, b):
    """The smaller, at least 0. PTX ISA, min, .relu."""
    return np.maximum(np.minimum(a, b), 0)


@lanes(
    "max.relu.{t}", t="s32 s16x2", types="{t} <- {t} {t}", c="d = a > b ? a : b; d = d < 0 ? 0 : d"
)
def maximum_relu(a, b):
    """The larger, at least 0. PTX ISA, max, .relu."""
    return np.maximum(np.maximum(a, b), 0)


@lanes("sad.{t}", t=INTEGERS, types="{t} <- {t} {t} {t}", c="d = c + (a < b ? b - a : a - b)")
def sad(a, b, c):
    """c + |a - b|. PTX ISA, sad."""
    return c + np.where(a < b, b - a, a - b)
