"""BatchDecodeWithPagedKVCacheWrapper, with FlashInfer's parameters."""

from __future__ import annotations

from cute_fa4.calls.operands.foreign import check_neutral
from cute_fa4.integrations.flashinfer.plans import (
    Paged,
    Plan,
    check_run,
    dtypes_of,
    options_of,
    scale_of,
)
from cute_fa4.integrations.flashinfer.words import caches_of
from cute_fa4.system.messages import shown


class BatchDecodeWithPagedKVCacheWrapper(Paged):
    """The last tokens of each request, causal, over its pages.

    kv_layout   "NHD": pages (num_pages, page_size, heads_kv, head_dim); "HND": (num_pages, heads_kv, page_size, ...)
    """

    def __init__(
        self,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        use_tensor_cores=False,
        paged_kv_indptr_buffer=None,
        paged_kv_indices_buffer=None,
        paged_kv_last_page_len_buffer=None,
        backend="auto",
        jit_args=None,
    ) -> None:
        check_neutral(jit_args=jit_args)
        super().__init__(
            float_workspace_buffer, kv_layout, use_cuda_graph, paged_kv_indices_buffer, backend
        )

    @property
    def use_tensor_cores(self) -> bool:
        return True

    def plan(
        self,
        indptr,
        indices,
        last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim,
        page_size,
        pos_encoding_mode="NONE",
        window_left=-1,
        logits_soft_cap=None,
        q_data_type="float16",
        kv_data_type=None,
        o_data_type=None,
        data_type=None,
        sm_scale=None,
        rope_scale=None,
        rope_theta=None,
        non_blocking=True,
        block_tables=None,
        seq_lens=None,
        fixed_split_size=None,
        disable_split_kv=False,
        q_len_per_req=1,
        *,
        window_right=0,
    ) -> None:
        """Store the batch and the options.

        indptr           (batch + 1,) int32: pages indices[indptr[b]:indptr[b + 1]] are those of request b
        last_page_len    (batch,) int32: keys in the last of them
        block_tables, seq_lens   (batch, pages) and (batch,) int32, instead of the lists
        q_len_per_req    tokens of each request; the last one has the position of the last key
        window_left, window_right   visible keys before and after a token's own; -1: all
        fixed_split_size   pages per part, independent of the batch; disable_split_kv: keys are not split
        """
        check_neutral(pos_encoding_mode=pos_encoding_mode)
        if q_data_type is None:
            q_data_type = "float16" if data_type is None else data_type
        kv_data_type = data_type if kv_data_type is None else kv_data_type
        pages = self._pages(indptr, indices, last_page_len, page_size, block_tables, seq_lens)
        self._plan = Plan(
            heads=(num_qo_heads, num_kv_heads), depth=head_dim, sm_scale=scale_of(sm_scale, head_dim),
            dtypes=dtypes_of(q_data_type, kv_data_type, o_data_type), window=(window_left, window_right),
            options=options_of(logits_soft_cap, disable_split_kv, fixed_split_size, page_size), queries=q_len_per_req,
            **pages,
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
        q_len_per_req=None,
        skip_softmax_threshold_scale_factor=None,
        kv_cache_sf=None,
    ):
        """(batch * q_len_per_req, heads, head_dim) over the pages of a layer -> out, or (out, lse).

        q_scale, k_scale, v_scale   numbers, or one float32 on the device over a quantized cache
        kv_cache_sf   of an NVFP4 cache (kv_data_type torch.uint8, rows of head_dim / 2 bytes), float8_e4m3fn: a pair,
                      or one tensor, as the cache with head_dim / 16. The scales of V are in the 4-token order of
                      backend="trtllm-gen", or linear as in "fa2", which "auto" is. Of an MXFP8 cache float8_e8m0fnu
                      with head_dim / 32, linear
        """
        check_run(args, enable_pdl)
        caches = caches_of("paged_kv_cache", paged_kv_cache), kv_cache_sf
        queries = None if self._plan is None else self._plan.queries
        if self._plan is not None and q_len_per_req not in (None, queries):
            raise ValueError(
                f"q_len_per_req: {shown(q_len_per_req)}; accepted: {queries}, as planned"
            )
        scales = q_scale, k_scale, v_scale
        further = sinks, skip_softmax_threshold_scale_factor
        return self._run(q, caches, scales, (out, lse, return_lse), window_left, further, queries)

    def forward(
        self,
        q,
        paged_kv_cache,
        pos_encoding_mode="NONE",
        q_scale=None,
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
            causal=True, pos_encoding_mode=pos_encoding_mode, window_left=window_left, logits_soft_cap=logits_soft_cap,
            sm_scale=sm_scale,
        )  # fmt: skip
        scales = dict(q_scale=q_scale, k_scale=k_scale, v_scale=v_scale)
        return self.run(q, paged_kv_cache, return_lse=return_lse, **scales)

    def forward_return_lse(self, *args, **options):
        return self.forward(*args, return_lse=True, **options)
