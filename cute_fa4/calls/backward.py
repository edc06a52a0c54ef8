"""The backward pass of a call: gradients of q, k and v, by one compiled function of several kernels, and of sinks.

The kernels (sm100/backward) know dense tensors, and packed ones. Padded tensors are packed ones whose sequences begin
at multiples of the padded length and end earlier.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from cute_fa4.calls.block_lists import (
    Lists,
    Side,
    for_keys,
    for_queries,
    kinds_of_tiles,
    longest_first,
)
from cute_fa4.calls.launch import function_for, launching_on
from cute_fa4.calls.operands.apart import check_apart
from cute_fa4.calls.operands.memory import check_memory, with_plain_strides
from cute_fa4.calls.operands.tensors import DENSE, MAX_CTAS, PACKED
from cute_fa4.calls.options import AUX_DTYPES
from cute_fa4.calls.plan import as_read
from cute_fa4.compiler import policy
from cute_fa4.dtypes import UNQUANTIZED, names_of
from cute_fa4.layouts.scalars import maximum
from cute_fa4.masks import BoundMask, full
from cute_fa4.operands import BLOCKS, LENGTHS_OF_SEQUENCES, NAMES
from cute_fa4.sm100.backward.config import BackwardConfig
from cute_fa4.sm100.backward.joint import COUNTERS
from cute_fa4.sm100.backward.owner import ROWS, STATS
from cute_fa4.sm100.blueprint.score_mods import ScoreMod
from cute_fa4.sm100.pair.barriers import CTAS
from cute_fa4.system.devices import target_of

DTYPES = names_of(UNQUANTIZED)
# Tensors that the backward pass takes unchanged, in addition to those that score functions read.
TENSORS = (*LENGTHS_OF_SEQUENCES, "learnable_sink", *NAMES[BLOCKS])
# Parameters of a call with gradients: these, numbers, score functions, and those that change no result.
ACCEPTED = frozenset(
    (
        *TENSORS,
        "softmax_scale",
        "mask",
        "score_mod",
        "mask_mod",
        "aux_tensors",
        "max_seqlen_q",
        "max_seqlen_k",
        "block_sparse_tensors",
        "block_size",
    )
    + ("num_splits", "tokens_per_split", "batch_invariant", "pack_gqa")
)
FARTHEST = 1 << 29  # a side of a window that reaches further counts as open


class Attended(NamedTuple):
    """Inputs and outputs of the forward pass: dense tensors, packed ones with offsets and longest lengths, or padded.

    q, out  (batch, seqlen_q, heads_q, head_dim), packed: (total_q, heads_q, head_dim); lse: (batch, heads_q, seqlen_q),
            packed: (heads_q, total_q), float32
    k, v    (batch, seqlen_k, heads_kv, head_dim), packed: (total_k, heads_kv, head_dim)
    used    (batch,) int32: lengths of padded sequences, or of packed ones that end before the next one begins;
    limit_k (batch,) int32: how many of the keys may be seen, which moves no query
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor
    cu_seqlens_q: torch.Tensor | None = None
    cu_seqlens_k: torch.Tensor | None = None
    max_seqlen_q: int = 0
    max_seqlen_k: int = 0
    used_q: torch.Tensor | None = None
    used_k: torch.Tensor | None = None
    limit_k: torch.Tensor | None = None

    @property
    def is_dense(self) -> bool:
        return all(x is None for x in (*self[5:7], *self[9:]))


class Scores(NamedTuple):
    """Options that turn scores into weights: the scale, mask, sinks of heads, functions, their aux tensors, lists."""

    softmax_scale: float
    mask: BoundMask = full()
    sink: torch.Tensor | None = None
    score_mod: ScoreMod | None = None
    mask_mod: ScoreMod | None = None
    aux: tuple = ()
    lists: Lists | None = None


class Gradients(NamedTuple):
    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor
    dsink: torch.Tensor | None


def config_of(
    attended: Attended,
    scores: Scores,
    with_dlse: bool,
    arch: str,
    wanted: tuple[int, ...] = (),
    accumulate: bool = False,
) -> BackwardConfig:
    """The kernels that a call needs. wanted: numbers of aux tensors, for the kernels of their gradients."""
    return BackwardConfig(
        DTYPES[attended.q.dtype],
        attended.q.shape[-1],
        attended.v.shape[-1],
        packed=not attended.is_dense,
        used=any(x is not None for x in attended[9:]),
        mask=scores.mask.mask,
        score_mod=scores.score_mod,
        mask_mod=scores.mask_mod,
        aux=tuple((AUX_DTYPES[tensor.dtype], tensor.dim()) for tensor in scores.aux),
        dlse=with_dlse,
        accumulate=accumulate,
        listed=scores.lists is not None,
        wanted=wanted,
        arch=arch,
        pairs=policy.pairs(),
    )


