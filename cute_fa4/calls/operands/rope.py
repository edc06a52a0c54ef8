"""k_rope: the last columns of every key, which all heads share, in a separate tensor (multi-head latent attention).

    q         (..., heads, d + d_rope)
    k         (..., heads, d)
    k_rope    as k without its heads, or with one: (batch, seqlen_k, d_rope), packed (total_k, d_rope)
              with k_rope_page_table (num_pages, rows, d_rope), whatever k is; the table is (batch, pages) int32

A key of head h is k[..., h, :] and then k_rope[...]. The tensor is read where it lies, the last columns of a latent
cache for instance; no kernel writes a K of all columns.

    q, k         k_rope              besides
    16 bits      as k                -
    16 bits      8 bits              dequantized; k_rope_descale, float32: one number, or one for each of its rows
    q of 16,     8 bits, or as q     as q_quantize says: dequantized, or q quantised as below (calls/queries.py)
      k of 8
    8 bits       as k                -
    8 bits       16 bits             q_rope (..., heads, d_rope) of its dtype, and q has d columns

With q and k of 8 bits the score of a query and a key is q_descale * k_descale * (q k + q_rope k_rope): scales are those
of whole rows, so 16-bit columns are stored divided by the scale of their row (docs/decisions/0028). Columns of 8 bits
are quantised with it.
"""

from __future__ import annotations

import torch

from cute_fa4.calls.operands.lengths import check_index_tensor, check_pages, keys_of
from cute_fa4.calls.operands.memory import check_memory, with_plain_strides
from cute_fa4.calls.operands.rope_view import Rope
from cute_fa4.calls.operands.strides import rows_for_descriptors
from cute_fa4.calls.operands.tensors import (
    DENSE,
    DTYPE_NAMES,
    FP8,
    PACKED,
    PAGED,
    WIDE,
    check_is_tensor,
    check_place,
    check_rank,
)
from cute_fa4.calls.request import Where
from cute_fa4.operands import ROPE, CallTensors
from cute_fa4.sm100.blueprint.tiles import ROWS_OF_SWIZZLE


def depths_of(tensors: CallTensors) -> tuple[int, int]:
    """-> (columns of k_rope, which k lacks, those that q lacks); 0: it has all. Refuses dtypes that have no kernel.

    tensors: unchecked
    """
    if not tensors.has(ROPE):
        return 0, 0
    q, k, q_rope = tensors.q, tensors.k, tensors.q_rope
    k_rope, table, scales = tensors.k_rope, tensors.k_rope_page_table, tensors.k_rope_descale
    if k_rope is None and table is not None:
        raise ValueError("k_rope_page_table: given without k_rope, whose pages it lists")
    if k_rope is None and q_rope is None:
        raise ValueError("k_rope_descale: given without k_rope, which it is a scale of")
    if k_rope is None:
        raise ValueError(
            "q_rope: given without k_rope, whose columns it meets; accepted: both, or neither"
        )
    check_is_tensor("k_rope", k_rope)
    for name, tensor in (("q_rope", q_rope), ("k_rope_descale", scales)):
        if tensor is not None:
            check_is_tensor(name, tensor)
    if k_rope.dim() == 0 or k_rope.shape[-1] == 0:
        raise ValueError(
            f"k_rope: shape {tuple(k_rope.shape)}; accepted: columns in its last dimension"
        )
    if all(getattr(x, "dtype", None) in DTYPE_NAMES for x in (q, k)):  # others are refused later
        _check_dtypes(k_rope, q_rope, q, k)
        _check_dtype_of_scales(scales, k_rope, k)
    return k_rope.shape[-1], 0 if q_rope is None else k_rope.shape[-1]


def checked_rope(tensors: CallTensors, where: Where, contents: bool = True) -> Rope | None:
    """Refuse an invalid k_rope. tensors: with a k that has the rows of a page first."""
    if not tensors.has(ROPE):
        return None
    q, k = tensors.q, tensors.k
    k_rope, table, q_rope, scales = tensors.of(ROPE)
    check_place("k_rope", k_rope, q.device)
    view = _check_shape(k_rope, table, k, where)
    check_memory(
        "k_rope", view, PAGED if table is not None else DENSE if view.dim() == 4 else PACKED
    )
    if table is not None:
        _check_table(table, view, q, k, where, contents)
    clipped = table is not None or where.kv_layout != "dense" or where.tensors.seqused_k is not None
    gathered = table is not None and view.shape[1] % ROWS_OF_SWIZZLE != 0
    view = rows_for_descriptors("k_rope", view, clipped, gathered)
    of_q = None if q_rope is None else _checked_q(q_rope, q, k_rope.shape[-1])
    of_rows = None if scales is None else _checked_scales(scales, view)
    return Rope(view, table, k.dtype, of_q, of_rows)


def _check_dtype_of_scales(scales, k_rope, k) -> None:
    if scales is None:
        return
    if k_rope.dtype not in FP8 or k.dtype in FP8:
        beside = (
            "k_descale is of these columns, too"
            if k.dtype in FP8
            else "multiply the last columns of q"
        )
        raise TypeError(
            f"k_rope_descale: given with k_rope of {k_rope.dtype} beside k of {k.dtype}; accepted: None; {beside}"
        )
    if scales.dtype != torch.float32:
        raise TypeError(
            f"k_rope_descale: dtype {scales.dtype}; accepted: torch.float32; convert with .to(torch.float32)"
        )


