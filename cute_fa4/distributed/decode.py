"""decode_attention: new queries over a cache whose keys are distributed over the ranks of a group.

    queries        of every rank's heads, to all ranks                        one all-gather
    attention      of all queries to the rank's keys: (out, lse), float32     no communication
    results        each rank gets all partial results of its own heads        one all-to-all
    merge          one kernel (sm100/combine)

Key p of a sequence is on rank p // interleave % ranks, in row p // (interleave * ranks) * interleave + p % interleave
of the sequence there. For 10 keys on 2 ranks:

    interleave 1               rank 0   0 2 4 6 8        token by token
                               rank 1   1 3 5 7 9
    interleave 4, a page       rank 0   0 1 2 3 8 9      page by page
                               rank 1   4 5 6 7
    interleave 8, a range      rank 0   0 1 2 3 4 5 6 7  fills the cache of one rank before the next
                               rank 1   8 9

A message has rows of out, each followed by its log-sum-exp in 16 bytes:

    out[0] ... out[head_dim - 1] | lse, 12 unused bytes
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from operator import index
from typing import Any, NamedTuple

import torch

from cute_fa4.calls.operands import autocast
from cute_fa4.calls.operands.tensors import check_is_tensor, check_one_device, check_rank
from cute_fa4.calls.operands.tracing import refuse_untraceable
from cute_fa4.calls.options import resolve
from cute_fa4.calls.request import Options
from cute_fa4.distributed import transport
from cute_fa4.distributed.attention import band_of, digest, refuse_invariance
from cute_fa4.distributed.backends import AXES, backend_of
from cute_fa4.distributed.geometry import Band
from cute_fa4.distributed.groups import Ranks, agree, check_answers, ranks_of

HEADS = ("split", "all")
LSE_BYTES = 16  # per sent row: a float, and padding that keeps the next row aligned
FAR = 1 << 30  # further than any key is from any query


@dataclass(frozen=True)
class Cache:
    """The keys of a rank, for a backend.

    lengths   (batch,) int32: keys of each sequence on this rank
    first     (batch,) int32: position of the first query of each sequence
    place     (5,) int32: interleave, interleave * ranks, interleave * rank, and the left and right side of the window
    masked    whether the mask can hide an existing key
    """

    k: torch.Tensor
    v: torch.Tensor
    lengths: torch.Tensor
    first: torch.Tensor
    place: torch.Tensor
    masked: bool
    page_table: torch.Tensor | None
    kv_layout: str
    cu_seqlens_q: torch.Tensor | None
    max_seqlen_q: int | None


def local_lengths(
    cache_seqlens: torch.Tensor, rank: int, ranks: int, interleave: int
) -> torch.Tensor:
    """Keys of each sequence on a rank, int32, on the device of the lengths; nothing is read on the host.

    >>> lengths = torch.tensor([10, 3, 0], dtype=torch.int32)
    >>> [local_lengths(lengths, rank, 2, 4).tolist() for rank in range(2)]
    [[6, 3, 0], [4, 0, 0]]
    """
    turn = interleave * ranks
    rest = torch.remainder(cache_seqlens, turn) - rank * interleave
    full = torch.div(cache_seqlens, turn, rounding_mode="floor") * interleave
    return (full + rest.clamp(0, interleave)).to(torch.int32)


@torch.compiler.disable(reason="decode_attention: ranks compare the call on the host")
def decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cache_seqlens: torch.Tensor,
    *,
    group=None,
    interleave: int | None = None,
    heads: str = "split",
    page_table: torch.Tensor | None = None,
    kv_layout: str = "NHD",
    cu_seqlens_q: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    softmax_scale: float | None = None,
    causal: bool = True,
    window_size: tuple[int | None, int | None] | None = (None, None),
    learnable_sink: torch.Tensor | None = None,
    softcap: float | None = 0.0,
    num_splits: int | None = None,
    wire_dtype: torch.dtype | None = None,
    return_lse: bool = False,
    batch_invariant: bool | None = None,
    check: str = "always",
    backend="cute_fa4",
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of new queries to the keys of all ranks, as one GPU with the whole cache would compute it.

    q               (batch, seqlen_q, heads, head_dim), or (total_q, heads, head_dim) with cu_seqlens_q
    k_cache, v_cache  this rank's keys: (batch, rows, heads_kv, head_dim), or with page_table (num_pages, page_size,
                    heads_kv, head_dim), with kv_layout="HND" (num_pages, heads_kv, page_size, head_dim); including the
                    keys of the new queries (local_lengths says which rank has them)
    cache_seqlens   (batch,) int32: keys of each sequence, summed over the ranks; the same on every rank
    interleave      number of consecutive keys on one rank, in round-robin order. None: with page_table a
                    page, else all rows of the cache
    heads           "split": q and the result have this rank's heads, rank 0's first, as in tensor parallelism;
                    "all": q and the result have all heads, the same on every rank
    page_table      (batch, pages) int32: the pages of this rank
    learnable_sink  (heads of q,)
    num_splits      number of parts of each rank's keys; None: chosen
    wire_dtype      dtype of sent partial results: torch.float32 (None), or the dtype of q: half the bytes, and each
                    part is rounded once
    batch_invariant, check   as in context_parallel_attention; so are the other parameters and the errors

    Returns out, or (out, lse), for the rows of q. Ranks without keys of a sequence add nothing to it. The lengths
    stay on the GPU. After its first execution, a call with NCCL can be captured in a CUDA graph.
    """
    ranks = ranks_of(group)
    if autocast.is_any_enabled():
        (q,) = autocast.cast(q)
    asked: dict[str, Any] = {}

    def checked() -> dict:
        refuse_invariance("decode_attention", batch_invariant)
        given = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "cache_seqlens": cache_seqlens}
        refuse_untraceable("decode_attention", given | {"learnable_sink": learnable_sink})
        for name, tensor in given.items():
            check_is_tensor(name, tensor)
        _check_choices(q, heads, wire_dtype, check, return_lse, cu_seqlens_q, cache_seqlens)
        options = resolve(
            q, softmax_scale=softmax_scale, causal=causal, window_size=window_size,
            learnable_sink=learnable_sink, softcap=softcap, num_splits=num_splits,
        )  # fmt: skip
        run = asked["run"] = _Run(
            ranks, backend_of(backend), options, float(softcap or 0.0), heads,
            torch.float32 if wire_dtype is None else wire_dtype,
        )  # fmt: skip
        step = _interleave(interleave, k_cache, page_table, kv_layout)
        every = run.all_heads(q)
        asked["every"] = every
        band = band_of(options)
        where = _Where(cache_seqlens, page_table, kv_layout, cu_seqlens_q, max_seqlen_q)
        asked["cache"] = cache = _cache(ranks, step, band, every, (k_cache, v_cache), where)
        run.backend.check_cache(every, cache, run.softcap)
        return _words(q, k_cache, cache_seqlens, step, band, run, backend) | {"check": check}

    device = q.device if isinstance(q, torch.Tensor) else torch.device("cpu")
    agree(ranks, "decode_attention", device, check, checked)
    out, lse = asked["run"](q, asked["every"], asked["cache"])
    return (out, lse) if return_lse else out


