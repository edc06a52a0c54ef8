"""context_parallel_attention: one sequence, or packed documents, distributed over the ranks of a process group."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from operator import index
from typing import NamedTuple

import torch

from cute_fa4 import masks
from cute_fa4.calls.operands import autocast
from cute_fa4.calls.operands.tensors import check_is_tensor, check_rank
from cute_fa4.calls.operands.tracing import refuse_untraceable
from cute_fa4.calls.options import resolve
from cute_fa4.calls.request import Options
from cute_fa4.compiler import policy
from cute_fa4.distributed import gradients
from cute_fa4.distributed.backends import AXES, backend_of
from cute_fa4.distributed.geometry import Band
from cute_fa4.distributed.groups import Ranks, agree, check_answers, ranks_of
from cute_fa4.distributed.layouts import LAYOUTS, Work
from cute_fa4.distributed.orders import check_order, check_rows
from cute_fa4.distributed.schedule import Problem

MAX_STAGES = 64


@torch.compiler.disable(reason="context_parallel_attention: ranks compare the call on the host")
def context_parallel_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    group=None,
    layout: str = "ring",
    order: str = "zigzag",
    cu_seqlens=None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] | None = (None, None),
    learnable_sink: torch.Tensor | None = None,
    softcap: float | None = 0.0,
    return_lse: bool = False,
    batch_invariant: bool | None = None,
    stages: int = 2,
    check: str = "always",
    backend="cute_fa4",
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of this rank's queries to the keys of all ranks, as one GPU with all rows would compute it.

    q             (batch, rows, heads_q, head_dim), or (rows, heads_q, head_dim) with cu_seqlens: this rank's rows
    k, v          the same with heads_kv heads; every rank has the same number of rows, at least one
    group         a ProcessGroup, a one-dimensional DeviceMesh, or None: all processes
    layout        "ring"        K and V move from rank to rank, overlapped with attention to the previous ones
                  "all_gather"  every rank gets all K and V: short sequences, few key/value heads
                  "all_to_all"  every rank gets all rows of its share of the heads: heads_q is a multiple of the ranks,
                                and heads_kv is a multiple or a divisor of the ranks
    order         the rows of a rank: "zigzag" or "contiguous", as in shard(). Under a causal mask zigzag
                  balances the work; with contiguous, a window of at most one rank's rows needs only the neighbor
    cu_seqlens    offsets of packed documents in the whole sequence: [0, ..., end], a list or a
                  tensor on the CPU; a document may cross rank boundaries. Rows after the last end are padding:
                  their out is 0
    learnable_sink, softcap, softmax_scale, causal, window_size    as in flash_attn_func. Without cu_seqlens
                  the last query of the sequence is aligned with its last key
    batch_invariant   None or False: one result per rank is merged, so bits depend on the number of ranks
    stages        all_gather and all_to_all: groups of key/value heads; sending one overlaps computing another
    check         "always": the ranks compare shapes, dtypes and options before sending data; "first": not
                  again for a call that they already agreed on. With NCCL this waits for the GPU, unless the group
                  also has a backend for CPU tensors: init_process_group("cpu:gloo,cuda:nccl")
    backend       "cute_fa4", or "sdpa": torch's own attention instead of the kernel

    Returns out, or (out, lse), for the rows of q; lse is (batch, heads_q, rows) or (heads_q, rows).

    q, k, v and learnable_sink have gradients in bf16 and fp16, at head dims up to 256 (docs/distributed.md). Every
    rank must go backward through the same calls in the same order, also a rank whose loss does not depend on out: add
    0 * out.sum() to it. The gradient of learnable_sink is that of this rank's rows, as for every parameter that each
    rank has a copy of: the ranks' gradients add up to that of the sum of their losses, and the mean that
    DistributedDataParallel takes over the group is the gradient of the mean of their losses.

    Every rank of the group makes the same call. Raises on every rank: the errors of flash_attn_func, RankError if
    another rank refused or ranks disagree, GroupError if a rank has exited; NotImplementedError for gradients that are
    not supported, and inside of transforms of torch.func.
    """
    ranks = ranks_of(group)
    if autocast.is_any_enabled():
        q, k, v = autocast.cast(q, k, v)
    asked: dict = {}

    def checked() -> dict:
        refuse_invariance("context_parallel_attention", batch_invariant)
        tensors = {"q": q, "k": k, "v": v}
        refuse_untraceable(
            "context_parallel_attention", tensors | {"learnable_sink": learnable_sink}
        )
        for name, tensor in tensors.items():
            check_is_tensor(name, tensor)
        choices = _Choices(layout, order, check, stages, return_lse)
        choices.check()
        documents = _checked_rows(ranks, tensors, choices, cu_seqlens)
        options = resolve(
            q, gradients=True, softmax_scale=softmax_scale, causal=causal, window_size=window_size,
            learnable_sink=learnable_sink, softcap=softcap,
        )  # fmt: skip
        cap = float(softcap or 0.0)
        chosen = backend_of(backend)
        chosen.check(*(x.detach() for x in (q, k, v)), cap)
        gradients.check(chosen, q, k, v, learnable_sink)
        q_rows, k_rows = (x.shape[1 if x.dim() == 4 else 0] for x in (q, k))
        problem = Problem(ranks.size, q_rows, k_rows, order, band_of(options), documents)
        asked["work"] = Work(
            ranks, problem, chosen, options.softmax_scale, cap, options.sink, index(stages)
        )
        asked["gradients"] = gradients.wanted(q, k, v, learnable_sink)
        words = _words(q, k, v, asked["work"], layout, backend) | {"check": check}
        if asked["gradients"]:
            words |= {"gradients": asked["gradients"], "return_lse": return_lse}
        return words

    device = q.device if isinstance(q, torch.Tensor) else torch.device("cpu")
    agree(ranks, "context_parallel_attention", device, check, checked)
    if asked["gradients"]:
        of_call = {"layout": layout, "check": check, "return_lse": return_lse}
        out, lse = gradients.differentiable(asked["work"], q, k, v, learnable_sink, of_call)
    else:
        out, lse = LAYOUTS[layout](asked["work"], q, k, v)
    return (out, lse) if return_lse else out


