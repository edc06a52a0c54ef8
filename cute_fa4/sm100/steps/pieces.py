"""Pieces of 16 bytes: from shared memory to registers; conversion of 8-bit and 4-bit numbers to fp16, and to float32.

PTX ISA, "ld", "cvt": e4m3, e5m2 and e2m1 become fp16 two at a time, and fp16 float32, exactly.
"""

from cutlass import Float32, Int32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T

from ...dtypes import DTYPES

WORDS = 4  # of a piece


def _words(text: str, operands: list, results: int, side_effects: bool) -> list:
    """An instruction whose results are 32-bit words."""
    constraints = ",".join(["=r"] * results + ["r"] * len(operands))
    found = llvm.inline_asm(
        llvm.StructType.get_literal([T.i32()] * results),
        [Int32(value).ir_value() for value in operands],
        text,
        constraints,
        has_side_effects=side_effects,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
    return [Int32(llvm.extractvalue(T.i32(), found, [i])) for i in range(results)]


def load_piece(address) -> list:
    """Four words from shared memory; their address is a multiple of 16."""
    return _words("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", [address], WORDS, True)


def load_word(address) -> Int32:
    """A word from shared memory; its address is a multiple of 4."""
    return _words("ld.shared.b32 $0, [$1];", [address], 1, True)[0]


def as_fp16(words: list, dtype: str) -> list:
    """Words of four 8-bit numbers -> twice as many words of two fp16, in the same order; of eight 4-bit ones, four."""
    if DTYPES[dtype].in_byte > 1:
        return _of_nibbles(words, dtype)
    out, ptx = [], DTYPES[dtype].ptx_name
    for word in words:
        out += _words(
            "{\n.reg .b16 low, high;\nmov.b32 {low, high}, $2;\n"
            f"cvt.rn.f16x2.{ptx}x2 $0, low;\ncvt.rn.f16x2.{ptx}x2 $1, high;\n}}",
            [word],
            2,
            False,
        )
    return out


def _of_nibbles(words: list, dtype: str) -> list:
    """The numbers of a byte, the one in its low half first, become a word."""
    cvt = f"cvt.rn.f16x2.{dtype}x2"
    text = "{\n.reg .b8 byte<4>;\nmov.b32 {byte0, byte1, byte2, byte3}, $4;\n"
    text += "".join(f"{cvt} ${i}, byte{i};\n" for i in range(4)) + "}"
    return [half for word in words for half in _words(text, [word], 4, False)]


def multiplied_halves(words: list, factor) -> list:
    """Words of two fp16, times the two fp16 of `factor`; PTX ISA, "mul" of half precision."""
    return [_words("mul.rn.f16x2 $0, $1, $2;", [word, factor], 1, False)[0] for word in words]


def both_halves(word) -> tuple:
    """A word of two fp16 -> (twice the lower, twice the upper); PTX ISA, "prmt"."""
    low, high = ("0x1010", "0x3232")
    return tuple(
        _words(f"prmt.b32 $0, $1, $1, {chosen};", [word], 1, False)[0] for chosen in (low, high)
    )


def powers_as_fp16(word, most: int) -> list:
    """The e8m0 bytes of a word -> for each a word with two fp16 of 2^(byte - 127): NaN above `most`, 0 below 2^-24.

    most: the largest byte whose power fp16 holds, at most 142
    """
    out = []
    for place in range(WORDS):
        text = (
            "{\n.reg .b32 byte, bits;\n.reg .pred above;\n"
            f"bfe.u32 byte, $1, {8 * place}, 8;\nshl.b32 bits, byte, 23;\n"
            f"setp.gt.u32 above, byte, {most};\nselp.b32 bits, 0x7fffffff, bits, above;\n"
            "cvt.rn.f16x2.f32 $0, bits, bits;\n}"
        )
        out += _words(text, [word], 1, False)
    return out


def numbers_of(words: list) -> list:
    """Words of two fp16 -> float32."""
    out = []
    for word in words:
        found = llvm.inline_asm(
            llvm.StructType.get_literal([T.f32()] * 2),
            [Int32(word).ir_value()],
            "{\n.reg .b16 low, high;\nmov.b32 {low, high}, $2;\n"
            "cvt.f32.f16 $0, low;\ncvt.f32.f16 $1, high;\n}",
            "=f,=f,r",
            has_side_effects=False,
            is_align_stack=False,
            asm_dialect=llvm.AsmDialect.AD_ATT,
        )
        out += [Float32(llvm.extractvalue(T.f32(), found, [i])) for i in range(2)]
    return out
