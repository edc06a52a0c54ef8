"""Moves, packing and selection (PTX ISA, mov, selp, slct)."""

import numpy as np

from cute_fa4.emulator.instructions.instruction_table import instruction, lanes
from cute_fa4.emulator.machine.rounding import flush
from cute_fa4.emulator.ptx.syntax import Vec

SCALARS = "b16 b32 b64 u16 u32 u64 s16 s32 s64 f32 f64"
BITS_OF = {"f32": "b32", "f64": "b64", **{t: t for t in SCALARS.split() if t[0] != "f"}}


def mov(a):
    """d = a, bit for bit. PTX ISA, mov."""
    return a


for _t, _bits in BITS_OF.items():
    lanes(f"mov.{_t}", types=f"{_bits} <- {_bits}", c="d = a")(mov)
lanes("mov.pred", types="pred <- pred", c="d = a")(mov)


# --- {a, b} on either side: the first item is the least significant ---------------------------------


@lanes("mov.b16", types="b16 <- u8 u8", c="d = (u16)((u16)b << 8 | a)")
@lanes("mov.b32", types="b32 <- b16 b16", c="d = (u32)b << 16 | a")
@lanes("mov.b64", types="b64 <- b32 b32", c="d = (u64)b << 32 | a")
def pack_two(a, b):
    """d = {a, b}: a is the lower half. PTX ISA, mov."""
    wide = {1: np.uint16, 2: np.uint32, 4: np.uint64}[a.dtype.itemsize]
    return a.astype(wide) | b.astype(wide) << wide(8 * a.dtype.itemsize)


@lanes("mov.b16", types="u8 u8 <- b16", c="d = a; e = a >> 8")
@lanes("mov.b32", types="b16 b16 <- b32", c="d = a; e = a >> 16")
@lanes("mov.b64", types="b32 b32 <- b64", c="d = a; e = a >> 32")
def unpack_two(a):
    """{d, e} = a: d is the lower half. PTX ISA, mov."""
    half = {2: np.uint8, 4: np.uint16, 8: np.uint32}[a.dtype.itemsize]
    return a.astype(half), (a >> a.dtype.type(4 * a.dtype.itemsize)).astype(half)


@lanes(
    "mov.b32",
    types="b32 <- u8 u8 u8 u8",
    c="d = (u32)h << 24 | (u32)c << 16 | (u32)b << 8 | a",
)
@lanes(
    "mov.b64",
    types="b64 <- b16 b16 b16 b16",
    c="d = (u64)h << 48 | (u64)c << 32 | (u64)b << 16 | a",
)
def pack_four(a, b, c, h):
    """d = {a, b, c, h}: a is the lowest quarter. PTX ISA, mov."""
    bits = 8 * a.dtype.itemsize
    wide = {8: np.uint32, 16: np.uint64}[bits]
    return sum(x.astype(wide) << wide(bits * i) for i, x in enumerate((a, b, c, h)))


@lanes("mov.b32", types="u8 u8 u8 u8 <- b32", c="d = a; e = a >> 8; f = a >> 16; g = a >> 24")
@lanes("mov.b64", types="b16 b16 b16 b16 <- b64", c="d = a; e = a >> 16; f = a >> 32; g = a >> 48")
def unpack_four(a):
    """{d, e, f, g} = a: d is the lowest quarter. PTX ISA, mov."""
    bits = 2 * a.dtype.itemsize
    narrow = {8: np.uint8, 16: np.uint16}[bits]
    return tuple((a >> a.dtype.type(bits * i)).astype(narrow) for i in range(4))


@instruction("mov.b128")
def mov_b128(warp, ins):
    """d = a, d = {a, b} or {d, e} = a: 128 bits, in halves of 64. PTX ISA, mov."""
    targets, sources = (o.items if isinstance(o, Vec) else o.halves() for o in ins.operands)
    values = [warp.read64(source).copy() for source in sources]
    for target, value in zip(targets, values, strict=True):
        warp.write64(target, value)


# --- selection --------------------------------------------------------------------------------------


def selp(a, b, c):
    """a where the predicate c is true, else b; bit for bit. PTX ISA, selp."""
    return np.where(c, a, b)


for _t, _bits in BITS_OF.items():
    lanes(f"selp.{_t}", types=f"{_bits} <- {_bits} {_bits} pred", c="d = c ? a : b")(selp)


def slct(a, b, c):
    """a where c >= 0 (so also for -0), else b (so also for NaN); bit for bit. PTX ISA, slct."""
    return np.where(c >= 0, a, b)


def slct_ftz(a, b, c):
    """slct with subnormal c taken as zero."""
    return slct(a, b, flush(c))


for _t, _bits in BITS_OF.items():
    lanes(f"slct.{_t}.s32", types=f"{_bits} <- {_bits} {_bits} s32", c="d = c >= 0 ? a : b")(slct)
    lanes(f"slct.{_t}.f32", types=f"{_bits} <- {_bits} {_bits} f32", c="d = c >= 0.0f ? a : b")(
        slct
    )
    lanes(
        f"slct.ftz.{_t}.f32",
        types=f"{_bits} <- {_bits} {_bits} f32",
        c="d = flush(c) >= 0.0f ? a : b",
    )(slct_ftz)
