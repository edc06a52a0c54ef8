"""Repeated calls: decisions that depend on metadata are made once and kept, so that a repeated call only launches.

in the key         everything that chooses the plan and that compiled functions do not check: options, shapes, strides,
                   which optional tensors are given, the alignment of the page table
at each call       whether a gradient is requested, and whether written memory overlaps memory that is read
by the function    dtype, device, shape, strides and alignment of each tensor, as its plan assumes them: compiled
                   functions refuse others before they launch
before the key     whether the call repeats the latest one (recognition.py): then only addresses are checked
never kept         calls that depend on contents (CPU tensors with lengths or pages, which are checked each time), calls
                   that launch nothing

A function of the caller is in the key by what it computes now (options.functions_of).

A call that has no plan, or is refused, runs all checks, with their messages. Plans hold compiled functions, so
compile_cache.clear() removes them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch

from cute_fa4.calls.launch import launching_on
from cute_fa4.calls.plan import Plan
from cute_fa4.calls.recognition import Recognition, recognition_of, tables_of
from cute_fa4.compiler import functions
from cute_fa4.operands import CallTensors
from cute_fa4.sm100.blueprint.score_mods import ScoreMod
from cute_fa4.system import forks

# A decode loop needs one for each batch size; prefills vary in size and evict each other.
MAX_PLANS = 4096


class Plans:
    """Plans by key; the oldest are evicted first."""

    def __init__(self) -> None:
        self.plans: dict[tuple, Plan] = {}
        # The latest plan and its recognition: the layers of a model make equal calls.
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
        """KeyError: no plan has this key."""
        plan = self.plans[key]
        latest, _ = self.latest
        if (
            latest is plan and plan.recognition is not None
        ):  # its key is equal, but it was not recognised
            plan.recognition = recognition_of(tensors, asked)
        self.latest = plan, plan.recognition
        return plan


_table = Plans()


def clear() -> None:
    """Forget every plan."""
    global _table
    _table = Plans()  # what is being prepared meanwhile is kept in the old one


functions.on_clear(clear)


@contextlib.contextmanager
def apart(plans: Plans):
    """Inside, calls find and keep these plans instead of the others, in every thread: for measurements."""
    global _table
    before, _table = _table, plans
    try:
        yield
    finally:
        _table = before


def again(tensors: CallTensors, asked: tuple):
    """The result of a call that repeats the latest one; None: it does not. The arguments are those of attend."""
    plan, recognition = _table.latest
    if plan is None or recognition is None:
        return None
    try:
        if not (recognition.accepts(tensors, asked) and plan.is_apart(tensors)):
            return None
    except Exception:  # not a tensor, or not comparable: the checks raise the message
        return None
    try:
        return plan(tensors)
    except (TypeError, ValueError):  # refused before the launch: an address is not aligned
        return None


def attend(prepare: Callable, tensors: CallTensors, asked: tuple):
    """Attention of unchecked arguments: out, or (out, lse).

    asked    window_size, request.Numbers and request.Choices as plain tuples
    prepare  prepare(tensors, asked) checks everything and returns a Plan, or a function of `tensors` that launches
    """
    table, plan, refusal = _table, None, None
    try:
        plan = table.found(_key(tensors, asked), tensors, asked)
        if plan.admits(tensors):
            return plan(tensors)
    except Exception as error:  # no key or no plan, or refused by the compiled function
        refusal = error
    return _long_way(prepare, tensors, asked, table, plan, refusal)


def _long_way(prepare, tensors, asked, table: Plans, plan: Plan | None, refusal):
    """Check and launch. plan, refusal: the plan that was tried and its error; None: no plan, no error."""
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
    """Whether equal options have the same meaning at the next call."""
    return not any(
        isinstance(choice, torch.Tensor) or (callable(choice) and not isinstance(choice, ScoreMod))
        for choice in choices
    )


# --- the key


class _NoKey(Exception):
    """The call is refused or cannot be kept."""


def _key(tensors: CallTensors, asked: tuple) -> tuple:
    """Everything that selects a plan. Raises _NoKey, or another error, for arguments that the checks would refuse.

    Numbers come with their types: 1, 1.0 and True are equal but not all accepted.
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


def _window(window_size) -> Sequence:
    if window_size is None:
        return None, None
    if type(window_size) is not list:  # an iterator can be read once
        raise _NoKey
    return window_size


def _aux(tensors) -> tuple:
    if type(tensors) not in (list, tuple):
        raise _NoKey
    return tuple((tensor.shape, tensor.dtype) for tensor in tensors)
