"""FlashInfer's latent-cache decode, trtllm_batch_decode_with_kv_cache_mla, with its parameters.

vLLM's FlashInfer MLA backend and SGLang call it. The cache is one tensor of concatenated latent and RoPE columns,
lengths and pages are tensors, and there is no plan.
"""

from __future__ import annotations

import torch

from cute_fa4 import mla
from cute_fa4.calls.operands.foreign import check_neutral
from cute_fa4.calls.operands.tensors import FP8, check_is_tensor, check_rank
from cute_fa4.integrations.callers_names import asked
from cute_fa4.integrations.flashinfer.words import as_int32, base_2, one_number, sink_of
from cute_fa4.integrations.invariance import SGLANG, VLLM, asked_by
from cute_fa4.sm100.choose.choose_config import LATENT_DEPTHS, LATENT_ROW_BYTES
from cute_fa4.system.messages import shown

LATENT, ROPE = LATENT_DEPTHS[1], LATENT_DEPTHS[0] - LATENT_DEPTHS[1]
NAMES = {
    "q": "query", "k_cache": "kv_cache", "block_table": "block_tables", "cache_seqlens": "seq_lens",
    "indices": "block_tables", "topk_length": "seq_lens", "learnable_sink": "sinks", "softmax_scale": "bmm1_scale",
    "descale_q": "bmm1_scale", "descale_k": "bmm2_scale",
}  # fmt: skip
QUERIES = ("batch", "queries", "heads", "head_dim")


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
    is_var_seq=True,
    uses_shared_paged_kv_idx=True,
    lse=None,
    return_lse=False,
    cute_dsl_impl="auto",
    kv_scale_format="auto",
    cum_seq_lens_q=None,
    max_q_len=None,
    multi_ctas_kv_counter_buffer=None,
    sparse_mla_top_k_lens=None,
    enable_dcp=False,
    cp_world=1,
    cp_rank=0,
    causal_seqlens_kv_global=None,
    use_fp16_softmax=None,
):
    """cute_fa4.flash_mla_with_kvcache with FlashInfer's interface; several queries per request are causal.

    query            (batch, queries of a request, heads, 576), absorbed; bf16, fp16, or float8 like the cache
    kv_cache         (num_pages, page_size, 576) or (num_pages, 1, page_size, 576), or with rows of 656 bytes
    block_tables     (batch, pages) int32; with uses_shared_paged_kv_idx=False (batch, 2, pages), whose second row lists
                     the same pages: a row of the cache is key and value. It is not read, only compared on the CPU
    seq_lens         (batch,) int32
    sparse_mla_top_k not 0: block_tables are keys, (batch, queries, sparse_mla_top_k), page * page_size + row of the
                     page, -1: none. seq_lens is the valid length of the lists, (batch,) or one per query; or
                     sparse_mla_top_k_lens, (batch * queries,) int32; None: all
    bmm1_scale       scale of q k^T, including float8 scales; bmm2_scale of out, 1 without a float8 cache. Numbers, or
                     with a float8 query one float32 on the device
    sinks            (heads,) float32, or a list of one such tensor
    lse              float32, (batch * queries, heads) or (batch, queries, heads), base 2; output buffer,
                     returned with return_lse

    Accepted without effect: workspace_buffer, qk_nope_head_dim, max_seq_len, enable_pdl, backend, is_var_seq,
    cute_dsl_impl, kv_scale_format and multi_ctas_kv_counter_buffer.

    Returns out, (batch, queries, heads, 512), or (out, lse). NotImplementedError for requests with different numbers of
    queries, decode context parallelism and skipped softmax; otherwise the errors of cute_fa4.flash_mla_with_kvcache.
    """
    check_neutral(
        skip_softmax_threshold_scale_factor=skip_softmax_threshold_scale_factor, enable_pdl=enable_pdl, backend=backend,
        is_var_seq=is_var_seq, cute_dsl_impl=cute_dsl_impl, kv_scale_format=kv_scale_format,
        cum_seq_lens_q=cum_seq_lens_q, max_q_len=max_q_len, multi_ctas_kv_counter_buffer=multi_ctas_kv_counter_buffer,
        enable_dcp=enable_dcp, cp_world=cp_world, cp_rank=cp_rank, causal_seqlens_kv_global=causal_seqlens_kv_global,
        use_fp16_softmax=use_fp16_softmax,
    )  # fmt: skip
    check_is_tensor("query", query)
    check_rank("query", query, QUERIES)
    for name, value, accepted in (
        ("kv_lora_rank", kv_lora_rank, LATENT),
        ("qk_rope_head_dim", qk_rope_head_dim, ROPE),
    ):
        if value != accepted:
            raise ValueError(f"{name}: {shown(value)}; accepted: {accepted}")
    options = _scales(query, kv_cache, bmm1_scale, bmm2_scale) | {"learnable_sink": sink_of(sinks)}
    if sparse_mla_top_k:
        given = {"sparse_mla_top_k_lens": sparse_mla_top_k_lens, "seq_lens": seq_lens}
        named = next((item for item in given.items() if item[1] is not None), None)
        options |= _listed(block_tables, named, sparse_mla_top_k)
        where = None, None
    else:
        where = _table(block_tables, uses_shared_paged_kv_idx), as_int32("seq_lens", seq_lens)
        options["causal"] = True
    cache = _of_four_dimensions(kv_cache)
    options["batch_invariant"] = asked_by(VLLM, SGLANG)
    out, found = asked(
        mla.flash_mla_with_kvcache, NAMES, query, cache, *where, LATENT, out=out, **options
    )
    if lse is None and not return_lse:
        return out
    found = base_2(found, lse)  # (batch, queries, heads)
    return (out, found.flatten(0, 1) if lse is None else lse) if return_lse else out


