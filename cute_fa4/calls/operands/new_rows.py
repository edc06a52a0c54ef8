"""New rows of a cache and the tensors that are written: checks of a call that appends before it attends."""

from __future__ import annotations

import torch

from cute_fa4.calls.operands.apart import check_apart, named_aux
from cute_fa4.calls.operands.four_bits import BYTES, columns_of, has_mx_blocks, name_of_keys
from cute_fa4.calls.operands.lengths import (
    check_cache_rows,
    check_index_tensor,
    check_pages,
    rows_of,
)
from cute_fa4.calls.operands.memory import check_memory
from cute_fa4.calls.operands.scale_views import BLOCKS, OF_CACHE_BLOCKS, GivenScales
from cute_fa4.calls.operands.strides import MAX_ROWS
from cute_fa4.calls.operands.tensors import (
    DENSE,
    FP8,
    PACKED,
    PAGED,
    WIDE,
    check_one_device,
    check_rank,
    check_tensors,
)
from cute_fa4.dtypes import DTYPES
from cute_fa4.operands import LENGTHS, NEW, OPERANDS, SCALES, CallTensors

# What flash_attn_with_kvcache calls tensors that attention calls otherwise.
CALLERS = {row.name: row.cached for row in OPERANDS.values() if row.cached and row.group != NEW}


def check_given(k, v, cache_seqlens, cu_seqlens_k_new, page_table) -> None:
    """Check that parameters come with those that they require."""
    if page_table is not None and cache_seqlens is None:
        raise ValueError(
            "cache_seqlens: None with a page table, which does not say how long a sequence is; "
            "accepted: an int or a tensor (batch,) int32"
        )
    if k is None and v is None:
        if cu_seqlens_k_new is not None:
            raise ValueError("cu_seqlens_k_new: given without k and v, whose rows it counts")
        return
    if k is None or v is None:
        raise ValueError("k, v: one of them is None; accepted: both or neither")
    if cache_seqlens is None:
        raise ValueError(
            "cache_seqlens: None with new rows, which are written after the rows that it counts; "
            "accepted: an int or a tensor (batch,) int32"
        )


def check_rows_of_blocks(tensors: CallTensors, scales: GivenScales | None) -> None:
    """New rows of a cache with block scales must come quantised, with their scales in k_descale."""
    (new, *_), cache = tensors.of(NEW), tensors.k
    if scales is not None and scales.said.of_blocks and new.dtype != cache.dtype:
        raise TypeError(
            f"k: dtype {new.dtype} with k_descale of blocks; accepted: {cache.dtype}, and the scales of the new rows "
            "in k_descale; cute_fa4.mxfp8.quantise makes both"
        )


def brings_scales(k, k_cache, k_descale, v_descale) -> bool:
    """Whether new rows of 16 bits are quantised with their own scales in k_descale or v_descale.

    Invalid calls are refused elsewhere.
    """
    of_tokens = (
        isinstance(scale, torch.Tensor)
        and scale.dim() > 2
        and scale.numel() != 1
        and scale.dtype is not BLOCKS
        for scale in (k_descale, v_descale)
    )
    return k.dtype != k_cache.dtype and any(of_tokens)


def written_scales(tensors: CallTensors, scales: GivenScales | None) -> tuple:
    """Names of the scales that a call writes: per token or block, of the 16-bit rows that it quantises."""
    new_k, *_ = tensors.of(NEW)
    if scales is None or new_k.dtype == tensors.k.dtype:
        return ()
    if DTYPES[name_of_keys(tensors.k, tensors.k_block_scale)].cache_scales is not None:
        return tuple(OF_CACHE_BLOCKS)
    return tuple(f"{tensor}_descale" for tensor in scales.said.of_keys)


def check_written(tensors: CallTensors, written=()) -> None:
    """Refuse written tensors that overlap others. tensors: with new rows; written: names of scales."""
    scales = tensors.named(SCALES)
    lengths = {CALLERS.get(name, name): x for name, x in tensors.named(LENGTHS).items()}
    check_apart(
        {
            **{"k_cache": tensors.k, "v_cache": tensors.v, "out": tensors.out},
            **{name: scales.pop(name) for name in written},
        },
        {
            **{"q": tensors.q, "k": tensors.new_k, "v": tensors.new_v},
            **lengths,
            "cu_seqlens_k_new": tensors.cu_seqlens_k_new,
            "learnable_sink": tensors.learnable_sink,
            **named_aux(tensors.aux_tensors),
            **scales,
        },
    )


def check_choice_of_scales(tensors: CallTensors, four_over_six: bool) -> None:
    """Refuse four_over_six where blocks of new rows have no two scales to choose from."""
    if four_over_six and tensors.k.dtype is not BYTES:
        raise ValueError(
            f"four_over_six: True with k_cache of {tensors.k.dtype}; accepted: False, or caches of {BYTES}, two "
            "numbers of 4 bits a byte, whose blocks have scales of e4m3"
        )


