"""trtllm_batch_decode_with_kv_cache and trtllm_batch_context_with_kv_cache: packed queries over paged keys."""

from __future__ import annotations

from cute_fa4 import interface
from cute_fa4.calls.operands.foreign import check_neutral
from cute_fa4.calls.operands.four_bits import columns_of
from cute_fa4.calls.operands.tensors import check_is_tensor, check_rank
from cute_fa4.calls.skipping import FACTOR
from cute_fa4.integrations.callers_names import asked
from cute_fa4.integrations.flashinfer import tables_of_heads
from cute_fa4.integrations.flashinfer.words import (
    as_int32,
    base_2,
    blocks_of,
    caches_of,
    check_layout,
    check_no_scale_of_out,
    check_number,
    check_table,
    out_of,
    right_of,
    scales_of,
    sink_of,
    window_of,
)
from cute_fa4.integrations.invariance import SGLANG, VLLM, asked_by
from cute_fa4.system.messages import shown

PACKED = ("tokens", "heads", "head_dim")
SCALES = ("bmm1_scale", "bmm2_scale")
NAMES = {
    "q": "query", "k": "kv_cache", "v": "kv_cache", "page_table": "block_tables", "seqused_k": "seq_lens",
    "cu_seqlens_q": "cum_seq_lens_q", "max_seqlen_q": "max_q_len", "learnable_sink": "sinks",
    "softmax_scale": "bmm1_scale", "q_descale": "bmm1_scale", "k_descale": "bmm1_scale", "v_descale": "bmm2_scale",
    "k_block_scale": "kv_cache_sf", "v_block_scale": "kv_cache_sf", "v_block_scale_layout": "kv_cache_sf",
}  # fmt: skip
LN_2 = 0.6931471805599453
OF_AUTO = "trtllm-gen"  # on SM100