def refuse_invariance(function: str, batch_invariant) -> None:
    """Results of ranks are merged, and their number is part of the arithmetic."""
    policy.check_batch_invariant(batch_invariant)
    if batch_invariant:
        raise NotImplementedError(
            f"batch_invariant: True in {function}, which merges one result per rank: the bits of a row depend on the "
            "number of ranks; accepted: None or False; split heads or batches over the ranks and call flash_attn_func "
            "with batch_invariant=True on each (docs/invariance.md)"
        )


class _Choices(NamedTuple):
    """How the ranks divide a call, and whether it returns the log-sum-exp."""

    layout: str
    order: str
    check_of_ranks: str
    stages: int
    return_lse: bool

    def check(self) -> None:
        """Refuse values that are not accepted, by the names of the arguments."""
        layout, order, check, stages, return_lse = self
        if layout not in LAYOUTS:
            raise ValueError(f"layout: {layout!r}; accepted: {', '.join(map(repr, LAYOUTS))}")
        check_answers(check, return_lse)
        if isinstance(stages, bool) or not hasattr(stages, "__index__"):
            raise TypeError(f"stages: a {type(stages).__name__}; accepted: 1 to {MAX_STAGES}")
        if not 1 <= index(stages) <= MAX_STAGES:
            raise ValueError(f"stages: {stages}; accepted: 1 to {MAX_STAGES}")
        check_order(order)


