"""Launch arguments other than the tensors of a call, determined by shapes, strides and options, not by contents.

    Plan      compiled function, scale, sizes of the mask, ...; calling it with the tensors of a call launches
    Results   how out and lse are allocated
    Views     which tensors need other strides for a descriptor

`tensors` is an operands.CallTensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from operator import mul
from typing import Protocol

import torch

from cute_fa4.calls.operands.four_bits import columns_of
from cute_fa4.calls.operands.memory import extent_bytes, may_overlap
from cute_fa4.calls.operands.rope_view import RopeView
from cute_fa4.calls.operands.scale_views import ScaleViews
from cute_fa4.calls.recognition import Recognition
from cute_fa4.operands import (
    BLOCKS,
    LENGTHS,
    NAMES,
    OPERANDS,
    ROPE,
    SCALES,
    CallTensors,
    fields,
)

_is_grad_enabled = torch.is_grad_enabled
# Lengths and pages that are parameters of the launch.
_lengths = fields(name for name in NAMES[LENGTHS] if OPERANDS[name].within is None)
# Small tensors, contiguous or nearly so.
_small = fields(
    (*NAMES[LENGTHS], "learnable_sink", "skipped_tiles", *NAMES[SCALES], *NAMES[BLOCKS])
)


class Before(Protocol):
    """What runs before the launch of a plan: append.Append."""

    function: Callable

    def admits(self, tensors: CallTensors) -> bool: ...

    def __call__(self, tensors: CallTensors) -> None: ...


class Plan:
    """A compiled function and its arguments other than tensors; metadata alone determine it.

    repeats  whether another call of the same metadata may use it
    append   what runs before, or None
    recognition  what recognises the next such call, or None
    small_bytes  extent of the largest of lengths, pages, lists, sink and scales
    scale_views  how the kernel takes the scales
    rope_view    how the kernel takes columns of k in a separate tensor; None: there are none
    """

    __slots__ = (
        "function", "scale", "seqlen_q", "sizes", "results", "views", "repeats", "append", "small_bytes",
        "recognition", "scale_views", "rope_view", "in_cache", "skips",
    )  # fmt: skip

    def __init__(
        self,
        function,
        numbers,
        results: Results,
        views: Views,
        repeats: bool,
        small_bytes: int = 0,
        scale_views: ScaleViews | None = None,
        rope_view: RopeView | None = None,
    ):
        self.function, self.small_bytes, self.scale_views = function, small_bytes, scale_views
        self.rope_view = rope_view
        self.scale, self.seqlen_q, self.sizes, self.in_cache, self.skips = numbers
        self.results, self.views, self.repeats = results, views, repeats
        self.append: Before | None = None
        self.recognition: Recognition | None = None

    @property
    def functions(self) -> tuple:
        return self.function, self.append and self.append.function

    def admits(self, tensors: CallTensors) -> bool:
        """True only if the tensors pass the checks beyond metadata; False means unknown."""
        aux = tensors.aux_tensors
        given = [*tensors._replace(aux_tensors=None), *(aux or ())]
        given = [tensor for tensor in given if tensor is not None]
        if _is_grad_enabled() and any(tensor.requires_grad for tensor in given):
            return False
        # Shapes and strides do not tell these from others.
        if any(tensor.is_neg() or tensor._is_zerotensor() for tensor in given):
            return False
        return self.is_apart(tensors)

    def is_apart(self, tensors: CallTensors) -> bool:
        """True only if written tensors share no memory with those read; False means unknown."""
        out = tensors.out
        if self.append is not None and not self.append.admits(tensors):
            return False
        if out is None:
            return True
        q_bytes, k_bytes, v_bytes, out_bytes = self.views.extents
        first, first_q = out.data_ptr(), tensors.q.data_ptr()
        first_k, first_v = tensors.k.data_ptr(), tensors.v.data_ptr()
        end = first + out_bytes
        if (
            (first < first_q + q_bytes and first_q < end)
            or (first < first_k + k_bytes and first_k < end)
            or (first < first_v + v_bytes and first_v < end)
        ):
            return False
        nbytes = self.small_bytes
        for tensor in _small(tensors):
            if tensor is not None and tensor.data_ptr() < end:
                if first < tensor.data_ptr() + nbytes:
                    return False
        if self.rope_view is not None and any(
            tensor is not None and may_overlap(out, tensor) for tensor in tensors.of(ROPE)
        ):
            return False
        for tensor in tensors.aux_tensors or ():  # any strides
            if tensor.data_ptr() < end and first < tensor.data_ptr() + extent_bytes(tensor):
                return False
        return True

    def __call__(self, tensors: CallTensors):
        if self.append is not None:
            self.append(tensors)
        out = tensors.out
        if out is None:
            out = self.results.new_out(tensors.q)
        lse = None if self.results.new_lse is None else self.results.new_lse()
        self.launch(tensors, (*self.viewed(tensors, out), lse))
        return out if lse is None else (out, lse)

    def viewed(self, tensors: CallTensors, out) -> tuple:
        """q, k, v and out with strides that a descriptor can hold."""
        given = tensors.q, tensors.k, tensors.v, out
        return self.views.of(*given) if self.views.differ else given

    def lists(self, tensors: CallTensors) -> tuple:
        """The argument `blocks` of a call with lists of key blocks."""
        return tuple(x for x in tensors.of(BLOCKS) if x is not None)

    def launch(
        self,
        tensors: CallTensors,
        rows: tuple,
        split: tuple | None = None,
        blocks: tuple | None = None,
    ) -> None:
        """Call the function with its parameters (sm100/kernel.py).

        rows: q, k, v, out and lse as the kernel takes them; split: its arguments for split keys; blocks: its
        lists, if they are not those of `lists`
        """
        aux, in_cache, skip = tensors.aux_tensors, None, None
        if blocks is None and tensors.mask_block_cnt is not None:
            blocks = self.lists(tensors)
        if self.in_cache is not None:
            new_keys, of_rows = self.in_cache
            in_cache = (new_keys, *of_rows(tensors))
        if self.skips is not None:
            counts = tensors.skipped_tiles
            skip = (self.skips,) if counts is None else (self.skips, counts)
        self.function(
            *rows,
            self.scale,
            *_lengths(tensors),
            self.seqlen_q,
            self.sizes,
            tensors.learnable_sink,
            as_read(aux) if aux else None,
            split,
            in_cache,
            None if self.scale_views is None else self.scale_views.of(tensors),
            None if self.rope_view is None else self.rope_view.of(tensors),
            blocks,
            skip,
        )


def as_read(aux) -> tuple:
    """aux tensors as the kernel takes them: bool as its bytes."""
    return tuple(x.view(torch.uint8) if x.dtype is torch.bool else x for x in aux)


class Results:
    """How out and lse are allocated: new_out(q), and new_lse() or None. with_max: lse has the largest scores, too."""

    def __init__(
        self, q, v, q_layout: str, with_lse: bool, dtype: torch.dtype, with_max: bool = False
    ):
        out_shape = (*q.shape[:-1], columns_of(v))
        # The cheapest calls that exist; empty_like would copy other strides than these.
        self.new_out: Callable[[torch.Tensor], torch.Tensor] = torch.empty_like
        if not (
            out_shape == q.shape and dtype == q.dtype and q.stride() == _contiguous_strides(q.shape)
        ):
            new_out = _allocation(out_shape, dtype, q.device)
            self.new_out = lambda q: new_out()
        self.new_lse: Callable[[], torch.Tensor] | None = None
        if with_lse:
            rows = (q.shape[0],) if q_layout == "packed" else (q.shape[0], q.shape[1])
            lse_shape = (*(2,) * with_max, *rows[:-1], q.shape[-2], rows[-1])
            self.new_lse = _allocation(lse_shape, torch.float32, q.device)

    def allocated(self, q, out) -> tuple:
        out = self.new_out(q) if out is None else out
        return out, self.new_lse and self.new_lse()

    @staticmethod
    def returned(out, lse):
        return out if lse is None else (out, lse)


def _allocation(shape: tuple, dtype: torch.dtype, device: torch.device) -> Callable:
    """The result of torch.empty, in two thirds of the time."""
    strides = _contiguous_strides(shape)
    return partial(torch.empty_strided, shape, strides, dtype=dtype, device=device)


def _contiguous_strides(shape: tuple) -> tuple:
    """
    >>> _contiguous_strides((4, 0, 8)), torch.empty(4, 0, 8).stride()
    ((8, 8, 1), (8, 8, 1))
    """
    sizes = [1, *(max(size, 1) for size in reversed(shape[1:]))]
    return tuple(accumulate(sizes, mul))[::-1]


class Views:
    """Tensors with strides that a descriptor can hold, and their bytes from the first to past the last element.

    One of them may be None: out, where it is allocated.
    """

    def __init__(self, given: Sequence, views: Sequence):
        self.layouts = tuple(
            None if _layout(tensor) == _layout(view) else _layout(view)
            for tensor, view in zip(given, views, strict=True)
        )
        self.differ = self.layouts != (None,) * len(views)
        self.extents = tuple(0 if view is None else extent_bytes(view) for view in views)

    def of(self, *tensors) -> tuple:
        return tuple(
            tensor if layout is None else tensor.as_strided(*layout)
            for tensor, layout in zip(tensors, self.layouts, strict=True)
        )


def _layout(tensor: torch.Tensor | None) -> tuple | None:
    return None if tensor is None else (tensor.shape, tensor.stride())