def _checked_scales(scales: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    """-> one for each row of k_rope. view: with a dimension of one head."""
    rows = tuple(view.shape[:-2])
    check_place("k_rope_descale", scales, view.device)
    if scales.numel() == 1:
        return scales.as_strided(rows, (0,) * len(rows))
    for shape in (rows, (*rows, 1), (*rows, 1, 1)):
        if tuple(scales.shape) == shape:
            return scales.as_strided(rows, scales.stride()[: len(rows)])
    raise ValueError(
        f"k_rope_descale: shape {tuple(scales.shape)} with k_rope of {rows} rows; accepted: one number, or {rows}, one "
        "for each row"
    )


def _check_dtypes(k_rope, q_rope, q, k) -> None:
    if q.dtype in FP8 and k.dtype == q.dtype:
        if k_rope.dtype == k.dtype:
            if q_rope is not None:
                raise TypeError(
                    f"q_rope: given with k_rope of {k_rope.dtype}, whose columns of q follow its others; accepted: "
                    f"None, or k_rope of {' or '.join(map(str, WIDE))}"
                )
            return
        if k_rope.dtype not in WIDE:
            raise TypeError(
                f"k_rope: dtype {k_rope.dtype} with q and k of {q.dtype}; accepted: {q.dtype}, or "
                f"{' or '.join(map(str, WIDE))} with q_rope; convert both with .to(torch.bfloat16)"
            )
        if q_rope is None:
            raise ValueError(
                f"q_rope: None with q and k of {q.dtype} and k_rope of {k_rope.dtype}; accepted: the columns of q that "
                f"meet k_rope, {(*q.shape[:-1], k_rope.shape[-1])} of its dtype; or q of 16 bits with all columns"
            )
        if q_rope.dtype != k_rope.dtype:
            raise TypeError(
                f"q_rope: dtype {q_rope.dtype} while k_rope is {k_rope.dtype}; accepted: one dtype for both; convert "
                f"with .to({k_rope.dtype})"
            )
        return
    wide = q.dtype in WIDE and k.dtype in (q.dtype, *FP8)
    if not wide or k_rope.dtype not in (q.dtype, *FP8):
        raise TypeError(
            f"k_rope: dtype {k_rope.dtype} with q of {q.dtype} and k of {k.dtype}; accepted: q and k of one dtype, or "
            f"k of {' or '.join(map(str, FP8))}, and with q of 16 bits k_rope of its dtype or of these; convert with "
            ".to(torch.bfloat16)"
        )
    if q_rope is not None:
        raise TypeError(
            f"q_rope: given with q of {q.dtype}, which has these columns after its others; accepted: None, or q and k "
            f"of {' or '.join(map(str, FP8))}"
        )


def _checked_q(q_rope, q, columns: int) -> torch.Tensor:
    """The columns of q in a separate tensor, with strides that a descriptor can hold."""
    check_place("q_rope", q_rope, q.device)
    check_rank("q_rope", q_rope, DENSE if q.dim() == 4 else PACKED)
    if tuple(q_rope.shape) != (*q.shape[:-1], columns):
        raise ValueError(
            f"q_rope: shape {tuple(q_rope.shape)} with q of {tuple(q.shape)} and {columns} columns of k_rope; "
            f"accepted: {(*q.shape[:-1], columns)}"
        )
    check_memory("q_rope", q_rope, DENSE if q.dim() == 4 else PACKED)
    return with_plain_strides(q_rope)


def _check_shape(k_rope, table, k, where: Where) -> torch.Tensor:
    """-> k_rope with a dimension of one head."""
    if table is None and where.kv_layout == "paged":
        raise ValueError(
            "k_rope_page_table: None with k in pages; accepted: the pages of k_rope, which page_table lists as well "
            "where they are those of k"
        )
    rows = tuple(k.shape[:-2]) if table is None else None
    axes: tuple[str, ...] = ("num_pages", "rows", "columns")
    if rows is not None:
        axes = ("batch", "seqlen", "columns") if len(rows) == 2 else ("total", "columns")
    view = k_rope.unsqueeze(-2) if k_rope.dim() == len(axes) else k_rope
    if view.dim() != len(axes) + 1 or view.shape[-2] != 1:
        raise ValueError(
            f"k_rope: shape {tuple(k_rope.shape)}; accepted: ({', '.join(axes)}), or with one head before the columns"
        )
    if rows is not None and tuple(view.shape[:-2]) != rows:
        raise ValueError(
            f"k_rope: shape {tuple(k_rope.shape)} with k of {tuple(k.shape)}; accepted: {(*rows, view.shape[-1])}, a "
            "row for every row of k"
        )
    if rows is None and view.shape[1] == 0:
        raise ValueError(
            f"k_rope: pages of 0 keys, shape {tuple(k_rope.shape)}; accepted: 1 key a page or more"
        )
    return view


def _check_table(table, view, q, k, where: Where, contents: bool) -> None:
    check_index_tensor("k_rope_page_table", table, 2, q.device)
    batch, room = where.batch(q), table.shape[1] * view.shape[1]
    if table.shape[0] != batch:
        raise ValueError(
            f"k_rope_page_table: shape {tuple(table.shape)}; accepted: the first dimension is {batch}, the sequences"
        )
    keys, are_read = None, contents and table.device.type == "cpu"
    if are_read:
        keys = keys_of(q, k, where)
    elif where.kv_layout == "dense" and where.tensors.seqused_k is None:
        keys = torch.full((batch,), k.shape[1])
    if keys is not None and batch and int(keys.max()) > room:
        b = int(keys.argmax())
        raise ValueError(
            f"k_rope_page_table: {table.shape[1]} pages of {view.shape[1]} rows while sequence {b} has {int(keys[b])} "
            "keys; accepted: room for all of them; pass a wider table"
        )
    if keys is not None and are_read:
        check_pages(
            table, keys, view.shape[1], view.shape[0], name="k_rope_page_table", of="k_rope"
        )
