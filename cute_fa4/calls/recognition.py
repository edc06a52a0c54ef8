"""Recognise a call that repeats the one before it, as the layers of a model do, without building its key.

Torch compares most parts of a key of repeat.py in one C++ call: the guards that torch.compile puts before a compiled
graph. For each tensor they compare

    its class, dtype, device, sizes, strides, and whether it requires a gradient
    the active dispatch keys, which differ inside of a torch.func transform, torch.jit.trace, torch.autocast or
    inference_mode

They do not compare, and this module does: whether gradients are recorded, dispatch modes, tangents of forward-mode
derivatives, addresses, types of numbers. A call that passes one tensor twice is found by its key, unless the tensor is
the offsets of queries and of new rows.

The guards are not a public interface of torch. Where they are missing, every call is found by its key, which takes half
a microsecond.
"""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

from cute_fa4.operands import OPERANDS, PAGES, TENSORS, CallTensors, fields, fields_given

try:
    from torch._C._dynamo.guards import TensorGuards
except ImportError:  # pragma: no cover
    TensorGuards = None  # type: ignore[assignment,misc]  # where torch lacks them

_active_modes = torch._C._len_torch_dispatch_stack
_is_grad_enabled = torch.is_grad_enabled

TABLES = [name for name in TENSORS if OPERANDS[name].axes == PAGES]
tables_of = fields(TABLES)


class Recognition:
    """Whether a call repeats the one that this was made from. The arguments are those of repeat.attend.

    absent   takes the fields that are not given from a record
    guards   compare the tensors that `guarded` takes
    places   alignment of the page tables that `tables` takes
    shared   new rows have the offsets of the queries, which the guards then compare once
    """

    __slots__ = (
        "absent", "asked", "guarded", "guards", "nothing", "places", "shared", "tables", "without_gradients",
    )  # fmt: skip

    def __init__(self, tensors: CallTensors, asked: tuple):
        self.asked, self.shared = asked, tensors.shares_offsets
        self.absent = fields(name for name, x in tensors._asdict().items() if x is None)
        self.nothing = self.absent(tensors)
        self.tables = fields_given(tensors, TABLES)
        self.places = places_of(self.tables(tensors))
        seen_twice = {"cu_seqlens_k_new"} if self.shared else set()
        self.guarded = fields_given(tensors, [name for name in TENSORS if name not in seen_twice])
        # With tensors that require a gradient: recognised only where gradients are not recorded.
        self.without_gradients = any(x.requires_grad for x in self.guarded(tensors))
        self.guards = TensorGuards(
            *self.guarded(tensors), dynamic_dims_sizes=None, dynamic_dims_strides=None
        ).check

    def accepts(self, tensors: CallTensors, asked: tuple) -> bool:
        """TypeError: an argument is not a tensor."""
        if asked != self.asked or _active_modes() > 0 or forward_ad._current_level >= 0:
            return False
        if self.without_gradients and _is_grad_enabled():
            return False
        return (
            self.absent(tensors) == self.nothing
            and self.guards(*self.guarded(tensors))
            and (not self.places or places_of(self.tables(tensors)) == self.places)
            and (not self.shared or tensors.shares_offsets)
            and has_usual_types(asked)
        )


def recognition_of(tensors: CallTensors, asked: tuple) -> Recognition | None:
    """None: such calls are found by their key."""
    if TensorGuards is None or tensors.aux_tensors is not None or not has_usual_types(asked):
        return None
    made = Recognition(tensors, asked)
    return made if made.accepts(tensors, asked) else None


def places_of(tables: tuple) -> list[int]:
    """The alignment of page tables, which decides how they are read."""
    return [table.data_ptr() % 16 for table in tables]


def has_usual_types(asked: tuple) -> bool:
    """1, 1.0 and True are equal but not all accepted: calls with unusual types are found by key, which has types."""
    window_size, (scale, causal, softcap, max_seqlen_q, max_seqlen_k, skips), choices = asked
    _, num_splits, tokens_per_split, batch_invariant, *_ = choices  # the rest is checked before
    if window_size is not None and type(window_size) is not tuple:
        return False
    left, right = window_size or (None, None)
    return (
        (causal is False or causal is True)
        and (scale is None or type(scale) is float)
        and (softcap is None or type(softcap) is float)
        and (skips is None or type(skips) is float)
        and (num_splits is None or type(num_splits) is int)
        and (tokens_per_split is None or type(tokens_per_split) is int)
        and (batch_invariant is None or type(batch_invariant) is bool)
        and (max_seqlen_q is None or type(max_seqlen_q) is int)
        and (max_seqlen_k is None or type(max_seqlen_k) is int)
        and (left is None or type(left) is int)
        and (right is None or type(right) is int)
    )
