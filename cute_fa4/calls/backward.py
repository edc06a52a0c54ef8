"""The backward pass of a call: gradients of q, k, v and sinks, by one compiled function of three kernels.

The kernels (sm100/backward) know dense tensors, and packed ones. Padded tensors are packed ones whose sequences begin
at multiples of the padded length and end earlier.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from cute_fa4.calls.launch import function_for, launching_on
from cute_fa4.calls.operands.strides import with_plain_strides
from cute_fa4.calls.operands.tensors import MAX_CTAS
from cute_fa4.calls.options import AUX_DTYPES
from cute_fa4.calls.plan import as_read
from cute_fa4.dtypes import UNQUANTIZED, names_of
from cute_fa4.layouts.scalars import maximum
from cute_fa4.masks import BoundMask, full
from cute_fa4.operands import LENGTHS_OF_SEQUENCES
from cute_fa4.sm100.backward.config import ROWS, STATS, BackwardConfig
from cute_fa4.sm100.blueprint.score_mods import ScoreMod
from cute_fa4.system.devices import target_of

DTYPES = names_of(UNQUANTIZED)
# Tensors that the backward pass takes unchanged, in addition to those that score functions read.
TENSORS = (*LENGTHS_OF_SEQUENCES, "learnable_sink")
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
    )
    + ("num_splits", "tokens_per_split", "pack_gqa")
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
    """Options that turn scores into weights: the scale, mask, sinks of heads, functions and their aux tensors."""

    softmax_scale: float
    mask: BoundMask = full()
    sink: torch.Tensor | None = None
    score_mod: ScoreMod | None = None
    mask_mod: ScoreMod | None = None
    aux: tuple = ()


class Gradients(NamedTuple):
    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor
    dsink: torch.Tensor | None


def config_of(attended: Attended, scores: Scores, with_dlse: bool, arch: str) -> BackwardConfig:
    """The kernels that a call needs."""
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
        arch=arch,
    )


def gradients(attended: Attended, dout, dlse, scores: Scores) -> Gradients:
    """Gradients for checked tensors. dout: as out; dlse: as lse, or None where nothing used it.

    Rows of packed and padded tensors that belong to no sequence have gradients of zero, which no kernel writes.
    """
    ragged = not attended.is_dense
    wanted = attended.q, attended.k, attended.v
    if ragged:
        attended, dout, dlse = _packed(attended, dout, dlse)
    q, k, v = attended[:3]
    nothing = q.numel() == 0 or k.numel() == 0 or (ragged and 0 in attended[7:9])
    new = torch.zeros_like if ragged or nothing else torch.empty_like
    written = [new(x, memory_format=torch.contiguous_format) for x in wanted]
    if nothing:
        return Gradients(*written, _of_unmatched_sinks(attended, dlse, scores.sink))
    batch, longest = q.shape[0], (q.shape[1], k.shape[1])
    if ragged:
        batch, longest = attended.cu_seqlens_q.shape[0] - 1, attended[7:9]
    tiles = -(-longest[0] // ROWS)
    ctas = batch * q.shape[-2] * maximum(tiles, -(-longest[1] // ROWS))
    if ctas > MAX_CTAS:
        raise ValueError(
            f"q: shape {tuple(q.shape)} takes a grid of {ctas} CTAs of {ROWS} rows in the backward pass; accepted: at "
            f"most {MAX_CTAS}; split the call along batch"
        )
    tiles = q.shape[0] // ROWS + batch if ragged else batch * tiles
    new = torch.zeros if ragged and scores.sink is not None else torch.empty
    stats = new((q.shape[-2], tiles, STATS), dtype=torch.float32, device=q.device)
    target = target_of(q.device)
    function = function_for(config_of(attended, scores, dlse is not None, target.arch), target)
    read = *map(_aligned, (q, k, v, attended.out)), _last(attended.lse), _aligned(dout)
    in_memory = (x.view(y.shape) for x, y in zip(written, (q, k, v), strict=True))
    lengths = *longest, *attended[5:7], *(x for x in attended[9:] if x is not None)
    with launching_on(q.device):
        function(
            *read,
            None if dlse is None else _last(dlse),
            *map(with_plain_strides, in_memory),
            stats,
            scores.softmax_scale,
            tuple(max(-FARTHEST, min(FARTHEST, size)) for size in scores.mask.sizes) or None,
            as_read(scores.aux) or None,
            lengths if ragged else None,
        )
    return Gradients(*written, None if scores.sink is None else _of_sinks(stats, scores.sink))


def _packed(attended: Attended, dout, dlse) -> tuple:
    """-> (packed Attended, dout, dlse): padded tensors as packed ones, with the lengths of both sides or of none."""
    q, k, v, out, lse, cu_q, cu_k, longest_q, longest_k, used_q, used_k, limit_k = attended
    if cu_q is None:
        longest_q, cu_q = q.shape[1], _steps(q)
        q, out, dout = (x.flatten(0, 1) for x in (q, out, dout))
        lse, dlse = (None if x is None else x.transpose(0, 1).flatten(1) for x in (lse, dlse))
    if cu_k is None:
        longest_k, cu_k = k.shape[1], _steps(k)
        k, v = k.flatten(0, 1), v.flatten(0, 1)
    if any(x is not None for x in attended[9:]):
        used_q = cu_q.diff() if used_q is None else used_q
        used_k = cu_k.diff() if used_k is None else used_k
        limit_k = used_k if limit_k is None else limit_k
    lengths = cu_q, cu_k, longest_q, longest_k, used_q, used_k, limit_k
    return Attended(q, k, v, out, lse, *lengths), dout, dlse


def _steps(tensor: torch.Tensor) -> torch.Tensor:
    """Offsets of the sequences of a batch that are all of one length."""
    batch, rows = tensor.shape[:2]
    return torch.arange(batch + 1, dtype=torch.int32, device=tensor.device) * rows


def _of_sinks(stats: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """A sink is a score whose value is zero: the sum over rows of -exp(sink - lse) delta, in its own order.

    stats: (heads, tiles, [log-sum-exps in powers of two, deltas]), as sm100/backward/delta.py writes them.
    """
    lse, delta = stats.unflatten(-1, (2, ROWS)).unbind(-2)
    weight = torch.exp2(sink.float()[:, None, None] * math.log2(math.e) - lse)
    return -torch.where(delta == 0, 0.0, weight * delta).sum((1, 2)).to(sink.dtype)


def _of_unmatched_sinks(attended: Attended, dlse, sink) -> torch.Tensor | None:
    """The result of a call without keys: the log-sum-exp of every row is its sink."""
    if sink is None or dlse is None or dlse.numel() == 0:
        return None if sink is None else torch.zeros_like(sink)
    if attended.is_dense:
        return dlse.sum((0, 2)).to(sink.dtype)
    rows = torch.arange(dlse.shape[1], device=dlse.device)
    offsets = attended.cu_seqlens_q
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
