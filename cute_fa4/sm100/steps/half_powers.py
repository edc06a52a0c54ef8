"""P of eight bits in f16: 2^x of two scores in eight instructions, without the special-function unit.

That unit does 16 exponentials a clock, and where products of 8-bit operands take half the time it is the bound. f16x2
does two values an instruction, and its subnormal numbers are integers. With x <= 8.8, log2 of P:

    y = x + 13.5, not below 0     one multiply-add and one conversion, which clamps; in units of 2^-9
    k = y rounded                 one multiplication: y 2^-24 is a subnormal f16, whose bits are that integer
    f = y - k                     one multiply-add, exact: -1/2 <= f <= 1/2
    q = 2^-14 (1 + g - C g (1 - g)), g = f + 1/2    a quadratic, two multiply-adds
    p = bits of q + (k << 10)     one shift and add for both halves: k goes into the exponent
    code = e4m3(p)                one conversion; two of them merge into a word of four codes

At its ends q is 2^-14 and 2^-13, so powers of two are exact: the largest P of a row is one. C minimises the relative
error, 2.7e-3; rounding y to f16 makes it 8.5e-3 for the largest P, an eighth of what e4m3 rounds (docs/numerics.md).
What y clamps becomes FLOOR, which e4m3 rounds to 0, and the sum is freed of it.

A NaN would be lost in the shift. The row maximum keeps it, then the bias is NaN, and so is the rest of the row's P.
"""

import struct
from dataclasses import dataclass, field

from cutlass import Float32, Int32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T

from . import row_math

C = 87 / 256  # f16 has every bit of C and of (6 - C) / 4
UNIT = 2.0**-9  # of y and f: 2^-15 of it is the smallest f16, and 2^15 is one
OFFSET = 13.5  # P = 2^(k - 14) 2^g, g = f + 1/2
FLOOR = (1.5 - C / 4) * 2.0**-14  # p of y = 0


@dataclass(frozen=True)
class Probabilities:
    """P of some scores.

    words   as they are stored
    values  float32, before rounding, of those that were computed so
    halves  pairs of f16, before rounding, of the others
    """

    words: list
    values: list
    halves: list = field(default_factory=list)


@dataclass(frozen=True)
class Exact:
    """All values are float32, as `powers` of row_math computes them; it emulates pairs."""

    powers: object
    unit = 2

    def __call__(self, scores: list, scale_log2, bias, emulated: frozenset, dtype: str):
        values = self.powers(scores, scale_log2, bias, emulated)
        return Probabilities(row_math.pack(values, dtype), values)


@dataclass(frozen=True)
class Half:
    """Words of four scores whose number is in `emulated` in f16, the others by the special-function unit."""

    unit = 4

    def __call__(self, scores: list, scale_log2, bias, emulated: frozenset, dtype: str):
        scale, offset = scale_log2 * UNIT, (bias + OFFSET) * UNIT
        words, values, halves = [], [], []
        for first in range(0, len(scores), self.unit):
            four = scores[first : first + self.unit]
            if first // self.unit in emulated:
                y = row_math.scaled_exponents(four, scale, offset)
                pairs = [half_pair(y[0], y[1]), half_pair(y[2], y[3])]
                words.append(pack_halves(pairs))
                halves += pairs
            else:
                four = row_math.powers(four, scale_log2, bias, frozenset())
                words += row_math.pack(four, dtype)
                values += four
        return Probabilities(words, values, halves)


EXACT, HALF = Exact(row_math.powers), Half()


def _both_halves(value: float) -> str:
    """An f16 twice in a word."""
    return f"0x{struct.pack('>e', value).hex() * 2}"


HALF_PAIR = f"""{{
.reg .b32 y, k, f, q, a, b;
cvt.rn.relu.f16x2.f32 y, $2, $1;
mov.b32 a, {_both_halves(2.0**-15)};
mul.rn.f16x2 k, y, a;
mov.b32 a, {_both_halves(-(2.0**15))};
fma.rn.f16x2 f, k, a, y;
mov.b32 a, {_both_halves(16 * C)};
mov.b32 b, {_both_halves(2.0**-5)};
fma.rn.f16x2 q, f, a, b;
mov.b32 a, {_both_halves(FLOOR)};
fma.rn.f16x2 q, f, q, a;
shl.b32 k, k, 10;
add.u32 $0, k, q;
}}"""
FOUR_CODES = """{
.reg .b16 low, high;
cvt.rn.satfinite.e4m3x2.f16x2 low, $1;
cvt.rn.satfinite.e4m3x2.f16x2 high, $2;
mov.b32 $0, {low, high};
}"""


def half_pair(x, y):
    """Bits of two f16, 2^(512 x - OFFSET) in the low half and 2^(512 y - OFFSET) in the high one."""
    return Int32(_asm(T.i32(), [Float32(x), Float32(y)], HALF_PAIR, "=r,f,f"))


def pack_halves(pairs: list):
    """Four f16 as e4m3 codes in one word."""
    return Int32(_asm(T.i32(), pairs, FOUR_CODES, "=r,r,r"))


def sum_of_halves(pairs: list):
    """float32 sum of pairs of f16, without what clamped exponents left in each.

    Trees of a power of two pairs: so many times FLOOR is an f16, and a row all of whose exponents are clamped has the
    sum 0.
    """
    total = Float32(-2 * len(pairs) * FLOOR)
    while pairs:
        size = 1 << (len(pairs).bit_length() - 1)
        tree, pairs = pairs[:size], pairs[size:]
        while len(tree) > 1:
            tree = [_add(a, b) for a, b in zip(tree[::2], tree[1::2], strict=True)]
        total = total + (_half(tree[0], 0) + _half(tree[0], 1))
    return total


def _half(pair, which: int):
    unpack = "{\n.reg .b16 h<2>;\nmov.b32 {h0, h1}, $1;\n" + f"cvt.f32.f16 $0, h{which};\n}}"
    return Float32(_asm(T.f32(), [pair], unpack, "=f,r"))


def _add(a, b):
    return Int32(_asm(T.i32(), [a, b], "add.rn.f16x2 $0, $1, $2;", "=r,r,r"))


def _asm(result, operands: list, text: str, constraints: str):
    return llvm.inline_asm(
        result,
        [operand.ir_value() for operand in operands],
        text,
        constraints,
        has_side_effects=False,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