def _scales(query, cache, bmm1_scale, bmm2_scale) -> dict:
    """softmax_scale and descales; a float8 cache's scale also applies to scores, so it is divided out of theirs."""
    if query.dtype not in FP8:
        for name, value in (("bmm1_scale", bmm1_scale), ("bmm2_scale", bmm2_scale)):
            if isinstance(value, torch.Tensor):
                raise NotImplementedError(
                    f"{name}: a tensor with a query of 16 bits, which has no scale; accepted: a number"
                )
        if getattr(cache, "dtype", None) not in FP8:
            if bmm2_scale != 1.0:
                raise NotImplementedError(
                    f"bmm2_scale: {bmm2_scale} over a cache without a scale for all of it; accepted: 1.0"
                )
            return {"softmax_scale": bmm1_scale}
    tensors = [isinstance(each, torch.Tensor) for each in (bmm1_scale, bmm2_scale)]
    if not tensors[1] and not bmm2_scale > 0:
        raise ValueError(f"bmm2_scale: {shown(bmm2_scale)}; accepted: a positive number")
    if not any(tensors):
        of_k = torch.full((1,), float(bmm2_scale), device=query.device)
        return {"softmax_scale": bmm1_scale / bmm2_scale, "descale_k": of_k}
    of_k = (
        one_number("bmm2_scale", bmm2_scale)
        if tensors[1]
        else torch.full((1,), float(bmm2_scale), device=query.device)
    )
    of_scores = one_number("bmm1_scale", bmm1_scale) if tensors[0] else bmm1_scale
    return {"softmax_scale": 1.0, "descale_q": of_scores / of_k, "descale_k": of_k}


def _of_four_dimensions(kv_cache) -> torch.Tensor:
    """Either shape of the cache -> (num_pages, page_size, 1, columns)."""
    check_is_tensor("kv_cache", kv_cache)
    if kv_cache.dim() not in (3, 4) or (kv_cache.dim() == 4 and kv_cache.shape[1] != 1):
        columns = f"{LATENT + ROPE} or {LATENT_ROW_BYTES}"
        raise ValueError(
            f"kv_cache: shape {tuple(kv_cache.shape)}; accepted: (num_pages, page_size, {columns}) or (num_pages, 1, "
            f"page_size, {columns})"
        )
    return (kv_cache.squeeze(1) if kv_cache.dim() == 4 else kv_cache).unsqueeze(-2)


def _table(block_tables, uses_shared_paged_kv_idx: bool) -> torch.Tensor:
    """The pages of each request."""
    table = as_int32("block_tables", block_tables)
    if uses_shared_paged_kv_idx:
        return table
    if table.dim() != 3 or table.shape[1] != 2:
        raise ValueError(
            f"block_tables: shape {tuple(table.shape)} with uses_shared_paged_kv_idx=False; accepted: (batch, 2, pages)"
        )
    if table.device.type == "cpu" and not torch.equal(table[:, 0], table[:, 1]):
        raise ValueError(
            "block_tables: other pages of values than of keys; accepted: the same, because a row of the cache is both"
        )
    return table[:, 0]


def _listed(block_tables, named: tuple | None, number: int) -> dict:
    """indices and topk_length. named: (the caller's name of the lengths, lengths)."""
    listed = as_int32("block_tables", block_tables)
    if listed.dim() != 3 or listed.shape[-1] != number:
        raise ValueError(
            f"block_tables: shape {tuple(listed.shape)} with sparse_mla_top_k={number}; accepted: "
            f"(batch, queries, {number})"
        )
    if named is None:
        return {"indices": listed}
    name, lengths = named[0], as_int32(*named)
    batch, queries, _ = listed.shape
    if lengths.numel() not in (batch, batch * queries):
        raise ValueError(
            f"{name}: shape {tuple(lengths.shape)} with sparse_mla_top_k={number}; accepted: ({batch},), or "
            f"({batch * queries},), one for each query"
        )
    of_lists = lengths.reshape(batch) if lengths.numel() == batch else lengths.view(batch, queries)
    return {"indices": listed, "topk_length": of_lists}
