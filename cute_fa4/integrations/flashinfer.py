"""FlashInfer's decode from a latent cache, trtllm_batch_decode_with_kv_cache_mla, with its parameters.

Its page (docs.flashinfer.ai, "flashinfer.mla") has the signature; vLLM's FlashInfer MLA backend and SGLang call it. The
cache is one tensor of concatenated latent and rotary columns, lengths and pages are tensors, and there is no plan.
Nothing of FlashInfer is imported.
"""

from __future__ import annotations

import torch

from cute_fa4 import mla
from cute_fa4.calls.tensors import check_is_tensor
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

    query            (batch, queries of a request, heads, 576), absorbed; bf16 or fp16
    kv_cache         (num_pages, page_size, 576) or (num_pages, 1, page_size, 576)
    block_tables     (batch, pages) int32; seq_lens (batch,) int32
    bmm1_scale       of q k^T, a number; bmm2_scale: 1
    workspace_buffer, qk_nope_head_dim, max_seq_len, enable_pdl, backend   accepted, and not needed

    Returns out, (batch, queries, heads, 512). NotImplementedError for sparse_mla_top_k, sinks, scales on the device and
    skipped softmax; for the rest as cute_fa4.flash_mla_with_kvcache.
    """
    off = (
        ("sparse_mla_top_k", sparse_mla_top_k, 0),
        ("sinks", sinks, None),
        ("skip_softmax_threshold_scale_factor", skip_softmax_threshold_scale_factor, None),
        ("bmm2_scale", bmm2_scale, 1.0),
    )
    for name, value, accepted in off:
        if value is not accepted and (isinstance(value, torch.Tensor) or value != accepted):
            raise NotImplementedError(f"{name}: {shown(value)}: not built; accepted: {accepted}")
    for name, value, accepted in (
        ("kv_lora_rank", kv_lora_rank, LATENT),
        ("qk_rope_head_dim", qk_rope_head_dim, ROPE),
    ):
        if value != accepted:
            raise ValueError(f"{name}: {shown(value)}; accepted: {accepted}")
    if isinstance(bmm1_scale, torch.Tensor):
        raise NotImplementedError(
            "bmm1_scale: a tensor, which a launch would have to wait for; accepted: a number"
        )
    check_is_tensor("kv_cache", kv_cache)
    if kv_cache.dim() == 4:
        if kv_cache.shape[1] != 1:
            raise ValueError(
                f"kv_cache: shape {tuple(kv_cache.shape)}; accepted: (num_pages, 1, page_size, {LATENT + ROPE})"
            )
        kv_cache = kv_cache.squeeze(1)
    out, _ = mla.flash_mla_with_kvcache(
        query,
        kv_cache.unsqueeze(-2),
        block_tables,
        seq_lens,
        LATENT,
        softmax_scale=bmm1_scale,
        causal=True,
        out=out,
    )
    return out
