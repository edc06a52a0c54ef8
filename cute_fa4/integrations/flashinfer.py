"""FlashInfer's decode from a latent cache, trtllm_batch_decode_with_kv_cache_mla, with its parameters.

Its page (docs.flashinfer.ai, "flashinfer.mla") has the signature; vLLM's FlashInfer MLA backend and SGLang call it. The
cache is one tensor of concatenated latent and rotary columns, lengths and pages are tensors, and there is no plan.
Nothing of FlashInfer is imported.
"""

from __future__ import annotations

import torch

from cute_fa4 import mla
from cute_fa4.calls.foreign import check_neutral
from cute_fa4.calls.tensors import FP8, check_is_tensor
from cute_fa4.sm100.choose_config import LATENT_DEPTHS
from cute_fa4.system.messages import shown

LATENT, ROPE = LATENT_DEPTHS[1], LATENT_DEPTHS[0] - LATENT_DEPTHS[1]


def trtllm_batch_decode_with_kv_cache_mla(
    query,
    kv_cache,
    workspace_buffer=None,
    qk_nope_head_dim=None,
    kv_lora_rank=LATENT,
    qk_rope_head_dim=ROPE,
    block_tables=None,
    seq_lens=None,
    max_seq_len=None,
    sparse_mla_top_k=0,
    out=None,
    bmm1_scale=1.0,
    bmm2_scale=1.0,
    sinks=None,
    skip_softmax_threshold_scale_factor=None,
    enable_pdl=None,
    backend="auto",
):
    """cute_fa4.flash_mla_with_kvcache in FlashInfer's words; several queries of a request are causal.

    query            (batch, queries of a request, heads, 576), absorbed; bf16, fp16, or float8 as the cache
    kv_cache         (num_pages, page_size, 576) or (num_pages, 1, page_size, 576)
    block_tables     (batch, pages) int32; seq_lens (batch,) int32
    sparse_mla_top_k   not 0: block_tables are keys, (batch, queries, sparse_mla_top_k), page * page_size + place in the
                     page, -1: none; of each list the first seq_lens count
    bmm1_scale       of q k^T, a number, with the scales of float8
    bmm2_scale       of out, a number; 1 for 16 bits
    workspace_buffer, qk_nope_head_dim, max_seq_len, enable_pdl, backend   accepted, and not needed

    Returns out, (batch, queries, heads, 512). NotImplementedError for sinks, scales on the device and skipped softmax;
    for the rest as cute_fa4.flash_mla_with_kvcache.
    """
    check_is_tensor("query", query)
    of_8_bits = query.dtype in FP8
    check_neutral(skip_softmax_threshold_scale_factor=skip_softmax_threshold_scale_factor)
    if sinks is not None:
        raise NotImplementedError("sinks: given; accepted over a latent cache: None")
    if not of_8_bits and bmm2_scale != 1.0:
        raise NotImplementedError(f"bmm2_scale: {bmm2_scale}; accepted with 16 bits: 1.0")
    for name, value, accepted in (
        ("kv_lora_rank", kv_lora_rank, LATENT),
        ("qk_rope_head_dim", qk_rope_head_dim, ROPE),
    ):
        if value != accepted:
            raise ValueError(f"{name}: {shown(value)}; accepted: {accepted}")
    _check_scales(bmm1_scale=bmm1_scale, bmm2_scale=bmm2_scale)
    cache = _of_four_dimensions(kv_cache)
    kinds = dict(causal=True)
    if sparse_mla_top_k:
        _check_listed(block_tables, sparse_mla_top_k)
        kinds = dict(indices=block_tables, topk_length=seq_lens)
    if of_8_bits:  # the scale of the cache is that of scores, too: taken out of theirs again
        kinds["descale_k"] = torch.full((1,), float(bmm2_scale), device=query.device)
        bmm1_scale = bmm1_scale / bmm2_scale
    out, _ = mla.flash_mla_with_kvcache(
        query, cache, block_tables, seq_lens, LATENT,
        softmax_scale=bmm1_scale, out=out,
        **kinds,
    )  # fmt: skip
    return out


def _check_scales(**scales) -> None:
    for name, value in scales.items():
        if isinstance(value, torch.Tensor):
            raise NotImplementedError(
                f"{name}: a tensor, which a launch would have to wait for; accepted: a number"
            )
    if not scales["bmm2_scale"] > 0:
        raise ValueError(f"bmm2_scale: {scales['bmm2_scale']}; accepted: a positive number")


def _of_four_dimensions(kv_cache) -> torch.Tensor:
    """Either shape of the cache -> (num_pages, page_size, 1, 576)."""
    check_is_tensor("kv_cache", kv_cache)
    if kv_cache.dim() != 4:
        return kv_cache.unsqueeze(-2)
    if kv_cache.shape[1] != 1:
        raise ValueError(
            f"kv_cache: shape {tuple(kv_cache.shape)}; accepted: (num_pages, 1, page_size, {LATENT + ROPE})"
        )
    return kv_cache.squeeze(1).unsqueeze(-2)


def _check_listed(block_tables, number: int) -> None:
    """Each query lists so many keys."""
    check_is_tensor("block_tables", block_tables)
    if block_tables.dim() != 3 or block_tables.shape[-1] != number:
        raise ValueError(
            f"block_tables: shape {tuple(block_tables.shape)} with sparse_mla_top_k={number}; accepted: "
            f"(batch, queries, {number})"
        )
