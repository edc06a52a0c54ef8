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
from cute_fa4.calls.recognition import Recognition, recognition_of, tables_of
from cute_fa4.compiler import functions
from cute_fa4.operands import CallTensors
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
    window_size, numbers, choices = asked
    left, right = window_size if type(window_size) is tuple else _window(window_size)
    numbers = (*numbers, left, right)
    aux = tensors.aux_tensors
    given = [tensor for tensor in tensors if tensor is not None and tensor is not aux]
    return (
        choices, numbers, tuple(map(type, numbers)), tensors.q.device,
        tuple([tensor is not None for tensor in tensors]),
        tuple([(tensor.shape, tensor.stride(), tensor.dtype) for tensor in given]),
        tuple([table.data_ptr() % 16 for table in tables_of(tensors) if table is not None]),
        tensors.shares_offsets,
        None if aux is None else _aux(aux),
    )  # fmt: skip


def _window(window_size) -> tuple:
    if window_size is None:
        return None, None
    if type(window_size) is not list:  # an iterator can be read once
        raise _NoKey
    return window_size


def _aux(tensors) -> tuple:
    if type(tensors) not in (list, tuple):
        raise _NoKey
    return tuple((tensor.shape, tensor.dtype) for tensor in tensors)
