"""The three layouts. Each takes local q, k and v, (batch, rows, heads, head_dim) or without the batch.

    ring         K and V move in hops, overlapped with attention to those of the previous hop; results are merged
    all_gather   every rank gets all K and V, one group of heads at a time; nothing is merged
    all_to_all   every rank exchanges its rows of all heads for all rows of some heads; nothing is merged

K and V are one message, rows first, so that a range of rows is contiguous: (rows, batch, heads, head dims of both).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from cute_fa4.distributed import transport
from cute_fa4.distributed.groups import Ranks
from cute_fa4.distributed.running import Running
from cute_fa4.distributed.schedule import (
    Problem,
    gathered_calls,
    hops,
    ring_calls,
    whole_calls,
)


@dataclass(frozen=True)
class Work:
    """Arguments of every layout other than q, k and v.

    stages  head groups; sending one overlaps computing another
    kept    None, or where all_to_all leaves q, k, v, out and lse of each head group, for the backward pass
    """

    ranks: Ranks
    problem: Problem
    backend: Any  # backends.py
    scale: float
    softcap: float
    sink: torch.Tensor | None
    stages: int
    kept: list | None = None


def ring(work: Work, q, k, v) -> tuple[torch.Tensor, torch.Tensor]:
    """Hops of schedule.hops: receiving the next message overlaps computing the current one."""
    running = Running(q, v.shape[-1], work.sink, work.backend)
    for held, first, distance in circulating(work, message_of(k, v)):
        keys, values = keys_and_values(held, q)
        for call in ring_calls(work.problem, work.ranks.rank, distance):
            at = replace(call, k_at=call.k_at - first)
            running.attend(keys, values, at, work.scale, work.softcap)
    return running.result()


def circulating(work: Work, mine: torch.Tensor):
    """Yield (message, its first row, the distance of the rank before this one whose keys it has), own keys first.

    Each message travels while the caller works on the one before.
    """
    held, first, distance = mine, 0, 0
    for hop in hops(work.problem):
        source, source_first = (mine, 0) if hop.first_of_ring else (held, first)
        rows = source[hop.first - source_first : hop.end - source_first]
        waiting = transport.exchange(work.ranks, rows, hop.step, f"K and V, hop {hop.distance}")
        yield held, first, distance
        held, first, distance = waiting(), hop.first, hop.distance
    yield held, first, distance


def all_gather(work: Work, q, k, v) -> tuple[torch.Tensor, torch.Tensor]:
    """Gather all keys of a group of key/value heads while the previous group is computed."""
    ranks, problem = work.ranks, work.problem
    groups = head_groups(k.shape[-2], work.stages)
    waiting = gathering(ranks, k, v, groups[0])
    calls, results = gathered_calls(problem, ranks.rank), []
    for number, heads in enumerate(groups):
        every = waiting()
        if number + 1 < len(groups):
            waiting = gathering(ranks, k, v, groups[number + 1])
        keys, values = keys_and_values(whole_of(every, problem.order), q)
        results.append(_part(work, q, keys, values, heads, k.shape[-2], calls))
    return _heads_together(results)


def gathering(ranks: Ranks, k, v, heads: slice):
    return transport.all_gather(ranks, message_of(k[..., heads, :], v[..., heads, :]), "K and V")


def whole_of(every: torch.Tensor, order: str) -> torch.Tensor:
    """(ranks, rows, ...) -> (ranks * rows, ...), in the order of the sequence."""
    return in_order(every, order).flatten(0, 1)


def in_order(every: torch.Tensor, order: str) -> torch.Tensor:
    """Pieces of ranks, by rank -> pieces of the sequence, in order.

    >>> in_order(torch.tensor([[0, 7], [1, 6], [2, 5], [3, 4]]), "zigzag").flatten().tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    if order == "contiguous":
        return every
    halves = every.unflatten(1, (2, -1))
    return torch.cat((halves[:, 0], halves[:, 1].flip(0)))


def by_rank(whole: torch.Tensor, ranks: int, order: str) -> torch.Tensor:
    """(rows of all, ...) -> (ranks, rows, ...): the inverse of in_order.

    >>> by_rank(torch.arange(8), 4, "zigzag").tolist()
    [[0, 7], [1, 6], [2, 5], [3, 4]]
    """
    if order == "contiguous":
        return whole.unflatten(0, (ranks, -1))
    chunks = whole.unflatten(0, (2 * ranks, -1))
    return torch.cat((chunks[:ranks], chunks[ranks:].flip(0)), dim=1)