@dataclass(frozen=True)
class _Run:
    ranks: Ranks
    backend: Any  # a class of backends.py
    options: Options
    softcap: float
    heads: str
    wire: torch.dtype

    def all_heads(self, q: torch.Tensor) -> torch.Tensor:
        """Memory for the queries of all heads, or q."""
        if self.heads == "all":
            return q
        return q.new_empty((*q.shape[:-2], q.shape[-2] * self.ranks.size, q.shape[-1]))

    def __call__(self, q, every, cache: Cache) -> tuple[torch.Tensor, torch.Tensor]:
        size, heads = self.ranks.size, q.shape[-2]
        if self.heads == "split":
            gathered = transport.all_gather(self.ranks, q.contiguous(), "queries")()
            every.unflatten(-2, (size, heads)).copy_(gathered.movedim(0, -3))
        out, lse = self.backend.decode(every, cache, self.options, self.softcap)
        if self.heads == "split":
            out = out.unflatten(-2, (size, heads)).movedim(-3, 0)
            lse = lse.unflatten(-2, (size, heads)).movedim(-3, 0)
        return self.merged(q, self.exchanged(out, lse))

    def exchanged(self, out, lse) -> _Rows:
        """Rows of partial results, (ranks [+ 1 for the sink], rows ..., heads, bytes), of this rank's heads."""
        rows = _Rows.empty((), out.shape[:-1], out.shape[-1], self.wire, out.device)
        rows.out.copy_(out)
        rows.lse.copy_(lse.movedim(-1, -2))
        shape = out.shape[1:-1] if self.heads == "split" else out.shape[:-1]
        size = self.ranks.size
        sink = self.options.sink
        received = _Rows.empty(
            (size + (sink is not None),), shape, out.shape[-1], self.wire, out.device
        )
        move = transport.all_to_all if self.heads == "split" else transport.all_gather
        move(self.ranks, rows.memory, "partial results", into=received.memory[:size])()
        if sink is not None:
            received.out[size:].zero_()
            received.lse[size:].copy_(sink.expand(shape))
        return received

    def merged(self, q, rows) -> tuple[torch.Tensor, torch.Tensor]:
        lses = rows.lse.movedim(-1, -2).contiguous()
        return self.backend.merged(rows.out, lses, q.dtype)


