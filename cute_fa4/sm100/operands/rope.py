"""Columns of K in a tensor of their own, which all heads share: the rotary part of multi-head latent attention.

    K tile of 192 columns     128 of K, of the head | 64 of k_rope, the same for all heads
    in a slot of the ring     K chunks 0, 1           k_rope behind them, or where the rest of K lies

The products see one tile: what differs are the copies that fill it, and that both count on the barrier of K.
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
    """What loads them, and where their rows lie.

    rows_per_block   from one batch or page to the next, Int32
    page_table       (batch, pages) int32 of their own pages, or None: their rows are those of K
    num_pages        of their pool
    of_q             what loads the columns of Q that meet them, where a query tile takes a copy for them, or None
    scales           one for each of their rows, f32, without head and depth, or None
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

        mQ: with these columns, unless they are among what is given
        further: the page table, the columns of Q and the scales, as far as the configuration has them
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
    """-> (what loads the columns of K, rows from one batch or page to the next)."""
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
    """The columns of Q that meet those, a span behind the others in every query tile."""
    tiles, columns = cfg.tiles, cfg.tiles.rope_box_columns
    view = dense_view(tensor, columns, columns, cfg.heads_per_tile)
    dtype = DTYPES[cfg.rope_stored_dtype].cutlass
    return make_operand(view, dtype, tiles.q_box_rows, columns, cta_group=tiles.cta_group)


def is_clipped(cfg) -> bool:
    """Rows are cut at run time, by a clipped operand."""
    return cfg.clips_keys or cfg.rope_page_size > 0


def own_columns(cfg) -> KVBufferConfig:
    """The columns of a K tile that K itself has, for their copy."""
    whole, own = KVBufferConfig.as_it_arrives(cfg, is_v=False), cfg.tiles.own_qk_depth
    return replace(whole, columns=own, contraction=own, rest=None) if cfg.rope_depth else whole


def rope_buffer(cfg, ring_address: Int32, rope: Rope) -> KVBuffer:
    """The columns behind them: of every slot, or in the one place of the rest."""
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