def _checked_rows(
    ranks: Ranks, tensors: dict, choices: _Choices, cu_seqlens
) -> tuple[int, ...] | None:
    """Check the rows and heads that this rank has; the ends of the documents. tensors: q, k, v."""
    q, k, _ = tensors.values()
    axes = AXES[4 if cu_seqlens is None else 3]
    for name, tensor in tensors.items():
        check_rank(name, tensor, axes)
        rows = tensor.shape[-3]
        if not rows:
            raise ValueError(
                f"{name}: 0 rows on rank {ranks.rank}; accepted: equally many on every rank, at least 1; pad the "
                "sequence and pass cu_seqlens=[0, its length]"
            )
        check_rows(f"{name}: {rows} rows", rows * ranks.size, ranks.size, choices.order)
    documents = None if cu_seqlens is None else _documents(cu_seqlens, q, k, ranks.size)
    if choices.layout == "all_to_all":
        _check_heads(q.shape[-2], k.shape[-2], ranks.size)
    return documents


def _documents(cu_seqlens, q, k, ranks: int) -> tuple[int, ...]:
    if isinstance(cu_seqlens, torch.Tensor):
        if cu_seqlens.dim() != 1 or cu_seqlens.is_floating_point():
            raise TypeError(
                f"cu_seqlens: {cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)}; accepted: integers, "
                "one more than documents"
            )
        cu_seqlens = cu_seqlens.tolist()
    if not isinstance(cu_seqlens, (list, tuple)):
        raise TypeError(f"cu_seqlens: a {type(cu_seqlens).__name__}; accepted: a list or a tensor")
    documents = tuple(index(end) for end in cu_seqlens)
    if q.shape[0] != k.shape[0]:
        raise ValueError(
            f"cu_seqlens: with {q.shape[0]} queries and {k.shape[0]} keys; accepted: as many keys as queries"
        )
    rises = all(a <= b for a, b in zip(documents, documents[1:], strict=False))
    rows = q.shape[0] * ranks
    if len(documents) < 2 or documents[0] != 0 or not rises or documents[-1] > rows:
        text = str(cu_seqlens) if len(documents) < 9 else f"{documents[:4]} ... {documents[-1]}"
        raise ValueError(
            f"cu_seqlens: {text} with {q.shape[0]} rows on each of {ranks} ranks; accepted: offsets from 0 to at most "
            f"{rows} that do not decrease"
        )
    return documents


def _check_heads(heads_q: int, heads_kv: int, ranks: int) -> None:
    shared = heads_kv % ranks == 0 or (heads_kv > 0 and ranks % heads_kv == 0)
    if heads_q % ranks or not shared:
        raise ValueError(
            f"layout: 'all_to_all' of {heads_q} query heads and {heads_kv} key/value heads on {ranks} ranks; accepted: "
            "query heads that are a multiple of the ranks, key/value heads that are one or divide them; use 'ring'"
        )


def band_of(options: Options) -> Band:
    """Band of a mask that causal and window_size describe."""
    mask, sizes = options.mask.mask, options.mask.sizes
    if isinstance(mask, masks.Full):
        return Band()
    if isinstance(mask, masks.Causal):
        return Band(None, 0)
    if not isinstance(mask, masks.Window):
        raise TypeError(f"{mask!r}: neither causal nor a window")
    bounds = iter(sizes)
    left = next(bounds) if mask.left else None
    return Band(left, next(bounds) if mask.right else None)


def _words(q, k, v, work: Work, layout: str, backend) -> dict:
    """The values that the ranks compare."""
    problem, sink = work.problem, work.sink
    words = {f"{name}.shape": list(x.shape) for name, x in (("q", q), ("k", k), ("v", v))}
    documents = problem.documents
    return words | {
        "q.dtype": str(q.dtype),
        "device": q.device.type,
        "layout": layout,
        "order": problem.order,
        "window": [problem.band.left, problem.band.right],
        "softmax_scale": work.scale,
        "softcap": work.softcap,
        "learnable_sink": None if sink is None else str(sink.dtype),
        "stages": work.stages,
        "cu_seqlens": None if documents is None else digest(documents),
        "backend": backend if isinstance(backend, str) else type(backend).__name__,
    }


def digest(numbers: Sequence[int]) -> str:
    """A text that differs if the numbers differ."""
    text = hashlib.sha256(repr(list(numbers)).encode()).hexdigest()[:16]
    return f"{len(numbers)} numbers, the last {numbers[-1] if numbers else None}, {text}"
