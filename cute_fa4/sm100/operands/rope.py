"""Columns of K in a separate tensor that all heads share: the rotary part of multi-head latent attention.

    K tile of 192 columns     128 of K, of the head | 64 of k_rope, the same for all heads
    in a slot of the ring     K chunks 0, 1           then k_rope, or k_rope in the buffer of the rest of K

The products see one tile. Separate copies fill its two parts, and the barrier of K counts the bytes of both.
"""

from dataclasses import dataclass, replace

import cutlass.cute as cute
from cutlass import Int32

from ...dtypes import DTYPES
from ...tma.tensor_maps import (
    TMAOperand,
    clipped_load_view,
    columns_of,
    dense_view,
    make_operand,
    make_row_operand,
    row_space,
    rows_of_heads_view,
)
from .kv_buffer import KVBuffer, KVBufferConfig
from .tma import KVOperand


@dataclass(frozen=True)
class Rope:
    """The TMA operand of the rotary columns, and the position of their rows.

    rows_per_block   from one batch or page to the next, Int32
    page_table       (batch, pages) int32 for their own pages, or None if their rows are those of K
    num_pages        pages of their pool
    of_q             operand of the matching columns of Q if a query tile copies them separately, or None
    scales           one f32 scale per row, without head and depth modes, or None
    """

    operand: KVOperand
    rows_per_block: Int32
    page_table: cute.Tensor | None
    num_pages: Int32
    of_q: TMAOperand | None
    scales: cute.Tensor | None

    @staticmethod
    def of(cfg, mQ, tensor, *further) -> "Rope":
        """tensor: like K of one head, (batch, seqlen_k, 1, depth), packed (total_k, 1, depth) or in pages.

        mQ: contains these columns, unless `further` has them
        further: the page table, the columns of Q and the scales, those that the configuration has
        """
        given = list(further)
        operand, stride = operand_of(cfg, tensor)
        table = given.pop(0) if cfg.rope_page_size else None
        of_q = given.pop(0) if cfg.mixes_rope else columns_of(mQ, cfg.own_depth, cfg.rope_depth)
        return Rope(
            operand,
            stride,
            page_table=table,
            num_pages=Int32(tensor.shape[0]),
            of_q=of_queries(cfg, of_q) if cfg.tiles.q_comes_in_parts else None,
            scales=given.pop(0) if cfg.scale_dtype else None,
        )


def operand_of(cfg, tensor) -> tuple[KVOperand, Int32]:
    """-> (operand of the columns of K, rows from one batch or page to the next)."""
    tiles, dtype, columns = (
        cfg.tiles,
        DTYPES[cfg.rope_stored_dtype].cutlass,
        cfg.tiles.rope_box_columns,
    )
    if not is_clipped(cfg):
        view = dense_view(tensor, columns, columns)
        rows, group = tiles.rope_box_rows, tiles.cta_group
        return KVOperand(make_operand(view, dtype, rows, columns, cta_group=group)), Int32(0)
    space = row_space(tensor)
    stride = Int32(space.rows_per_block)
    if tiles.gathers_rope:
        view, of_heads = rows_of_heads_view(tensor, space)
        return KVOperand(make_row_operand(view, dtype, columns), of_heads=of_heads), stride
    view = clipped_load_view(tensor, space)
    boxes = make_operand(view, dtype, tiles.rope_box_rows, columns, cta_group=tiles.cta_group)
    return KVOperand(boxes), stride


def of_queries(cfg, tensor) -> TMAOperand:
    """Operand of the matching columns of Q, one span after the others in every query tile."""
    tiles, columns = cfg.tiles, cfg.tiles.rope_box_columns
    view = dense_view(tensor, columns, columns, cfg.heads_per_tile)
    dtype = DTYPES[cfg.rope_stored_dtype].cutlass
    return make_operand(view, dtype, tiles.q_box_rows, columns, cta_group=tiles.cta_group)


def is_clipped(cfg) -> bool:
    """Whether rows are cut at run time, by a clipped operand."""
    return cfg.clips_keys or cfg.rope_page_size > 0


def own_columns(cfg) -> KVBufferConfig:
    """Config to copy the columns of a K tile that come from K itself."""
    whole, own = KVBufferConfig.as_it_arrives(cfg, is_v=False), cfg.tiles.own_qk_depth
    return replace(whole, columns=own, contraction=own, rest=None) if cfg.rope_depth else whole


def rope_buffer(cfg, ring_address: Int32, rope: Rope) -> KVBuffer:
    """Buffer of the columns after them: in every slot, or in the single buffer of the rest."""
    tiles, columns = cfg.tiles, cfg.tiles.rope_box_columns
    rows = tiles.k_rows_per_cta
    whole = KVBufferConfig._of(cfg, rows, columns, tiles.rope_box_rows, False, columns)
    dtype = cfg.rope_stored_dtype
    config = replace(whole, clipped=is_clipped(cfg), gathered=tiles.gathers_rope, dtype=dtype)
    if tiles.rest_qk_depth:
        place = cfg.smem.k_rest.offset - cfg.smem.kv.offset
        return KVBuffer(replace(config, slot_bytes=0), ring_address + place, rope.operand)
    before = tiles.bytes_of(rows * tiles.own_qk_depth)
    return KVBuffer(config, ring_address + before, rope.operand)
