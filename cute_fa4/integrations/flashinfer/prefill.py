"""BatchPrefillWithPagedKVCacheWrapper and BatchPrefillWithRaggedKVCacheWrapper, with FlashInfer's parameters."""

from __future__ import annotations

from cute_fa4 import interface
from cute_fa4.calls.operands.foreign import check_neutral
from cute_fa4.calls.operands.four_bits import columns_of
from cute_fa4.calls.operands.tensors import OUT_OF
from cute_fa4.integrations.callers_names import asked
from cute_fa4.integrations.flashinfer.plans import (
    NAMES,
    Paged,
    Plan,
    Wrapper,
    check_run,
    dtypes_of,
    options_of,
    scale_of,
    scaled,
)
from cute_fa4.integrations.flashinfer.words import (
    as_int32,
    base_2,
    caches_of,
    check_no_scale_of_out,
    out_of,
    right_of,
    window_of,
)
from cute_fa4.integrations.invariance import SGLANG, VLLM, asked_by


class _Queries(Wrapper):
    """Packed queries; the plan stores their offsets."""

    def _of_queries(self, qo_indptr) -> dict:
        """The longest request of a captured graph is unknown, so use the number of all rows."""
        qo_indptr = as_int32("qo_indptr", qo_indptr)
        offsets = self._stored("qo_indptr", qo_indptr)
        longest = None
        if not self._use_cuda_graph and len(offsets) > 1:
            longest = int(qo_indptr.diff().max())
        return {"offsets": offsets, "max_queries": longest}

    def forward_return_lse(self, *args, **options):
        return self.forward(*args, return_lse=True, **options)