def trtllm_batch_decode_with_kv_cache(
    query,
    kv_cache,
    workspace_buffer,
    block_tables,
    seq_lens,
    max_seq_len,
    bmm1_scale=1.0,
    bmm2_scale=1.0,
    window_left=-1,
    out=None,
    out_dtype=None,
    o_sf_scale=None,
    o_sf_vec_size=None,
    sinks=None,
    kv_layout="HND",
    enable_pdl=None,
    backend="auto",
    q_len_per_req=1,
    o_scale=1.0,
    mask=None,
    max_q_len=None,
    cum_seq_lens_q=None,
    skip_softmax_threshold_scale_factor=None,
    kv_cache_sf=None,
    uses_shared_paged_kv_idx=True,
    lse=None,
    return_lse=False,
    bmm1_scale_log2=None,
    multi_ctas_kv_counter_buffer=None,
    enable_block_sparse_attention=False,
    bf16q_fp8kv_transform_mode=None,
):
    """Causal attention of the last tokens of each request over its pages, with FlashInfer's interface.

    query            (batch * q_len_per_req, heads, head_dim), bf16, fp16 or float8; or, with cum_seq_lens_q,
                     (batch + 1,) int32, tokens of each request by these offsets, independent of q_len_per_req
    kv_cache         a pair of (num_pages, heads_kv, page_size, head_dim), or one tensor (num_pages, 2, ...);
                     kv_layout="NHD": (num_pages, page_size, heads_kv, head_dim). NVFP4: uint8 with head_dim / 2
    block_tables     (batch, pages) int32; seq_lens (batch,) int32, including the tokens of query
    enable_block_sparse_attention   True: these are of each key-value head, (heads_kv, batch, pages) and (heads_kv,
                     batch): the pages that the head selects, and how many keys they hold. One token of a request,
                     pages in HND, no window, no sinks, no buffer for lse
    kv_cache_sf      a pair, or one tensor, as kv_cache. Of an NVFP4 cache float8_e4m3fn with head_dim / 16; scales of V
                     are in the 4-token order of backend "trtllm-gen", which "auto" is; "fa2": linear. Of an MXFP8 cache
                     float8_e8m0fnu with head_dim / 32, linear
    bmm1_scale       scale of q k^T; bmm2_scale of out: numbers, or one float32 on the device over a quantized cache
    bmm1_scale_log2  one float32 on the device, bmm1_scale * log2(e), instead of bmm1_scale
    window_left      number of visible keys before a token's own; -1: all
    out, out_dtype   as query; bf16, fp16 or float8_e4m3fn for an 8-bit query
    skip_softmax_threshold_scale_factor   as in flash_attn_func
    sinks            (heads,), or a list of one such tensor
    lse              (tokens, heads) float32, base 2; output buffer, returned with return_lse

    Returns out, or (out, lse). NotImplementedError for FP4 output, a mask of drafted tokens, separate tables of
    keys and values; otherwise the errors of cute_fa4.flash_attn_varlen_func.
    """
    check_neutral(
        o_sf_scale=o_sf_scale, o_sf_vec_size=o_sf_vec_size, backend=backend, mask=mask,
        multi_ctas_kv_counter_buffer=multi_ctas_kv_counter_buffer,
        bf16q_fp8kv_transform_mode=bf16q_fp8kv_transform_mode, enable_pdl=enable_pdl,
    )  # fmt: skip
    check_no_scale_of_out(o_scale, "bmm2_scale")
    check_is_tensor("query", query)
    check_rank("query", query, PACKED)
    if bmm1_scale_log2 is not None:
        check_is_tensor("bmm1_scale_log2", bmm1_scale_log2)
        bmm1_scale = bmm1_scale_log2 * LN_2
    where = {}
    if cum_seq_lens_q is not None:
        offsets = as_int32("cum_seq_lens_q", cum_seq_lens_q)
        where, q_len_per_req = {"cu_seqlens_q": offsets, "max_seqlen_q": max_q_len}, None
    elif q_len_per_req is None:
        raise ValueError("cum_seq_lens_q: None with q_len_per_req=None; accepted: one of them")
    options = where | {
        "window_size": window_of(window_left, 0),
        FACTOR: skip_softmax_threshold_scale_factor,
    }
    if enable_block_sparse_attention:
        check_layout(kv_layout)
        check_neutral_of_heads(
            sinks=(sinks, None), q_len_per_req=(q_len_per_req, 1), window_left=(window_left, -1), lse=(lse, None),
            kv_layout=(kv_layout, "HND"),
        )  # fmt: skip
        caches = caches_of("kv_cache", kv_cache)
        scales = () if kv_cache_sf is None else caches_of("kv_cache_sf", kv_cache_sf)
        heads = caches[0].shape[1]
        query, kv_cache, scales, block_tables, seq_lens = tables_of_heads.folded(
            query, caches, scales, block_tables, seq_lens
        )
        kv_cache_sf = scales or None
        out = tables_of_heads.out_by_heads(out, heads)
    cache = kv_cache, kv_cache_sf, backend
    given = query, cache, block_tables, seq_lens, kv_layout, uses_shared_paged_kv_idx
    results = _attend(
        given, (bmm1_scale, bmm2_scale), sinks, (out, out_dtype), (lse, return_lse), q_len_per_req, options
    )  # fmt: skip
    if not enable_block_sparse_attention:
        return results
    if return_lse:
        return tuple(tables_of_heads.of_tokens(x, heads) for x in results)
    return tables_of_heads.of_tokens(results, heads)


def check_neutral_of_heads(**given) -> None:
    """What does not go with page tables of each key-value head, by name. given: (value, what is accepted)."""
    for name, (value, accepted) in given.items():
        if type(value) is not type(accepted) or value != accepted:
            raise NotImplementedError(
                f"{name}: {shown(value)} with enable_block_sparse_attention; accepted: {accepted!r}"
            )


