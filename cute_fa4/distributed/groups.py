"""The group of a call, and the agreement of its ranks before any data is sent.

Each rank writes its arguments into 2 KiB of JSON: shapes, dtypes, options, or its refusal. One all-gather gives
every rank all of these messages. If they differ, or if a rank refused, every rank raises, so no rank enters an
exchange that another will never join. If the group has a backend for CPU tensors, the messages use it and do not
wait for a GPU: init_process_group("cpu:gloo,cuda:nccl").
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from cute_fa4.calls.operands.tracing import (
    is_recorded_by_fx,
    is_transformed,
    outside_of_transforms,
)
from cute_fa4.distributed.errors import GroupError, RankError

WORDS_BYTES = 2048
MAX_AGREED = 4096  # calls that a group remembers
CHECKS = ("always", "first")


def check_answers(check, return_lse) -> None:
    """Refuse values of arguments that every call of several ranks has, by their names."""
    if check not in CHECKS:
        raise ValueError(f"check: {check!r}; accepted: {', '.join(map(repr, CHECKS))}")
    if type(return_lse) is not bool:
        raise TypeError(f"return_lse: a {type(return_lse).__name__}; accepted: True or False")


@dataclass(frozen=True)
class Ranks:
    """A process group from the view of one of its ranks."""

    group: dist.ProcessGroup
    rank: int
    size: int

    def peer(self, distance: int) -> int:
        """The global rank at this offset after this rank in the group."""
        return dist.get_global_rank(self.group, (self.rank + distance) % self.size)

    @contextmanager
    def sending(self, what: str):
        """A context for messages: a failure names them and this rank."""
        try:
            yield
        except RuntimeError as error:
            raise GroupError(
                f"{what}: rank {self.rank} of {self.size} did not receive or send it: another rank has ended or was "
                f"slower than the timeout of the group, which cannot be used again; {_first_line(error)}"
            ) from error


def ranks_of(group) -> Ranks:
    """group: a ProcessGroup, a one-dimensional DeviceMesh, or None for all processes."""
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError(
            "group: torch.distributed is not initialised; call torch.distributed.init_process_group first, or start "
            "with torchrun and do the same"
        )
    if group is None:
        group = dist.group.WORLD
    if hasattr(group, "get_group") and hasattr(group, "ndim"):
        if group.ndim != 1:
            raise ValueError(
                f"group: a DeviceMesh of {group.ndim} dimensions; accepted: one; pass mesh['name of its dimension']"
            )
        group = group.get_group()
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f"group: {type(group).__name__}; accepted: a ProcessGroup this process belongs to, a DeviceMesh, or None"
        )
    return Ranks(group, dist.get_rank(group), dist.get_world_size(group))


def agree(
    ranks: Ranks,
    function: str,
    device: torch.device,
    check: str,
    checked: Callable[[], dict],
    passing: dict | None = None,
) -> None:
    """checked() refuses this rank's call, or returns the values that must agree; then all ranks compare them.

    check  "always", or "first": values that this group has already agreed on are not exchanged again. A rank with
           different arguments then waits for the others until the timeout of the group
    passing  values that must agree, too, where the ranks compare, and that a later call need not have
    """
    refusal, words = None, {}
    try:
        if is_transformed() or is_recorded_by_fx():
            raise NotImplementedError(
                f"{function}: called inside of make_fx or a transform of torch.func (grad, vjp, vmap, functionalize), "
                "which do not see the messages between the ranks; accepted: torch.autograd.grad and Tensor.backward "
                "in place of grad and vjp, a batch dimension in place of vmap, torch.compile in place of make_fx"
            )
        words = {"function": function, **checked()}
    except Exception as error:  # any error, because the others must not wait for this rank
        refusal = error
        words = {"refused": f"{type(error).__name__}: {error}"}
    key = json.dumps(words, sort_keys=True)
    capturing = is_captured(device)
    known = key in _agreed.setdefault(ranks.group, set())
    if capturing:
        if refusal is not None:
            raise refusal
        if not known:
            raise RuntimeError(
                f"{function}: captured in a graph before the ranks have agreed on such a call; accepted: the same call "
                "once on every rank before the capture"
            )
        return
    if known and check == "first":
        return
    every = _exchanged(ranks, json.dumps({**words, **(passing or {})}, sort_keys=True), device)
    if refusal is not None:
        raise refusal
    _compare(function, every)
    if len(_agreed[ranks.group]) >= MAX_AGREED:  # on every rank at the same call
        _agreed[ranks.group].clear()
    _agreed[ranks.group].add(key)


_agreed: WeakKeyDictionary = WeakKeyDictionary()


def is_captured(device: torch.device) -> bool:
    """Whether the current stream of this device is being captured in a graph."""
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def _exchanged(ranks: Ranks, words: str, device: torch.device) -> list[dict]:
    """The messages of all ranks."""
    device = torch.device("cpu") if _takes_cpu_tensors(ranks.group) else device
    data = words.encode()
    if len(data) > WORDS_BYTES:  # only a refusal is that long
        refused = json.loads(words).get("refused", words)[: WORDS_BYTES // 4]
        data = json.dumps({"refused": refused}).encode()
    with outside_of_transforms(), ranks.sending("the words of the ranks"):
        mine = torch.frombuffer(bytearray(data.ljust(WORDS_BYTES)), dtype=torch.uint8).to(device)
        every = torch.empty(ranks.size * WORDS_BYTES, dtype=torch.uint8, device=device)
        dist.all_gather_into_tensor(every, mine, group=ranks.group)
        found = bytes(every.cpu().numpy())
    return [json.loads(found[r * WORDS_BYTES : (r + 1) * WORDS_BYTES]) for r in range(ranks.size)]


def _takes_cpu_tensors(group: dist.ProcessGroup) -> bool:
    return "cpu:" in dist.get_backend_config(group)


def _compare(function: str, every: list[dict]) -> None:
    refused = [(r, words["refused"]) for r, words in enumerate(every) if "refused" in words]
    if refused:
        texts = "; ".join(
            f"rank {r} of {len(every)} refused the call: {text}" for r, text in refused
        )
        raise RankError(f"{function}: {texts}")
    for name in sorted(set().union(*every)):
        values = [words.get(name) for words in every]
        if any(value != values[0] for value in values):
            raise RankError(
                f"{function}: {name} differs: {_by_value(values)}; accepted: one for all"
            )


def _by_value(values: list) -> str:
    """
    >>> _by_value([8, 8, 4])
    '8 on ranks 0, 1; 4 on rank 2'
    """
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(json.dumps(value) if not isinstance(value, str) else value, []).append(
            rank
        )
    return "; ".join(
        f"{value} on rank{'s' * (len(r) > 1)} {', '.join(map(str, r))}"
        for value, r in ranks.items()
    )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
