"""A call that appends new keys and values to a cache in place and then attends to all of it, checked and compiled.

    cache before     cache_seqlens[b] rows of sequence b
    append           rows cache_seqlens[b] ... of the cache <- k[b], v[b]        sm100/append/kernel.py
    attention        over cache_seqlens[b] + len(k[b]) keys                      sm100/two_tiles/kernel.py

Both kernels are launched on one stream, so the second sees what the first wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from cute_fa4.calls.launch import function_for
from cute_fa4.calls.operands.apart import check_apart, named_aux
from cute_fa4.calls.operands.lengths import (
    check_cache_rows,
    check_index_tensor,
    check_pages,
    rows_of,
)
from cute_fa4.calls.operands.scales import BLOCKS, NAMES, ScaleViews, checked_scales
from cute_fa4.calls.operands.strides import MAX_ROWS, with_plain_strides
from cute_fa4.calls.operands.tensors import (
    DENSE,
    DTYPE_NAMES,
    FP8,
    MAX_CTAS,
    PACKED,
    PAGED,
    TMA_BYTES,
    WIDE,
    check_memory,
    check_one_device,
    check_rank,
    check_tensors,
    extent_bytes,
    largest_extent,
)
from cute_fa4.calls.options import check_sink
from cute_fa4.calls.plan import Plan, Views
from cute_fa4.calls.prepare import check_length, pages_rows_first, prepare_attention
from cute_fa4.calls.request import TENSORS, CallTensors, Choices
from cute_fa4.scales import Scales
from cute_fa4.sm100.append.config import AppendConfig
from cute_fa4.system.devices import target_of
from cute_fa4.system.messages import named_as


class Appended(NamedTuple):
    """Tensors of an append. The caches, and whatever is None, as prepare_append takes them: pages with rows first."""

    k: torch.Tensor
    v: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    cache_seqlens: torch.Tensor
    offsets: torch.Tensor | None = None  # cu_seqlens_k_new
    table: torch.Tensor | None = None
    batch_idx: torch.Tensor | None = None


def prepare_append_and_attention(tensors: CallTensors, asked: tuple) -> Callable:
    """Check a call of repeat.attend, compile what it needs; what is returned appends and attends."""
    q, k_cache, v_cache, out = tensors.q, tensors.k, tensors.v, tensors.out
    sink, new, scales = tensors.sink, tensors.new, tensors.scales
    window_size, numbers, choices = asked
    cu_seqlens_q, _, _, cache_seqlens, key_limit, table, batch_idx, leftpad = tensors.lengths
    k, v, offsets = new or (None, None, None)
    choices = Choices(*choices)
    caches = k_cache, v_cache
    with names_of_caches():
        check_tensors(q, *caches, out)
    check_given(k, v, cache_seqlens, offsets, table)
    if table is not None:
        caches = pages_rows_first(*caches, choices.kv_layout, ("k_cache", "v_cache"))
    batch = sequences_of(q, cu_seqlens_q)
    cache_lengths(cache_seqlens, batch, q.device)
    if new is None:
        with names_of_caches():
            return prepare_attention(tensors, asked)
    checked = None
    if scales:
        with names_of_caches():
            heads_first = choices.kv_layout == "HND"
            checked = checked_scales(scales, q, caches[0], batch, heads_first)
        check_rows_of_blocks(k, caches[0], checked)
    written = written_scales(k, caches[0], checked)
    check_written(tensors._replace(k=caches[0], v=caches[1]), written)
    appended = Appended(k, v, *caches, cache_seqlens, offsets, table, batch_idx)
    append = prepare_append(appended, batch, (k_cache, v_cache), checked)
    seqused_k, counted = cache_seqlens, _new_rows_are_the_queries(q, k, cu_seqlens_q, offsets)
    if not counted:
        seqused_k = cache_seqlens + (k.shape[1] if offsets is None else offsets.diff())
    lengths = (cu_seqlens_q, None, None, seqused_k, key_limit, table, batch_idx, leftpad)
    tensors = tensors._replace(lengths=lengths, new=None)
    choices = choices._replace(seqused_k_excludes_new=counted)
    with names_of_caches():
        attend = prepare_attention(tensors, (window_size, numbers, choices))
    if append is not None and counted and isinstance(attend, Plan):
        small = (*lengths, offsets, sink, *(scales or ()))
        attend.append = append.beside(q, k_cache, v_cache, out, small)
        return attend

    def append_and_attend(_):
        if append is not None:
            append(k_cache, v_cache, cache_seqlens, table, new, batch_idx, scales)
        return attend(tensors)

    return append_and_attend


def check_rows_of_blocks(k, k_cache, scales) -> None:
    """New rows of a cache whose blocks have scales come with theirs, in k_descale."""
    if scales.said.of_blocks and k.dtype != k_cache.dtype:
        raise TypeError(
            f"k: dtype {k.dtype} with k_descale of blocks; accepted: {k_cache.dtype}, and the scales of the new rows "
            "in k_descale; cute_fa4.mxfp8.quantise makes both"
        )


def brings_scales(k, k_cache, k_descale, v_descale) -> bool:
    """Whether rows of 16 bits are quantised by scales of their own; what is no such call is refused elsewhere."""
    of_tokens = (
        isinstance(scale, torch.Tensor)
        and scale.dim() > 2
        and scale.numel() != 1
        and scale.dtype is not BLOCKS
        for scale in (k_descale, v_descale)
    )
    return k.dtype != k_cache.dtype and any(of_tokens)


def written_scales(k, k_cache, scales) -> tuple:
    """Which of scales.NAMES a call writes: those of tokens, of rows of 16 bits that it quantises. scales: checked."""
    if scales is None or k.dtype == k_cache.dtype:
        return ()
    return tuple(f"{tensor}_descale" for tensor in scales.said.of_keys)


def check_written(tensors: CallTensors, written=()) -> None:
    """What is written is apart from the rest. tensors: with new rows; written: names of scales."""
    names = [_CALLERS.get(name, name) for name in TENSORS]
    scales = dict(zip(NAMES, tensors.scales or (), strict=False))
    caches = {"k_cache": tensors.k, "v_cache": tensors.v}
    check_apart(
        {**caches, "out": tensors.out, **{x: scales.pop(x) for x in written}},
        {
            "q": tensors.q,
            **dict(zip(("k", "v"), tensors.new[:2], strict=True)),
            **dict(zip(names, tensors.lengths, strict=True)),
            "cu_seqlens_k_new": tensors.new[2],
            "learnable_sink": tensors.sink,
            **named_aux(tensors.aux),
            **scales,
        },
    )


def refuse_unbuilt(**parameters) -> None:
    for name, value in parameters.items():
        if value is not None:
            raise NotImplementedError(f"{name}: not built; accepted: None")


def names_of_caches():
    """Inside, attention calls the caches k and v, and their lengths seqused_k: refusals have the caller's names."""
    return named_as(_CALLERS)


