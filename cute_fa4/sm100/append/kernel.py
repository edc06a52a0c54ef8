"""Append new rows of K and V to a cache in place: one 16-byte store a thread, positions read on the device.

    new rows   dense (batch, seqlen_new, heads, depth)     row r belongs to sequence r // seqlen_new
               packed (total_new, heads, depth)            row r belongs to the last b with offsets[b] <= r
    position   cache_seqlens[b] + place of the row among the new ones of b
    cache      dense (batch, seqlen, heads, depth)         row (b, position)
               paged (num_pages, page_size, heads, depth)  row (page_table[b, position // page_size],
                                                                position % page_size)
               with cache_batch_idx                     cache_batch_idx[b] takes the place of b

A thread's index is (row, head, piece of the row), the piece fastest: eight threads copy 128 contiguous bytes. The
pieces of V follow those of K. Head-first caches are the same tensors with other strides.

New 16-bit rows for an 8-bit cache are quantized: x / scale of the sequence and head, rounded, and clamped to the
largest number of the dtype (NaN stays NaN). A thread then loads 32 bytes for the 16 that it stores.

Alternatively every new row and head gets its own scale: largest |x| over the largest number of the dtype, or 1 for a
row of zeros. Each thread of the row computes the scale from the whole row, and the first thread writes it.

For a cache with block scales a thread loads 64 bytes, 32 numbers, and writes the scales of their blocks, too:

    NVFP4   two blocks: 16 bytes of codes, and the e4m3 scale of each: largest |x| / 6 / scale of the sequence and head,
            with four_over_six the better of / 6 and / 4. cute_fa4.nvfp4.quantize defines all of it, bit by bit
    MXFP8   one block: 32 bytes of numbers, and its e8m0 scale. cute_fa4.mxfp8.quantise(x / scale of the sequence and
            head) defines both, bit by bit

The host does not read the device's lengths, so a row whose position lies outside the cache, or whose page does not
exist, is dropped here.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ...dtypes import DTYPES, E2M1, E4M3
from ...layouts import cache_scales
from ...layouts.block_scales import NOT_A_NUMBER, ONE
from ...scales import HEAD, ROW
from ..instructions import rounding
from ..steps import pieces, row_math
from .config import THREADS, VECTOR_BYTES, AppendConfig

LEAST = 2.0**-126
F32_MANTISSA_BITS = 23
FOUR = 4.0  # what the largest of a block becomes at the other scale of four_over_six


@cute.jit
def sequence_of(offsets: cute.Tensor, row: Int32, batch: Int32) -> Int32:
    """The last sequence that begins at or before `row`: bisection of non-decreasing offsets (batch + 1,)."""
    low, high = Int32(0), batch
    while high - low > 1:
        middle = (low + high) // 2
        begins_before = offsets[middle] <= row
        low = cutlass.select_(begins_before, middle, low)
        high = cutlass.select_(begins_before, high, middle)
    return low


@cute.jit
def copy_piece(source: cute.Tensor, target: cute.Tensor, elements: cutlass.Constexpr, piece: Int32):
    """Piece number `piece` of a row, as one 16-byte load and one 16-byte store."""
    at = piece * elements
    layout = cute.make_layout(elements)
    held = cute.make_rmem_tensor(elements, source.element_type)
    cute.autovec_copy(cute.make_tensor((source.iterator + at).align(16), layout), held)
    cute.autovec_copy(held, cute.make_tensor((target.iterator + at).align(16), layout))


@cute.jit
def quantise_piece(
    source: cute.Tensor,
    target: cute.Tensor,
    dtype: cutlass.Constexpr,
    elements: cutlass.Constexpr,
    piece: Int32,
    scale: Float32,
):
    """Piece number `piece` of a row, divided by the scale and rounded to eight bits."""
    values = [x / scale for x in numbers_of_piece(source, elements, piece)]
    store_words(target, piece, row_math.pack(values, dtype))


@cute.jit
def quantise_mx_block(
    row: cutlass.Constexpr,
    source: cute.Tensor,
    target: cute.Tensor,
    scales: cute.Tensor,
    place: tuple,
    piece: Int32,
    factor: Float32,
):
    """Piece number `piece` of a row, divided by the factor: a block as numbers of 8 bits, and its scale, a byte.

    row: of the cache's dtype; place: of the byte in `scales`; factor: the scale of the sequence and head
    """
    numbers = [x / factor for x in numbers_of_piece(source, row.block, piece)]
    largest = largest_of(numbers)
    # The exponent of the largest in float32 has the bias of e8m0, and subnormal numbers have the least, 0.
    exponent = largest.bitcast(Int32) >> F32_MANTISSA_BITS
    least = exponent < row.largest_log2
    code = cutlass.select_(least, Int32(0), exponent - row.largest_log2)
    code = cutlass.select_(largest == 0.0, Int32(ONE), code)
    inverse = Int32((2 * ONE - code) << F32_MANTISSA_BITS).bitcast(Float32)  # 2^(127 - code)
    is_finite = largest < Float32.inf
    inverse = cutlass.select_(is_finite, inverse, Float32(1.0))
    store_words(target, piece, row_math.pack([x * inverse for x in numbers], row.element))
    scales[place] = cutlass.Uint8(cutlass.select_(is_finite, code, Int32(NOT_A_NUMBER)))


@cute.jit
def quantise_blocks(
    cfg: cutlass.Constexpr,
    source: cute.Tensor,
    target: cute.Tensor,
    scales: cute.Tensor,
    places: tuple,
    piece: Int32,
    factor: Float32,
):
    """Piece number `piece` of a row: two blocks as codes of four bits, and their scales, bytes.

    places: of the two bytes in `scales`; factor: the scale of the sequence and head
    """
    numbers = list(numbers_of_piece(source, cfg.elements, piece))
    blocks = [numbers[i : i + E2M1.block] for i in range(0, cfg.elements, E2M1.block)]
    largest = (E2M1.largest, FOUR if cfg.four_over_six else E2M1.largest)
    every = [scale_of_block(x, factor, code) for code in largest for x in blocks]
    word = row_math.pack(every, E4M3.name)[0]
    at_six, at_four = (pieces.numbers_of([x]) for x in pieces.as_fp16([word], E4M3.name))
    words = []
    for i, block in enumerate(blocks):
        codes, byte = codes_of_block(block, at_six[i] * factor), word >> 8 * i
        if cutlass.const_expr(cfg.four_over_six):
            others = codes_of_block(block, at_four[i] * factor)
            error = squared_error(block, codes, at_six[i], factor)
            better = squared_error(block, others, at_four[i], factor) < error
            codes = [cutlass.select_(better, b, a) for a, b in zip(codes, others, strict=True)]
            byte = cutlass.select_(better, word >> 8 * (i + len(blocks)), byte)
        words += codes
        scales[places[i]] = cutlass.Uint8(byte & 0xFF)
    store_words(target, piece, words)


def numbers_of_piece(source, elements: int, piece) -> Iterator:
    """Piece number `piece` of a row of 16 bits, in float32."""
    held = cute.make_rmem_tensor(elements, source.element_type)
    at = (source.iterator + piece * elements).align(VECTOR_BYTES)
    cute.autovec_copy(cute.make_tensor(at, cute.make_layout(elements)), held)
    return (held[i].to(Float32) for i in range(elements))


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


def codes_of_block(numbers: list, unit) -> list:
    """Words of the codes of a block in units of its scales; 0 where the unit is 0 or NaN."""
    values = [cutlass.select_(unit > 0.0, x / unit, Float32(0.0)) for x in numbers]
    return row_math.pack(values, E2M1.name)


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


@cute.jit
def scale_of(source: cute.Tensor, depth: cutlass.Constexpr, largest: cutlass.Constexpr) -> Float32:
    """The divisor that maps the largest magnitude of a row to the largest number of its dtype.

    1 for a row of zeros, or where the scale would not be a normal number; NaN where the row has a NaN.
    """
    found = Float32(0.0)
    each = VECTOR_BYTES * 8 // source.element_type.width
    layout = cute.make_layout(each)
    for first in range(0, depth, each):
        held = cute.make_rmem_tensor(each, source.element_type)
        at = (source.iterator + first).align(VECTOR_BYTES)
        cute.autovec_copy(cute.make_tensor(at, layout), held)
        for i in range(each):
            value = held[i].to(Float32)
            found = cute.arch.fmax(found, cute.arch.fmax(value, -value, nan=True), nan=True)
    scale = found / largest
    return cutlass.select_(scale < LEAST, Float32(1.0), scale)


@cute.jit
def write_first(scales: cute.Tensor, place: tuple, piece: Int32, scale: Float32):
    """One thread of a row writes its scale."""
    if piece == 0:
        scales[place] = scale


@dataclass(frozen=True)
class AppendArgs:
    """Arguments of the kernel: those of the launch, and the new rows of all sequences together."""

    new_k: cute.Tensor
    new_v: cute.Tensor
    k_cache: cute.Tensor
    v_cache: cute.Tensor
    cache_seqlens: cute.Tensor
    offsets: cute.Tensor | None
    page_table: cute.Tensor | None
    cache_batch_idx: cute.Tensor | None
    descales: tuple
    batch: Int32
    rows: Int32


class AppendKernel:
    """Copies new rows of K and V into a cache."""

    def __init__(self, cfg: AppendConfig):
        self.cfg = cfg

    @cute.jit
    def __call__(
        self,
        new_k: cute.Tensor,
        new_v: cute.Tensor,
        k_cache: cute.Tensor,
        v_cache: cute.Tensor,
        cache_seqlens: cute.Tensor,
        offsets: cute.Tensor | None,
        page_table: cute.Tensor | None,
        batch: Int32,
        cache_batch_idx: cute.Tensor | None,
        descales: tuple | None,
        stream,
    ):
        """Launch.

        new_k, new_v      (batch, seqlen_new, heads, depth), packed: (total_new, heads, depth)
        k_cache, v_cache  (batch, seqlen, heads, depth), paged: (num_pages, page_size, heads, depth); of four bits: u8
                          with two numbers each
        cache_seqlens     (batch,) int32: rows that the cache holds before
        offsets           packed: (batch + 1,) int32
        page_table        paged: (batch, pages) int32
        cache_batch_idx   (batch,) int32: of the cache, or the page table
        descales          f32, those in cfg.descales: (batch, heads), or for rows the cache's shape without depth; with
                          scales of blocks then u8, of K and of V: the cache's shape with a byte for each block
        """
        cfg = self.cfg
        heads = new_k.shape[-2]
        rows = new_k.shape[0] if cfg.packed else new_k.shape[0] * new_k.shape[1]
        threads = Int64(rows) * heads * cfg.pieces
        self.kernel.set_name_prefix(
            f"cute_fa4_{cfg.name}", remove_cutlass_symbol=True, keep_mangled_name=False
        )
        args = AppendArgs(
            new_k,
            new_v,
            k_cache,
            v_cache,
            cache_seqlens,
            offsets,
            page_table,
            cache_batch_idx,
            () if cutlass.const_expr(descales is None) else descales,
            batch,
            Int32(rows),
        )
        self.kernel(args).launch(
            grid=[Int32((threads + (THREADS - 1)) // THREADS), 1, 1],
            block=[THREADS, 1, 1],
            stream=stream,
        )

    @cute.kernel
    def kernel(self, args: AppendArgs):
        cfg, rows = self.cfg, args.rows
        new_k, new_v, k_cache, v_cache = args.new_k, args.new_v, args.k_cache, args.v_cache
        offsets, page_table, descales = args.offsets, args.page_table, args.descales
        heads = new_k.shape[-2]
        block, _, _ = cute.arch.block_idx()
        thread, _, _ = cute.arch.thread_idx()
        number = Int64(block) * THREADS + thread
        row_and_head = Int32(number // cfg.pieces)
        piece = Int32(number % cfg.pieces)
        row, head = row_and_head // heads, row_and_head % heads
        if row < rows:
            b, place, last = Int32(0), row, rows
            if cutlass.const_expr(cfg.packed):
                b = sequence_of(offsets, row, args.batch)
                place, last = row - offsets[b], offsets[b + 1]
            else:
                b, place = row // new_k.shape[1], row % new_k.shape[1]
            held = args.cache_seqlens[b]
            position = held + place
            page_rows, blocks = Int32(k_cache.shape[1]), Int32(k_cache.shape[0])
            holds = page_rows
            if cutlass.const_expr(cfg.paged):
                holds = Int32(page_table.shape[1]) * page_rows
            # Rows before the first offset or past the last one belong to no sequence. `held` alone is compared too,
            # because the compiler takes sums not to overflow.
            belongs = (place >= 0) & (row < last)
            sequence = b
            if cutlass.const_expr(cfg.cache_batch_idx):
                sequence = args.cache_batch_idx[b]
                sequences = page_table.shape[0] if cfg.paged else k_cache.shape[0]
                belongs = belongs & (sequence >= 0) & (sequence < sequences)
            if belongs & (held >= 0) & (held < holds) & (position < holds):
                cache_block, inside = sequence, position
                if cutlass.const_expr(cfg.paged):
                    cache_block = page_table[sequence, position // page_rows]
                    inside = position % page_rows
                if (cache_block >= 0) & (cache_block < blocks):
                    at = (cache_block, inside, head, None)
                    new = (row, head, None)
                    if cutlass.const_expr(not cfg.packed):
                        new = (b, place, head, None)
                    pieces_of_k = cfg.depth // cfg.elements
                    of_k, of_v = self.scales(descales, b, head)
                    if piece < pieces_of_k:
                        of_k = self.own_scale("k", descales, new_k[new], at, piece, of_k)
                        self.store_piece("k", descales, new_k[new], k_cache, at, piece, of_k)
                    else:
                        piece = piece - pieces_of_k
                        of_v = self.own_scale("v", descales, new_v[new], at, piece, of_v)
                        self.store_piece("v", descales, new_v[new], v_cache, at, piece, of_v)

    def scales(self, descales: tuple, sequence, head) -> tuple:
        """-> (of K, of V), 1 where the caller has none."""
        given = {
            name: scale[sequence, head]
            for (name, kind), scale in zip(self.cfg.descales.given, descales, strict=False)
            if kind == HEAD
        }
        return tuple(given.get(name, Float32(1.0)) for name in "kv")

    def own_scale(self, name: str, descales: tuple, source, at: tuple, piece, given):
        """The scale of a row that has its own, which its first thread writes; otherwise the one given."""
        cfg = self.cfg
        if getattr(cfg.descales, name) != ROW:
            return given
        scale = scale_of(source, source.shape[0], DTYPES[cfg.dtype].largest)
        write_first(descales[cfg.descales.place(name)], at[:-1], piece, scale)
        return scale

    def store_piece(self, name: str, descales: tuple, source, cache, at: tuple, piece, scale):
        cfg, target = self.cfg, cache[at]
        if cfg.of_blocks:
            scales = descales[len(cfg.descales.given) + "kv".index(name)]
            places = self.places_of_scales(name, at, piece)
            row = DTYPES[cfg.dtype]
            if row.in_byte > 1:
                quantise_blocks(cfg, source, target, scales, places, piece, scale)
            else:
                quantise_mx_block(row, source, target, scales, places[0], piece, scale)
        elif cfg.quantises:
            quantise_piece(source, target, cfg.dtype, cfg.elements, piece, scale)
        else:
            copy_piece(source, target, cfg.elements, piece)

    def places_of_scales(self, name: str, at: tuple, piece) -> tuple:
        """Where the scales of the blocks of a piece are, in the scales of the cache. at: of the row in the cache."""
        cfg, (cache_block, row, head, _) = self.cfg, at
        layout = cfg.v_block_scale_layout if name == "v" else cache_scales.LINEAR
        block = DTYPES[cfg.dtype].block
        of_row = (cfg.depth_v if name == "v" else cfg.depth) // block
        of_piece = cfg.elements // block
        places = []
        for i in range(of_piece):
            row_of_scale, byte = cache_scales.place(layout, row, piece * of_piece + i, of_row)
            places.append((cache_block, row_of_scale, head, byte))
        return tuple(places)
