"""Pieces of new rows as blocks with scales (NVFP4, MXFP8), with the bytes that cute_fa4.nvfp4 and mxfp8 define."""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ...dtypes import E2M1, E4M3
from ...layouts.block_scales import NOT_A_NUMBER, ONE
from ..instructions import rounding
from ..steps import pieces, row_math
from . import quotients
from .config import VECTOR_BYTES

F32_MANTISSA_BITS = 23
# Of numbers of 8 and of 4 bits in a word.
SIGNS_OF_BYTES, SIGNS_OF_NIBBLES = -0x7F7F7F80, -0x77777778
FOUR = 4.0  # what the largest of a block becomes at the other scale of four_over_six


@cute.jit
def quantise_mx_block(
    row: cutlass.Constexpr,
    numbers: tuple,
    target: cute.Tensor,
    scales: cute.Tensor,
    place: tuple,
    piece: Int32,
    factor: Float32,
):
    """The numbers of piece `piece` of a row, divided by the factor: a block of 8 bits, and its scale, a byte.

    row: of the cache's dtype; place: of the byte in `scales`; factor: the scale of the sequence and head
    """
    fits = quotients.fit(factor, largest_of(numbers))
    numbers = quotients.negated(numbers, factor, fits)
    largest = largest_of(numbers)
    # The exponent of the largest in float32 has the bias of e8m0, and subnormal numbers have the least, 0.
    exponent = largest.bitcast(Int32) >> F32_MANTISSA_BITS
    least = exponent < row.largest_log2
    code = cutlass.select_(least, Int32(0), exponent - row.largest_log2)
    code = cutlass.select_(largest == 0.0, Int32(ONE), code)
    inverse = Int32((2 * ONE - code) << F32_MANTISSA_BITS).bitcast(Float32)  # 2^(127 - code)
    is_finite = largest < Float32.inf
    # NaN is one byte without a sign: numbers of a block with NaN get theirs before they are packed.
    inverse = cutlass.select_(is_finite, inverse, Float32(-1.0))
    signs = cutlass.select_(is_finite, Int32(SIGNS_OF_BYTES), Int32(0))
    words = row_math.pack([x * inverse for x in numbers], row.element)
    store_words(target, piece, [word ^ signs for word in words])
    scales[place] = cutlass.Uint8(cutlass.select_(is_finite, code, Int32(NOT_A_NUMBER)))


@cute.jit
def quantise_blocks(
    cfg: cutlass.Constexpr,
    numbers: tuple,
    target: cute.Tensor,
    scales: cute.Tensor,
    places: tuple,
    piece: Int32,
    factor: Float32,
):
    """The numbers of piece `piece` of a row: two blocks as codes of four bits, and their scales, bytes.

    places: of the two bytes in `scales`; factor: the scale of the sequence and head
    """
    blocks = [numbers[i : i + E2M1.block] for i in range(0, cfg.elements, E2M1.block)]
    largest = (E2M1.largest, FOUR if cfg.four_over_six else E2M1.largest)
    every = [scale_of_block(x, factor, code) for code in largest for x in blocks]
    word = row_math.pack(every, E4M3.name)[0]
    at_six, at_four = (pieces.numbers_of([x]) for x in pieces.as_fp16([word], E4M3.name))
    words = []
    for i, block in enumerate(blocks):
        most = largest_of(block)
        codes, byte = codes_of_block(block, at_six[i] * factor, most), word >> 8 * i
        if cutlass.const_expr(cfg.four_over_six):
            others = codes_of_block(block, at_four[i] * factor, most)
            error = squared_error(block, codes, at_six[i], factor)
            better = squared_error(block, others, at_four[i], factor) < error
            codes = [cutlass.select_(better, b, a) for a, b in zip(codes, others, strict=True)]
            byte = cutlass.select_(better, word >> 8 * (i + len(blocks)), byte)
        words += codes
        scales[places[i]] = cutlass.Uint8(byte & 0xFF)
    store_words(target, piece, words)


def store_words(target, piece, words: list):
    """Store a piece of a row, words of numbers of 8 or 4 bits."""
    held = cute.make_rmem_tensor(len(words), Int32)
    for i, word in enumerate(words):
        held[i] = word
    place = cute.recast_ptr(
        (target.iterator + piece * (4 * len(words))).align(VECTOR_BYTES), dtype=Int32
    )
    cute.autovec_copy(held, cute.make_tensor(place, cute.make_layout(len(words))))


def largest_of(numbers: list):
    """The largest magnitude; NaN if there is one."""
    largest = Float32(0.0)
    for x in numbers:
        largest = cute.arch.fmax(largest, cute.arch.fmax(x, -x, nan=True), nan=True)
    return largest


def scale_of_block(numbers: list, factor, largest_code: float):
    """The scale of a block before it is rounded to e4m3, which saturates; NaN where a number is infinite or NaN.

    largest_code: what the largest magnitude becomes
    """
    largest = largest_of(numbers)
    scale = largest / largest_code / factor
    return cutlass.select_(largest < Float32.inf, scale, Float32(float("nan")))


def codes_of_block(numbers: list, unit, largest) -> list:
    """Words of the codes of a block in units of its scales; 0 where the unit is 0 or NaN. largest: of largest_of."""
    values = quotients.negated(tuple(numbers), unit, quotients.fit(unit, largest))
    words = row_math.pack(list(values), E2M1.name)
    return [cutlass.select_(unit > 0.0, word ^ SIGNS_OF_NIBBLES, Int32(0)) for word in words]


def squared_error(numbers: list, codes: list, rounded, factor):
    """The squared error of a block, in the order that cute_fa4.nvfp4 states. rounded: its scale as e4m3.

    Nothing is fused: a product that is rounded with a sum has other bits.
    """
    squares = []
    for x, code in zip(numbers, pieces.numbers_of(pieces.as_fp16(codes, E2M1.name)), strict=True):
        value = rounding.product(code * rounded, factor)
        difference = rounding.difference(value, x)
        squares.append(rounding.product(difference, difference))
    while len(squares) > 1:
        half = len(squares) // 2
        squares = [
            rounding.total(a, b) for a, b in zip(squares[:half], squares[half:], strict=True)
        ]
    return squares[0]