_CALLERS = {"k": "k_cache", "v": "v_cache", "seqused_k": "cache_seqlens"}


def check_given(k, v, cache_seqlens, cu_seqlens_k_new, page_table) -> None:
    """Which parameters need which others."""
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
            "cache_seqlens: None with new rows, which are written behind the rows it counts; "
            "accepted: an int or a tensor (batch,) int32"
        )


class Append:
    """Writes new rows behind those of a cache. It is decided by metadata alone, as plan.Plan."""

    def __init__(self, function: Callable, views: Views, batch: int, scale_views: ScaleViews):
        self.function, self.views, self.batch = function, views, batch
        self.scale_views = scale_views
        self.between_caches = self.q_bytes = self.out_bytes = self.small_bytes = 0
        self.out_shape = self.out_dtype = None
        self.writes_scales = False

    def beside(self, q, k_cache, v_cache, out, small: tuple) -> Append:
        """self, for attention to q: what the next call with this metadata needs to know of the addresses of this one.

        Caches may be slices of one tensor, side by side all the way: then their distance is kept, which is all
        that matters. small: lengths, offsets, table and sink, each contiguous or nearly so.
        """
        self.between_caches = v_cache.data_ptr() - k_cache.data_ptr()
        self.q_bytes = extent_bytes(q)
        self.out_bytes = 0 if out is None else extent_bytes(out)
        self.out_shape = (*q.shape[:-1], v_cache.shape[-1])
        self.out_dtype = None if out is None else out.dtype
        self.small_bytes = largest_extent(small)
        return self

    def admits(self, tensors: CallTensors) -> bool:
        """As Plan.admits; also what the attention behind it would refuse, which is too late then."""
        q, k_cache, v_cache, out = tensors.q, tensors.k, tensors.v, tensors.out
        sink, scales = tensors.sink, tensors.scales
        if self.writes_scales and not self.scales_are_apart(tensors):
            return False
        k, v, offsets = tensors.new
        cu_seqlens_q, _, _, cache_seqlens, key_limit, table, batch_idx, leftpad = tensors.lengths
        if not (cu_seqlens_q is key_limit is sink is None):
            check_index_tensor("cu_seqlens_q", cu_seqlens_q, 1, q.device)
            check_index_tensor("key_limit", key_limit, 1, q.device)
            check_sink(sink, q)
        first_q = q.data_ptr()
        if (
            first_q % TMA_BYTES
            or tensors.aux is not None
            or not (out is None or (out.shape == self.out_shape and self._fits(out, q)))
        ):
            return False
        # Whether the caches share no address range with what is read; False: they may share no byte all the same.
        # Comparisons that are written out, no loop: half a microsecond of each step of a decode.
        k_bytes, v_bytes, k_cache_bytes, v_cache_bytes = self.views.extents
        begin_k, begin_v = k_cache.data_ptr(), v_cache.data_ptr()
        end_k, end_v = begin_k + k_cache_bytes, begin_v + v_cache_bytes
        if begin_v - begin_k != self.between_caches and begin_k < end_v and begin_v < end_k:
            return False
        first_new_k, first_new_v, first_count = k.data_ptr(), v.data_ptr(), cache_seqlens.data_ptr()
        past_q, past_count = first_q + self.q_bytes, first_count + self.small_bytes
        past_new_k, past_new_v = first_new_k + k_bytes, first_new_v + v_bytes
        if (
            (first_q < end_k and begin_k < past_q) or (first_q < end_v and begin_v < past_q)
            or (first_new_k < end_k and begin_k < past_new_k) or (first_new_k < end_v and begin_v < past_new_k)
            or (first_new_v < end_k and begin_k < past_new_v) or (first_new_v < end_v and begin_v < past_new_v)
            or (first_count < end_k and begin_k < past_count) or (first_count < end_v and begin_v < past_count)
        ):  # fmt: skip
            return False
        if table is not None:
            first = table.data_ptr()
            past = first + self.small_bytes
            if (first < end_k and begin_k < past) or (first < end_v and begin_v < past):
                return False
        if not (
            out
            is cu_seqlens_q
            is key_limit
            is offsets
            is sink
            is batch_idx
            is leftpad
            is scales
            is None
        ):
            small = self.small_bytes
            for tensor, nbytes in (
                *((out, self.out_bytes), (cu_seqlens_q, small), (key_limit, small)),
                *((offsets, small), (sink, small), (batch_idx, small), (leftpad, small)),
                *((scale, small) for scale in scales or ()),
            ):
                if tensor is not None:
                    first = tensor.data_ptr()
                    past = first + nbytes
                    if (first < end_k and begin_k < past) or (first < end_v and begin_v < past):
                        return False
        if out is None:
            return True
        first = out.data_ptr()  # of the rest, Plan.is_apart asks
        past = first + self.out_bytes
        return (past <= first_new_k or past_new_k <= first) and (
            past <= first_new_v or past_new_v <= first
        )

    @staticmethod
    def scales_are_apart(tensors: CallTensors) -> bool:
        """Whether k_descale and v_descale, which are written, share no address range with anything else."""
        scales = tensors.scales
        if scales[1] is scales[2]:
            return False
        others = [tensors.q, tensors.k, tensors.v, tensors.out, *tensors.lengths, tensors.sink]
        others += [*tensors.new, *scales]
        ranges = [
            (x.data_ptr(), x.data_ptr() + extent_bytes(x), x) for x in others if x is not None
        ]
        mine = [r for r in ranges if r[2] is scales[1] or r[2] is scales[2]]
        return all(a[2] is b[2] or a[1] <= b[0] or b[1] <= a[0] for a in mine for b in ranges)

    def _fits(self, out, q) -> bool:
        """Whether the attention takes it."""
        same = out.dtype is self.out_dtype and out.device == q.device
        return same and out.data_ptr() % TMA_BYTES == 0

    def __call__(
        self, k_cache, v_cache, cache_seqlens, table, new: tuple, batch_idx, scales=None
    ) -> None:
        k, v, offsets = new
        if self.views.differ:
            k, v, k_cache, v_cache = self.views.of(k, v, k_cache, v_cache)
        given = None if self.scale_views is None else self.scale_views.of(scales[1:3])
        self.function(
            k, v, k_cache, v_cache, cache_seqlens, offsets, table, self.batch, batch_idx, given
        )


