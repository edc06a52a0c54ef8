"""A call without appended rows, checked and compiled: keys packed, padded or in pages.

q   packed (total_q, heads_q, head_dim), with offsets           or dense (batch, seqlen_q, heads_q, head_dim)
k   packed (total_k, heads_kv, head_dim) with cu_seqlens_k
    dense  (batch, seqlen_k, heads_kv, head_dim)
    paged  (num_pages, page_size, heads_kv, head_dim) with page_table and seqused_k

page_size 4, page_table [[2, 0, ?], [1, ?, ?]], seqused_k [6, 3]

page 0   4 5 . .     keys 4 and 5 of sequence 0; rows beyond may hold anything, NaN too
page 1   0 1 2 .     sequence 1
page 2   0 1 2 3     sequence 0
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index

import torch

from cute_fa4.calls.attention import plan_attention
from cute_fa4.calls.operands import lengths as index_tensors
from cute_fa4.calls.operands.blocks import checked_blocks
from cute_fa4.calls.operands.lengths import check_lengths, check_offsets
from cute_fa4.calls.operands.rope import checked_rope, depths_of
from cute_fa4.calls.operands.scales import checked_scales
from cute_fa4.calls.operands.tensors import (
    AXES,
    MAX_SEQLEN,
    PAGED,
    Columns,
    check,
    check_is_tensor,
)
from cute_fa4.calls.options import resolve
from cute_fa4.calls.request import Choices, Numbers, Where
from cute_fa4.calls.skipping import check_counts
from cute_fa4.operands import ROWS, CallTensors

KV_LAYOUTS = ("NHD", "HND")


def prepare_attention(tensors: CallTensors, asked: tuple) -> Callable:
    """Check a call of repeat.attend and compile its kernels. The result launches them."""
    window_size, numbers, choices = asked
    numbers, choices = Numbers(*numbers), Choices(*choices)
    where = checked(
        tensors,
        max_seqlen_q=numbers.max_seqlen_q,
        max_seqlen_k=numbers.max_seqlen_k,
        seqused_k_excludes_new=choices.seqused_k_excludes_new,
        kv_layout=choices.kv_layout,
        latent=choices.latent,
    )
    views = where.tensors
    options = resolve(
        tensors.q,
        softmax_scale=numbers.softmax_scale,
        causal=numbers.causal,
        window_size=window_size,
        mask=choices.mask,
        learnable_sink=tensors.learnable_sink,
        softcap=numbers.softcap,
        pack_gqa=choices.pack_gqa,
        score_mod=choices.score_mod,
        mask_mod=choices.mask_mod,
        aux_tensors=tensors.aux_tensors,
        num_splits=choices.num_splits,
        tokens_per_split=choices.tokens_per_split,
        batch_invariant=choices.batch_invariant,
        latent=choices.latent,
        return_max=choices.return_max,
        scales=checked_scales(
            views, views.batch, choices.kv_layout == "HND", choices.v_block_scale_layout
        ),
        rope=checked_rope(views, where),
        blocks=checked_blocks(views, choices.block_sparse_tensors, where),
        skip_softmax_threshold_scale_factor=numbers.skip_softmax_threshold_scale_factor,
    )
    check_counts(tensors.skipped_tiles, tensors.q, options.skip_factor)
    return plan_attention(tensors, where, options, choices.return_lse, choices.in_float32)


def checked(
    tensors: CallTensors,
    *,
    max_seqlen_q=None,
    max_seqlen_k=None,
    seqused_k_excludes_new=False,
    kv_layout="NHD",
    contents=True,
    latent=False,
) -> Where:
    """Check the tensors of a call -> where sequences lie; k and v of its tensors have the rows of a page first.

    checked_scales and checked_rope check scales and k_rope; here only the number of columns in k_rope is checked.
    """
    table = tensors.page_table
    if table is not None:
        k, v = pages_rows_first(tensors.k, tensors.v, kv_layout)
        tensors = tensors._replace(k=k, v=v)
    elif kv_layout != "NHD":
        raise ValueError(f"kv_layout: {kv_layout!r} without page_table; accepted: 'NHD'")
    _check_belong_together(tensors, seqused_k_excludes_new)
    _check_cache(tensors)
    q, k, v, out = tensors.of(ROWS)
    q_axes, kv_axes = AXES[tensors.q_layout], AXES[tensors.kv_layout]
    one_batch = tensors.cache_batch_idx is None
    check(q, k, v, out, q_axes, kv_axes, one_batch, Columns(latent, depths_of(tensors)))
    check_offsets(tensors)
    where = Where(
        tensors,
        excludes_new=bool(seqused_k_excludes_new),
        max_seqlen_q=_longest(tensors, max_seqlen_q),
        max_seqlen_k=check_length("max_seqlen_k", max_seqlen_k) or 0,
    )
    check_lengths(q, k, where)
    _check_max_seqlen_k(max_seqlen_k, k, table)
    if contents and q.device.type == "cpu":
        index_tensors.check_contents(q, k, where, latent)
    return where


def one_of(name: str, value, alias: str, other):
    """The value of a parameter with two names; only one of them may be given."""
    if value is not None and other is not None:
        raise TypeError(f"{name} and {alias} are two names of one parameter: give one of them")
    return other if value is None else value


def pages_rows_first(k, v, kv_layout: object, names: tuple[str, str] = ("k", "v")):
    """Views (num_pages, page_size, heads, head_dim) of a cache in either layout; names: what messages call the two."""
    if kv_layout not in KV_LAYOUTS:
        raise ValueError(
            f"kv_layout: {kv_layout!r}; accepted: 'NHD' (num_pages, page_size, heads, head_dim) or "
            "'HND' (num_pages, heads, page_size, head_dim)"
        )
    for name, tensor in zip(names, (k, v), strict=True):
        check_is_tensor(name, tensor)
        if tensor.dim() != 4:
            raise ValueError(
                f"{name}: shape {tuple(tensor.shape)} with a page table; accepted: 4 dimensions, "
                f"({', '.join(PAGED)})"
            )
        _check_page_size(name, tensor, kv_layout)
    return (k, v) if kv_layout == "NHD" else (k.transpose(1, 2), v.transpose(1, 2))


def _check_page_size(name: str, cache: torch.Tensor, kv_layout: object) -> None:
    axis = 1 if kv_layout == "NHD" else 2
    if cache.shape[axis] == 0:
        raise ValueError(
            f"{name}: pages of 0 keys, dimension {axis} of shape {tuple(cache.shape)} with kv_layout={kv_layout!r}; "
            "accepted: 1 key a page or more"
        )


def _check_belong_together(tensors: CallTensors, excludes_new) -> None:
    table, seqused_k = tensors.page_table, tensors.seqused_k
    if table is not None and tensors.cu_seqlens_k is not None:
        raise ValueError(
            "cu_seqlens_k: given with a page table, where keys are not packed; accepted: seqused_k"
        )
    if table is not None and seqused_k is None:
        raise ValueError(
            "seqused_k: None with a page table, which does not say how long a sequence is; "
            "accepted: a tensor (batch,) int32"
        )
    if excludes_new and seqused_k is None:
        raise ValueError("seqused_k_excludes_new: True without seqused_k, which it is about")


def _check_cache(tensors: CallTensors) -> None:
    no_cache = tensors.cu_seqlens_k is not None or tensors.seqused_k is None
    for name in ("cache_batch_idx", "cache_leftpad"):
        if no_cache and getattr(tensors, name) is not None:
            raise ValueError(
                f"{name}: given without a cache; accepted: dense or paged k and v with seqused_k, the rows they hold"
            )


def _longest(tensors: CallTensors, max_seqlen_q) -> int:
    """The max_seqlen_q that sizes the grid of packed queries; 0 for dense ones."""
    given, rows = check_length("max_seqlen_q", max_seqlen_q), tensors.q.shape[0]
    if tensors.q_layout == "dense":
        return 0
    if given is not None:
        return min(given, rows)
    longest = index_tensors.longest_of(tensors.cu_seqlens_q)
    return rows if longest is None else longest


def check_length(name: str, value) -> int | None:
    """A length as a Python number, not a tensor: reading one would wait for the device."""
    if value is None:
        return None
    if isinstance(value, (torch.Tensor, bool)) or not hasattr(value, "__index__"):
        remedy = "; read it once, outside of the loop, with .item()"
        raise TypeError(
            f"{name}: a {type(value).__name__}; accepted: an int or None"
            + (remedy if isinstance(value, torch.Tensor) else "")
        )
    if not 0 <= index(value) <= MAX_SEQLEN:
        raise ValueError(f"{name}: {value}; accepted: 0 to {MAX_SEQLEN}")
    return index(value)


def _check_max_seqlen_k(max_seqlen_k, k: torch.Tensor, table: torch.Tensor | None) -> None:
    longest = check_length("max_seqlen_k", max_seqlen_k)
    if longest is None or table is None:
        return
    capacity = table.shape[1] * k.shape[1]
    if longest > capacity:
        raise ValueError(
            f"max_seqlen_k: {longest} while page_table has {table.shape[1]} pages of {k.shape[1]} "
            f"keys for a sequence; accepted: at most {capacity}; pass a wider table"
        )
