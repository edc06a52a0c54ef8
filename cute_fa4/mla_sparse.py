"""Sparse prefill of latent attention: each query lists the latent rows that it sees, with FlashMLA's interface.

    q (queries, heads, 576)     kv (keys, 1, 576)     indices (queries, 1, top-k)     out (queries, heads, 512)

The kernels are those of flash_mla_with_kvcache with `indices`: a query is a sequence, and a row of kv is a page. kv may
also be the pages of a cache of 584 bytes a row.
"""

from __future__ import annotations

import torch

from cute_fa4.calls.latent_heads import check_sinks, group_of, latent_heads, sinks_of, values_like
from cute_fa4.calls.operands.latent_rows import is_in_pages
from cute_fa4.calls.operands.tensors import PAGED, check_is_tensor, check_rank
from cute_fa4.mla import called_as
from cute_fa4.sm100.choose.choose_config import LATENT_DEPTHS

__all__ = ["flash_mla_sparse_fwd"]

NAMES = {"k_cache": "kv", "softmax_scale": "sm_scale", "head_dim_v": "d_v"}


def flash_mla_sparse_fwd(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    d_v: int = LATENT_DEPTHS[1],
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    *,
    return_max_logits: bool = False,
    **options,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """softmax(sm_scale * q k^T) k[:, :512] over the rows that each query lists.

    q            (queries, heads, 576), or 512 over rows of 512 columns or of 584 bytes; dtypes as in
                 flash_mla_with_kvcache. Any number of heads
    kv           (keys, 1, 576), (keys, 1, 512) of 16 bits, or (keys, 1, 656) for rows of 656 bytes; or the pages of a
                 cache of 584 bytes a row, (num_pages, page_size, 1, 584), under a q of 512 columns
                 Several heads in place of the 1, without pages: as in flash_mla_with_kvcache
    indices      (queries, 1, top-k) int32, or (queries, heads of kv, top-k): rows of kv, of pages page * page_size +
                 row, in any order. Numbers that are no row of kv mean no key. A row that is listed twice counts twice
    sm_scale     factor of the scores
    d_v          512
    attn_sink    (heads,): one logit per head that takes weight and has no value; lse leaves it out
    topk_length  (queries,) int32: the valid length of each list; later entries may be anything
    return_max_logits   also return max_logits, which the kernel computes in addition to its running maximum; keys are
                 not split then, as in FlashMLA. False: max_logits is None
    options      keywords of flash_mla_with_kvcache: descale_q, descale_k, q_quantize, batch_invariant, out, workspace

    The parameters up to topk_length have FlashMLA's names and order.

    Returns (out, max_logits, lse): (queries, heads, 512), the largest score of each query and head, times sm_scale and
    without sinks, and the natural log-sum-exp, both (queries, heads), float32. A query that sees no key has out 0,
    max_logits and lse -inf (FlashMLA: lse +inf).

    Raises the errors of flash_mla_with_kvcache.
    """
    for name, tensor in (("q", q), ("kv", kv), ("indices", indices)):
        check_is_tensor(name, tensor)
    check_rank("q", q, ("queries", "heads", "head_dim"))
    in_pages = is_in_pages(kv)
    check_rank("kv", kv, PAGED if in_pages else ("keys", "heads", "head_dim"))
    heads = latent_heads(kv, 1)
    if indices.dim() != 3 or indices.shape[:2] != (q.shape[0], heads):
        raise ValueError(
            f"indices: shape {tuple(indices.shape)}; accepted: ({q.shape[0]}, {heads}, top-k), a list for each query"
        )
    if options.get("out") is not None:
        check_rank("out", options["out"], ("queries", "heads", "head_dim"))
    if heads > 1:
        call = dict(
            sm_scale=sm_scale, d_v=d_v, attn_sink=attn_sink, topk_length=topk_length,
            return_max_logits=return_max_logits, **options,
        )  # fmt: skip
        return _of_each_head(q, kv, indices, call)
    if options.get("out") is not None:
        options["out"] = options["out"].unsqueeze(1)
    call = dict(
        q=q.unsqueeze(1), k_cache=kv if in_pages else kv.unsqueeze(1), block_table=None, cache_seqlens=None,
        head_dim_v=d_v, softmax_scale=sm_scale, indices=indices, attn_sink=attn_sink, topk_length=topk_length,
        return_max_logits=return_max_logits, **options,
    )  # fmt: skip
    out, lse, *largest = called_as(NAMES, call)
    return out.squeeze(1), largest[0].squeeze(-1) if largest else None, lse.squeeze(-1)


def _of_each_head(q, kv, indices, call: dict) -> tuple:
    """The call for kv of several heads, of which each has lists of its own. call: its other arguments."""
    heads = kv.shape[1]
    group = group_of(q, heads, 1)
    check_sinks(call, q.shape[1])
    if call.get("out") is None:
        call["out"] = values_like(q)
    found = []
    for head in range(heads):
        own, one = slice(head * group, (head + 1) * group), slice(head, head + 1)
        some = {"out": call["out"][:, own]} | sinks_of(call, own)
        _, *of_rows = flash_mla_sparse_fwd(q[:, own], kv[:, one], indices[:, one], **call | some)
        found.append(of_rows)
    largest, lse = zip(*found, strict=True)
    return call["out"], None if largest[0] is None else torch.cat(largest, 1), torch.cat(lse, 1)
