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

For a cache with block scales a thread loads 64 bytes of K and as many of V, 32 numbers each, before it knows their
place in the cache. It divides them by one inverse (quotients.py), and writes the scales of their blocks, too:

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

from ...dtypes import DTYPES
from ...layouts import cache_scales
from ...layouts.scalars import minimum
from ...scales import HEAD, ROW
from ..steps import row_math
from .blocks import quantise_blocks, quantise_mx_block, store_words
from .config import THREADS, VECTOR_BYTES, AppendConfig

LEAST = 2.0**-126


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
    values = [x / scale for x in numbers_of(loaded(source, elements, piece), elements)]
    store_words(target, piece, row_math.pack(values, dtype))


def loaded(source, elements: int, piece):
    """Piece number `piece` of a row of 16 bits, in registers."""
    held = cute.make_rmem_tensor(elements, source.element_type)
    at = (source.iterator + piece * elements).align(VECTOR_BYTES)
    cute.autovec_copy(cute.make_tensor(at, cute.make_layout(elements)), held)
    return held


def numbers_of(held, elements: int) -> Iterator:
    """The numbers of a piece in float32. held: of `loaded`."""
    return (held[i].to(Float32) for i in range(elements))


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
            new = (row, head, None)
            if cutlass.const_expr(not cfg.packed):
                new = (b, place, head, None)
            of_blocks = ()
            if cutlass.const_expr(cfg.of_blocks):
                of_blocks = self.load_blocks(descales, new_k[new], new_v[new], (b, head), piece)
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
                    if cutlass.const_expr(cfg.of_blocks):
                        of_k, of_v = of_blocks
                        self.store_blocks("k", descales, of_k, k_cache, at, piece)
                        self.store_blocks("v", descales, of_v, v_cache, at, piece)
                    else:
                        pieces_of_k = cfg.pieces_of("k")
                        of_k, of_v = self.scales(descales, b, head)
                        if piece < pieces_of_k:
                            of_k = self.own_scale("k", descales, new_k[new], at, piece, of_k)
                            self.store_piece(new_k[new], k_cache[at], piece, of_k)
                        else:
                            piece = piece - pieces_of_k
                            of_v = self.own_scale("v", descales, new_v[new], at, piece, of_v)
                            self.store_piece(new_v[new], v_cache[at], piece, of_v)

    def load_blocks(self, descales: tuple, new_k, new_v, of: tuple, piece) -> tuple:
        """-> for K and V a piece of the row in registers, and the scale: nothing of it depends on the cache.

        A piece beyond the row is the row's last one, and is not stored.
        """
        found = []
        for name, new, scale in zip("kv", (new_k, new_v), self.scales(descales, *of), strict=True):
            last = self.cfg.pieces_of(name) - 1
            found.append((loaded(new, self.cfg.elements, minimum(piece, last)), scale))
        return tuple(found)

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

    def store_piece(self, source, target, piece, scale):
        cfg = self.cfg
        if cfg.quantises:
            quantise_piece(source, target, cfg.dtype, cfg.elements, piece, scale)
        else:
            copy_piece(source, target, cfg.elements, piece)

    @cute.jit
    def store_blocks(
        self, name: cutlass.Constexpr, descales: tuple, of: tuple, cache, at: tuple, piece: Int32
    ):
        """The blocks of a piece and their scales. of: from load_blocks."""
        cfg = self.cfg
        if piece < cfg.pieces_of(name):
            (held, scale), row = of, DTYPES[cfg.dtype]
            numbers = tuple(numbers_of(held, cfg.elements))
            scales = descales[len(cfg.descales.given) + "kv".index(name)]
            places = self.places_of_scales(name, at, piece)
            if cutlass.const_expr(row.in_byte > 1):
                quantise_blocks(cfg, numbers, cache[at], scales, places, piece, scale)
            else:
                quantise_mx_block(row, numbers, cache[at], scales, places[0], piece, scale)

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