def gradients(
    attended: Attended, dout, dlse, scores: Scores, written: tuple | None = None
) -> Gradients:
    """Gradients for checked tensors. dout: as out; dlse: as lse, or None where nothing used it.

    written  (dq, dk, dv) as `check_written` accepts them. Gradients are added to float32 tensors and stored in those of
             16 bits, except rows of no sequence and those of an empty call. None: new tensors, with zeros in such rows
    """
    call = Launch.of(attended, dout, dlse, scores)
    target = target_of(attended.q.device)
    of_call = call.attended, scores, dlse is not None, target.arch
    accumulate = written is not None and written[0].dtype is torch.float32
    config = config_of(*of_call, accumulate=accumulate)
    call.require_grid(CTAS if config.pairs or config.joint else 1)
    if written is None:
        new = torch.empty_like if call.attended.is_dense and not call.is_empty else torch.zeros_like
        written = tuple(new(x, memory_format=torch.contiguous_format) for x in attended[:3])
    dq, dk, dv = written
    if call.is_empty:
        dsink = _of_unmatched_sinks(call.attended, call.dlse, scores.sink)
        return Gradients(dq, dk, dv, dsink)
    in_memory = (x.view(y.shape) for x, y in zip(written, call.attended[:3], strict=True))
    stats = call.new_stats(config)
    with launching_on(attended.q.device):
        results = tuple(map(with_plain_strides, in_memory))
        if config.joint:
            results += sums_in_turns(config, results[0], stats)
        function_for(config, target)(*call.arguments(results, stats, call.tile_lists()))
    return Gradients(dq, dk, dv, None if scores.sink is None else _of_sinks(stats, scores.sink))


def sums_in_turns(config: BackwardConfig, dq: torch.Tensor, stats: torch.Tensor) -> tuple:
    """Further tensors of the kernel of all gradients (joint.py): counters, and the sum of a dq of 16 bits.

    Counters, which keep additions in order, begin with zeros; the kernel stores to the sum before it adds.
    """
    heads, lines, _ = stats.shape
    counters = torch.zeros(heads * lines + 1, COUNTERS, dtype=torch.int32, device=dq.device)
    if config.accumulate:
        return (counters,)
    return counters, torch.empty(dq.shape, dtype=torch.float32, device=dq.device)


def float32_zeros(attended: Attended) -> tuple:
    """(dq, dk, dv) to which gradients can be added."""
    return tuple(
        torch.zeros_like(x, dtype=torch.float32, memory_format=torch.contiguous_format)
        for x in attended[:3]
    )


def check_written(attended: Attended, written: tuple, accumulate: bool, read: dict) -> None:
    """ValueError or TypeError, by name, for tensors that the kernels cannot write.

    written  (dq, dk, dv)
    read     the other tensors of the call, by name, with which they share no memory
    """
    dtype = attended.q.dtype
    accepted = (torch.float32,) if accumulate else (dtype, torch.float32)
    if written[0].dtype not in accepted or len({x.dtype for x in written}) > 1:
        raise TypeError(
            f"dq, dk, dv: {', '.join(str(x.dtype) for x in written)} with accumulate={accumulate}; accepted: one of "
            f"{', '.join(map(str, accepted))} for all three"
        )
    for name, like, x in zip(("q", "k", "v"), attended[:3], written, strict=True):
        if x.shape != like.shape or x.device != like.device:
            raise ValueError(
                f"d{name}: shape {tuple(x.shape)} on {x.device}; accepted: {tuple(like.shape)} on {like.device}, "
                f"as {name}"
            )
        check_memory(f"d{name}", x, DENSE if x.dim() == len(DENSE) else PACKED)
        if not attended.is_dense and x.dim() == len(DENSE) and not x.is_contiguous():
            raise ValueError(
                f"d{name}: strides {x.stride()} of padded sequences; accepted: a contiguous tensor"
            )
    check_apart(dict(zip(("dq", "dk", "dv"), written, strict=True)), read)


