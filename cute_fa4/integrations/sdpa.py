"""scaled_dot_product_attention with torch.nn.functional's interface: (batch, heads, seqlen, head_dim), mask tensors.

Query i sees key j where               is run as
no mask                                full
is_causal          j <= i              keys after the last query removed, then causal; or, with fewer keys than
                                       queries, a window whose right side is seqlen_q - seqlen_k
boolean attn_mask  attn_mask[i, j]     mask_mod that reads it
float attn_mask    always              score_mod that adds it

torch aligns is_causal to the top left, flash_attn_func to the bottom right. They agree for seqlen_q == seqlen_k.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from cute_fa4 import masks
from cute_fa4.calls.operands import autocast
from cute_fa4.calls.operands.tensors import (
    check_is_tensor,
    checked_scale,
)
from cute_fa4.integrations import context_parallel
from cute_fa4.interface import flash_attn_func
from cute_fa4.sm100.blueprint.score_mods import ScoreMod, additive_bias
from cute_fa4.sm100.choose.choose_config import ALL_DEPTHS

HEADS_FIRST = ("batch", "heads", "seqlen", "head_dim")


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    batch_invariant: bool | None = None,
) -> torch.Tensor:
    """torch.nn.functional.scaled_dot_product_attention with this package's kernel.

    query       (..., heads_q, seqlen_q, head_dim), bf16 or fp16; usually (batch, heads_q, seqlen_q, head_dim)
    key         (..., heads_kv, seqlen_k, head_dim)
    value       (..., heads_kv, seqlen_k, head_dim_v)
                Two dimensions or more. Those before heads broadcast, as do heads without enable_gqa. Broadcasts are
                not copied, except for tensors of five dimensions or more whose batches do not merge into one dimension
    attn_mask   bool, True: visible; or float32 or query's dtype, added to the scaled scores. Two dimensions or more,
                which broadcast to (..., heads_q, seqlen_q, seqlen_k)
    dropout_p   0.0
    is_causal   query i sees keys j <= i, also if seqlen_q and seqlen_k differ; not with attn_mask
    scale       positive; None: head_dim ** -0.5
    enable_gqa  heads_q may be a multiple of heads_kv. Without it they are equal, or heads_kv is 1
    batch_invariant  as in flash_attn_func; torch's function has no such parameter

    Returns (..., heads_q, seqlen_q, head_dim_v), a transposed view. A query that sees no key, because attn_mask is
    False or -inf in its whole row, has output 0, as in torch 2.13 on a CPU.

    query, key, value and attn_mask are read in place: transposed and expanded views are not copied. The exception
    is a head_dim without a kernel: such tensors are copied and padded with zeros to the next supported one, which
    changes no score. A mask tensor is read for every score and skips no key tiles. is_causal and flash_attn_func's
    window_size, key_limit or mask are faster where they can express the mask.

    Raises the errors of flash_attn_func, with query, key and value for its q, k and v.
    """
    if context_parallel.has_rows_elsewhere(query):
        scale = checked_scale(scale, query.shape[-1])
        _check_choices(query, key, attn_mask, dropout_p, is_causal, enable_gqa)
        choices = attn_mask, is_causal, scale, batch_invariant
        return context_parallel.attention(query, key, value, *choices, padded_depths)
    context_parallel.refuse_own_rows_alone()
    query, key, value = autocast.cast(query, key, value)
    if attn_mask is not None and getattr(attn_mask, "dtype", None) is not torch.float32:
        (attn_mask,) = autocast.cast(attn_mask)
    tensors = {"query": query, "key": key, "value": value}
    for name, tensor in tensors.items():
        check_is_tensor(name, tensor)
    rank, batches = max(tensor.dim() for tensor in tensors.values()), None
    if not _are_plain(query, key, value):
        query, key, value, batches = broadcast(tensors, enable_gqa)
    _check_choices(query, key, attn_mask, dropout_p, is_causal, enable_gqa)
    scale = checked_scale(scale, query.shape[-1])
    options = options_of_mask(attn_mask, query, key.shape[2], batches)
    if is_causal:
        options["mask"], key, value = top_left_causal(query, key, value)
    options |= {"softmax_scale": scale, "batch_invariant": batch_invariant}
    out = attention(query, key, value, **options)
    if batches is None:
        return out
    out = out.unflatten(0, batches) if len(batches) > 1 else out
    return out[(0,) * (len(HEADS_FIRST) - rank)] if rank < len(HEADS_FIRST) else out


def _are_plain(query, key, value) -> bool:
    """Four dimensions and the same batch size: nothing is broadcast except one head of keys and values."""
    if not query.dim() == key.dim() == value.dim() == len(HEADS_FIRST):
        return False
    return query.shape[0] == key.shape[0] == value.shape[0] and (
        key.shape[1] == value.shape[1] and key.shape[1] <= query.shape[1]
    )


def broadcast(tensors: dict, enable_gqa: bool) -> tuple:
    """-> (query, key, value of four dimensions, sizes of the merged batch dimensions).

    tensors: by name, of any rank from 2 on
    """
    for name, tensor in tensors.items():
        if tensor.dim() < 2:
            raise ValueError(
                f"{name}: shape {tuple(tensor.shape)}; accepted: two dimensions or more, (..., heads, seqlen, head_dim)"
            )
    rank = max(len(HEADS_FIRST), *(tensor.dim() for tensor in tensors.values()))
    query, key, value = (x[(None,) * (rank - x.dim())] for x in tensors.values())
    batches = _broadcast_sizes("batch", tensors, [x.shape[:-3] for x in (query, key, value)])
    heads = [x.shape[-3] for x in (query, key, value)]
    if not enable_gqa:
        [of_query] = _broadcast_sizes("heads", tensors, [(n,) for n in heads])
        of_keys = 1 if heads[1] == heads[2] == 1 else of_query
        heads = [of_query, of_keys, of_keys]
    found = (
        _of_one_batch(x, (*batches, number, *x.shape[-2:]))
        for x, number in zip((query, key, value), heads, strict=True)
    )
    return *found, tuple(batches)


def _of_one_batch(tensor, sizes: tuple):
    """The tensor expanded to these sizes, with all but the last three merged into one."""
    expanded = tensor.expand(sizes)
    return expanded if len(sizes) == len(HEADS_FIRST) else expanded.flatten(0, len(sizes) - 4)


def _broadcast_sizes(what: str, tensors: dict, sizes: list) -> tuple:
    try:
        return tuple(torch.broadcast_shapes(*sizes))
    except RuntimeError:
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        raise ValueError(
            f"query, key, value: {what} of {shapes} do not broadcast; accepted: equal sizes, or 1"
        ) from None


def _check_choices(query, key, attn_mask, dropout_p, is_causal, enable_gqa) -> None:
    if dropout_p:
        raise NotImplementedError(
            f"dropout_p: {dropout_p}: dropout is not supported; accepted: 0.0"
        )
    if is_causal and attn_mask is not None:
        raise ValueError("is_causal: True with attn_mask; accepted: one of them")
    if not enable_gqa and key.shape[1] not in (1, query.shape[1]):
        raise ValueError(
            f"key: {key.shape[1]} heads while query has {query.shape[1]} and enable_gqa is False; "
            "accepted: equal; pass enable_gqa=True"
        )


def attention(query, key, value, **options) -> torch.Tensor:
    """flash_attn_func of (batch, heads, seqlen, head_dim), any supported head dims; softmax_scale is required."""
    depth_v = value.shape[-1]
    q, k, v = (x.transpose(1, 2) for x in padded_depths(query, key, value))
    out = flash_attn_func(q, k, v, **options)
    assert isinstance(out, torch.Tensor)  # without return_lse
    return out.transpose(1, 2)[..., :depth_v]


def padded_depths(query, key, value) -> list[torch.Tensor]:
    """Padded to the smallest head dims that have a kernel. Zeros add nothing to scores, and zero columns to out."""
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(
            f"key: head_dim {key.shape[-1]} while query has {query.shape[-1]}; accepted: equal"
        )
    return [_padded(query), _padded(key), _padded(value)]


def _padded(x):
    width = x.shape[-1]
    depth = [*(d for d in ALL_DEPTHS if d >= width), width][0]
    return x if width == depth else pad(x, (0, depth - width))


def top_left_causal(query, key, value):
    """-> (mask, keys, values) with which query i sees keys j <= i."""
    seqlen_q, seqlen_k = query.shape[2], key.shape[2]
    if seqlen_k >= seqlen_q:
        return masks.causal(), key[:, :, :seqlen_q], value[:, :, :seqlen_q]
    # Query i has position i + seqlen_k - seqlen_q.
    return masks.window(None, seqlen_q - seqlen_k), key, value


def options_of_mask(attn_mask, query: torch.Tensor, seqlen_k: int, batches=None) -> dict:
    """Options of flash_attn_func for a mask tensor that broadcasts to (batch, heads_q, seqlen_q, seqlen_k).

    batches: sizes merged into the batch; None: the batch is one dimension
    """
    if attn_mask is None:
        return {}
    check_is_tensor("attn_mask", attn_mask)
    if attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise TypeError(
            f"attn_mask: dtype {attn_mask.dtype} with query {query.dtype}; accepted: torch.bool, torch.float32 "
            f"and {query.dtype}"
        )
    scores = (*(batches or query.shape[:1]), *query.shape[1:3], seqlen_k)
    try:
        if attn_mask.dim() < 2:
            raise RuntimeError
        expanded = _of_one_batch(attn_mask, scores)
    except RuntimeError:
        raise ValueError(
            f"attn_mask: shape {tuple(attn_mask.shape)}; accepted: 2 to {len(scores)} dimensions that broadcast to "
            f"(batch, heads_q, seqlen_q, seqlen_k), here {scores}"
        ) from None
    if expanded.dtype == torch.bool:
        return {"mask_mod": SHOWN, "aux_tensors": [expanded.view(torch.uint8)]}
    return {"score_mod": additive_bias(), "aux_tensors": [expanded]}


def _shown(batch, head, q_idx, kv_idx, aux):
    return aux[0][batch, head, q_idx, kv_idx] != 0


SHOWN = ScoreMod.of(_shown)
