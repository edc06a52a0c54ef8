"""The signatures of FlashInfer's functions and wrappers that have adapters."""

from __future__ import annotations

import inspect

# flashinfer-ai/flashinfer at fb28d724 (2026-08-22, 0.6.18), flashinfer/mla/_core.py, decode.py and prefill.py:
# parameters in order, defaults. What plan of the decode wrapper takes by position is in the order that it deprecates.
REQUIRED = inspect.Parameter.empty
SIGNATURES = {
    "trtllm_batch_decode_with_kv_cache_mla": dict(
        query=REQUIRED, kv_cache=REQUIRED, workspace_buffer=REQUIRED, qk_nope_head_dim=REQUIRED,
        kv_lora_rank=REQUIRED, qk_rope_head_dim=REQUIRED, block_tables=REQUIRED, seq_lens=REQUIRED,
        max_seq_len=REQUIRED, sparse_mla_top_k=0, out=None, bmm1_scale=1.0, bmm2_scale=1.0, sinks=None,
        skip_softmax_threshold_scale_factor=None, enable_pdl=None, backend="auto", is_var_seq=True,
        uses_shared_paged_kv_idx=True, lse=None, return_lse=False, cute_dsl_impl="auto", kv_scale_format="auto",
        cum_seq_lens_q=None, max_q_len=None, multi_ctas_kv_counter_buffer=None, sparse_mla_top_k_lens=None,
        enable_dcp=False, cp_world=1, cp_rank=0, causal_seqlens_kv_global=None, use_fp16_softmax=None
    ),
    "trtllm_batch_decode_sparse_mla_dsv4": dict(
        query=REQUIRED, swa_kv_cache=REQUIRED, workspace_buffer=REQUIRED, sparse_indices=None,
        compressed_kv_cache=None, sparse_topk_lens=None, seq_lens=None, out=None, bmm1_scale=1.0, bmm2_scale=1.0,
        sinks=None, kv_layout="HND", cum_seq_lens_q=None, max_q_len=None, enable_pdl=None, swa_topk_lens=None,
        extra_sparse_indices=None, extra_sparse_topk_lens=None, backend="auto", hca_swa_indices=None,
        hca_compressed_block_tables=None, hca_seq_lens=None, hca_is_causal=True, hca_use_persistent=False,
        hca_sparse_indices_format=None
    ),
    "trtllm_batch_decode_with_kv_cache": dict(
        query=REQUIRED, kv_cache=REQUIRED, workspace_buffer=REQUIRED, block_tables=REQUIRED, seq_lens=REQUIRED,
        max_seq_len=REQUIRED, bmm1_scale=1.0, bmm2_scale=1.0, window_left=-1, out=None, out_dtype=None,
        o_sf_scale=None, o_sf_vec_size=None, sinks=None, kv_layout="HND", enable_pdl=None, backend="auto",
        q_len_per_req=1, o_scale=1.0, mask=None, max_q_len=None, cum_seq_lens_q=None,
        skip_softmax_threshold_scale_factor=None, kv_cache_sf=None, uses_shared_paged_kv_idx=True, lse=None,
        return_lse=False, bmm1_scale_log2=None, multi_ctas_kv_counter_buffer=None,
        enable_block_sparse_attention=False, bf16q_fp8kv_transform_mode=None
    ),
    "trtllm_batch_context_with_kv_cache": dict(
        query=REQUIRED, kv_cache=REQUIRED, workspace_buffer=REQUIRED, block_tables=REQUIRED, seq_lens=REQUIRED,
        max_q_len=REQUIRED, max_kv_len=REQUIRED, bmm1_scale=REQUIRED, bmm2_scale=REQUIRED, batch_size=REQUIRED,
        cum_seq_lens_q=REQUIRED, cum_seq_lens_kv=REQUIRED, window_left=-1, out=None, out_dtype=None,
        o_sf_scale=None, o_sf_vec_size=None, kv_layout="HND", enable_pdl=None, sinks=None, kv_cache_sf=None,
        skip_softmax_threshold_scale_factor=None, uses_shared_paged_kv_idx=True, causal=True, lse=None,
        return_lse=False, multi_ctas_kv_counter_buffer=None, use_fp16_softmax=None, uses_spcompress=None
    ),
    "BatchDecodeWithPagedKVCacheWrapper.__init__": dict(
        float_workspace_buffer=REQUIRED, kv_layout="NHD", use_cuda_graph=False, use_tensor_cores=False,
        paged_kv_indptr_buffer=None, paged_kv_indices_buffer=None, paged_kv_last_page_len_buffer=None,
        backend="auto", jit_args=None
    ),
    "BatchDecodeWithPagedKVCacheWrapper.plan": dict(
        indptr=REQUIRED, indices=REQUIRED, last_page_len=REQUIRED, num_qo_heads=REQUIRED, num_kv_heads=REQUIRED,
        head_dim=REQUIRED, page_size=REQUIRED, pos_encoding_mode="NONE", window_left=-1,
        logits_soft_cap=None, q_data_type="float16", kv_data_type=None, o_data_type=None, data_type=None,
        sm_scale=None, rope_scale=None, rope_theta=None, non_blocking=True, block_tables=None, seq_lens=None,
        fixed_split_size=None, disable_split_kv=False, q_len_per_req=1, window_right=0
    ),
    "BatchDecodeWithPagedKVCacheWrapper.run": dict(
        q=REQUIRED, paged_kv_cache=REQUIRED, q_scale=None, k_scale=None, v_scale=None, out=None, lse=None,
        return_lse=False, enable_pdl=None, window_left=None, sinks=None, q_len_per_req=None,
        skip_softmax_threshold_scale_factor=None, kv_cache_sf=None
    ),
    "BatchDecodeWithPagedKVCacheWrapper.forward": dict(
        q=REQUIRED, paged_kv_cache=REQUIRED, pos_encoding_mode="NONE", q_scale=None, k_scale=None, v_scale=None,
        window_left=-1, logits_soft_cap=None, sm_scale=None, rope_scale=None, rope_theta=None
    ),
    "BatchPrefillWithPagedKVCacheWrapper.__init__": dict(
        float_workspace_buffer=REQUIRED, kv_layout="NHD", use_cuda_graph=False, qo_indptr_buf=None,
        paged_kv_indptr_buf=None, paged_kv_indices_buf=None, paged_kv_last_page_len_buf=None, custom_mask_buf=None,
        mask_indptr_buf=None, backend="auto", jit_args=None, jit_kwargs=None
    ),
    "BatchPrefillWithPagedKVCacheWrapper.plan": dict(
        qo_indptr=REQUIRED, paged_kv_indptr=REQUIRED, paged_kv_indices=REQUIRED, paged_kv_last_page_len=REQUIRED,
        num_qo_heads=REQUIRED, num_kv_heads=REQUIRED, head_dim_qk=REQUIRED, page_size=REQUIRED, head_dim_vo=None,
        custom_mask=None, packed_custom_mask=None, causal=False, pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False, sm_scale=None, window_left=-1, logits_soft_cap=None, rope_scale=None,
        rope_theta=None, q_data_type="float16", kv_data_type=None, o_data_type=None, non_blocking=True,
        prefix_len_ptr=None, token_pos_in_items_ptr=None, token_pos_in_items_len=0, max_item_len_ptr=None,
        seq_lens=None, seq_lens_q=None, block_tables=None, max_token_per_sequence=None, max_sequence_kv=None,
        fixed_split_size=None, disable_split_kv=False
    ),
    "BatchPrefillWithPagedKVCacheWrapper.run": dict(
        q=REQUIRED, paged_kv_cache=REQUIRED, q_scale=None, k_scale=None, v_scale=None, out=None, lse=None,
        return_lse=False, enable_pdl=None, window_left=None, sinks=None, kv_cache_sf=None,
        skip_softmax_threshold_scale_factor=None, use_fp16_softmax=None, uses_spcompress=None
    ),
    "BatchPrefillWithPagedKVCacheWrapper.forward": dict(
        q=REQUIRED, paged_kv_cache=REQUIRED, causal=False, pos_encoding_mode="NONE", use_fp16_qk_reduction=False,
        k_scale=None, v_scale=None, window_left=-1, logits_soft_cap=None, sm_scale=None, rope_scale=None,
        rope_theta=None
    ),
    "BatchPrefillWithRaggedKVCacheWrapper.__init__": dict(
        float_workspace_buffer=REQUIRED, kv_layout="NHD", use_cuda_graph=False, qo_indptr_buf=None,
        kv_indptr_buf=None, custom_mask_buf=None, mask_indptr_buf=None, backend="auto", jit_args=None,
        jit_kwargs=None
    ),
    "BatchPrefillWithRaggedKVCacheWrapper.plan": dict(
        qo_indptr=REQUIRED, kv_indptr=REQUIRED, num_qo_heads=REQUIRED, num_kv_heads=REQUIRED, head_dim_qk=REQUIRED,
        head_dim_vo=None, custom_mask=None, packed_custom_mask=None, causal=False, pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False, window_left=-1, logits_soft_cap=None, sm_scale=None, rope_scale=None,
        rope_theta=None, q_data_type="float16", kv_data_type=None, o_data_type=None, non_blocking=True,
        prefix_len_ptr=None, token_pos_in_items_ptr=None, token_pos_in_items_len=0, max_item_len_ptr=None,
        fixed_split_size=None, disable_split_kv=False, seq_lens=None, seq_lens_q=None, max_token_per_sequence=None,
        max_sequence_kv=None, v_indptr=None, o_indptr=None
    ),
    "BatchPrefillWithRaggedKVCacheWrapper.run": dict(
        q=REQUIRED, k=REQUIRED, v=REQUIRED, q_scale=None, k_scale=None, v_scale=None, o_scale=None, out=None,
        lse=None, return_lse=False, enable_pdl=None, kv_cache_sf=None
    ),
    "BatchPrefillWithRaggedKVCacheWrapper.forward": dict(
        q=REQUIRED, k=REQUIRED, v=REQUIRED, causal=False, pos_encoding_mode="NONE", use_fp16_qk_reduction=False,
        window_left=-1, logits_soft_cap=None, sm_scale=None, rope_scale=None, rope_theta=None
    ),
}  # fmt: skip
