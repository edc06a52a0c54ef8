"""KVBuffer: K or V between global memory and the MMA, one type with one set of verbs.

             K                                       V
tile         BN keys x depth                         BN keys x depth
the MMA      walks the depth, 32 bytes at a step     walks the keys, 16 at a step (32 in 8 bits)
operand      K-major: the contraction is contiguous  MN-major: the depth is contiguous
one slot     chunks of 128 bytes of depth, each BN rows x 128 bytes, swizzled: the same bytes for both

V needs no transpose: the MMA reads the tile that TMA writes as MN-major. An MN-major operand consists of blocks of
128 bytes of depth x 8 keys, and such a block is eight rows of a 128-byte chunk.

verb                        what it does
load_from_dram(...)         issue the TMA copies of a tile, or of its rest
load_from_shared(k_mma)     where the operand of MMA step k_mma is, relative to the tile
get_mma_tile(slot)          MMA operand in a slot: descriptor, and the offsets of its steps
"""

from dataclasses import dataclass, replace

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...dtypes import DTYPES, bytes_of
from ...layouts.operand_tiles import KMajorTile, MNMajorTile
from ...layouts.page_tiles import PageKMajorTile, PageMNMajorTile
from ...layouts.scalars import choose, maximum, minimum
from ...layouts.swizzle import Swizzle
from ...tma import copies
from ...tma.gathered_rows import ROWS, GatheredRows
from ...tma.paged_rows import PagedRowIndices
from ...tma.tensor_maps import clipped_load
from .tma import KVOperand

SPAN_BYTES = 128  # bytes of one row of a chunk, nearly everywhere
BEYOND_EVERY_ROW = 1 << 28  # in groups of eight rows: TMA finds no such row and fills zeros
LEADING_BIT = 16  # first bit of the distance of spans in a descriptor's low word
DESCRIPTOR_UNIT = 16  # bytes of one unit of a descriptor's address


@dataclass(frozen=True)
class KVBufferConfig:
    """Configuration of a buffer for K or V.

    rows, columns   keys and padded depth of the CTA's part of a tile
    slot_bytes      distance of two slots of the ring
    walks_keys      the contraction runs over keys (V), not over the depth (K)
    contraction     length of the contraction in elements: the depth without its padding, or the keys
    clipped         the rows of a copy are cut at run time (tma/tensor_maps.py)
    box_rows        rows per copy: those of the tile, or the part that tiles and pages have in common
    whole_pages     one copy loads a box with all its depth chunks
    gathered        one copy loads four rows at arbitrary positions
    cta_group       CTAs that share an MMA; with two, the even CTA counts the bytes of both
    first_column    first column within the tensor's depth
    rest            the columns after these, in a buffer apart from the slots; None if there are none
    rest_offset     distance of that buffer, the first of several, from slot 0, in bytes
    offset          where the tile begins in its slot, in bytes
    span_bytes      of a row of a chunk
    """

    rows: int
    columns: int
    dtype: str
    slot_bytes: int
    walks_keys: bool
    contraction: int
    clipped: bool
    box_rows: int
    whole_pages: bool
    gathered: bool
    cta_group: int
    first_column: int = 0
    rest: "KVBufferConfig | None" = None
    rest_offset: int = 0
    offset: int = 0
    span_bytes: int = SPAN_BYTES

    @staticmethod
    def for_k(cfg) -> "KVBufferConfig":
        tiles, depth = cfg.tiles, cfg.tiles.qk_mma_shape[2]
        rows, here, box = tiles.k_rows_per_cta, tiles.slot_qk_depth, tiles.k_box_rows
        k = KVBufferConfig._of(cfg, rows, here, box, False, min(depth, here))
        if not tiles.rest_qk_depth:
            return k
        rest = KVBufferConfig._of(cfg, rows, tiles.rest_qk_depth, box, False, depth - here)
        offset = cfg.smem.k_rest.offset - cfg.smem.kv.offset
        rest = replace(rest, first_column=here, slot_bytes=tiles.k_rest_bytes)
        return replace(k, rest=rest, rest_offset=offset)

    @staticmethod
    def for_v(cfg) -> "KVBufferConfig":
        tiles = cfg.tiles
        shape = (tiles.BN, tiles.v_cols_per_cta, tiles.v_box_rows)
        return KVBufferConfig._of(cfg, *shape, True, tiles.BN)

    @staticmethod
    def as_it_arrives(cfg, is_v: bool) -> "KVBufferConfig":
        """K or V as TMA loads it: as the MMA reads it, or 8-bit rows that are dequantized in their slots."""
        whole = KVBufferConfig.for_v(cfg) if is_v else KVBufferConfig.for_k(cfg)
        if cfg.tiles.slot_dtype == cfg.stored_dtype:
            return whole
        raw = dict(dtype=cfg.stored_dtype, columns=cfg.tiles.raw_tile.cols)
        rest = whole.rest
        if rest is not None:
            first = 0 if cfg.tiles.row_in_rest else cfg.tiles.raw_tile.cols
            rest = replace(rest, first_column=first, **raw)
        return replace(whole, offset=cfg.tiles.raw_offset(is_v), rest=rest, **raw)

    @staticmethod
    def _of(cfg, rows, columns, box_rows, walks_keys, contraction) -> "KVBufferConfig":
        return KVBufferConfig(
            rows=rows,
            columns=columns,
            dtype=cfg.tiles.slot_dtype,
            slot_bytes=cfg.tiles.kv_slot_bytes,
            walks_keys=walks_keys,
            contraction=contraction,
            clipped=cfg.clips_keys,
            box_rows=box_rows,
            whole_pages=cfg.tiles.pages_come_whole,
            gathered=cfg.tiles.gathers_rows,
            cta_group=cfg.tiles.cta_group,
            span_bytes=cfg.tiles.kv_span_bytes,
        )

    @property
    def tile(self) -> KMajorTile | MNMajorTile:
        """The tile's layout: where TMA writes an element and the MMA reads it."""
        if self.whole_pages:
            kind = PageMNMajorTile if self.walks_keys else PageKMajorTile
        else:
            kind = MNMajorTile if self.walks_keys else KMajorTile
        return kind(self.rows, self.columns, DTYPES[self.dtype].bits, Swizzle(self.span_bytes))

    @property
    def num_steps(self) -> int:
        """MMA steps of the contraction; padding of the depth is not contracted."""
        return self.contraction // self.tile.step_elements

    @property
    def chunks_of_copy(self) -> tuple[int, int]:
        """(columns per copy, copies) that make up a tile.

        A copy of all rows loads all chunks. A page that is smaller than the tile leaves gaps between its chunks and
        needs one copy per chunk.
        """
        if self.box_rows == self.rows:
            return self.columns, 1
        return self.tile.span_elements, self.columns // self.tile.span_elements


