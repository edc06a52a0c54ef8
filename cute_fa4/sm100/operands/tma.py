"""The TMA operands of a variant: which view of Q, K, V and O its descriptors describe.

Q    dense or packed tensor as it is; rows beyond a sequence may be loaded, they cost nothing
K V  dense: cut by the tensor's extent. Otherwise clipped: packed rows, pages, or a dense batch with lengths.
     Pages smaller than a tile come whole, with all depth chunks in one copy where the depth folds; the rows of
     V in the last page of a sequence are clipped eight by eight, because 0 * NaN is NaN (K is masked instead)
O    dense: cut by the tensor's extent. Otherwise clipped, so that nothing beyond a sequence is written
"""

from dataclasses import dataclass

from cutlass import Int32

from ...tma.tensor_maps import (
    DTYPES,
    TMAOperand,
    clipped_view,
    dense_view,
    make_operand,
    page_view,
    row_space,
)


def q_operand(cfg, mQ) -> TMAOperand:
    view = dense_view(mQ, cfg.tiles.swizzle_granule, cfg.tiles.padded_qk_depth, cfg.heads_per_tile)
    return make_operand(
        view, DTYPES[cfg.qkv_dtype], cfg.tiles.rows_per_q_tile, cfg.tiles.padded_qk_depth
    )


def o_operand(cfg, mO) -> tuple[TMAOperand, Int32]:
    """-> (operand of one depth chunk of a tile, rows from one batch to the next in its row space)."""
    rows, columns, group = cfg.tiles.rows_per_q_tile, cfg.tiles.o_granule, cfg.heads_per_tile
    dtype = DTYPES[cfg.o_dtype]
    if not cfg.clips_queries:
        view = dense_view(mO, columns, columns, group)
        return make_operand(view, dtype, rows, columns, store=True), Int32(0)
    space = row_space(mO)
    view = clipped_view(mO, space, rows // group, columns, columns, group)
    return make_operand(view, dtype, rows, columns, store=True), Int32(space.rows_per_block)


@dataclass(frozen=True)
class KVOperand:
    """How K or V is loaded.

    boxes       a tile, a page, or one depth chunk of a page
    eight_rows  V where pages come whole: the clipped boxes of its last page
    zeros       of a clipped box no row of which exists; None where that cannot happen
    """

    boxes: TMAOperand
    eight_rows: TMAOperand | None = None
    zeros: TMAOperand | None = None


def kv_operand(cfg, mX, columns: int, is_v: bool) -> tuple[KVOperand, Int32]:
    """K (columns: of one depth stage) or V -> (operand, rows from one batch or page to the next)."""
    dtype, granule, rows = DTYPES[cfg.qkv_dtype], cfg.tiles.swizzle_granule, cfg.tiles.kv_box_rows
    if not cfg.clips_keys:
        return KVOperand(
            make_operand(dense_view(mX, granule, columns), dtype, rows, columns)
        ), Int32(0)
    space = row_space(mX, head_mode=-3 if cfg.page_heads_first else -2)
    stride = Int32(space.rows_per_block)

    def clipped(rows, columns, zeros=False):
        view = clipped_view(mX, space, rows, granule, columns, zeros=zeros)
        return make_operand(
            view, dtype, rows, columns, chunks_side_by_side=cfg.tiles.pages_come_whole
        )

    if cfg.tiles.pages_come_whole:
        view = page_view(mX, space, granule)
        boxes = make_operand(view, dtype, rows, columns, chunks_side_by_side=True)
        if not is_v:
            return KVOperand(boxes), stride
        return KVOperand(boxes, clipped(8, columns), clipped(8, columns, zeros=True)), stride
    if (
        rows == cfg.tiles.BN
    ):  # a tile is walked because it has keys; but a page table may name pages that do not exist
        zeros = clipped(rows, columns, zeros=True) if cfg.page_size else None
        return KVOperand(clipped(rows, columns), zeros=zeros), stride
    # The chunks of a page do not lie side by side in the tile: a copy for each.
    return KVOperand(clipped(rows, granule), zeros=clipped(rows, granule, zeros=True)), stride
