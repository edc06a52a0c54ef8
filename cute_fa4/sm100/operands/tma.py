"""The TMA operands of a variant: which view of Q, K, V and O its descriptors describe.

Q    dense or packed tensor, unchanged; rows past the end of a sequence may be loaded without harm
K V  dense: cut by the tensor's extent. Otherwise clipped: packed rows, pages, or a dense batch with lengths.
     A box has as many rows as pages and tiles have in common. If the depth folds, one copy loads all depth chunks of a
     box smaller than a tile. Rows of V in the last box of a sequence are clipped in groups of eight, because 0 * NaN
     is NaN (K is masked instead). If boxes would have fewer than eight rows, TMA gathers rows instead, four at a time,
     at arbitrary positions
O    dense: cut by the tensor's extent. Otherwise clipped, so that nothing past the end of a sequence is written
"""

from dataclasses import dataclass, replace

from cutlass import Int32

from ...dtypes import DTYPES
from ...tma.tensor_maps import (
    RowsOfHeads,
    TMAOperand,
    clipped_load_view,
    clipped_store_view,
    columns_of,
    dense_view,
    heads_in_rows_view,
    make_line_operand,
    make_operand,
    make_row_operand,
    page_view,
    row_space,
    rows_of_heads_view,
)


def q_operand(cfg, mQ) -> TMAOperand:
    pair = cfg.tiles.cta_group
    if cfg.tiles.pads_groups:
        view = heads_in_rows_view(mQ, cfg.tiles.swizzle_granule, cfg.tiles.padded_qk_depth)
        return make_operand(
            view, DTYPES[cfg.qkv_dtype].cutlass, cfg.tiles.q_box_rows, cfg.tiles.padded_qk_depth,
            heads=cfg.tiles.rows_per_position, cta_group=pair,
        )  # fmt: skip
    columns = cfg.tiles.own_qk_depth if cfg.tiles.q_comes_in_parts else cfg.tiles.padded_qk_depth
    if cfg.tiles.q_comes_in_parts:
        mQ = columns_of(mQ, 0, cfg.own_depth)
    view = dense_view(mQ, cfg.tiles.swizzle_granule, columns, cfg.heads_per_tile)
    return make_operand(
        view, DTYPES[cfg.qkv_dtype].cutlass, cfg.tiles.q_box_rows, columns, cta_group=pair
    )


def o_operand(cfg, mO) -> tuple[TMAOperand, Int32]:
    """-> (operand of one depth chunk of a tile, rows from one batch to the next in its row space)."""
    rows, columns, group = cfg.tiles.rows_per_q_tile, cfg.tiles.o_granule, cfg.heads_per_tile
    dtype = DTYPES[cfg.o_dtype].cutlass
    if not cfg.clips_queries:
        view = dense_view(mO, columns, columns, group)
        return make_operand(view, dtype, rows, columns, direction="store"), Int32(0)
    space = row_space(mO)
    view = clipped_store_view(mO, space, rows // group, columns, columns, group)
    return make_operand(view, dtype, rows, columns, direction="store"), Int32(space.rows_per_block)


@dataclass(frozen=True)
class KVOperand:
    """The TMA operands of K or V.

    boxes       loads a tile, a box of it, one depth chunk of a box, or single rows to gather
    eight_rows  for V if boxes come whole: clipped groups of eight rows of its last box
    of_heads    if rows are gathered: the rows of the map
    rest        the columns of K that do not fit in a slot of the ring; None: there are none, or boxes loads them
    """

    boxes: TMAOperand
    eight_rows: TMAOperand | None = None
    of_heads: RowsOfHeads | None = None
    rest: "KVOperand | None" = None


def k_operand(cfg, mK) -> tuple[KVOperand, Int32]:
    """K -> (operand of a tile, including its rest if it has one, rows from one batch or page to the next)."""
    operand, stride = kv_operand(cfg, mK, cfg.tiles.k_copy_columns, is_v=False)
    if cfg.tiles.rest_qk_depth and not cfg.rope_depth:
        rest, _ = kv_operand(cfg, mK, cfg.tiles.rest_qk_depth, is_v=False)
        operand = replace(operand, rest=rest)
    return operand, stride


def kv_operand(cfg, mX, columns: int, is_v: bool) -> tuple[KVOperand, Int32]:
    """K (columns: of one depth stage) or V -> (operand, rows from one batch or page to the next)."""
    tiles, dtype, granule = cfg.tiles, DTYPES[cfg.stored_dtype].cutlass, cfg.tiles.kv_granule
    rows = tiles.v_box_rows if is_v else tiles.k_box_rows
    if not cfg.clips_keys:
        view = dense_view(mX, granule, columns)
        return KVOperand(
            make_operand(view, dtype, rows, columns, cta_group=tiles.cta_group)
        ), Int32(0)
    space = row_space(mX, head_mode=-3 if cfg.page_heads_first else -2)
    stride = Int32(space.rows_per_block)
    if tiles.gathers_rows:
        view, of_heads = rows_of_heads_view(mX, space)
        return KVOperand(make_row_operand(view, dtype, granule), of_heads=of_heads), stride
    if tiles.pages_come_whole:
        pages = make_operand(
            page_view(mX, space, granule), dtype, rows, columns, chunks_side_by_side=True
        )
        clipped = clipped_load_view(mX, space)
        eight = make_operand(clipped, dtype, 8, columns, chunks_side_by_side=True) if is_v else None
        return KVOperand(pages, eight), stride
    if rows < (tiles.BN if is_v else tiles.k_rows_per_cta):
        columns = (
            granule  # the chunks of a page are not adjacent in the tile: each has its own copy
        )
    view = clipped_load_view(mX, space)
    return KVOperand(make_operand(view, dtype, rows, columns, cta_group=tiles.cta_group)), stride


def narrow_operand(cfg, mX, columns: int) -> KVOperand:
    """Operand of `columns` columns of the rows of a tile, line by line without swizzle; clipped or gathered."""
    tiles, space = cfg.tiles, row_space(mX)
    if tiles.gathers_rows:
        view, of_heads = rows_of_heads_view(mX, space)
        return KVOperand(make_line_operand(view, 1, columns), of_heads=of_heads)
    return KVOperand(make_line_operand(clipped_load_view(mX, space), tiles.v_box_rows, columns))


def boxes_of_pages(cfg, mX, columns: int) -> KVOperand:
    """Clipped boxes of `columns` columns, with as many rows as pages and tiles have in common."""
    view = clipped_load_view(mX, row_space(mX, head_mode=-3 if cfg.page_heads_first else -2))
    return KVOperand(
        make_operand(view, DTYPES[cfg.qkv_dtype].cutlass, cfg.tiles.v_box_rows, columns)
    )