@dataclass(frozen=True)
class KVBuffer:
    """K or V in the ring. `tma` is None for the MMA warp, which only reads."""

    config: cutlass.Constexpr
    ring_address: Int32  # shared address of slot 0
    tma: KVOperand | None = None

    def load_from_dram(
        self,
        slot,
        mbarrier,
        found: PagedRowIndices | GatheredRows,
        kv_head,
        batch,
        first_column=0,
        of_rest: bool = False,
    ):
        """Issue the copies of a tile into a slot, or those of its rest (of_rest); `mbarrier` counts their bytes.

        slot            of the ring, or the place of the rest

        first_column    first column of the CTA; a Python int, or an Int32 of the kernel

        TMA fills missing rows and columns past the depth with zeros and counts them, so every tile has the
        same number of bytes.
        """
        cfg = self.config
        if of_rest:
            self._rest.load_from_dram(slot, mbarrier, found, kv_head, batch)
            return
        dtype = DTYPES[cfg.dtype].cutlass
        column = first_column + cfg.first_column
        address = self.ring_address + slot * cfg.slot_bytes + cfg.offset
        if not cfg.clipped:
            copies.load_tile(
                self.tma.boxes, dtype, address, mbarrier, found.row, (kv_head, batch), column
            )
        elif cfg.gathered:
            gather_tile(cfg, self.tma, address, mbarrier, found, kv_head, column)
        elif cfg.whole_pages:
            load_pages(cfg, self.tma, address, mbarrier, found, kv_head)
        else:
            self._load_clipped(found, address, mbarrier, kv_head, column)

    def _load_clipped(self, found: PagedRowIndices, address, mbarrier, kv_head, column):
        """One copy per box, and per chunk of 64 columns if boxes are smaller than the tile."""
        cfg = self.config
        chunk_columns, chunks = cfg.chunks_of_copy
        for p in range(found.boxes):
            row, valid = found.box(p)
            first, further = clipped_load(row, valid, kv_head)
            for chunk in range(chunks):
                at = address + chunk * cfg.rows * cfg.span_bytes + p * cfg.box_rows * cfg.span_bytes
                copies.load_tile(
                    self.tma.boxes, DTYPES[cfg.dtype].cutlass, at, mbarrier, first, further,
                    column + chunk * chunk_columns,
                )  # fmt: skip

    def load_from_shared(self, k_mma: int) -> int:
        """Offset of the operand of MMA step `k_mma` from the tile, in the descriptor's 16-byte units."""
        return self.config.tile.step_offset(k_mma) // DESCRIPTOR_UNIT

    def get_mma_tile(self, slot):
        """-> (low descriptor word of the tile in `slot`, constant high word, offsets of the MMA steps)."""
        address = self.ring_address + slot * self.config.slot_bytes
        return mma_tile(self.config.tile, address, self.config.num_steps)

    def get_mma_tile_before(self, slot, offset: int):
        """As get_mma_tile for V of one span, with a second span `offset` bytes after slot 0, for every slot and step.

        The descriptor holds the distance to the next span: the higher the operand's address, the shorter it is.
        """
        low, high, steps = self.get_mma_tile(slot)
        away = (offset - self.config.tile.leading_bytes) // DESCRIPTOR_UNIT
        slot_units = self.config.slot_bytes // DESCRIPTOR_UNIT
        low = low + ((away << LEADING_BIT) - slot * (slot_units << LEADING_BIT))
        return low, high, [step - (step << LEADING_BIT) for step in steps]

    def get_mma_stages(self, slot, rest=0) -> list[tuple]:
        """As get_mma_tile, for the slot and, if there is one, for the rest. rest: its place."""
        of_slot = self.get_mma_tile(slot)
        return [of_slot] if self.config.rest is None else [of_slot, self._rest.get_mma_tile(rest)]

    @property
    def _rest(self) -> "KVBuffer":
        cfg = self.config
        of_rest = None if self.tma is None else self.tma.rest or self.tma
        return KVBuffer(cfg.rest, self.ring_address + cfg.rest_offset, of_rest)


