"""scaled_dot_product_attention inside torch.distributed.tensor.experimental.context_parallel.

    torch.nn.functional.scaled_dot_product_attention = cute_fa4.scaled_dot_product_attention      once
    with context_parallel(mesh, buffers=[...], buffer_seq_dims=[...]):
        model(...)      the function in torch.nn.functional gets DTensors, sharded along the sequence

The manager shards the buffers, wraps the function that it finds in torch.nn.functional, and passes it DTensors.
This package's function then calls context_parallel_attention with the manager's choices:

    load balancing (the default with causal masks)     order="zigzag", otherwise "contiguous"
    set_rotate_method("allgather"), the default        layout="all_gather"
    set_rotate_method("alltoall")                      layout="ring": each step sends K and V to the next rank

torch.compile breaks the graph at such a call and continues after it.

A direct call gets plain tensors, the rank's own rows, and would attend only to these: it is refused. The manager is
a prototype of torch, and this module reads its private names. If they are missing, the error says so.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

_MANAGER = "torch.distributed.tensor.experimental._context_parallel._attention"
_OLDER_MANAGER = "torch.distributed.tensor.experimental._attention"


def has_rows_elsewhere(query) -> bool:
    """Whether x is a DTensor sharded along the sequence, without importing anything."""
    if type(query) is torch.Tensor:
        return False
    module = sys.modules.get("torch.distributed.tensor")
    if module is None or not isinstance(query, module.DTensor):
        return False
    return any(placement.is_shard(2) for placement in query.placements)


def refuse_own_rows_alone() -> None:
    """Raise RuntimeError if the manager is active and this call is not the one that it wrapped."""
    if _answered_now(_in_force):
        raise RuntimeError(
            "scaled_dot_product_attention: called inside of torch's context_parallel with the rows of this rank alone; "
            "accepted: call torch.nn.functional.scaled_dot_product_attention, set to this function before the context "
            "manager is entered, or cute_fa4.distributed.context_parallel_attention without the manager"
        )


def _answered_now(question) -> bool:
    """question(); a tracing compiler treats the answer as a constant."""
    if not is_dynamo_compiling():
        return question()
    from cute_fa4.operators import routes

    return routes.constant(question)


def _in_force() -> bool:
    replaced = getattr(_manager(), "_replaced_functions", ())
    return torch.nn.functional.scaled_dot_product_attention in replaced


def attention(query, *rest) -> torch.Tensor:
    """_attention(query, *rest) outside a graph, because it exchanges messages with other ranks."""
    if not is_dynamo_compiling():
        return _attention(query, *rest)
    from cute_fa4.operators import routes

    return routes.outside_of_graphs(_attention, query, *rest)


def _attention(
    query, key, value, attn_mask, is_causal: bool, scale, batch_invariant, padded
) -> torch.Tensor:
    """Attention of DTensors that are sharded along the sequence, dimension 2, on a mesh of one dimension.

    padded(query, key, value) -> the same, padded to a head dim that has a kernel
    """
    from torch.distributed.tensor import DTensor, Shard

    from cute_fa4.distributed import context_parallel_attention

    if attn_mask is not None:
        raise NotImplementedError(
            "attn_mask: given with DTensors, whose mask would lie on several ranks; accepted: None, and is_causal"
        )
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        whole = isinstance(tensor, DTensor) and tensor.device_mesh == query.device_mesh
        if not whole or tuple(tensor.placements) != (Shard(2),):
            raise ValueError(
                f"{name}: {getattr(tensor, 'placements', type(tensor).__name__)}; accepted: DTensors of one mesh, "
                "(batch, heads, seqlen, head_dim) with placements [Shard(2)]"
            )
    if is_causal and query.shape[2] != key.shape[2]:
        raise ValueError(
            f"is_causal: True with {query.shape[2]} queries and {key.shape[2]} keys; accepted with DTensors: "
            "equally many"
        )
    local = padded(*(tensor.to_local() for tensor in (query, key, value)))
    out = context_parallel_attention(
        *(tensor.transpose(1, 2) for tensor in local),
        group=query.device_mesh,
        causal=is_causal,
        softmax_scale=scale,
        batch_invariant=batch_invariant,
        **_choices(),
    )
    out = out.transpose(1, 2)[..., : value.shape[-1]]
    return DTensor.from_local(out, query.device_mesh, [Shard(2)], run_check=False)


def _choices() -> dict:
    """layout and order from the manager's settings."""
    options: Any = getattr(_manager(), "_cp_options", None)
    try:
        method, balanced = options.rotate_method.name, options.enable_load_balance
    except AttributeError:
        raise NotImplementedError(
            f"query: a DTensor, with torch {torch.__version__}, whose context_parallel has other private names than "
            "those read here; accepted: cute_fa4.distributed.context_parallel_attention without the manager"
        ) from None
    return {
        "layout": "ring" if method == "ALL_TO_ALL" else "all_gather",
        "order": "zigzag" if balanced else "contiguous",
    }


def _manager():
    return sys.modules.get(_MANAGER) or sys.modules.get(_OLDER_MANAGER)
