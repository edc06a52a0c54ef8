"""The same q, k, v with other memory layouts: callers' tensors without copies.

Every layout returns tensors with the values it was given, the last dimension contiguous, and other
strides or storage. Bytes that belong to no tensor are NaN, so that reading them shows.
"""

from __future__ import annotations

import math

import torch

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

LAYOUTS = {}


def layout(function):
    LAYOUTS[function.__name__] = function
    return function


def describe(name: str) -> str:
    return LAYOUTS[name].__doc__.splitlines()[0].rstrip(".")


@layout
def contiguous(q, k, v) -> Tensors:
    """are contiguous."""
    return q, k, v


@layout
def heads_first(q, k, v) -> Tensors:
    """are (batch, heads, seqlen, depth) in memory, passed as transposed views."""
    return tuple(x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))


@layout
def fused_qkv(q, k, v) -> Tensors:
    """are thirds of one (batch, seqlen, 3, heads, depth) tensor: a projection's output."""
    return torch.stack([q, k, v], dim=2).unbind(dim=2)


@layout
def fused_kv(q, k, v) -> Tensors:
    """are q alone and k, v consecutive in the heads of one tensor."""
    kv = torch.cat([k, v], dim=2)
    return q, kv[:, :, : k.shape[2]], kv[:, :, k.shape[2] :]


@layout
def depth_slice(q, k, v) -> Tensors:
    """are the columns from 8 on of wider rows: a base address of 16 bytes, not more."""
    return tuple(_inside(x, before=(0, 0, 0, 8), after=(0, 0, 0, 16)) for x in (q, k, v))


@layout
def inside_nan(q, k, v) -> Tensors:
    """are slices in every dimension of tensors that are NaN elsewhere."""
    return tuple(_inside(x, before=(1, 3, 1, 0), after=(1, 5, 2, 8)) for x in (q, k, v))


@layout
def expanded(q, k, v) -> Tensors:
    """are q alone and k, v of one batch entry for all, with stride 0."""
    return q, k[:1].expand_as(k), v[:1].expand_as(v)


def _inside(x: torch.Tensor, before: tuple, after: tuple) -> torch.Tensor:
    """x as a slice of a larger tensor that is NaN elsewhere."""
    sizes = [b + n + a for b, n, a in zip(before, x.shape, after, strict=True)]
    outer = x.new_full(sizes, math.nan)
    inner = outer[tuple(slice(b, b + n) for b, n in zip(before, x.shape, strict=True))]
    return inner.copy_(x)