class Launch(NamedTuple):
    """What kernels of the backward pass read: dense tensors, or packed ones. dout, dlse: of the same form."""

    attended: Attended
    dout: torch.Tensor
    dlse: torch.Tensor | None
    scores: Scores

    @staticmethod
    def of(attended: Attended, dout, dlse, scores: Scores) -> Launch:
        """ValueError for more CTAs than a grid has."""
        if not attended.is_dense:
            attended, dout, dlse = _packed(attended, dout, dlse)
        call = Launch(attended, dout, dlse, scores)
        call.require_grid(1)
        return call

    def require_grid(self, shared: int) -> None:
        """ValueError for more CTAs than a grid has. shared: how many own rows together, all of which are launched."""
        shape, rows = tuple(self.attended.q.shape), ROWS * shared
        ctas = self.batch * shape[-2] * shared * maximum(*(-(-x // rows) for x in self.longest))
        if ctas > MAX_CTAS:
            raise ValueError(
                f"q: shape {shape} takes a grid of {ctas} CTAs of {ROWS} rows in the backward pass; accepted: at most "
                f"{MAX_CTAS}; split the call along batch"
            )

    @property
    def batch(self) -> int:
        offsets = self.attended.cu_seqlens_q
        return self.attended.q.shape[0] if offsets is None else offsets.shape[0] - 1

    @property
    def longest(self) -> tuple[int, int]:
        """Rows of the longest sequence of queries, and of keys."""
        q, k = self.attended[:2]
        return (q.shape[1], k.shape[1]) if self.attended.is_dense else self.attended[7:9]

    @property
    def is_empty(self) -> bool:
        """Whether no query meets a key."""
        return 0 in (*(x.numel() for x in self.attended[:2]), *self.longest)

    @property
    def tiles(self) -> int:
        """Tiles of queries of the longest sequence."""
        return -(-self.longest[0] // ROWS)

    @property
    def sequences(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(queries, keys, first row of queries) of every sequence, as sm100/backward/work.py has them."""
        of, numbers = self.attended, torch.arange(self.batch, device=self.attended.q.device)
        if of.cu_seqlens_q is None or of.cu_seqlens_k is None:
            rows_q, rows_k = (torch.full_like(numbers, rows) for rows in self.longest)
            return rows_q, rows_k, numbers * of.q.shape[1]
        first, rows_q = _between(of.cu_seqlens_q.long(), of.q.shape[0])
        _, rows_k = _between(of.cu_seqlens_k.long(), of.k.shape[0])
        if of.used_q is not None and of.used_k is not None:  # both or neither
            rows_q, rows_k = (
                torch.minimum(used.long().clamp(min=0), rows)
                for used, rows in ((of.used_q, rows_q), (of.used_k, rows_k))
            )
        return rows_q, rows_k, first

    def new_stats(self, config: BackwardConfig) -> torch.Tensor:
        q, ragged = self.attended.q, not self.attended.is_dense
        tiles = q.shape[0] // ROWS + self.batch if ragged else self.batch * self.tiles
        new = torch.zeros if ragged and self.scores.sink is not None else torch.empty
        return new(
            (q.shape[-2], tiles, config.numbers_of_tile), dtype=torch.float32, device=q.device
        )

    def tile_lists(self, of_queries_alone: bool = False) -> tuple | None:
        """Counts, entries and order of tiles for the owner of queries, then for that of keys; None: no lists.

        of_queries_alone: counts and entries for the first
        """
        of, lists = self.attended, self.scores.lists
        if lists is None:
            return None
        lengths = (None, None) if of.is_dense else self.sequences[:2]
        queries, keys = map(Side, self.longest, lengths)
        kinds = kinds_of_tiles(lists, queries, keys, self.batch)
        if of_queries_alone:
            return for_queries(kinds)
        heads_q, heads_kv = (x.shape[-2] for x in of[:2])
        owned = (for_queries(kinds), heads_q), (for_keys(kinds, heads_q // heads_kv), heads_kv)
        orders = [longest_first(counts, self.batch, heads) for (counts, _), heads in owned]
        return *owned[0][0], orders[0], *owned[1][0], orders[1]

    def arguments(self, written: tuple, stats: torch.Tensor, tile_lists: tuple | None) -> tuple:
        """Of a compiled function. written: what it writes besides stats."""
        of, scores = self.attended, self.scores
        lengths = *self.longest, *of[5:7], *(x for x in of[9:] if x is not None)
        return (
            *map(_aligned, of[:4]),
            _last(of.lse),
            _aligned(self.dout),
            None if self.dlse is None else _last(self.dlse),
            written,
            stats,
            scores.softmax_scale,
            tuple(max(-FARTHEST, min(FARTHEST, size)) for size in scores.mask.sizes) or None,
            as_read(scores.aux) or None,
            None if of.is_dense else lengths,
            tile_lists,
        )


def _packed(attended: Attended, dout, dlse) -> tuple:
    """-> (packed Attended, dout, dlse): padded tensors as packed ones, with the lengths of both sides or of none."""
    q, k, v, out, lse, cu_q, cu_k, longest_q, longest_k, used_q, used_k, limit_k = attended
    if cu_q is None:
        longest_q, cu_q = q.shape[1], _steps(q)
        q, out, dout = (x.flatten(0, 1) for x in (q, out, dout))
        lse = lse.transpose(0, 1).flatten(1)
        dlse = None if dlse is None else dlse.transpose(0, 1).flatten(1)
    if cu_k is None:
        longest_k, cu_k = k.shape[1], _steps(k)
        k, v = k.flatten(0, 1), v.flatten(0, 1)
    if any(x is not None for x in attended[9:]):
        used_q = cu_q.diff() if used_q is None else used_q
        used_k = cu_k.diff() if used_k is None else used_k
        limit_k = used_k if limit_k is None else limit_k
    lengths = cu_q, cu_k, longest_q, longest_k, used_q, used_k, limit_k
    return Attended(q, k, v, out, lse, *lengths), dout, dlse


def _between(offsets: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """-> (first row, number of rows) of every sequence, clamped to the rows that exist."""
    first = offsets[:-1].clamp(0, rows)
    return first, torch.maximum(offsets[1:].clamp(max=rows), first) - first


def _steps(tensor: torch.Tensor) -> torch.Tensor:
    """Offsets of the sequences of a batch that are all of one length."""
    batch, rows = tensor.shape[:2]
    return torch.arange(batch + 1, dtype=torch.int32, device=tensor.device) * rows


def _of_sinks(stats: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """A sink is a score whose value is zero: the sum over rows of -exp(sink - lse) delta, in its own order.

    Rows without keys whose sink is below the limit of scores have lse +inf (sm100/backward/delta.py), and weight 1.

    stats: (heads, tiles, [log-sum-exps in powers of two, deltas, ...]), as sm100/backward/delta.py writes them.
    """
    lse, delta = stats[..., :STATS].unflatten(-1, (2, ROWS)).unbind(-2)
    of_rows = sink.float()[:, None, None]
    weight = weights_of_sinks(of_rows * math.log2(math.e), lse, torch.exp2)
    weight = torch.where(lse == math.inf, (of_rows > -math.inf).float(), weight)
    return -torch.where(delta == 0, 0.0, weight * delta).sum((1, 2)).to(sink.dtype)


def weights_of_sinks(sink: torch.Tensor, lse: torch.Tensor, power=torch.exp) -> torch.Tensor:
    """power(sink - lse), at most 1; both may be infinite."""
    return torch.where(sink == lse, 1.0, power((sink - lse).clamp(max=0.0)))


def _of_unmatched_sinks(attended: Attended, dlse, sink) -> torch.Tensor | None:
    """The result of a call without keys: the log-sum-exp of every row is its sink."""
    if sink is None or dlse is None or dlse.numel() == 0:
        return None if sink is None else torch.zeros_like(sink)
    if attended.is_dense:
        return dlse.sum((0, 2)).to(sink.dtype)
    rows = torch.arange(dlse.shape[1], device=dlse.device)
    offsets = attended.cu_seqlens_q
    assert offsets is not None  # Launch.of packs what is not dense
    lengths = offsets.diff() if attended.used_q is None else attended.used_q
    of = (torch.searchsorted(offsets, rows, right=True) - 1).clamp(0, lengths.shape[0] - 1)
    inside = (rows >= offsets[of]) & (rows < offsets[of] + lengths[of])
    return torch.where(inside, dlse, 0.0).sum(1).to(sink.dtype)


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The gradient with strides and an address that TMA accepts: autograd may pass any strides, even 0."""
    multiple = 16 // tensor.element_size()
    aligned = all(stride % multiple == 0 and stride > 0 for stride in tensor.stride()[:-1])
    if not (aligned and tensor.stride(-1) == 1 and tensor.data_ptr() % 16 == 0):
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    return with_plain_strides(tensor)


def _last(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with a contiguous last dimension."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] < 2 else tensor.contiguous()
