"""A call that appends new keys and values to a cache in place and then attends to all of it, checked and compiled.

    cache before     cache_seqlens[b] rows of sequence b
    append           rows cache_seqlens[b] ... of the cache <- k[b], v[b]        sm100/append/kernel.py
    attention        over cache_seqlens[b] + len(k[b]) keys                      sm100/two_tiles/kernel.py

Both kernels are launched on one stream, so the second sees what the first wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index

import torch

from cute_fa4.calls.launch import function_for
from cute_fa4.calls.operands.four_bits import name_of_keys
from cute_fa4.calls.operands.lengths import check_index_tensor
from cute_fa4.calls.operands.memory import (
    TMA_BYTES,
    extent_bytes,
    largest_extent,
    may_overlap,
    with_plain_strides,
)
from cute_fa4.calls.operands.new_rows import (
    CALLERS,
    check_append,
    check_choice_of_scales,
    check_given,
    check_rows_of_blocks,
    check_written,
    written_scales,
)
from cute_fa4.calls.operands.scale_views import OF_CACHE_BLOCKS, GivenScales, ScaleViews
from cute_fa4.calls.operands.scales import checked_scales
from cute_fa4.calls.operands.tensors import DTYPE_NAMES, MAX_CTAS, check_tensors
from cute_fa4.calls.options import check_sink
from cute_fa4.calls.plan import Plan, Views
from cute_fa4.calls.prepare import check_length, pages_rows_first, prepare_attention
from cute_fa4.calls.request import Choices
from cute_fa4.layouts.cache_scales import LINEAR
from cute_fa4.operands import (
    LENGTHS,
    NAMES,
    NEW,
    OPERANDS,
    ROWS,
    SCALES,
    CallTensors,
    fields,
    fields_given,
)
from cute_fa4.scales import Scales
from cute_fa4.sm100.choose.launches import append_launch
from cute_fa4.system.devices import target_of
from cute_fa4.system.messages import named_as


def prepare_append_and_attention(tensors: CallTensors, asked: tuple) -> Callable:
    """Check a call of repeat.attend and compile its kernels. The function returned appends and attends."""
    window_size, numbers, choices = asked
    choices = Choices(*choices)
    with names_of_caches():
        check_tensors(*tensors.of(ROWS))
    k, v, offsets = tensors.of(NEW)
    check_given(k, v, tensors.seqused_k, offsets, tensors.page_table)
    caches, heads_first = (tensors.k, tensors.v), choices.kv_layout == "HND"
    if tensors.page_table is not None:
        caches = pages_rows_first(*caches, choices.kv_layout, ("k_cache", "v_cache"))
    views = tensors._replace(k=caches[0], v=caches[1])
    check_choice_of_scales(tensors, choices.four_over_six)
    cache_lengths(tensors.seqused_k, tensors.batch, tensors.q.device)
    if not tensors.has(NEW):
        with names_of_caches():
            return prepare_attention(tensors, asked)
    with names_of_caches():
        scales = checked_scales(views, tensors.batch, heads_first, choices.v_block_scale_layout)
    check_rows_of_blocks(views, scales)
    check_written(views, written_scales(views, scales))
    append = prepare_append(views, tensors.batch, tensors, scales, choices.four_over_six)
    counted = _new_rows_are_the_queries(tensors)
    alone = tensors._replace(**dict.fromkeys(NAMES[NEW]))
    if not counted:
        new_rows = k.shape[1] if offsets is None else offsets.diff()
        alone = alone._replace(seqused_k=tensors.seqused_k + new_rows)
    choices = choices._replace(seqused_k_excludes_new=counted)
    with names_of_caches():
        attend = prepare_attention(alone, (window_size, numbers, choices))
    if append is not None and counted and isinstance(attend, Plan):
        attend.append = append.beside(tensors)
        return attend

    def append_and_attend(_):
        if append is not None:
            append(tensors)
        return attend(alone)

    return append_and_attend


def refuse_unbuilt(**parameters) -> None:
    for name, value in parameters.items():
        if value is not None:
            raise NotImplementedError(f"{name}: not supported; accepted: None")


def names_of_caches():
    """Inside, attention calls the caches k and v, and their lengths seqused_k: refusals use the caller's names."""
    return named_as(CALLERS)


