"""P of eight bits in f16: 2^x of two scores in six instructions, without the special-function unit.

That unit does 16 exponentials a clock, and it is the bottleneck where MMAs of 8-bit operands take half the time. f16x2
handles two values per instruction, and the bits of an f16 are nearly a logarithm: as an integer they are 1024 (x + 15)
for the number 2^x, with 1 + f as an approximation of 2^f between powers of two. With x <= 8.8, log2 of P:

    n = x + OFFSET, not below 0   one multiply-add and one conversion, which rounds to 2^-6 and clamps. f16 numbers
                                  up to 2^-13 are integers in units of 2^-24, and so are their bits: n is x in 2^-6
    i = n << 4                    the bits of about 2^x / 2, too large by up to 6 percent within an octave
    j = i + SHIFT                 the bits of about 2^(x + 1/2) / 2, whose error has the opposite phase
    p = i + W j                   as f16 numbers: 2^x to 1.2e-2, root mean square error half a percent
    code = e4m3(p)                one conversion; two of them merge into a word of four codes

          2^x  |         /        two lines an octave
               |      _-'         W makes p exact at whole x,
               |   _-'            so that the largest P of a row is one
               |_-'
               +----+----+ x
                    |    where j has its kink
                    where i has its kink

Rounding x to 2^-6 adds 5.4e-3: together a quarter of e4m3's largest rounding error (docs/numerics.md). A clamped value
becomes FLOOR, which e4m3 rounds to 0, and FLOOR is subtracted from the sum.

The shift would lose a NaN. The row maximum keeps it, so the bias is NaN, and so is the rest of the row's P.
"""

import struct
from dataclasses import dataclass, field

from cutlass import Float32, Int32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T

from . import row_math

UNIT = 2.0**-18  # of x: 2^-6 of it is the smallest f16
SHIFT = 496  # about half an octave of 1024
W = 147 / 256  # with a phase of i that makes 1 + 6/64 + W (1 + 6/64 + SHIFT/1024) two, to f16
OFFSET = 14 + 6 / 64
FLOOR = 285 * 2.0**-24  # p of n = 0: W SHIFT, rounded


@dataclass(frozen=True)
class Probabilities:
    """P of some scores.

    words   packed for the store
    values  float32, before rounding, of the scores computed in float32
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
    """The same f16 in both halves of a word."""
    return f"0x{struct.pack('>e', value).hex() * 2}"


HALF_PAIR = f"""{{
.reg .b32 n, i, j, w;
cvt.rn.relu.f16x2.f32 n, $2, $1;
shl.b32 i, n, 4;
add.u32 j, i, {SHIFT << 16 | SHIFT};
mov.b32 w, {_both_halves(W)};
fma.rn.f16x2 $0, j, w, i;
}}"""
FOUR_CODES = """{
.reg .b16 low, high;
cvt.rn.satfinite.e4m3x2.f16x2 low, $1;
cvt.rn.satfinite.e4m3x2.f16x2 high, $2;
mov.b32 $0, {low, high};
}"""


def half_pair(x, y):
    """Bits of two f16, 2^(x / UNIT - OFFSET) in the low half and 2^(y / UNIT - OFFSET) in the high half."""
    return Int32(_asm(T.i32(), [Float32(x), Float32(y)], HALF_PAIR, "=r,f,f"))


def pack_halves(pairs: list):
    """Four f16 as e4m3 codes in one word."""
    return Int32(_asm(T.i32(), pairs, FOUR_CODES, "=r,r,r"))


def sum_of_halves(pairs: list):
    """float32 sum of pairs of f16, minus the FLOOR that clamped exponents left in each.

    The trees have a power of two of pairs: that multiple of FLOOR is an f16, so a row whose exponents are all clamped
    has the sum 0.
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