@dataclass(frozen=True)
class _Rows:
    """Memory of sent rows, with views of its parts."""

    memory: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor

    @classmethod
    def empty(cls, parts: tuple, shape: tuple, depth: int, dtype: torch.dtype, device) -> _Rows:
        nbytes = depth * dtype.itemsize
        memory = torch.empty((*parts, *shape, nbytes + LSE_BYTES), dtype=torch.uint8, device=device)
        return cls(
            memory, memory.view(dtype)[..., :depth], memory.view(torch.float32)[..., nbytes // 4]
        )


@lru_cache(maxsize=256)
def _place(interleave: int, ranks: int, rank: int, band: Band, device) -> torch.Tensor:
    """Cached, because a captured graph cannot copy host values."""
    far = (FAR if side is None else side for side in (band.left, band.right))
    numbers = (interleave, interleave * ranks, interleave * rank, *far)
    return torch.tensor(numbers, dtype=torch.int32, device=device)


class _Where(NamedTuple):
    """Lengths, pages and offsets of a call, by the names of its arguments."""

    cache_seqlens: torch.Tensor
    page_table: torch.Tensor | None
    kv_layout: str
    cu_seqlens_q: torch.Tensor | None
    max_seqlen_q: int | None


def _cache(ranks: Ranks, step: int, band: Band, q, caches: tuple, where: _Where) -> Cache:
    offsets, lengths = where.cu_seqlens_q, where.cache_seqlens
    queries = q.shape[1] if offsets is None else offsets.diff()
    alone = offsets is None and q.shape[1] == 1 and band.left is None
    k, v = caches
    return Cache(
        k, v,
        local_lengths(lengths, ranks.rank, ranks.size, step),
        (lengths - queries).to(torch.int32),
        _place(step, ranks.size, ranks.rank, band, q.device),
        not (alone or band == Band()),
        where.page_table, where.kv_layout, offsets, where.max_seqlen_q,
    )  # fmt: skip


def _interleave(interleave, k_cache, page_table, kv_layout) -> int:
    if interleave is None:
        return max(1, k_cache.shape[2 if page_table is not None and kv_layout == "HND" else 1])
    if isinstance(interleave, bool) or not hasattr(interleave, "__index__"):
        raise TypeError(
            f"interleave: a {type(interleave).__name__}; accepted: a number of keys, or None"
        )
    if not 1 <= index(interleave) < FAR:
        raise ValueError(f"interleave: {interleave}; accepted: 1 or more, or None")
    return index(interleave)


def _check_choices(q, heads, wire_dtype, check, return_lse, cu_seqlens_q, cache_seqlens) -> None:
    if heads not in HEADS:
        raise ValueError(f"heads: {heads!r}; accepted: {', '.join(map(repr, HEADS))}")
    check_answers(check, return_lse)
    check_rank("q", q, AXES[4 if cu_seqlens_q is None else 3])
    if q.numel() == 0:
        raise ValueError(f"q: shape {tuple(q.shape)}; accepted: at least one query and one head")
    if wire_dtype not in (None, torch.float32, q.dtype):
        raise TypeError(
            f"wire_dtype: {wire_dtype}; accepted: None, torch.float32 or {q.dtype}, that of q"
        )
    if cache_seqlens.dtype != torch.int32 or cache_seqlens.dim() != 1:
        raise TypeError(
            f"cache_seqlens: {cache_seqlens.dtype} of shape {tuple(cache_seqlens.shape)}; accepted: (batch,) int32"
        )
    check_one_device({"q": q, "cache_seqlens": cache_seqlens})


def _words(q, k_cache, cache_seqlens, step: int, band: Band, run: _Run, backend) -> dict:
    """The values that the ranks compare; the number of pages or rows may differ."""
    sink = run.options.sink
    lengths = cache_seqlens.tolist() if cache_seqlens.device.type == "cpu" else None
    return {
        "q.shape": list(q.shape),
        "q.dtype": str(q.dtype),
        "device": q.device.type,
        "batch": cache_seqlens.shape[0],
        "cache_seqlens": None if lengths is None else digest(lengths),
        "interleave": step,
        "heads": run.heads,
        "wire_dtype": str(run.wire),
        "window": [band.left, band.right],
        "softmax_scale": run.options.softmax_scale,
        "softcap": run.softcap,
        "learnable_sink": None if sink is None else str(sink.dtype),
        "backend": backend if isinstance(backend, str) else type(backend).__name__,
    }
