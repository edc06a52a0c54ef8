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
    8 bits       as k                -
    8 bits       16 bits             q_rope (..., heads, d_rope) of its dtype, and q has d columns

With q and k of 8 bits the score of a query and a key is q_descale * k_descale * (q k + q_rope k_rope): scales are those
of whole rows, so 16-bit columns are stored divided by the scale of their row (docs/decisions/0028). Columns of 8 bits
are quantised with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cute_fa4.calls.operands.lengths import check_index_tensor, check_pages, keys_of
from cute_fa4.calls.operands.strides import rows_for_descriptors, with_plain_strides
from cute_fa4.calls.operands.tensors import (
    DENSE,
    DTYPE_NAMES,
    FP8,
    PACKED,
    PAGED,
    WIDE,
    check_is_tensor,
    check_memory,
    check_place,
    check_rank,
)
from cute_fa4.calls.request import Where
from cute_fa4.operands import NAMES, ROPE, CallTensors
from cute_fa4.sm100.blueprint.tiles import ROWS_OF_SWIZZLE


@dataclass(frozen=True)
class Rope:
    """k_rope as the kernel takes it, with one head and strides that a descriptor can hold.

    depth       its columns
    page_size   rows of its pages; 0: its rows are those of k
    of_keys     dtype of k
    dtype       the name of its own dtype, where that differs from k: 8 bits under 16, or 16 beside 8; None: that of k
    of_q        the columns of q that it multiplies, where q has them in a separate tensor
    scales      float32 of its rows, of any strides; None: there are none
    """

    view: torch.Tensor
    page_table: torch.Tensor | None
    of_keys: torch.dtype
    of_q: torch.Tensor | None = None
    scales: torch.Tensor | None = None

    @property
    def dtype(self) -> str | None:
        has_own = self.view.dtype != self.of_keys
        return DTYPE_NAMES[self.view.dtype] if has_own else None

    @property
    def dtypes(self) -> dict:
        """Configuration fields for it and for its scales."""
        scaled = self.scales is not None
        return {"rope_dtype": self.dtype, "scale_dtype": "f32" if scaled else None}

    @property
    def is_widened(self) -> bool:
        """Whether it has 8 bits while k has 16."""
        return self.view.dtype in FP8 and self.of_keys not in FP8

    @property
    def depth_of_q(self) -> int:
        """Columns that q lacks."""
        return 0 if self.of_q is None else self.depth

    @property
    def depth(self) -> int:
        return self.view.shape[-1]

    @property
    def page_size(self) -> int:
        return 0 if self.page_table is None else self.view.shape[1]

    @property
    def named(self) -> dict[str, torch.Tensor | None]:
        tensors = self.view, self.page_table, self.of_q, self.scales
        return dict(zip(NAMES[ROPE], tensors, strict=True))


class RopeView:
    """The same for every call with tensors like these."""

    def __init__(self, rope: Rope):
        self.layout = rope.view.shape, rope.view.stride()
        self.of_q = None if rope.of_q is None else (rope.of_q.shape, rope.of_q.stride())
        self.scales = None if rope.scales is None else (rope.scales.shape, rope.scales.stride())

    def of(self, tensors: CallTensors) -> tuple:
        """Tensors that the kernel takes."""
        table, scales = tensors.k_rope_page_table, tensors.k_rope_descale
        view = tensors.k_rope.as_strided(*self.layout)
        found = (view,) if table is None else (view, table)
        if self.of_q is not None:
            found += (tensors.q_rope.as_strided(*self.of_q),)
        return found if self.scales is None else (*found, scales.as_strided(*self.scales))


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
    q, k, q_rope = tensors.q, tensors.k, tensors.q_rope
    k_rope, table, scales = tensors.k_rope, tensors.k_rope_page_table, tensors.k_rope_descale
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
                    f"q_rope: given with k_rope of {k_rope.dtype}, whose columns of q lie behind its others; accepted: "
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
    wide = k.dtype in WIDE and q.dtype == k.dtype
    if not wide or (k_rope.dtype != k.dtype and k_rope.dtype not in FP8):
        raise TypeError(
            f"k_rope: dtype {k_rope.dtype} with q of {q.dtype} and k of {k.dtype}; accepted: q and k of one dtype, of "
            f"16 bits k_rope of theirs or {' or '.join(map(str, FP8))}; convert with .to(torch.bfloat16)"
        )
    if q_rope is not None:
        raise TypeError(
            f"q_rope: given with q of {q.dtype}, which has these columns behind its others; accepted: None, or q and k "
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


def _check_shape(k_rope, table, k, where: Where):
    """-> k_rope with a dimension of one head."""
    if table is not None:
        rows, axes = None, ("num_pages", "rows", "columns")
    elif where.kv_layout == "paged":
        raise ValueError(
            "k_rope_page_table: None with k in pages; accepted: the pages of k_rope, which page_table lists as well "
            "where they are those of k"
        )
    else:
        rows = tuple(k.shape[:-2])
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
    keys = None
    if contents and table.device.type == "cpu":
        keys = keys_of(q, k, where)
    elif where.kv_layout == "dense" and where.tensors.seqused_k is None:
        keys = torch.full((batch,), k.shape[1])
    if keys is not None and batch and int(keys.max()) > room:
        b = int(keys.argmax())
        raise ValueError(
            f"k_rope_page_table: {table.shape[1]} pages of {view.shape[1]} rows while sequence {b} has {int(keys[b])} "
            "keys; accepted: room for all of them; pass a wider table"
        )
    if contents and table.device.type == "cpu":
        pages = dict(name="k_rope_page_table", of="k_rope")
        check_pages(table, keys, view.shape[1], view.shape[0], **pages)