# Small tensors, contiguous or nearly so, and lengths that only attention takes (sm100/append/kernel.py).
_SCALES = tuple(name for name in NAMES[SCALES] if name not in OF_CACHE_BLOCKS)
_SMALL = (*NAMES[LENGTHS], "learnable_sink", "cu_seqlens_k_new", *_SCALES)
_OF_ATTENTION = set(NAMES[LENGTHS]) - {"seqused_k", "page_table", "cache_batch_idx"}


class Append:
    """Appends new rows to a cache. Metadata alone determine it, as with plan.Plan."""

    def __init__(
        self, function: Callable, views: Views, batch: int, scale_views: ScaleViews | None
    ):
        self.function, self.views, self.batch = function, views, batch
        self.scale_views = scale_views
        self.between_caches = self.out_bytes = 0
        self.out_shape: tuple[int, ...] = ()
        self.out_dtype: torch.dtype | None = None
        self.written_scales: tuple[str, ...] = ()
        self.read = fields(())
        self.bytes_read: tuple[int, ...] = ()
        self.checked: list[str] = []

    def beside(self, tensors: CallTensors) -> Append:
        """self, with the addresses and extents that admits compares at the next call with this metadata.

        Caches may be interleaved slices of one tensor. Then only their distance matters, and it is kept
        for comparison.
        """
        q, out = tensors.q, tensors.out
        self.between_caches = tensors.v.data_ptr() - tensors.k.data_ptr()
        self.out_bytes = 0 if out is None else extent_bytes(out)
        self.out_shape = (*q.shape[:-1], tensors.v.shape[-1])
        self.out_dtype = None if out is None else out.dtype
        small = fields_given(tensors, _SMALL)(tensors)
        self.read = fields_given(tensors, ("q", "new_k", "new_v", *_SMALL))
        rows = map(extent_bytes, (q, tensors.new_k, tensors.new_v))
        self.bytes_read = (*rows, *(largest_extent(small),) * len(small))
        given = tensors.named(LENGTHS).items()
        self.checked = [name for name, x in given if x is not None and name in _OF_ATTENTION]
        return self

    def admits(self, tensors: CallTensors) -> bool:
        """As Plan.admits. It also checks what the attention kernel would refuse only after the append."""
        q, out = tensors.q, tensors.out
        if self.written_scales and not self.scales_are_apart(tensors):
            return False
        for name in self.checked:
            check_index_tensor(name, getattr(tensors, name), len(OPERANDS[name].axes), q.device)
        if tensors.learnable_sink is not None:
            check_sink(tensors.learnable_sink, q)
        if q.data_ptr() % TMA_BYTES or tensors.aux_tensors is not None:
            return False
        # True only if the caches overlap no address range that is read; False means unknown.
        new_k_bytes, new_v_bytes, k_bytes, v_bytes = self.views.extents
        begin_k, begin_v = tensors.k.data_ptr(), tensors.v.data_ptr()
        end_k, end_v = begin_k + k_bytes, begin_v + v_bytes
        if begin_v - begin_k != self.between_caches and begin_k < end_v and begin_v < end_k:
            return False
        nbytes = self.bytes_read
        for at, tensor in enumerate(self.read(tensors)):
            first = tensor.data_ptr()
            past = first + nbytes[at]
            if (first < end_k and begin_k < past) or (first < end_v and begin_v < past):
                return False
        if out is None:
            return True
        if out.shape != self.out_shape or not self._fits(out, q):
            return False
        first = out.data_ptr()  # Plan.is_apart checks the rest
        past = first + self.out_bytes
        new_k, new_v = tensors.new_k, tensors.new_v
        assert new_k is not None and new_v is not None
        of_new = (new_k.data_ptr(), new_k_bytes), (new_v.data_ptr(), new_v_bytes)
        ranges = (begin_k, k_bytes), (begin_v, v_bytes), *of_new
        return all(past <= begin or begin + size <= first for begin, size in ranges)

    def scales_are_apart(self, tensors: CallTensors) -> bool:
        """Whether it is certain that the scales that are written share no byte with anything else."""
        written = [getattr(tensors, name) for name in self.written_scales]
        if len(set(map(id, written))) < len(written):
            return False
        others = [*tensors.of(ROWS), *tensors.of(LENGTHS), *tensors.of(NEW), *tensors.of(SCALES)]
        others.append(tensors.learnable_sink)
        ranges = [
            (x.data_ptr(), x.data_ptr() + extent_bytes(x), x) for x in others if x is not None
        ]
        mine = [r for r in ranges if any(r[2] is x for x in written)]
        # A cache may have its codes and scales side by side in every page: then ranges overlap.
        return not any(
            a[2] is not b[2] and b[0] < a[1] and a[0] < b[1] and may_overlap(a[2], b[2])
            for a in mine
            for b in ranges
        )

    def _fits(self, out, q) -> bool:
        """Whether the attention kernel accepts `out`."""
        same = out.dtype is self.out_dtype and out.device == q.device
        return same and out.data_ptr() % TMA_BYTES == 0

    def __call__(self, tensors: CallTensors) -> None:
        rows = tensors.new_k, tensors.new_v, tensors.k, tensors.v
        self.function(
            *(self.views.of(*rows) if self.views.differ else rows),
            tensors.seqused_k,
            tensors.cu_seqlens_k_new,
            tensors.page_table,
            self.batch,
            tensors.cache_batch_idx,
            None if self.scale_views is None else self.scale_views.of(tensors),
        )


