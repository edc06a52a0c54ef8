"""Products of parts of 32-bit words: dp4a, dp2a, mul24, mad24, and mad.hi.sat, which saturates its sum.

PTX ISA, "Integer Arithmetic Instructions": dp4a, dp2a, mul24, mad24, mad.
"""

import itertools

import numpy as np

from cute_fa4.emulator.instructions.arithmetic import upper_half
from cute_fa4.emulator.instructions.instruction_table import lanes

SIGNS = ("u32", "s32")


def parts(word, bits, signed):
    """int64[parts, lanes]: the parts of each word of uint32 or int32, the lowest first."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)[:, None]
    field = (word.view(np.uint32) >> shifts & np.uint32((1 << bits) - 1)).astype(np.int64)
    return np.where(field >> (bits - 1), field - (1 << bits), field) if signed else field


def _register_dot(opcode, of_a, of_b, bits_of_a, first):
    """d = c + the products of the parts of a and of as many bytes of b, from byte ``first`` on."""

    def dot(a, b, c):
        """c plus the products of the parts, modulo 2^32. PTX ISA, dp4a and dp2a."""
        x, y = parts(a, bits_of_a, of_a == "s32"), parts(b, 8, of_b == "s32")
        return ((x * y[first : first + len(x)]).sum(0) + c).astype(np.uint32)

    part = f"{of_a[0]}{bits_of_a}"
    terms = (
        f"(s64)({part})(a >> {bits_of_a * i}) * ({of_b[0]}8)(b >> {8 * (first + i)})"
        for i in range(32 // bits_of_a)
    )
    lanes(opcode, types="u32 <- u32 u32 u32", c=f"d = (u32)(c + {' + '.join(terms)})")(dot)


for _a, _b in itertools.product(SIGNS, SIGNS):
    _register_dot(f"dp4a.{_a}.{_b}", _a, _b, 8, 0)
    _register_dot(f"dp2a.lo.{_a}.{_b}", _a, _b, 16, 0)
    _register_dot(f"dp2a.hi.{_a}.{_b}", _a, _b, 16, 2)


# --- products of 24 bits ------------------------------------------------------------------------------


def product24(a, b):
    """The exact products of the low 24 bits, as int64; sign-extended for int32."""
    low = (x.astype(np.int64) & 0xFFFFFF for x in (a, b))
    if a.dtype.kind == "i":
        low = (x - (x >> 23 << 24) for x in low)
    x, y = low
    return x * y


# C: a source's low 24 bits.
_LOW = {"u32": "(a & 0xffffff) * (u64)(b & 0xffffff)", "s32": "(s64)(a << 8 >> 8) * (b << 8 >> 8)"}

for _t, _product in _LOW.items():

    @lanes(f"mul24.lo.{_t}", types=f"{_t} <- {_t} {_t}", c=f"d = ({_t})({_product})")
    def mul24_lo(a, b):
        """Bits 31 .. 0 of the product of 24-bit integers. PTX ISA, mul24."""
        return product24(a, b)

    @lanes(f"mul24.hi.{_t}", types=f"{_t} <- {_t} {_t}", c=f"d = ({_t})({_product} >> 16)")
    def mul24_hi(a, b):
        """Bits 47 .. 16 of the product of 24-bit integers. PTX ISA, mul24."""
        return product24(a, b) >> 16

    @lanes(f"mad24.lo.{_t}", types=f"{_t} <- {_t} {_t} {_t}", c=f"d = ({_t})({_product}) + c")
    def mad24_lo(a, b, c):
        """Bits 31 .. 0 of the product of 24-bit integers, plus c. PTX ISA, mad24."""
        return product24(a, b) + c

    @lanes(f"mad24.hi.{_t}", types=f"{_t} <- {_t} {_t} {_t}", c=f"d = ({_t})({_product} >> 16) + c")
    def mad24_hi(a, b, c):
        """Bits 47 .. 16 of the product of 24-bit integers, plus c. PTX ISA, mad24."""
        return (product24(a, b) >> 16) + c


# --- saturating sums ----------------------------------------------------------------------------------

_CLAMPED = "d = x > INT32_MAX ? INT32_MAX : x < INT32_MIN ? INT32_MIN : (s32)x"


@lanes(
    "mad24.hi.sat.s32",
    types="s32 <- s32 s32 s32",
    c=f"s64 x = ({_LOW['s32']} >> 16) + c; {_CLAMPED}",
)
def mad24_hi_sat(a, b, c):
    """Bits 47 .. 16 of the product of 24-bit integers, plus c, clamped to 32 bits. PTX ISA, mad24."""
    return np.clip((product24(a, b) >> 16) + c, -(2**31), 2**31 - 1)


@lanes(
    "mad.hi.sat.s32", types="s32 <- s32 s32 s32", c=f"s64 x = ((s64)a * b >> 32) + c; {_CLAMPED}"
)
def mad_hi_sat(a, b, c):
    """Upper half of the product, plus c, clamped to 32 bits. PTX ISA, mad, .sat."""
    return np.clip(upper_half(a, b).astype(np.int64) + c, -(2**31), 2**31 - 1)