class BatchPrefillWithPagedKVCacheWrapper(Paged, _Queries):
    """Prompts, or chunks of them, over their pages; the last query of a request has the position of its last key.

    kv_layout   "NHD": pages (num_pages, page_size, heads_kv, head_dim); "HND": (num_pages, heads_kv, page_size, ...)
    """

    def __init__(
        self,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        qo_indptr_buf=None,
        paged_kv_indptr_buf=None,
        paged_kv_indices_buf=None,
        paged_kv_last_page_len_buf=None,
        custom_mask_buf=None,
        mask_indptr_buf=None,
        backend="auto",
        jit_args=None,
        jit_kwargs=None,
    ) -> None:
        check_neutral(jit_args=jit_args, jit_kwargs=jit_kwargs)
        super().__init__(
            float_workspace_buffer, kv_layout, use_cuda_graph, paged_kv_indices_buf, backend
        )

    def plan(
        self,
        qo_indptr,
        paged_kv_indptr,
        paged_kv_indices,
        paged_kv_last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim_qk,
        page_size,
        head_dim_vo=None,
        custom_mask=None,
        packed_custom_mask=None,
        causal=False,
        pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False,
        sm_scale=None,
        window_left=-1,
        logits_soft_cap=None,
        rope_scale=None,
        rope_theta=None,
        q_data_type="float16",
        kv_data_type=None,
        o_data_type=None,
        non_blocking=True,
        prefix_len_ptr=None,
        token_pos_in_items_ptr=None,
        token_pos_in_items_len=0,
        max_item_len_ptr=None,
        seq_lens=None,
        seq_lens_q=None,
        block_tables=None,
        max_token_per_sequence=None,
        max_sequence_kv=None,
        fixed_split_size=None,
        disable_split_kv=False,
    ) -> None:
        """Store the batch and the options.

        qo_indptr   (batch + 1,) int32: queries [o[b], o[b + 1]) are those of request b
        paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len   (batch + 1,), (pages,) and (batch,) int32: the pages
                    of each request, and the keys in its last one
        block_tables, seq_lens   (batch, pages) and (batch,) int32, instead of the lists
        window_left   visible keys before a query's own; -1: all
        fixed_split_size   pages per part, independent of the batch; disable_split_kv: keys are not split
        """
        check_neutral(
            custom_mask=custom_mask, packed_custom_mask=packed_custom_mask, pos_encoding_mode=pos_encoding_mode,
            use_fp16_qk_reduction=use_fp16_qk_reduction, prefix_len_ptr=prefix_len_ptr,
            token_pos_in_items_ptr=token_pos_in_items_ptr, token_pos_in_items_len=token_pos_in_items_len,
            max_item_len_ptr=max_item_len_ptr,
        )  # fmt: skip
        pages = self._pages(
            paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, page_size, block_tables, seq_lens
        )  # fmt: skip
        self._plan = Plan(
            heads=(num_qo_heads, num_kv_heads), depth=head_dim_qk, depth_v=head_dim_vo,
            sm_scale=scale_of(sm_scale, head_dim_qk),
            dtypes=dtypes_of(q_data_type, kv_data_type, o_data_type), window=(window_left, right_of(causal)),
            options=options_of(logits_soft_cap, disable_split_kv, fixed_split_size, page_size),
            **pages, **self._of_queries(qo_indptr),
        )  # fmt: skip

    begin_forward = plan

    def run(
        self,
        q,
        paged_kv_cache,
        *args,
        q_scale=None,
        k_scale=None,
        v_scale=None,
        out=None,
        lse=None,
        return_lse=False,
        enable_pdl=None,
        window_left=None,
        sinks=None,
        kv_cache_sf=None,
        skip_softmax_threshold_scale_factor=None,
        use_fp16_softmax=None,
        uses_spcompress=None,
    ):
        """(tokens, heads, head_dim) over the pages of a layer -> out, or (out, lse).

        q_scale, k_scale, v_scale   numbers, or one float32 on the device over a quantized cache
        kv_cache_sf   as in BatchDecodeWithPagedKVCacheWrapper.run
        """
        check_run(args, enable_pdl)
        check_neutral(use_fp16_softmax=use_fp16_softmax, uses_spcompress=uses_spcompress)
        caches = caches_of("paged_kv_cache", paged_kv_cache), kv_cache_sf
        scales, further = (q_scale, k_scale, v_scale), (sinks, skip_softmax_threshold_scale_factor)
        return self._run(q, caches, scales, (out, lse, return_lse), window_left, further, None)

    def forward(
        self,
        q,
        paged_kv_cache,
        causal=False,
        pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False,
        k_scale=None,
        v_scale=None,
        window_left=-1,
        logits_soft_cap=None,
        sm_scale=None,
        rope_scale=None,
        rope_theta=None,
        *,
        return_lse=False,
    ):
        """run, with the options given here instead of those of plan. Deprecated in FlashInfer."""
        self._changed(
            causal=causal, pos_encoding_mode=pos_encoding_mode, use_fp16_qk_reduction=use_fp16_qk_reduction,
            window_left=window_left, logits_soft_cap=logits_soft_cap, sm_scale=sm_scale,
        )  # fmt: skip
        scales = dict(k_scale=k_scale, v_scale=v_scale)
        return self.run(q, paged_kv_cache, return_lse=return_lse, **scales)