def prepare_append(
    tensors: CallTensors,
    batch: int,
    given: CallTensors | None = None,
    scales: GivenScales | None = None,
    four_over_six: bool = False,
) -> Append | None:
    """Check and compile. The result is called with the caches of `given`; those of `tensors` are views of them.
    None: there are no rows.

    scales: new rows of 16 bits for a cache of 8 or 4 are divided by those of k and v; four_over_six: of 4
    """
    check_append(tensors, batch)
    given = tensors if given is None else given
    k, v, offsets = tensors.of(NEW)
    if k.numel() == 0 or tensors.k.numel() == 0 or batch == 0:
        return None
    target = target_of(k.device)
    config = append_launch(
        name_of_keys(tensors.k, tensors.k_block_scale),
        (k.shape[-1], v.shape[-1]),
        DTYPE_NAMES[k.dtype],
        scales.said if scales else Scales(),
        packed=offsets is not None,
        page_size=0 if tensors.page_table is None else tensors.k.shape[1],
        cache_batch_idx=tensors.cache_batch_idx is not None,
        v_block_scale_layout=scales.v_layout if scales else LINEAR,
        four_over_six=four_over_six,
        arch=target.arch,
    )
    plain = [with_plain_strides(t) for t in (k, v, tensors.k, tensors.v)]
    views = Views((k, v, given.k, given.v), plain)
    takes = config.descales or config.of_blocks
    scale_views = scales.views.of_cache() if scales and takes else None
    append = Append(function_for(config, target), views, batch, scale_views)
    append.written_scales = written_scales(tensors, scales)
    return append


def rows_of_cache(k_cache) -> int | None:
    """Rows per sequence of a dense cache; None for arguments that the checks refuse."""
    return k_cache.shape[1] if isinstance(k_cache, torch.Tensor) and k_cache.dim() == 4 else None


def with_rows_of_cache(tensors: CallTensors) -> CallTensors:
    """The tensors, with all rows as lengths where rows of a dense cache are picked without lengths."""
    picked = not (tensors.cache_batch_idx is tensors.cache_leftpad is None)
    if picked and tensors.seqused_k is tensors.new_k is tensors.page_table is None:
        rows = rows_of_cache(tensors.k)  # a number, as a caller may give it
        return tensors._replace(seqused_k=rows)  # type: ignore[arg-type]
    return tensors


def with_lengths_of_cache(tensors: CallTensors) -> CallTensors:
    """The tensors, with cache_seqlens as a tensor where it is a number."""
    lengths = tensors.seqused_k
    if lengths is None or isinstance(lengths, torch.Tensor):
        return tensors
    with names_of_caches():
        check_tensors(*tensors.of(ROWS))
    lengths = cache_lengths(lengths, tensors.batch, tensors.q.device)
    return tensors._replace(seqused_k=lengths)


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
    check_length("cache_seqlens", cache_seqlens)
    if isinstance(batch, int) and batch > MAX_CTAS:
        raise ValueError(
            f"q: {batch} sequences; accepted: at most {MAX_CTAS}, one CTA of the launch grid for each; split the call "
            "along batch"
        )
    return torch.full((batch,), index(cache_seqlens), dtype=torch.int32, device=device)


def _new_rows_are_the_queries(tensors: CallTensors) -> bool:
    """Whether each sequence has as many new rows as queries, so that the kernel can add them itself."""
    if tensors.q_layout == "dense" and tensors.cu_seqlens_k_new is None:
        new_k, *_ = tensors.of(NEW)
        return tensors.q.shape[1] == new_k.shape[1]
    return tensors.shares_offsets