def trtllm_batch_context_with_kv_cache(
    query,
    kv_cache,
    workspace_buffer,
    block_tables,
    seq_lens,
    max_q_len,
    max_kv_len,
    bmm1_scale,
    bmm2_scale,
    batch_size,
    cum_seq_lens_q,
    cum_seq_lens_kv,
    window_left=-1,
    out=None,
    out_dtype=None,
    o_sf_scale=None,
    o_sf_vec_size=None,
    kv_layout="HND",
    enable_pdl=None,
    sinks=None,
    kv_cache_sf=None,
    skip_softmax_threshold_scale_factor=None,
    uses_shared_paged_kv_idx=True,
    causal=True,
    lse=None,
    return_lse=False,
    multi_ctas_kv_counter_buffer=None,
    use_fp16_softmax=None,
    uses_spcompress=None,
):
    """Attention of prompts, or of chunks of them, over their pages, with FlashInfer's interface.

    query            (tokens, heads, head_dim); cum_seq_lens_q (batch_size + 1,) int32 has their offsets
    causal           False: every query sees all keys, or with window_left those from its left edge on
    cum_seq_lens_kv, max_kv_len   accepted without effect: seq_lens has the lengths

    Other parameters as in trtllm_batch_decode_with_kv_cache.
    """
    check_neutral(
        o_sf_scale=o_sf_scale, o_sf_vec_size=o_sf_vec_size, enable_pdl=enable_pdl,
        multi_ctas_kv_counter_buffer=multi_ctas_kv_counter_buffer, use_fp16_softmax=use_fp16_softmax,
        uses_spcompress=uses_spcompress,
    )  # fmt: skip
    check_is_tensor("query", query)
    check_rank("query", query, PACKED)
    offsets = as_int32("cum_seq_lens_q", cum_seq_lens_q)
    check_number("batch_size", batch_size)
    if offsets.shape != (batch_size + 1,):
        raise ValueError(
            f"cum_seq_lens_q: shape {tuple(offsets.shape)} with batch_size={batch_size}; accepted: "
            f"({batch_size + 1},)"
        )
    options = {
        "cu_seqlens_q": offsets,
        "max_seqlen_q": max_q_len,
        "window_size": window_of(window_left, right_of(causal)),
        FACTOR: skip_softmax_threshold_scale_factor,
    }
    cache = kv_cache, kv_cache_sf, "auto"
    given = query, cache, block_tables, seq_lens, kv_layout, uses_shared_paged_kv_idx
    return _attend(
        given, (bmm1_scale, bmm2_scale), sinks, (out, out_dtype), (lse, return_lse), None, options
    )  # fmt: skip


def _attend(given, scales, sinks, outs, lses, queries: int | None, options: dict):
    """queries: per request, or None if options have offsets."""
    query, (kv_cache, kv_cache_sf, backend), block_tables, seq_lens, kv_layout, shared = given
    check_layout(kv_layout)
    k, v = caches_of("kv_cache", kv_cache)
    table = check_table(block_tables, shared)
    of_scores, of_values = scales
    options = options | blocks_of((k, v), kv_cache_sf, backend, OF_AUTO)
    options |= scales_of(query, k, of_scores, of_values, SCALES)
    options["learnable_sink"] = sink_of(sinks)
    where = table, as_int32("seq_lens", seq_lens), kv_layout
    out, out_dtype = outs
    out = out_of(out, out_dtype, query, columns_of(v))
    return asked(attend_pages, NAMES, query, (k, v), where, queries, lses, out=out, **options)


def attend_pages(q, caches, where, queries: int | None, lses, *, out, **options):
    """(tokens, heads, head_dim) over pages -> out, or (out, lse) with FlashInfer's layout.

    where     page table, lengths, layout
    queries   per request; None: options have cu_seqlens_q
    lses      (buffer or None, whether it is returned)
    """
    table, lengths, layout = where
    into, returned = lses
    wanted = returned or into is not None
    results = interface.flash_attn_varlen_func(
        of_requests(q, queries), *caches, page_table=table, seqused_k=lengths, kv_layout=layout,
        out=None if out is None else of_requests(out, queries), return_lse=wanted,
        batch_invariant=asked_by(VLLM, SGLANG), **{"num_splits": 0} | options,
    )  # fmt: skip
    found, lse = results if isinstance(results, tuple) else (results, None)
    if out is None:
        out = found.reshape(*q.shape[:-1], found.shape[-1])
    if lse is None:
        return out
    of_tokens = base_2(lse, into)  # for requests of equal length: (batch, tokens, heads)
    return (out, of_tokens.flatten(0, -2) if into is None else into) if returned else out


def of_requests(x, queries: int | None):
    """(batch * queries, heads, head_dim) -> (batch, queries, heads, head_dim), for requests of equal length."""
    if queries is None:
        return x
    if not isinstance(queries, int) or queries < 1 or x.shape[0] % queries:
        raise ValueError(
            f"query: {x.shape[0]} tokens with q_len_per_req={shown(queries)}; accepted: a multiple of it"
        )
    return x.unflatten(0, (-1, queries))
