"""Pieces of 16 bytes: from shared memory to registers; 8-bit and 4-bit numbers to 16 bits, and to float32.

PTX ISA, "ld", "cvt": e4m3, e5m2 and e2m1 become fp16 two at a time, and fp16 float32, exactly. From PTX 9.2 on they
become bf16 likewise; code generators of older toolkits take the way over float32.
"""

from cutlass import CUDA_VERSION, Float32, Int32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T

from ...dtypes import BF16, DTYPES, FP16
from . import row_math

WORDS = 4  # of a piece
TO_BF16 = (CUDA_VERSION.major, CUDA_VERSION.minor) >= (13, 2)  # whether PTX converts to bf16
EVEN_NIBBLES = 0x0F0F0F0F
HALVES = {FP16.name: "f16x2", BF16.name: "bf16x2"}


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


def load_transposed(address, bits: int) -> list:
    """Four words of transposed matrices of shared memory, whose rows of 16 bytes are at the addresses of the lanes.

    bits  16: four matrices of 8 x 8 elements; lane l has elements 2 (l % 4) and the next of column l / 4 of each
          8: two of 16 x 16 bytes; lane l has bytes 4 (l % 4) to the third after it of columns l / 4 and l / 4 + 8

    PTX ISA, "ldmatrix".
    """
    shape = {16: "m8n8.x4", 8: "m16n16.x2"}[bits]
    text = f"ldmatrix.sync.aligned.{shape}.trans.shared.b{bits} {{$0, $1, $2, $3}}, [$4];"
    return _words(text, [address], WORDS, True)


def store_word(address, word):
    """A word to shared memory."""
    _store("st.shared.b32 [$0], $1;", address, word)


def _store(text: str, address, word):
    llvm.inline_asm(
        None,
        [Int32(address).ir_value(), Int32(word).ir_value()],
        text,
        "r,r",
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )


def permuted(first, second, selector: int) -> Int32:
    """Bytes of two words, chosen by the hexadecimal digits of a selector: 0 to 3 of the first, 4 to 7 of the second."""
    return _words(f"prmt.b32 $0, $1, $2, {selector:#x};", [first, second], 1, False)[0]


def exchanged_nibbles(first, second) -> tuple:
    """Two words of 4-bit numbers -> one of their even numbers, one of the odd ones: `first` has the low half of a byte.

    PTX ISA, "lop3": bit by bit the first source where the mask is set, else the second.
    """
    selected = f"lop3.b32 $0, $1, $2, {EVEN_NIBBLES:#x}, 0xe4;"
    first, second = Int32(first), Int32(second)
    even = _words(selected, [first, second << 4], 1, False)[0]
    return even, _words(selected, [first >> 4, second], 1, False)[0]


def as_fp16(words: list, dtype: str) -> list:
    """Words of four 8-bit numbers -> twice as many words of two fp16, in the same order; of eight 4-bit ones, four."""
    return _as_halves(words, dtype, HALVES[FP16.name])


def as_16_bits(words: list, stored: str, dtype: str) -> list:
    """The same to a dtype of 16 bits, which holds every number of `stored`."""
    if TO_BF16 or dtype == FP16.name:
        return _as_halves(words, stored, HALVES[dtype])
    return row_math.pack(numbers_of(as_fp16(words, stored)), dtype)


def _as_halves(words: list, dtype: str, halves: str) -> list:
    if DTYPES[dtype].in_byte > 1:
        return _of_nibbles(words, dtype, halves)
    out, ptx = [], DTYPES[dtype].ptx_name
    for word in words:
        out += _words(
            "{\n.reg .b16 low, high;\nmov.b32 {low, high}, $2;\n"
            f"cvt.rn.{halves}.{ptx}x2 $0, low;\ncvt.rn.{halves}.{ptx}x2 $1, high;\n}}",
            [word],
            2,
            False,
        )
    return out


def _of_nibbles(words: list, dtype: str, halves: str) -> list:
    """The numbers of a byte, the one in its low half first, become a word."""
    cvt = f"cvt.rn.{halves}.{dtype}x2"
    text = "{\n.reg .b8 byte<4>;\nmov.b32 {byte0, byte1, byte2, byte3}, $4;\n"
    text += "".join(f"{cvt} ${i}, byte{i};\n" for i in range(4)) + "}"
    return [half for word in words for half in _words(text, [word], 4, False)]


def multiplied_halves(words: list, factor, dtype: str = FP16.name) -> list:
    """Words of two numbers, times the two of `factor`; PTX ISA, "mul" of half precision. dtype: of 16 bits."""
    text = f"mul.rn.{HALVES[dtype]} $0, $1, $2;"
    return [_words(text, [word, factor], 1, False)[0] for word in words]


def both_halves(word) -> tuple:
    """A word of two numbers of 16 bits -> (twice the lower, twice the upper).

    Unpacked and packed again, not by prmt: ptxas then selects the half in the instruction that multiplies.
    """
    unpacked = "{\n.reg .b16 low, high;\nmov.b32 {low, high}, $1;\nmov.b32 $0, {"
    return tuple(
        _words(f"{unpacked}{half}, {half}}};\n}}", [word], 1, False)[0] for half in ("low", "high")
    )


def powers(word, most: int, dtype: str = FP16.name) -> list:
    """The e8m0 bytes of a word -> for each a word with two of 2^(byte - 127), NaN above `most`; of fp16, 0 below 2^-24.

    most: the largest byte whose power counts, at most 142. dtype: of 16 bits
    """
    return [_word_of_powers(word, (place, place), most, dtype) for place in range(WORDS)]


def pairs_of_powers(word, most: int, dtype: str = FP16.name) -> list:
    """The same -> a word of the powers of the first two bytes, and one of the others."""
    return [_word_of_powers(word, (place, place + 1), most, dtype) for place in (0, 2)]


def _word_of_powers(word, places: tuple, most: int, dtype: str) -> Int32:
    """A word of the powers of two bytes, or twice of one. places: of the bytes."""
    names = dict(zip(dict.fromkeys(places), ("bits", "upper"), strict=False))
    text = f"{{\n.reg .b32 byte, {', '.join(names.values())};\n.reg .pred above;\n"
    for place, bits in names.items():
        text += (
            f"bfe.u32 byte, $1, {8 * place}, 8;\nshl.b32 {bits}, byte, 23;\n"
            f"setp.gt.u32 above, byte, {most};\nselp.b32 {bits}, 0x7fffffff, {bits}, above;\n"
        )
    lower, upper = (names[place] for place in places)
    text += f"cvt.rn.{HALVES[dtype]}.f32 $0, {upper}, {lower};\n}}"
    return _words(text, [word], 1, False)[0]


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
