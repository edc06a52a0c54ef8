"""The backward pass of the three layouts: the schedule of the forward pass, and dK and dV on their way back.

    ring         K and V move in hops again; a rank sends what a hop adds to dK and dV straight to their owner
    all_gather   K and V are gathered again; a rank sends what it adds to dK and dV to each owner
    all_to_all   dout takes the way of the queries, the gradients take that of the results

Each call of the forward pass has one local backward pass, with out and lse over the keys of all ranks. Its parts are
added in float32: those of a rank in the order of its calls, those of ranks in the order in which their keys are
processed or in the order of ranks. So the same inputs give the same bits. Results are rounded once, at the end.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch

from cute_fa4.distributed import transport
from cute_fa4.distributed.backends import Queries
from cute_fa4.distributed.geometry import Call
from cute_fa4.distributed.layouts import (
    Work,
    by_rank,
    circulating,
    gathering,
    head_groups,
    keys_and_values,
    message_of,
    of_ranks,
    whole_of,
    wide_of,
)
from cute_fa4.distributed.running import keys_of, queries_of
from cute_fa4.distributed.schedule import (
    gathered_calls,
    ring_calls,
    rows_needed,
    whole_calls,
)

_BACK = "gradients of K and V"


def ring(work: Work, of: Queries, k, v) -> tuple:
    """(dq, dk, dv). Sending the gradients of a hop overlaps computing those of the next."""
    ranks, problem = work.ranks, work.problem
    mine = message_of(k, v)
    dq, own = _zeros(of.q), _zeros(mine)
    arriving: list = []
    for held, first, distance in circulating(work, mine):
        needed = rows_needed(problem, distance) if distance else (0, problem.k_rows)
        if needed is None:
            continue
        begin, end = needed
        keys = held[begin - first : end - first]
        part = _zeros(keys) if distance else own
        for call in ring_calls(problem, ranks.rank, distance):
            _add(work, of, keys, replace(call, k_at=call.k_at - begin), dq, part)
        _collect(arriving)
        if distance:
            arriving.append((own[begin:end], transport.exchange(ranks, part, -distance, _BACK)))
    _collect(arriving)
    return dq.to(of.q.dtype), *_results(own, k)


def _collect(arriving: list) -> None:
    """Add what has been sent by others, (sum, wait) each, while this rank computed the next part."""
    while arriving:
        total, wait = arriving.pop()
        total += wait()


def all_gather(work: Work, of: Queries, k, v) -> tuple:
    """(dq, dk, dv)."""
    ranks, problem = work.ranks, work.problem
    group = of.q.shape[-2] // k.shape[-2]
    groups = head_groups(k.shape[-2], work.stages)
    dq, own = _zeros(of.q), _zeros(message_of(k, v))
    arriving: list = []
    waiting = gathering(ranks, k, v, groups[0])
    for number, heads in enumerate(groups):
        keys = whole_of(waiting(), problem.order)
        if number + 1 < len(groups):
            waiting = gathering(ranks, k, v, groups[number + 1])
        wide, part = wide_of(heads, group), _zeros(keys)
        for call in gathered_calls(problem, ranks.rank):
            _add(work, _of_heads(of, wide), keys, call, dq[..., wide, :], part)
        _collect(arriving)
        wait = _returning(work, part, _BACK)
        arriving.append((own[..., heads, :], lambda wait=wait: wait().sum(0)))
    _collect(arriving)
    return dq.to(of.q.dtype), *_results(own, k)


def _of_heads(of: Queries, heads: slice) -> Queries:
    return of.each(lambda x: x[..., heads, :], lambda x: x[..., heads, :])


def all_to_all(work: Work, kept: list, dout, dlse, heads_kv: int) -> tuple:
    """(dq, dk, dv). kept: q, k, v, out and lse of each head group, all rows, as the forward pass left them.

    dK and dV travel in float32 if several ranks have the same key/value head, otherwise in the dtype of k.
    """
    ranks, order, packed = work.ranks, work.problem.order, dout.dim() == 3
    copies = max(1, ranks.size // heads_kv)
    parts = [kept[i : i + 5] for i in range(0, len(kept), 5)]
    given = [of_ranks(dout, ranks.size)]
    if dlse is not None:
        given.append(of_ranks(dlse.mT[..., None], ranks.size))
    ends = [0, *itertools.accumulate(q.shape[-2] for q, *_ in parts)]
    wide = [slice(*both) for both in itertools.pairwise(ends)]
    waiting = _scattering(work, given, wide[0])
    of_q, of_keys = [], []
    for number, (q, k, v, out, lse) in enumerate(parts):
        arrived = [_dims(whole_of(wait(), order), packed) for wait in waiting]
        if number + 1 < len(parts):
            waiting = _scattering(work, given, wide[number + 1])
        changes = None if dlse is None else arrived[1][..., 0].mT
        of, keys = Queries(q, out, lse, arrived[0], changes), message_of(k, v)
        dq, part = _zeros(q), _zeros(keys)
        for call in whole_calls(work.problem):
            _add(work, of, keys, call, dq, part)
        dq = (dq[:, None] if packed else dq.movedim(1, 0)).to(q.dtype)
        part = part if copies > 1 else part.to(k.dtype)
        of_q.append(_returning(work, dq, "gradients of queries"))
        of_keys.append(_returning(work, part, _BACK))
    # (ranks, rows, batch, heads of a group, head_dim) -> (rows, batch, heads, head_dim), and the same for keys.
    dq = torch.cat([wait() for wait in of_q], dim=-2).movedim(0, -3).flatten(-3, -2)
    own = torch.cat([wait() for wait in of_keys], dim=-2).unflatten(0, (-1, copies)).sum(1)
    own = own.movedim(0, -3).flatten(-3, -2)
    return _dims(dq, packed).contiguous(), *_results(own, kept[1])


def _scattering(work: Work, tensors: list, heads: slice) -> list:
    """Messages to the owners of heads. tensors: (ranks, rows, batch, heads of a rank, ...)."""
    pieces = (x[..., heads, :].contiguous() for x in tensors)
    return [transport.all_to_all(work.ranks, x, "gradients of results") for x in pieces]


def _returning(work: Work, rows_of_all: torch.Tensor, what: str):
    """The message to the owners of rows."""
    pieces = by_rank(rows_of_all, work.ranks.size, work.problem.order)
    return transport.all_to_all(work.ranks, pieces.contiguous(), what)


def _dims(x: torch.Tensor, packed: bool) -> torch.Tensor:
    """(rows, batch, heads, head_dim) -> (batch, rows, heads, head_dim), or without the batch."""
    return x[:, 0] if packed else x.movedim(0, 1)


# --- one call


def _add(work: Work, of: Queries, keys, call: Call, dq, of_keys) -> None:
    """Add the parts of a call. keys: a message, which the call's row offsets refer to; dq, of_keys: float32 sums."""
    packed = of.q.dim() == 3
    k, v, dk, dv = keys_of(call, *keys_and_values(keys, of.q), *keys_and_values(of_keys, of.q))
    sums: tuple = (queries_of(call, dq), dk, dv)
    part = of.each(lambda x: queries_of(call, x), lambda x: x.narrow(-1, call.q_at, call.q_rows))
    if packed and call.ends is None:
        part, k, v = part.each(lambda x: x[None], lambda x: x[None]), k[None], v[None]
        sums = tuple(x[None] for x in sums)
    work.backend.add_gradients(part, k, v, call, work.scale, work.softcap, sums)


def _zeros(like: torch.Tensor) -> torch.Tensor:
    return torch.zeros(like.shape, dtype=torch.float32, device=like.device)


def _results(message: torch.Tensor, k: torch.Tensor) -> list[torch.Tensor]:
    """dk and dv, rounded once. k: a tensor with their dtype and the head dim of dk."""
    of_both = keys_and_values(message, k)
    return [x.to(k.dtype, memory_format=torch.contiguous_format) for x in of_both]
