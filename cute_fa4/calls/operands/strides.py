"""Strides that a TMA descriptor can hold: of dimensions of size 1, of pages and of sequences in one row space.

A clipped operand sees its rows as one sequence of rows at multiples of one stride (its row space), so that a row
number alone finds a row of any page or sequence. Where rows are gathered, from pages of no multiple of eight keys or
with left padding, the rows of all heads are one sequence of rows.
"""

from __future__ import annotations

import torch

from cute_fa4.calls.operands.memory import with_plain_strides
from cute_fa4.calls.request import Where
from cute_fa4.sm100.blueprint.tiles import ROWS_OF_SWIZZLE

# The kernel's row numbers are 32-bit and a tile may reach past the last row.
MAX_ROWS = (1 << 31) - 1024
ROW_STRIDE_LIMIT_BYTES = 1 << 34  # LAP_BYTES of tma/tensor_maps.py


def views_for_descriptors(q, k, v, out, where: Where):
    """-> (q, k, v, out, rows from one page to the next), with strides that a descriptor can hold. out may be None."""
    if where.kv_layout == "dense" and where.tensors.seqused_k is None:
        k, v, per_block = with_plain_strides(k), with_plain_strides(v), 0
    else:
        (k, per_block), (v, per_block_v) = _in_row_space("k", k), _in_row_space("v", v)
        if per_block != per_block_v:
            raise ValueError(
                f"v: strides {v.stride()} put {per_block_v} rows from one block to the next while "
                f"k has {per_block} with strides {k.stride()}; accepted: equal, so that one look-up "
                "serves both; slice k and v from one cache, or allocate them alike"
            )
        if gathers_rows(where, k):
            k, v = _in_one_map("k", k), _in_one_map("v", v)
    clips_queries = where.tensors.seqused_q is not None or where.q_layout == "packed"
    if out is not None:
        out = _in_row_space("out", out)[0] if clips_queries else with_plain_strides(out)
    return with_plain_strides(q), k, v, out, per_block


def rows_for_descriptors(name: str, tensor, clipped: bool, gathered: bool) -> torch.Tensor:
    """The same for a tensor that is looked up alone. clipped: its rows are cut at run time."""
    if not clipped:
        return with_plain_strides(tensor)
    tensor, _ = _in_row_space(name, tensor)
    return _in_one_map(name, tensor) if gathered else tensor


def gathers_rows(where: Where, k) -> bool:
    """Whether the rows of pages are looked up one by one (sm100/blueprint/tiles.py); k: (pages, page_size, heads,
    depth)."""
    ragged = k.shape[1] % ROWS_OF_SWIZZLE != 0 or where.tensors.cache_leftpad is not None
    return where.tensors.page_table is not None and ragged


def _in_one_map(name: str, cache: torch.Tensor) -> torch.Tensor:
    """A cache in row space, whose heads are rows too: one of the two strides is a multiple of the other."""
    pages, page_size, heads, _ = cache.shape
    page, row, head, _ = cache.stride()
    if heads == 1:
        head = row
        cache = cache.as_strided(cache.shape, (page, row, head, 1))
    unit = min(row, head)
    if unit <= 0 or row % unit or head % unit:
        raise ValueError(
            f"{name}: strides {cache.stride()} with pages of {page_size} keys, whose rows are gathered one by one: "
            f"{row} elements from one row to the next, {head} from one head to the next; accepted: one a multiple of "
            f"the other; copy with {name}.contiguous(), or use pages of a multiple of {ROWS_OF_SWIZZLE} keys, without "
            "left padding"
        )
    last = ((pages - 1) * page + (page_size - 1) * row + (heads - 1) * head) // unit
    if last > MAX_ROWS:
        raise ValueError(
            f"{name}: {pages} pages of {page_size} keys, whose rows are gathered one by one, end at row {last} of all "
            f"heads; accepted: at most {MAX_ROWS}, because rows are 32-bit numbers; use fewer pages, or pages of a "
            f"multiple of {ROWS_OF_SWIZZLE} keys without left padding"
        )
    return cache


def _in_row_space(name: str, tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """(blocks, rows, heads, depth) or (rows, heads, depth) whose rows all lie at multiples of one stride.

    -> (the tensor with usable strides for dimensions of size 1, rows from one block to the next).
    """
    tensor = with_plain_strides(tensor)
    if tensor.dim() == 3:
        _check_row_stride(name, tensor, tensor.stride(0))
        return tensor, 0
    (blocks, rows, *_), (block_stride, row_stride, *_) = tensor.shape, tensor.stride()
    if blocks == 1:
        block_stride = rows * row_stride
    elif rows == 1:
        row_stride = block_stride
    if row_stride <= 0 or block_stride % row_stride:
        raise ValueError(
            f"{name}: strides {tensor.stride()}: from one block of {rows} rows to the next it is "
            f"{block_stride} elements, from one row to the next {row_stride}; accepted: a multiple "
            f"of a positive number; copy with {name}.contiguous()"
        )
    _check_row_stride(name, tensor, row_stride)
    per_block = block_stride // row_stride
    last = (blocks - 1) * per_block + rows
    if last > MAX_ROWS:
        raise ValueError(
            f"{name}: {blocks} blocks at every {per_block} rows end at row {last}; accepted: at "
            f"most {MAX_ROWS}, because rows are 32-bit numbers; use fewer blocks, or a layout with "
            "the heads inside a row"
        )
    strides = (block_stride, row_stride, *tensor.stride()[2:])
    if strides != tensor.stride():
        tensor = tensor.as_strided(tensor.shape, strides)
    return tensor, per_block


def _check_row_stride(name: str, tensor: torch.Tensor, row_stride: int) -> None:
    nbytes = row_stride * tensor.element_size()
    if nbytes >= ROW_STRIDE_LIMIT_BYTES:
        raise ValueError(
            f"{name}: strides {tensor.stride()} put {nbytes} bytes from one row to the next; accepted: "
            f"less than {ROW_STRIDE_LIMIT_BYTES}, so that TMA can cut rows where sequences end; copy with "
            f"{name}.contiguous()"
        )
