"""The same call as the one before it, as the layers of a model make them: recognised without building its key.

Most of what a key of repeat.py is made of, torch compares in one call of C++: the guards that torch.compile puts before
a compiled graph. They see of each tensor

    its class, dtype, device, sizes, strides, and whether it requires a gradient
    the dispatch keys in force: inside of a torch.func transform, torch.jit.trace, torch.autocast or inference_mode
    a tensor is another one than outside

Not seen, and asked for here: whether gradients are recorded, dispatch modes, tangents of forward-mode derivatives,
sizes of tensors of lengths, addresses, types of numbers. A tensor given twice is never recognised, and goes by its key.

The guards are no public interface of torch. Where they are missing, every call goes by its key: half a microsecond.
"""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

from cute_fa4.calls.plan import NO_LENGTHS
from cute_fa4.calls.request import CallTensors

try:
    from torch._C._dynamo.guards import TensorGuards
except ImportError:  # pragma: no cover
    TensorGuards = None

_active_modes = torch._C._len_torch_dispatch_stack
_is_grad_enabled = torch.is_grad_enabled


class Recognition:
    """Whether a call is like the one that this was made from. Arguments as those of repeat.attend."""

    __slots__ = ("asked", "guards", "rest", "without_gradients")

    def __init__(self, tensors: CallTensors, asked: tuple):
        looked_at, self.rest = _parts(tensors)
        self.asked = asked
        # of tensors that want a gradient: recognised only where none is recorded
        self.without_gradients = any(tensor.requires_grad for tensor in looked_at)
        self.guards = TensorGuards(
            *looked_at, dynamic_dims_sizes=None, dynamic_dims_strides=None
        ).check

    def accepts(self, tensors: CallTensors, asked: tuple) -> bool:
        """Raises TypeError for what is no tensor."""
        if asked != self.asked or _active_modes() > 0 or forward_ad._current_level >= 0:
            return False
        if self.without_gradients and _is_grad_enabled():
            return False
        looked_at, rest = _parts(tensors)
        return rest == self.rest and self.guards(*looked_at) and has_usual_types(asked)


def recognition_of(tensors: CallTensors, asked: tuple) -> Recognition | None:
    """None: such calls go by their key."""
    if TensorGuards is None or tensors.aux is not None or not has_usual_types(asked):
        return None
    made = Recognition(tensors, asked)
    return made if made.accepts(tensors, asked) else None


def _parts(tensors: CallTensors) -> tuple[tuple, tuple | None]:
    """(what the guards look at, the rest: what is given, how many lengths, how the table is aligned)."""
    q, k, v, out, lengths, sink, aux, new, scales, rope = tensors  # by name takes longer
    if lengths is sink is aux is new is scales is rope is None:
        return ((q, k, v), None) if out is None else ((q, k, v, out), ())
    looked_at = (q, k, v) if out is None else (q, k, v, out)
    a, b, c, d, e, table, batch_idx, leftpad = lengths or NO_LENGTHS
    if sink is not None:
        looked_at += (sink,)
    if table is not None:
        looked_at += (table,)
    same_offsets = offsets = None
    if new is not None:
        new_k, new_v, offsets = new
        looked_at += (new_k, new_v)
        same_offsets = offsets is a
    if scales is not None:
        looked_at += tuple(scale for scale in scales if scale is not None)
        scales = tuple(scale is not None for scale in scales)
    if rope is not None:
        looked_at += tuple(tensor for tensor in rope if tensor is not None)
        pages = rope[1]
        aligned = None if pages is None else pages.data_ptr() % 16
        rope = aligned, *(tensor is None for tensor in rope)
    return looked_at, (
        None if a is None else a.numel(),
        None if b is None else b.numel(),
        None if c is None else c.numel(),
        None if d is None else d.numel(),
        None if e is None else e.numel(),
        None if table is None else table.data_ptr() % 16,
        None if batch_idx is None else batch_idx.numel(),
        None if leftpad is None else leftpad.numel(),
        None if offsets is None else offsets.numel(),
        out is None, sink is None, aux is None, same_offsets, scales, rope,
    )  # fmt: skip


def has_usual_types(asked: tuple) -> bool:
    """1, 1.0 and True are equal and not accepted alike: what could be mistaken goes by its key, which has the types."""
    window_size, (scale, causal, softcap, max_seqlen_q, max_seqlen_k), choices = asked
    num_splits, tokens_per_split = choices[1], choices[2]  # the rest is checked before
    if window_size is not None and type(window_size) is not tuple:
        return False
    left, right = window_size or (None, None)
    return (
        (causal is False or causal is True)
        and (scale is None or type(scale) is float)
        and (softcap is None or type(softcap) is float)
        and (num_splits is None or type(num_splits) is int)
        and (tokens_per_split is None or type(tokens_per_split) is int)
        and (max_seqlen_q is None or type(max_seqlen_q) is int)
        and (max_seqlen_k is None or type(max_seqlen_k) is int)
        and (left is None or type(left) is int)
        and (right is None or type(right) is int)
    )
