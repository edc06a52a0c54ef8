"""Stand-ins for other packages: their signatures and conventions, attention by its definition.

    flash-attn      flash_attn/flash_attn_interface.py     (Dao-AILab/flash-attention, 2.x)
    flash-attn-4    flash_attn/cute/interface.py
    FlashInfer      flashinfer/prefill.py, decode.py        (flashinfer-ai/flashinfer)

vLLM's signature is that of cute_fa4.integrations.vllm, and torch is there itself.
"""

from __future__ import annotations

import math

import torch

from tests.serving.batches import attention, positions


def one(
    q, k, v, scale=None, causal=False, window=(None, None), softcap=0.0, slopes=None, sink=None
):
    """-> out (m, heads, depth) of q's dtype, lse (heads, m), of one sequence."""
    p, j = positions(len(q), len(k))
    left, right = (None if side in (None, -1) else side for side in window)
    shown = torch.ones(len(q), len(k), dtype=torch.bool)
    if causal or right is not None:
        shown &= j <= p + (0 if causal else right)
    if left is not None:
        shown &= j >= p - left
    bias = None if slopes is None else lambda s: s - slopes[:, None, None] * (p - j).abs()
    out, lse, _ = attention(
        q, k, v, visible=shown, score_mod=bias, sink=sink, softcap=softcap or 0.0, scale=scale
    )
    return out.to(q.dtype), lse.float()


def each(q, k, v, *rest) -> tuple:
    """Of a list of sequences -> lists of their outs and log-sum-exps."""
    return tuple(zip(*(one(*tensors, *rest) for tensors in zip(q, k, v, strict=True)), strict=True))


def cut(x, offsets) -> list:
    bounds = offsets.tolist()
    return [x[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]


def paged(pages, table, lengths) -> list:
    return [pages[row.long()].flatten(0, 1)[:n] for row, n in zip(table, lengths, strict=True)]


class FlashAttn:
    @staticmethod
    def flash_attn_func(
        q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
        alibi_slopes=None, deterministic=False, return_attn_probs=False,
    ):  # fmt: skip
        rest = softmax_scale, causal, window_size, softcap, alibi_slopes
        out, lse = (torch.stack(x) for x in each(q, k, v, *rest))
        return (out, lse, None) if return_attn_probs else out

    @staticmethod
    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
        causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
        return_attn_probs=False, block_table=None,
    ):  # fmt: skip
        rows = cut(q, cu_seqlens_q), cut(k, cu_seqlens_k), cut(v, cu_seqlens_k)
        return torch.cat(each(*rows, softmax_scale, causal, window_size)[0])

    @staticmethod
    def flash_attn_with_kvcache(
        q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
        cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False,
        window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0,
        return_softmax_lse=False,
    ):  # fmt: skip
        size = k_cache.shape[1]
        for b, row in enumerate(cache_seqlens.tolist()):
            for i in range(k.shape[1]):
                page = block_table[b, (row + i) // size]
                k_cache[page, (row + i) % size], v_cache[page, (row + i) % size] = k[b, i], v[b, i]
        lengths = cache_seqlens + k.shape[1]
        keys, values = (paged(x, block_table, lengths) for x in (k_cache, v_cache))
        return torch.stack(each(q, keys, values, softmax_scale, causal, window_size)[0])


class FlashAttn4:
    @staticmethod
    def flash_attn_func(
        q, k, v, softmax_scale=None, causal=False, window_size=(None, None), learnable_sink=None, softcap=0.0,
        num_splits=1, pack_gqa=None, deterministic=False, score_mod=None, mask_mod=None, aux_tensors=None,
        block_sparse_tensors=None, return_lse=False,
    ):  # fmt: skip
        rest = softmax_scale, causal, window_size, softcap, None, learnable_sink
        out, lse = (torch.stack(x) for x in each(q, k, v, *rest))
        return (out, lse) if return_lse else out

    @staticmethod
    def flash_attn_varlen_func(
        q, k, v, *, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, seqused_k=None,
        page_table=None, causal=False,
    ):  # fmt: skip
        if page_table is None:
            keys, values = cut(k, cu_seqlens_k), cut(v, cu_seqlens_k)
        else:
            keys, values = (paged(x, page_table, seqused_k) for x in (k, v))
        return torch.cat(each(cut(q, cu_seqlens_q), keys, values, None, causal)[0])


class FlashInfer:
    """Its log-sum-exps are to base 2, (rows, heads)."""

    @staticmethod
    def single_prefill_with_kv_cache(
        q, k, v, custom_mask=None, causal=False, sm_scale=None, window_left=-1, logits_soft_cap=None,
        return_lse=False,
    ):  # fmt: skip
        out, lse = one(q, k, v, sm_scale, causal, (window_left, -1), logits_soft_cap)
        return (out, lse.T / math.log(2)) if return_lse else out

    @staticmethod
    def single_decode_with_kv_cache(q, k, v, kv_layout="NHD"):
        return one(q[None], k, v)[0][0]

    class ragged:
        @classmethod
        def plan(cls, qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, causal=False):
            cls.planned = qo_indptr, kv_indptr, causal

        @classmethod
        def run(cls, q, k, v):
            q_offsets, k_offsets, causal = cls.planned
            rows = cut(q, q_offsets), cut(k, k_offsets), cut(v, k_offsets)
            return torch.cat(each(*rows, None, causal)[0])

    class paged:
        @classmethod
        def plan(
            cls, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads,
            num_kv_heads, head_dim_qk, page_size, causal=False,
        ):  # fmt: skip
            pages = cut(paged_kv_indices, paged_kv_indptr)
            lengths = [
                (len(numbers) - 1) * page_size + int(last)
                for numbers, last in zip(pages, paged_kv_last_page_len, strict=True)
            ]
            cls.planned = qo_indptr, pages, lengths, causal

        @classmethod
        def run(cls, q, paged_kv_cache):
            offsets, table, lengths, causal = cls.planned
            keys, values = (paged(x, table, lengths) for x in paged_kv_cache)
            return torch.cat(each(cut(q, offsets), keys, values, None, causal)[0])


def names(package) -> dict:
    return {name: value for name, value in vars(package).items() if not name.startswith("__")}


PACKAGES = {"flash-attn": FlashAttn, "flash-attn-4": FlashAttn4, "FlashInfer": FlashInfer}