def mma_tile(tile, address, num_steps: int):
    """An operand for the MMA instructions: (low descriptor word, constant high word, offsets of the steps).

    address     shared address of the tile (Int32); the offsets are in the descriptor's 16-byte units
    """
    at_zero = tile.descriptor(0)
    steps = [tile.step_offset(step) // DESCRIPTOR_UNIT for step in range(num_steps)]
    return Int32(at_zero.low) + address // DESCRIPTOR_UNIT, at_zero.high, steps


@cute.jit
def gather_tile(
    cfg: cutlass.Constexpr,
    tma: KVOperand,
    address,
    mbarrier,
    found: GatheredRows,
    kv_head,
    column,
):
    """Copy a tile of gathered rows."""
    chunks = cfg.columns // cfg.tile.span_elements
    shape = Gathered(cfg.rows, chunks, cfg.cta_group, cfg.span_bytes)
    gather_chunks(shape, tma, address, mbarrier, found, kv_head, column)


@dataclass(frozen=True)
class Gathered:
    """Shape of a gather: rows of a tile, chunks of 64 columns, CTAs that share the mbarrier.

    line_bytes: bytes per row of a chunk, the width of the tensor map's box
    """

    rows: int
    chunks: int
    cta_group: int = 1
    line_bytes: int = SPAN_BYTES


@cute.jit
def gather_chunks(
    shape: cutlass.Constexpr,
    tma: KVOperand,
    address,
    mbarrier,
    found: GatheredRows,
    kv_head,
    column,
):
    """Copy the chunks of a tile, starting at `column`, four rows at a time. shape: a Gathered."""
    here = found.in_map(tma.of_heads.per_row, kv_head * tma.of_heads.per_head)
    for p in cutlass.range(shape.rows // ROWS, unroll=4):
        copies.gather_rows(
            tma.boxes,
            address + p * (ROWS * shape.line_bytes),
            shape.chunks,
            shape.rows * shape.line_bytes,
            mbarrier,
            here.of_gather(p),
            column,
            shape.cta_group,
        )


@cute.jit
def load_pages(
    cfg: cutlass.Constexpr,
    tma: KVOperand,
    address,
    mbarrier,
    found: PagedRowIndices,
    kv_head,
    column: cutlass.Constexpr = 0,
):
    """Copy the boxes of a tile, starting at `column`. Nearly every tile has all its rows: one test covers them."""
    page_bytes = bytes_of(cfg.dtype, cfg.box_rows * cfg.columns)
    if found.all_rows_exist(cfg.box_rows):
        groups = found.in_groups_of_eight()
        for p in cutlass.range_constexpr(found.boxes):
            first, _ = groups.box(p)
            at = address + p * page_bytes
            copies.load_tile(
                tma.boxes, DTYPES[cfg.dtype].cutlass, at, mbarrier, first, (kv_head,), column
            )
    else:
        for p in cutlass.range_constexpr(found.boxes):
            row, valid = found.box(p)
            load_page(cfg, tma, address + p * page_bytes, mbarrier, row, valid, kv_head, column)


@cute.jit
def load_page(
    cfg: cutlass.Constexpr,
    tma: KVOperand,
    address,
    mbarrier,
    row,
    valid,
    kv_head,
    column: cutlass.Constexpr,
):
    """Copy one box with `valid` existing rows: whole, all zeros, or, for the last box of V, eight rows at a time.

    Missing rows of K are masked, so their values do not matter. Missing rows of V meet P = 0, but 0 * NaN is NaN.
    """
    dtype = DTYPES[cfg.dtype].cutlass
    first = choose(valid > 0, row >> 3, BEYOND_EVERY_ROW)
    if cutlass.const_expr(not cfg.walks_keys):
        copies.load_tile(tma.boxes, dtype, address, mbarrier, first, (kv_head,), column)
    else:
        if (valid > 0) & (valid < cfg.box_rows):
            for group in cutlass.range_constexpr(cfg.box_rows // 8):
                here = minimum(maximum(valid - 8 * group, 0), 8)
                at = address + bytes_of(cfg.dtype, group * 8 * cfg.columns)
                place, further = clipped_load(row + 8 * group, here, kv_head)
                copies.load_tile(tma.eight_rows, dtype, at, mbarrier, place, further, column)
        else:
            copies.load_tile(tma.boxes, dtype, address, mbarrier, first, (kv_head,), column)