def check_new_rows(k_cache, k, v, k_block_scale=None) -> None:
    """Check that k and v are like the cache, or both have 16 bits for a cache of 8 or 4.

    Blocks of a cache with k_block_scale have scales, which rows that are quantized already do not bring.
    """
    dtype, of_cache = (getattr(tensor, "dtype", None) for tensor in (k, k_cache))
    is_mx = has_mx_blocks(k_cache, k_block_scale)
    if (of_cache is BYTES or is_mx) and dtype not in WIDE:
        stored = f"{of_cache} (MXFP8)" if is_mx else f"{BYTES} (4 bits)"
        raise TypeError(
            f"k: dtype {dtype} with k_cache of {stored}; accepted: {' or '.join(map(str, WIDE))}, which the call "
            "quantizes; write numbers and scales that you have into the caches before the call"
        )
    if dtype not in WIDE or of_cache not in (*FP8, BYTES):
        return check_tensors(k_cache, k, v, None)
    check_tensors(k, k, v, None)
    check_one_device({"q": k_cache, "k": k, "v": v})


def check_append(tensors: CallTensors, batch: int, contents: bool = True) -> None:
    """Check new rows. tensors: with caches that have the rows of a page first."""
    k, v, offsets = tensors.of(NEW)
    k_cache, v_cache, table = tensors.k, tensors.v, tensors.page_table
    cache_seqlens, batch_idx = tensors.seqused_k, tensors.cache_batch_idx
    names = {"k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache}
    cache_axes = DENSE if table is None else PAGED
    for name, tensor in names.items():
        new_axes = DENSE if offsets is None else PACKED
        axes = cache_axes if name.endswith("cache") else new_axes
        if name in ("k", "v"):
            check_new_rows(k_cache, k, v, tensors.k_block_scale)
        check_rank(name, tensor, axes)
        check_memory(name, tensor, axes)
    for new_name, new, cache_name, cache in (
        ("k", k, "k_cache", k_cache),
        ("v", v, "v_cache", v_cache),
    ):
        of_cache = cache.shape[-2], columns_of(cache)
        if tuple(new.shape[-2:]) != of_cache:
            raise ValueError(
                f"{new_name}: {tuple(new.shape[-2:])} heads and head_dim while {cache_name} has {of_cache}; accepted: "
                "equal"
            )
    if k.shape[:-1] != v.shape[:-1] or k_cache.shape[:-1] != v_cache.shape[:-1]:
        raise ValueError(
            f"v: shape {tuple(v.shape)} with k {tuple(k.shape)}, v_cache {tuple(v_cache.shape)} with "
            f"k_cache {tuple(k_cache.shape)}; accepted: equal up to head_dim"
        )
    check_index_tensor("cu_seqlens_k_new", offsets, 1, k.device)
    check_index_tensor("page_table", table, 2, k.device)
    check_index_tensor("cache_batch_idx", batch_idx, 1, k.device)
    new_batch = k.shape[0] if offsets is None else offsets.shape[0] - 1
    cache_batch = k_cache.shape[0] if table is None else table.shape[0]
    if batch_idx is not None:
        cache_batch = batch_idx.shape[0]
    if not new_batch == cache_batch == batch:
        raise ValueError(
            f"k: {new_batch} sequences of new rows, {cache_batch} in the cache, {batch} of queries; "
            "accepted: equal"
        )
    row_bytes = (k_cache.shape[-1] + v_cache.shape[-1]) * k_cache.element_size()
    if k.shape[:-1].numel() * row_bytes // 16 > MAX_ROWS:
        raise ValueError(f"k: shape {tuple(k.shape)} has too many rows for one launch; split it")
    if contents and k.device.type == "cpu" and batch:
        _check_append_contents(k, k_cache, cache_seqlens, offsets, table, batch_idx)


def _check_append_contents(k, k_cache, cache_seqlens, offsets, table, batch_idx) -> None:
    new = torch.full_like(cache_seqlens, k.shape[1]) if offsets is None else offsets.diff()
    if int(new.min()) < 0 or (offsets is not None and (offsets[0] < 0 or offsets[-1] > k.shape[0])):
        raise ValueError(
            f"cu_seqlens_k_new: {offsets.tolist()[:16]}; accepted: offsets from 0 to {k.shape[0]} "
            "that do not decrease"
        )
    capacity = k_cache.shape[1] * (1 if table is None else table.shape[1])
    total = cache_seqlens + new
    wrong = (cache_seqlens < 0) | (total > capacity)
    if bool(wrong.any()):
        b = int(wrong.nonzero()[0])
        raise ValueError(
            f"cache_seqlens: {int(cache_seqlens[b])} rows and {int(new[b])} new ones for sequence {b}; "
            f"accepted: 0 or more, and together at most {capacity}, the capacity of its cache"
        )
    check_cache_rows(batch_idx, k_cache.shape[0] if table is None else table.shape[0])
    if table is not None:
        # Pages of the new rows only: earlier rows may be padding, which no page holds.
        table = rows_of(table, batch_idx)
        check_pages(table, total, k_cache.shape[1], k_cache.shape[0], cache_seqlens)