def all_to_all(work: Work, q, k, v) -> tuple[torch.Tensor, torch.Tensor]:
    """All rows of a rank's heads, one group at a time; messages overlap the computation of other groups.

    With more ranks than key/value heads, several ranks get the same head.
    """
    ranks, problem, packed = work.ranks, work.problem, q.dim() == 3
    size = ranks.size
    q, k, v = (of_ranks(x, size) for x in (q, k, v))
    groups = head_groups(k.shape[-2], work.stages)
    calls = whole_calls(problem)
    returning: list = []
    lses: list = []
    waiting = _scattering(ranks, q, k, v, groups[0])
    for number, heads in enumerate(groups):
        every_q, every_kv = (whole_of(x(), problem.order) for x in waiting)
        if number + 1 < len(groups):
            waiting = _scattering(ranks, q, k, v, groups[number + 1])
        whole_q = every_q[:, 0] if packed else every_q.movedim(0, 1)
        keys, values = keys_and_values(every_kv, whole_q)
        first = ranks.rank * q.shape[-2] + wide_of(heads, q.shape[-2] // k.shape[-2]).start
        sink = None if work.sink is None else work.sink[first : first + whole_q.shape[-2]]
        running = Running(whole_q, v.shape[-1], sink, work.backend)
        for call in calls:
            running.attend(keys, values, call, work.scale, work.softcap)
        out, lse = running.result()
        if work.kept is not None:
            work.kept.extend((whole_q, keys, values, out, lse))
        out = out[:, None] if packed else out.movedim(1, 0)
        lse = lse.movedim(-1, 0)[:, None] if packed else lse.movedim(-1, 0)
        for tensor, what, kept in ((out, "results", returning), (lse, "log-sum-exps", lses)):
            pieces = by_rank(tensor, size, problem.order).contiguous()
            kept.append(transport.all_to_all(ranks, pieces, what))
    # (ranks, rows, batch, heads of a group[, head_dim]) -> heads of rank 0, then of rank 1, ...
    out = torch.cat([wait() for wait in returning], dim=3).movedim(0, 2).flatten(2, 3)
    lse = torch.cat([wait() for wait in lses], dim=3).movedim(0, 2).flatten(2, 3)
    out, lse = out.movedim(0, 1).contiguous(), lse.movedim(0, -1).contiguous()
    return (out[0], lse[0]) if packed else (out, lse)


def of_ranks(x: torch.Tensor, ranks: int) -> torch.Tensor:
    """(..., heads, head_dim) -> (ranks, rows, batch, heads of a rank, head_dim)."""
    x = x[:, None] if x.dim() == 3 else x.movedim(1, 0)
    heads = x.shape[2]
    if heads < ranks:
        x = x.repeat_interleave(ranks // heads, dim=2)
    return x.unflatten(2, (ranks, -1)).movedim(2, 0)


def _scattering(ranks: Ranks, q, k, v, heads: slice) -> tuple:
    """Two messages: the queries and the keys of a group of heads."""
    wide = wide_of(heads, q.shape[-2] // k.shape[-2])
    kv = torch.cat((k[..., heads, :], v[..., heads, :]), dim=-1)
    return (
        transport.all_to_all(ranks, q[..., wide, :].contiguous(), "queries"),
        transport.all_to_all(ranks, kv, "K and V"),
    )


def _part(work: Work, q, keys, values, heads: slice, heads_kv: int, calls) -> tuple:
    """Attention of the query heads of a group of key/value heads."""
    wide = wide_of(heads, q.shape[-2] // heads_kv)
    sink = None if work.sink is None else work.sink[wide]
    running = Running(q[..., wide, :], values.shape[-1], sink, work.backend)
    for call in calls:
        running.attend(keys, values, call, work.scale, work.softcap)
    return running.result()


def head_groups(heads: int, stages: int) -> list[slice]:
    """
    >>> head_groups(8, 2), head_groups(1, 2)
    ([slice(0, 4, None), slice(4, 8, None)], [slice(0, 1, None)])
    """
    stages = min(stages, heads)
    ends = [heads * (i + 1) // stages for i in range(stages)]
    return [slice(begin, end) for begin, end in zip((0, *ends), ends, strict=False)]


def wide_of(heads: slice, group: int) -> slice:
    """Query heads of key/value heads."""
    return slice(heads.start * group, heads.stop * group)


def _heads_together(results: list) -> tuple[torch.Tensor, torch.Tensor]:
    if len(results) == 1:
        return results[0]
    outs, lses = zip(*results, strict=True)
    return torch.cat(outs, dim=-2), torch.cat(lses, dim=-2)


def message_of(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """(rows, batch, heads, head dim of k + head dim of v), contiguous."""
    rows = [x[:, None] if x.dim() == 3 else x.movedim(1, 0) for x in (k, v)]
    return torch.cat(rows, dim=-1)


def keys_and_values(message: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Views with the dimensions of q, whose head dim is that of k."""
    rows, depth = message[:, 0] if q.dim() == 3 else message.movedim(0, 1), q.shape[-1]
    return rows[..., :depth], rows[..., depth:]


LAYOUTS = {"ring": ring, "all_gather": all_gather, "all_to_all": all_to_all}