def prepare_append(
    appended: Appended, batch: int, given: tuple | None = None, scales: tuple | None = None
) -> Append | None:
    """Check and compile; what is returned is called with the caches `given`, of which these are views. None: no row.

    scales: of scales.NAMES, of which new rows of 16 bits for a cache of 8 are divided by those of k and v
    """
    check_append(appended, batch)
    k, v, k_cache, v_cache, _, offsets, table, batch_idx = appended
    if k.numel() == 0 or k_cache.numel() == 0 or batch == 0:
        return None
    target = target_of(k.device)
    quantises = k.dtype != k_cache.dtype
    of_rows = (None, *scales[1:3], None) if scales and quantises else None
    config = AppendConfig(
        DTYPE_NAMES[k_cache.dtype],
        depth=k.shape[-1],
        depth_v=v.shape[-1],
        packed=offsets is not None,
        page_size=0 if table is None else k_cache.shape[1],
        cache_batch_idx=batch_idx is not None,
        new_dtype=DTYPE_NAMES[k.dtype],
        descales=Scales() if of_rows is None else scales.said.only("k", "v"),
        arch=target.arch,
    )
    plain = [with_plain_strides(t) for t in (k, v, k_cache, v_cache)]
    views = Views((k, v, *(given or (k_cache, v_cache))), plain)
    scale_views = scales.views.of_cache() if config.descales else None
    append = Append(function_for(config, target), views, batch, scale_views)
    append.writes_scales = bool(written_scales(k, k_cache, scales))
    return append


