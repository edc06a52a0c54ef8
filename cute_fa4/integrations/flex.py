"""flex_attention with torch's interface: (batch, heads, seqlen, head_dim), a score_mod, a BlockMask.

torch.nn.attention.flex_attention.flex_attention      cute_fa4.flex_attention
score_mod(score, batch, head, q_idx, kv_idx)          traced into the kernel, as it is; tensors that it captures are
                                                      read by the kernel
BlockMask                                             its lists stay on the device, and are not read by the host
its mask_mod                                          traced, and evaluated in partial blocks
"""

from __future__ import annotations

import torch

from cute_fa4.block_sparsity import BlockSparseTensors
from cute_fa4.calls.operands.tensors import check_is_tensor, checked_scale
from cute_fa4.interface import flash_attn_func

HEADS_FIRST = ("batch", "heads", "seqlen", "head_dim")


def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod=None,
    block_mask=None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: dict | None = None,
    *,
    return_aux=None,
    batch_invariant: bool | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """torch.nn.attention.flex_attention.flex_attention with this package's kernels.

    query       (batch, heads_q, seqlen_q, head_dim), bf16 or fp16
    key, value  (batch or 1, heads_kv, seqlen_k, head_dim)
    score_mod   score_mod(score, batch, head, q_idx, kv_idx) -> score. Tensors that it captures, on the device of query,
                are read at each call: float32, float16, bfloat16, int32, int64, uint8, bool. They have gradients
    block_mask  a BlockMask, whose block sizes are multiples of 16, or a cute_fa4.BlockSparseTensors without partial
                blocks that a function hides. Its mask_mod may capture tensors, too
    scale       positive; None: head_dim ** -0.5
    enable_gqa  heads_q may be a multiple of heads_kv. Without it they are equal
    return_lse  also return the log-sum-exp, float32, natural logarithm, (batch, heads_q, seqlen_q)
    kernel_options, return_aux   None
    batch_invariant   as in flash_attn_func; torch's function has no such parameter

    Returns (batch, heads_q, seqlen_q, head_dim), a transposed view. A query without a visible key has out 0 and lse
    -inf. The tensors are read in place.

    Raises the errors of flash_attn_func, with query, key and value for its q, k and v.
    """
    for name, given in {"kernel_options": kernel_options, "return_aux": return_aux}.items():
        if given:
            raise NotImplementedError(
                f"{name}: {given!r} is of another kernel; accepted: None; return_lse=True returns the log-sum-exp"
            )
    for name, tensor in {"query": query, "key": key, "value": value}.items():
        check_is_tensor(name, tensor)
        if tensor.dim() != len(HEADS_FIRST):
            raise ValueError(
                f"{name}: shape {tuple(tensor.shape)}; accepted: ({', '.join(HEADS_FIRST)})"
            )
    if not enable_gqa and key.shape[1] != query.shape[1]:
        raise ValueError(
            f"key: {key.shape[1]} heads while query has {query.shape[1]} and enable_gqa is False; accepted: equal; "
            "pass enable_gqa=True"
        )
    if key.shape[0] == value.shape[0] == 1:
        key, value = (x.expand(query.shape[0], -1, -1, -1) for x in (key, value))
    results = flash_attn_func(
        *(x.transpose(1, 2) for x in (query, key, value)),
        softmax_scale=checked_scale(scale, query.shape[-1]),
        score_mod=score_mod,
        return_lse=return_lse,
        batch_invariant=batch_invariant,
        **_of_mask(block_mask, query.shape[2], key.shape[2]),
    )
    if isinstance(results, torch.Tensor):
        return results.transpose(1, 2)
    out, lse = results
    return out.transpose(1, 2), lse


def _of_mask(mask, seqlen_q: int, seqlen_k: int) -> dict:
    """Options of flash_attn_func for a BlockMask."""
    if mask is None:
        return {}
    if isinstance(mask, BlockSparseTensors):
        return {"block_sparse_tensors": mask}
    lists = BlockSparseTensors.from_flex(mask)
    if tuple(mask.seq_lengths) != (seqlen_q, seqlen_k):
        raise ValueError(
            f"block_mask: of {mask.seq_lengths[0]} queries and {mask.seq_lengths[1]} keys while query and key have "
            f"{seqlen_q} and {seqlen_k}; accepted: equal; make it with create_block_mask(..., Q_LEN={seqlen_q}, "
            f"KV_LEN={seqlen_k})"
        )
    return {"block_sparse_tensors": lists, "mask_mod": _function_of(mask)}


def _function_of(mask):
    """The mask_mod of a BlockMask; None for the one that hides nothing."""
    from torch.nn.attention import flex_attention as torch_flex

    return None if mask.mask_mod is torch_flex.noop_mask else mask.mask_mod
