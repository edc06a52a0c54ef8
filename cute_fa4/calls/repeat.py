"""A repeated call: what metadata decides is decided once and kept, so that the next such call only launches.

in the key         what chooses the plan, and what compiled functions do not check: options, shapes, strides, which
                   optional tensors are given, how the page table is aligned
at each call       whether a gradient is asked for, and whether what is written shares memory with what is read
by the function    that a tensor has the dtype, device, shape, strides and alignment that its plan was made for:
                   compiled functions refuse others before they launch
before the key     whether the call is like the latest (recognition.py): then nothing else is looked at but addresses
never kept         calls that contents decide (CPU tensors with lengths or pages, which are checked each time), calls
                   that launch nothing

A function of the caller's is in the key as what it computes now (options.functions_of).

A call that has no plan, or is refused, goes the long way: all checks, with their messages. Plans hold compiled
functions, so compile_cache.clear() forgets them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from cute_fa4.calls.launch import launching_on
from cute_fa4.calls.plan import Plan
from cute_fa4.calls.recognition import Recognition, recognition_of
from cute_fa4.calls.request import CallTensors
from cute_fa4.compiler import functions
from cute_fa4.sm100.blueprint.score_mods import ScoreMod
from cute_fa4.system import forks

# A decode loop needs one for each batch size; prefills, whose sizes vary, push each other out.
MAX_PLANS = 4096


class _Table:
    """Plans by key; the oldest leave first."""

    def __init__(self):
        self.plans: dict[tuple, Plan] = {}
        # The latest plan, and what recognises its call: the layers of a model call alike.
        self.latest: tuple[Plan | None, Recognition | None] = (None, None)
        self._lock = forks.Lock()

    def keep(self, key: tuple, plan: Plan, tensors: CallTensors, asked: tuple) -> None:
        recognition = recognition_of(tensors, asked)
        with self._lock.held:
            while len(self.plans) >= MAX_PLANS:
                del self.plans[next(iter(self.plans))]
            plan.recognition = recognition
            self.plans[key] = plan
            self.latest = plan, recognition

    def found(self, key: tuple, tensors: CallTensors, asked: tuple) -> Plan:
        """KeyError: there is none."""
        plan = self.plans[key]
        latest, _ = self.latest
        if (
            latest is plan and plan.recognition is not None
        ):  # the same by its key and yet not recognised
            plan.recognition = recognition_of(tensors, asked)
        self.latest = plan, plan.recognition
        return plan


_table = _Table()


def clear() -> None:
    """Forget every plan."""
    global _table
    _table = _Table()  # what is being prepared meanwhile is kept in the old one


functions.on_clear(clear)


def again(tensors: CallTensors, asked: tuple):
    """The result of a call like the latest one; None: this is another. Arguments as those of attend."""
    plan, recognition = _table.latest
    if recognition is None:
        return None
    try:
        if not (recognition.accepts(tensors, asked) and plan.is_apart(tensors)):
            return None
    except Exception:  # what is no tensor, or cannot be compared: the checks say what is wrong
        return None
    try:
        return plan(tensors)
    except (TypeError, ValueError):  # refused before a launch, for an address that is not aligned
        return None


def attend(prepare: Callable, tensors: CallTensors, asked: tuple):
    """Attention of unchecked arguments: out, or (out, lse).

    asked    window_size, request.Numbers and request.Choices as plain tuples
    prepare  prepare(tensors, asked) checks everything and returns what launches: a Plan, or a function of `tensors`
    """
    table, plan, refusal = _table, None, None
    try:
        plan = table.found(_key(tensors, asked), tensors, asked)
        if plan.admits(tensors):
            return plan(tensors)
    except Exception as error:  # no key or no plan, or refused by the compiled function
        refusal = error
    return _long_way(prepare, tensors, asked, table, plan, refusal)


def _long_way(prepare, tensors, asked, table: _Table, plan: Plan | None, refusal):
    """Check and launch. plan, refusal: what was tried and how it failed, each None if there is none."""
    prepared = prepare(tensors, asked)
    if isinstance(prepared, Plan):
        if plan is not None and refusal is not None and prepared.functions == plan.functions:
            try:
                raise refusal  # the arguments are right: the launch failed
            finally:
                del refusal
        if prepared.repeats and _are_constant(asked[-1]):
            try:
                table.keep(_key(tensors, asked), prepared, tensors, asked)
            except (_NoKey, TypeError):  # TypeError: an option without hash
                pass
    with launching_on(tensors.q.device):
        return prepared(tensors)


def _are_constant(choices: tuple) -> bool:
    """Whether equal ones mean the same at the next call."""
    return not any(
        isinstance(choice, torch.Tensor) or (callable(choice) and not isinstance(choice, ScoreMod))
        for choice in choices
    )


# --- the key


class _NoKey(Exception):
    """The call is refused, or not kept."""


def _key(tensors: CallTensors, asked: tuple) -> tuple:
    """What decides a call. Raises _NoKey, or anything else, for arguments that the checks would refuse.

    Numbers come with their types: 1, 1.0 and True are equal, and not accepted alike.
    """
    q, k, v, out = tensors.q, tensors.k, tensors.v, tensors.out
    lengths, sink, aux, new = tensors.lengths, tensors.sink, tensors.aux, tensors.new
    scales, rope = tensors.scales, tensors.rope
    window_size, numbers, choices = asked
    left, right = window_size if type(window_size) is tuple else _window(window_size)
    scale, causal, softcap, max_seqlen_q, max_seqlen_k = numbers
    return (
        choices, numbers, left, right,
        type(scale), type(causal), type(softcap), type(max_seqlen_q), type(max_seqlen_k), type(left), type(right),
        q.dtype, k.dtype, q.device, q.shape, q.stride(), k.shape, k.stride(), v.stride(),
        None if out is None else (out.stride(), out.dtype),
        None if lengths is None else _lengths(lengths),
        None if sink is None else sink.dtype,
        None if aux is None else _aux(aux),
        None if new is None else _new(*new, lengths[0]),
        None if scales is None else tuple(s is not None and (s.shape, s.dtype) for s in scales),
        None if rope is None else _rope(*rope),
    )  # fmt: skip


def _window(window_size) -> tuple:
    if window_size is None:
        return None, None
    if type(window_size) is not list:  # an iterator can be read once
        raise _NoKey
    return window_size


def _lengths(lengths: tuple) -> tuple:
    """Their sizes, and how wide the page table can be read."""
    (
        cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, key_limit, page_table, batch_idx, leftpad
    ) = lengths  # fmt: skip
    return (
        None if cu_seqlens_q is None else cu_seqlens_q.numel(),
        None if cu_seqlens_k is None else cu_seqlens_k.numel(),
        None if seqused_q is None else seqused_q.numel(),
        None if seqused_k is None else seqused_k.numel(),
        None if key_limit is None else key_limit.numel(),
        None if page_table is None else page_table.shape,
        None if page_table is None else page_table.is_contiguous() or page_table.stride(),
        None if page_table is None else page_table.data_ptr() % 16,
        None if batch_idx is None else batch_idx.numel(),
        None if leftpad is None else leftpad.numel(),
    )


def _aux(tensors) -> tuple:
    if type(tensors) not in (list, tuple):
        raise _NoKey
    return tuple((tensor.shape, tensor.dtype) for tensor in tensors)


def _rope(k_rope, table, q_rope, scales) -> tuple:
    """Columns of k in a tensor of their own, their pages, the columns of q that meet them, and their scales."""
    found = k_rope.shape, k_rope.stride(), k_rope.dtype
    if table is not None:
        strides = table.is_contiguous() or table.stride()
        found += (table.shape, strides, table.data_ptr() % 16)
    if q_rope is not None:
        found += (q_rope.shape, q_rope.stride(), q_rope.dtype)
    return found if scales is None else (*found, scales.shape, scales.stride())


def _new(k, v, offsets, cu_seqlens_q) -> tuple:
    """The shapes and strides of rows to append, and whether they are those of the queries."""
    size = None if offsets is None else offsets.numel()
    return k.shape, k.stride(), v.stride(), k.dtype, size, offsets is cu_seqlens_q