def rows_of_cache(k_cache) -> int | None:
    """What every sequence of a dense cache holds; None for what the checks refuse."""
    return k_cache.shape[1] if isinstance(k_cache, torch.Tensor) and k_cache.dim() == 4 else None


def sequences_of(q, cu_seqlens_q) -> int:
    """The batch of dense or packed queries."""
    return q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1


def cache_lengths(cache_seqlens, batch: int, device) -> torch.Tensor | None:
    if cache_seqlens is None:
        return None
    if isinstance(cache_seqlens, torch.Tensor):
        check_index_tensor("cache_seqlens", cache_seqlens, 1, device)
        if cache_seqlens.shape[0] != batch:
            raise ValueError(
                f"cache_seqlens: shape {tuple(cache_seqlens.shape)}; accepted: ({batch},), batch"
            )
        return cache_seqlens
    length = check_length("cache_seqlens", cache_seqlens)
    if isinstance(batch, int) and batch > MAX_CTAS:
        raise ValueError(
            f"q: {batch} sequences; accepted: at most {MAX_CTAS}, one CTA of the launch grid for each; split the call "
            "along batch"
        )
    return torch.full((batch,), length, dtype=torch.int32, device=device)


def _new_rows_are_the_queries(q, k, cu_seqlens_q, cu_seqlens_k_new) -> bool:
    """Whether each sequence has as many new rows as queries, so that the kernel can add them itself."""
    if cu_seqlens_q is None and cu_seqlens_k_new is None:
        return q.shape[1] == k.shape[1]
    return cu_seqlens_q is cu_seqlens_k_new


def check_new_rows(k_cache, k, v) -> None:
    """They are tensors like those of the cache, or of 16 bits for one of 8, both alike."""
    wide = getattr(k, "dtype", None) in WIDE and getattr(k_cache, "dtype", None) in FP8
    if not wide:
        return check_tensors(k_cache, k, v, None)
    check_tensors(k, k, v, None)
    check_one_device({"q": k_cache, "k": k, "v": v})


def check_append(appended: Appended, batch: int, contents: bool = True) -> None:
    k, v, k_cache, v_cache, cache_seqlens, offsets, table, batch_idx = appended
    names = {"k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache}
    cache_axes = DENSE if table is None else PAGED
    for name, tensor in names.items():
        new_axes = DENSE if offsets is None else PACKED
        axes = cache_axes if name.endswith("cache") else new_axes
        if name in ("k", "v"):
            check_new_rows(k_cache, k, v)
        check_rank(name, tensor, axes)
        check_memory(name, tensor, axes)
    for new_name, new, cache_name, cache in (
        ("k", k, "k_cache", k_cache),
        ("v", v, "v_cache", v_cache),
    ):
        if new.shape[-2:] != cache.shape[-2:]:
            raise ValueError(
                f"{new_name}: {tuple(new.shape[-2:])} heads and head_dim while {cache_name} has "
                f"{tuple(cache.shape[-2:])}; accepted: equal"
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
    if k.shape[:-1].numel() * (k.shape[-1] + v.shape[-1]) * k_cache.element_size() // 16 > MAX_ROWS:
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
            f"accepted: from 0 on, and together at most {capacity}, what its cache holds"
        )
    check_cache_rows(batch_idx, k_cache.shape[0] if table is None else table.shape[0])
    if table is not None:
        # Of the new rows: those before them may be padding, which no page holds.
        table = rows_of(table, batch_idx)
        check_pages(table, total, k_cache.shape[1], k_cache.shape[0], cache_seqlens)
