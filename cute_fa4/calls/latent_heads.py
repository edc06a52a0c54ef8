"""Latent caches of several heads, each of which serves equally many query heads: a call for each latent head.

    cache    (num_pages, page_size, heads_kv, 576)
    q, out   heads h * heads_q / heads_kv and the following belong to latent head h

A head of the cache is a view whose rows are heads_kv rows apart, so nothing is copied. Each call writes its heads of
out.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from cute_fa4.calls.operands import autocast
from cute_fa4.calls.operands.latent_rows import is_in_pages
from cute_fa4.calls.operands.tensors import OUT_OF, check_is_tensor, check_rank
from cute_fa4.sm100.choose.choose_config import LATENT_DEPTHS

SINKS = ("attn_sink", "learnable_sink")


def latent_heads(cache, dim: int = 2) -> int:
    """Heads of a latent cache, at this dimension; 1 for what is refused later."""
    is_split = isinstance(cache, torch.Tensor) and cache.dim() == dim + 2 and not is_in_pages(cache)
    return cache.shape[dim] if is_split else 1


def group_of(q, heads: int, dim: int = 2) -> int:
    """Query heads of a latent head. ValueError if they differ."""
    check_is_tensor("q", q)
    check_rank("q", q, ("batch", "seqlen_q", "heads", "head_dim")[2 - dim :])
    if q.shape[dim] % heads:
        raise ValueError(
            f"q: {q.shape[dim]} heads over {heads} of the cache; accepted: a multiple of {heads}, as many for each"
        )
    return q.shape[dim] // heads


def of_each_head(function: Callable, call: dict) -> tuple[torch.Tensor, ...]:
    """function(**call) for a cache of several heads, by calls with one each. call: arguments by name."""
    cache, out = call["k_cache"], call["out"]
    heads = latent_heads(cache)
    group = group_of(call["q"], heads)
    (q,) = autocast.cast(call["q"])
    if out is None:
        out = values_like(q)
    check_is_tensor("out", out)
    check_rank("out", out)
    check_sinks(call, q.shape[2])
    extra = call["extra_k_cache"]
    if extra is not None and latent_heads(extra) != heads:
        raise ValueError(
            f"extra_k_cache: {latent_heads(extra)} heads, k_cache has {heads}; accepted: equally many"
        )
    found = []
    for head in range(heads):
        own = slice(head * group, (head + 1) * group)
        some = {"q": q[:, :, own], "out": out[:, :, own], "k_cache": cache[:, :, head : head + 1]}
        if extra is not None:
            some["extra_k_cache"] = extra[:, :, head : head + 1]
        scale = call["descale_k"]
        if isinstance(scale, torch.Tensor) and scale.shape == cache.shape[:3]:
            some["descale_k"] = scale[:, :, head : head + 1]
        _, *of_rows = function(**call | some | sinks_of(call, own))
        found.append(of_rows)
    return out, *(torch.cat(each, dim=1) for each in zip(*found, strict=True))


def values_like(q: torch.Tensor) -> torch.Tensor:
    """An out for these queries; like q, for its placements where it is a DTensor."""
    return torch.empty_like(
        q[..., : LATENT_DEPTHS[1]],
        dtype=OUT_OF.get(q.dtype),
        memory_format=torch.contiguous_format,
    )


def check_sinks(call: dict, heads: int) -> None:
    """ValueError for sinks that are not one for each query head."""
    for name in SINKS:
        sink = call.get(name)
        if isinstance(sink, torch.Tensor) and tuple(sink.shape) != (heads,):
            raise ValueError(f"{name}: shape {tuple(sink.shape)}; accepted: ({heads},)")


def sinks_of(call: dict, own: slice) -> dict:
    """Those of some query heads."""
    return {name: call[name][own] for name in SINKS if isinstance(call.get(name), torch.Tensor)}
