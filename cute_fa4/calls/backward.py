"""The backward pass of a call: gradients of q, k and v by one compiled function of three kernels (sm100/backward)."""

from __future__ import annotations

from typing import NamedTuple

import torch

from cute_fa4.calls.launch import function_for, launching_on
from cute_fa4.calls.operands.strides import with_plain_strides
from cute_fa4.calls.operands.tensors import MAX_CTAS
from cute_fa4.dtypes import UNQUANTIZED, names_of
from cute_fa4.layouts.scalars import maximum
from cute_fa4.sm100.backward.config import ROWS, STATS, BackwardConfig
from cute_fa4.system.devices import target_of

DTYPES = names_of(UNQUANTIZED)
FARTHEST = 1 << 29  # a side of a window that reaches further is as good as open


class Attended(NamedTuple):
    """What the forward pass read and wrote: dense tensors, or packed ones with offsets and longest lengths.

    q, out  (batch, seqlen_q, heads_q, head_dim), packed: (total_q, heads_q, head_dim); lse: (batch, heads_q, seqlen_q),
            packed: (heads_q, total_q), float32
    k, v    (batch, seqlen_k, heads_kv, head_dim), packed: (total_k, heads_kv, head_dim)
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


class Scores(NamedTuple):
    """The scale, and the window: None is an open side, causal is right=0."""

    softmax_scale: float
    left: int | None = None
    right: int | None = None


def config_of(attended: Attended, scores: Scores, with_dlse: bool, arch: str) -> BackwardConfig:
    """The kernels that a call needs."""
    return BackwardConfig(
        DTYPES[attended.q.dtype],
        attended.q.shape[-1],
        attended.v.shape[-1],
        packed=attended.cu_seqlens_q is not None,
        left=scores.left is not None,
        right=scores.right is not None,
        dlse=with_dlse,
        arch=arch,
    )


def gradients(attended: Attended, dout, dlse, scores: Scores) -> tuple:
    """-> (dq, dk, dv) of checked tensors. dout: as out; dlse: as lse, or None where nothing used it.

    Rows of packed tensors that belong to no sequence have gradients of zero, which no kernel writes.
    """
    q, k, v = attended.q, attended.k, attended.v
    packed = attended.cu_seqlens_q is not None
    nothing = q.numel() == 0 or k.numel() == 0 or (packed and 0 in attended[-2:])
    new = torch.zeros_like if packed or nothing else torch.empty_like
    dq, dk, dv = (new(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    if nothing:
        return dq, dk, dv
    batch, longest = q.shape[0], (q.shape[1], k.shape[1])
    if packed:
        batch, longest = attended.cu_seqlens_q.shape[0] - 1, attended[-2:]
    tiles = -(-longest[0] // ROWS)
    ctas = batch * q.shape[-2] * maximum(tiles, -(-longest[1] // ROWS))
    if ctas > MAX_CTAS:
        raise ValueError(
            f"q: shape {tuple(q.shape)} takes a grid of {ctas} CTAs of {ROWS} rows in the backward pass; accepted: at "
            f"most {MAX_CTAS}; split the call along batch"
        )
    tiles = q.shape[0] // ROWS + batch if packed else batch * tiles
    stats = torch.empty((q.shape[-2], tiles, STATS), dtype=torch.float32, device=q.device)
    target = target_of(q.device)
    function = function_for(config_of(attended, scores, dlse is not None, target.arch), target)
    read = *map(_aligned, (q, k, v, attended.out)), _last(attended.lse), _aligned(dout)
    written = map(with_plain_strides, (dq, dk, dv))
    with launching_on(q.device):
        function(
            *read,
            None if dlse is None else _last(dlse),
            *written,
            stats,
            scores.softmax_scale,
            *(_side(side) for side in (scores.left, scores.right)),
            attended.cu_seqlens_q,
            attended.cu_seqlens_k,
            *longest,
        )
    return dq, dk, dv


def _side(size: int | None) -> int:
    return 0 if size is None else max(-FARTHEST, min(FARTHEST, size))


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """With strides and an address that TMA takes: autograd hands over gradients of any strides, also of 0."""
    multiple = 16 // tensor.element_size()
    aligned = all(stride % multiple == 0 and stride > 0 for stride in tensor.stride()[:-1])
    if not (aligned and tensor.stride(-1) == 1 and tensor.data_ptr() % 16 == 0):
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    return with_plain_strides(tensor)


def _last(tensor: torch.Tensor) -> torch.Tensor:
    """With neighbours along the last dimension."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] < 2 else tensor.contiguous()