class BatchPrefillWithRaggedKVCacheWrapper(_Queries):
    """Prompts whose keys and values are packed, (tokens, heads_kv, head_dim)."""

    def __init__(
        self,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        qo_indptr_buf=None,
        kv_indptr_buf=None,
        custom_mask_buf=None,
        mask_indptr_buf=None,
        backend="auto",
        jit_args=None,
        jit_kwargs=None,
    ) -> None:
        check_neutral(jit_args=jit_args, jit_kwargs=jit_kwargs)
        if kv_layout != "NHD":
            raise ValueError(
                f"kv_layout: {kv_layout!r}; accepted: 'NHD', (tokens, heads_kv, head_dim)"
            )
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, backend)

    def plan(
        self,
        qo_indptr,
        kv_indptr,
        num_qo_heads,
        num_kv_heads,
        head_dim_qk,
        head_dim_vo=None,
        custom_mask=None,
        packed_custom_mask=None,
        causal=False,
        pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False,
        window_left=-1,
        logits_soft_cap=None,
        sm_scale=None,
        rope_scale=None,
        rope_theta=None,
        q_data_type="float16",
        kv_data_type=None,
        o_data_type=None,
        non_blocking=True,
        prefix_len_ptr=None,
        token_pos_in_items_ptr=None,
        token_pos_in_items_len=0,
        max_item_len_ptr=None,
        fixed_split_size=None,
        disable_split_kv=False,
        seq_lens=None,
        seq_lens_q=None,
        max_token_per_sequence=None,
        max_sequence_kv=None,
        v_indptr=None,
        o_indptr=None,
    ) -> None:
        """Store the batch and the options.

        qo_indptr, kv_indptr   (batch + 1,) int32: offsets of the queries and the keys of each request
        Other parameters as in BatchPrefillWithPagedKVCacheWrapper.plan, with keys instead of pages.
        """
        check_neutral(
            custom_mask=custom_mask, packed_custom_mask=packed_custom_mask, pos_encoding_mode=pos_encoding_mode,
            use_fp16_qk_reduction=use_fp16_qk_reduction, prefix_len_ptr=prefix_len_ptr,
            token_pos_in_items_ptr=token_pos_in_items_ptr, token_pos_in_items_len=token_pos_in_items_len,
            max_item_len_ptr=max_item_len_ptr, v_indptr=v_indptr, o_indptr=o_indptr,
        )  # fmt: skip
        q, kv, of_out = dtypes_of(q_data_type, kv_data_type, o_data_type)
        if o_data_type is None:  # FlashInfer's default for 8-bit queries
            of_out = OUT_OF.get(of_out, of_out)
        self._plan = Plan(
            heads=(num_qo_heads, num_kv_heads), depth=head_dim_qk, depth_v=head_dim_vo,
            sm_scale=scale_of(sm_scale, head_dim_qk),
            dtypes=(q, kv, of_out), window=(window_left, right_of(causal)),
            options=options_of(logits_soft_cap, disable_split_kv, fixed_split_size, 1),
            key_offsets=self._stored("kv_indptr", as_int32("kv_indptr", kv_indptr)), **self._of_queries(qo_indptr),
        )  # fmt: skip

    begin_forward = plan

    def run(
        self,
        q,
        k,
        v,
        *args,
        q_scale=None,
        k_scale=None,
        v_scale=None,
        o_scale=None,
        out=None,
        lse=None,
        return_lse=False,
        enable_pdl=None,
        kv_cache_sf=None,
    ):
        """(tokens, heads, head_dim) over packed keys and values -> out, or (out, lse).

        kv_cache_sf   (of k, of v) of NVFP4, (tokens, heads_kv, head_dim / 16) float8_e4m3fn, linear
        """
        check_run(args, enable_pdl)
        check_no_scale_of_out(o_scale, "v_scale")
        plan = self._planned(q, k, v)
        wanted = return_lse or lse is not None
        results = asked(
            interface.flash_attn_varlen_func, NAMES,
            q, k, v, plan.offsets, plan.key_offsets, plan.max_queries, window_size=window_of(*plan.window),
            out=out_of(out, plan.dtypes[2], q, columns_of(v)), return_lse=wanted,
            batch_invariant=asked_by(VLLM, SGLANG),
            **scaled(plan, q, k, q_scale, k_scale, v_scale), **self._blocks(k, v, kv_cache_sf), **plan.options,
        )  # fmt: skip
        if not wanted:
            return results
        found, of_tokens = results[0], base_2(results[1], lse)
        return (found, of_tokens) if return_lse else found

    def forward(
        self,
        q,
        k,
        v,
        causal=False,
        pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False,
        window_left=-1,
        logits_soft_cap=None,
        sm_scale=None,
        rope_scale=None,
        rope_theta=None,
        *,
        return_lse=False,
    ):
        """run, with the options given here instead of those of plan. Deprecated in FlashInfer."""
        self._changed(
            causal=causal, pos_encoding_mode=pos_encoding_mode, use_fp16_qk_reduction=use_fp16_qk_reduction,
            window_left=window_left, logits_soft_cap=logits_soft_cap, sm_scale=sm_scale,
        )  # fmt: skip
        return self.run(q, k, v, return_lse=return_lse)
