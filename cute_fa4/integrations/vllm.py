"""The functions that vLLM's FlashAttention and FlashMLA backends import, with their signatures.

vllm/v1/attention/backends/fa_utils.py     imports them from vllm.vllm_flash_attn; replace them there
vllm/v1/attention/backends/flash_attn.py   imports them from there, and calls them
vllm/vllm_flash_attn/flash_attn_interface.py   has the signatures (vllm-project/vllm at 01420e05)

The backend's calls contain: q (tokens, heads_q, head_dim) and out of the same shape, k and v as
kv_cache.unbind(0) of (2, num_blocks, block_size, heads_kv, head_dim) in NHD or HND memory, cu_seqlens_q, seqused_k and
block_table as int32 tensors, windows as lists, softcap 0 for none. Nothing of vLLM is imported. Under
VLLM_BATCH_INVARIANT=1 each call has batch_invariant=True (integrations/invariance.py).

vllm/v1/attention/ops/flashmla.py          has flash_mla_with_kvcache, get_mla_metadata and flash_mla_sparse_fwd for
                                           latent caches
vllm/v1/attention/backends/mla/flashmla.py, flashmla_sparse.py   import them from there, and call them
                                           (vllm-project/vllm at 01b1d340; the sparse ones at 008a0c31)

NVFP4 caches (kv_cache_dtype="nvfp4", "nvfp4_4over6"): pages of uint8 in which the scales of K follow its codes, then
those of V in 4-token order (csrc/libtorch_stable/nvfp4_kv_cache_kernels.cu has the writer, vllm/utils/torch_utils.py
the views). vLLM's FlashInfer backend takes the views: nvfp4_kv_cache_split_views makes them. flash_attn_varlen_func
takes the pages.

Prefill of its MLA backends: replacements for two methods that concatenate keys; these do not concatenate

_concat_k_nope_k_pe                of MLACommonImpl (mla_attention.py)    concat_k_nope_k_pe
_flash_attn_varlen_diff_headdims   of the prefill backend                 flash_attn_varlen_diff_headdims
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from cute_fa4 import interface, mla, mla_sparse, nvfp4
from cute_fa4.calls.operands.foreign import check_neutral
from cute_fa4.calls.operands.four_bits import BYTES
from cute_fa4.calls.operands.tensors import FP8, check_is_tensor
from cute_fa4.dtypes import E4M3
from cute_fa4.integrations.callers_names import asked
from cute_fa4.integrations.invariance import VLLM, asked_by
from cute_fa4.layouts.cache_scales import INTERLEAVED4, LINEAR
from cute_fa4.sm100.blueprint.score_mods import ScoreMod
from cute_fa4.system.messages import shown

WRITTEN = {"nvfp4": False, "nvfp4_4over6": True}  # kv_cache_dtype -> four_over_six of nvfp4.write
NAMES = {
    "page_table": "block_table", "learnable_sink": "s_aux", "return_lse": "return_softmax_lse",
    "o_scale": "output_scale", "aux_tensors": "dynamic_causal",
}  # fmt: skip


def flash_attn_varlen_func(
    q,
    k,
    v,
    max_seqlen_q,
    cu_seqlens_q,
    max_seqlen_k,
    cu_seqlens_k=None,
    seqused_k=None,
    q_v=None,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size: list[int] | None = None,
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
    return_softmax_lse=False,
    out=None,
    scheduler_metadata=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    num_splits: int = 0,
    output_scale=None,
    fa_version: int = 2,
    s_aux=None,
    cp_world_size=1,
    cp_rank=0,
    cp_tot_seqused_k=None,
    mask_mod=None,
    block_sparse_tensors=None,
    aux_tensors=None,
    aux_tensor_leading_dims=None,
    dynamic_causal: torch.Tensor | None = None,
):
    """cute_fa4.flash_attn_varlen_func in vLLM's order of arguments.

    q, out        (total_q, heads_q, head_dim), bf16 or fp16; out is written in place. With kv_cache_dtype="fp8" the
                  backend passes float8_e4m3fn k and v, and either float8 q with bf16 out, or 16-bit q and out
    k, v          pages (num_blocks, block_size, heads_kv, head_dim) with block_table and seqused_k; otherwise
                  packed (total_k, heads_kv, head_dim) with cu_seqlens_k. With kv_cache_dtype="nvfp4" under 16-bit q:
                  pages of uint8 with 9/16 head_dim, codes and scales, as kv_cache[:, 0] and [:, 1] of vLLM's cache
    window_size   [left, right], -1: open
    fa_version    2, 3 or 4: the same kernel
    scheduler_metadata   None or a tensor, which is not read: CTAs compute their work from the lengths
    num_splits    0: chosen; others as in flash_attn_varlen_func
    q_descale, k_descale, v_descale   scales of float8 tensors, or global scales of NVFP4 caches, (sequences, heads_kv)
                  or one number. The backend passes
                  them with 16-bit tensors, too, where they are 1 and have no effect: accepted, and checked on the
                  CPU only
    output_scale  one number, float32: out is float8_e4m3fn and holds the result divided by it
    dynamic_causal   (sequences,) int32 or bool: sequences with 0 have only the window, others are also causal,
                  regardless of causal. The mask is read for every score and skips no key tiles
    deterministic any value

    Returns out, or (out, lse) with return_softmax_lse; lse is float32 (heads_q, total_q), natural logarithm.

    NotImplementedError for alibi_slopes, q_v, dropout, context parallelism (cp_...), attention probabilities, functions
    and sparse blocks of flash-attn-4, and descales of 16-bit tensors that are not 1; otherwise the errors of
    cute_fa4.flash_attn_varlen_func.
    """
    check_neutral(
        q_v=q_v, alibi_slopes=alibi_slopes, dropout_p=dropout_p, return_attn_probs=return_attn_probs,
        cp_world_size=cp_world_size, cp_rank=cp_rank, cp_tot_seqused_k=cp_tot_seqused_k, mask_mod=mask_mod,
        block_sparse_tensors=block_sparse_tensors, aux_tensors=aux_tensors,
        aux_tensor_leading_dims=aux_tensor_leading_dims,
    )  # fmt: skip
    if fa_version not in (2, 3, 4):
        raise ValueError(
            f"fa_version: {fa_version!r}; accepted: 2, 3 or 4, which run the same kernel"
        )
    if (cu_seqlens_k is None) == (seqused_k is None):
        raise ValueError(
            "cu_seqlens_k, seqused_k: both or neither; accepted: cu_seqlens_k for packed keys, seqused_k for pages"
        )
    k, v, blocks = _without_blocks(k, v, block_table)
    return asked(
        interface.flash_attn_varlen_func, NAMES,
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
        seqused_k=seqused_k, page_table=block_table, num_splits=num_splits, batch_invariant=asked_by(VLLM),
        softmax_scale=softmax_scale, window_size=window_size,
        softcap=softcap, learnable_sink=s_aux, return_lse=return_softmax_lse,
        **_of_output(q, v, out, output_scale), **_mask_of(causal, dynamic_causal, cu_seqlens_q),
        **_scales(q, k, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale), **blocks,
    )  # fmt: skip


def _causal_by_sequence(batch, head, q_idx, kv_idx, aux):
    """Hides keys after the query in causal sequences."""
    return (kv_idx <= aux.position) | (aux[0][batch] == 0)


CAUSAL_BY_SEQUENCE = ScoreMod.of(_causal_by_sequence)


def _mask_of(causal, dynamic_causal, cu_seqlens_q) -> dict:
    """`causal`, or a function that reads it for each sequence."""
    if dynamic_causal is None:
        return {"causal": causal}
    for name, tensor in (("dynamic_causal", dynamic_causal), ("cu_seqlens_q", cu_seqlens_q)):
        check_is_tensor(name, tensor)
    shape, dtype = tuple(dynamic_causal.shape), dynamic_causal.dtype
    sequences = cu_seqlens_q.shape[0] - 1
    if len(shape) != 1 or shape[0] < sequences or dtype not in (torch.int32, torch.bool):
        raise ValueError(
            f"dynamic_causal: shape {shape}, dtype {dtype}; accepted: ({sequences},) of torch.int32 or torch.bool"
        )
    numbers = dynamic_causal.view(torch.uint8) if dtype is torch.bool else dynamic_causal
    return {"mask_mod": CAUSAL_BY_SEQUENCE, "aux_tensors": [numbers]}


def _scales(q, k, **given) -> dict:
    """The scales of 8-bit tensors; the backend also passes scales of others, which must be 1."""
    unread = ("q_descale",) if _has_8_bits(k) or _is_nvfp4(k) else tuple(given)
    for name in () if _has_8_bits(q) else unread:
        _check_descale(name, given.pop(name))
    return given


def _has_8_bits(x) -> bool:
    return getattr(x, "dtype", None) in FP8


def _is_nvfp4(x) -> bool:
    return getattr(x, "dtype", None) is BYTES


def _without_blocks(k, v, block_table) -> tuple:
    """-> (k, v, their block scales by name): vLLM's NVFP4 pages as codes and scales; others as they are."""
    if not _is_nvfp4(k) or not _is_nvfp4(v):
        return k, v, {}
    if block_table is None:
        raise NotImplementedError(
            "block_table: None with k and v of torch.uint8 (NVFP4); accepted: a table of pages, in which codes and "
            "scales lie side by side"
        )
    (k, of_k), (v, of_v) = nvfp4.codes_and_scales(k, "k"), nvfp4.codes_and_scales(v, "v")
    blocks = {"k_block_scale": of_k, "v_block_scale": of_v, "v_block_scale_layout": INTERLEAVED4}
    return k, v, blocks


def nvfp4_kv_cache_split_views(kv_cache: torch.Tensor) -> tuple[tuple, tuple]:
    """Views of the codes and the scales of a cache with kv_cache_dtype="nvfp4".

    kv_cache   uint8 (num_blocks, 2, block_size, heads_kv, 9/16 head_dim), or with heads before rows; or K or V of it,
               without the second dimension

    Returns ((codes of K, of V), (scales of K, of V)), or ((codes,), (scales,)) of one: kv_cache and kv_cache_sf of
    FlashInfer's functions with backend="trtllm-gen".
    """
    check_is_tensor("kv_cache", kv_cache)
    sides = kv_cache.unbind(1) if kv_cache.dim() == 5 else (kv_cache,)
    found = [nvfp4.codes_and_scales(side, "kv_cache") for side in sides]
    codes, scales = zip(*found, strict=True)
    return codes, scales


def reshape_and_cache_flash(
    key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale
) -> None:
    """Quantize new rows into an NVFP4 cache, in place, with vLLM's parameters; in plain torch.

    key, value     (tokens, heads_kv, head_dim), 16 bits; tokens beyond slot_mapping are padding
    key_cache, value_cache   kv_cache[:, 0] and [:, 1]: uint8 (num_blocks, block_size, heads_kv, 9/16 head_dim) in NHD
                   or HND memory, block_size a multiple of 4
    slot_mapping   (tokens,): block * block_size + row of the block; below 0: the row is not written
    kv_cache_dtype "nvfp4", or "nvfp4_4over6": each block has the better of two scales
    k_scale, v_scale   the global scales, one float32 each

    Scales of K are linear, those of V in 4-token order. Bytes are those of nvfp4.quantize. NotImplementedError for
    other dtypes of a cache.
    """
    if not isinstance(kv_cache_dtype, str) or kv_cache_dtype not in WRITTEN:
        raise NotImplementedError(
            f"kv_cache_dtype: {shown(kv_cache_dtype)}; accepted: {' or '.join(map(repr, WRITTEN))}; other caches are "
            "filled by vLLM's reshape_and_cache_flash, or by flash_attn_with_kvcache"
        )
    tokens = len(slot_mapping)
    for rows, cache, factor, layout, name in (
        (key, key_cache, k_scale, LINEAR, "key_cache"),
        (value, value_cache, v_scale, INTERLEAVED4, "value_cache"),
    ):
        codes, scales = nvfp4.codes_and_scales(cache, name)
        nvfp4.write(
            rows[:tokens], codes, scales, slot_mapping, factor, scale_layout=layout,
            four_over_six=WRITTEN[kv_cache_dtype],
        )  # fmt: skip


class KeysApart(NamedTuple):
    """Keys of latent attention: per-head columns, and shared columns."""

    nope: torch.Tensor
    rope: torch.Tensor


def concat_k_nope_k_pe(k_nope: torch.Tensor, k_pe: torch.Tensor) -> KeysApart:
    """Both unchanged: k_nope (tokens, heads, 128), k_pe (tokens, 1, 64), rows of a cache or of a workspace."""
    return KeysApart(k_nope, k_pe)


def flash_attn_varlen_diff_headdims(
    q,
    k: KeysApart | torch.Tensor,
    v,
    return_softmax_lse: bool = False,
    softmax_scale: float | None = None,
    *,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    causal: bool = False,
    out=None,
    output_scale=None,
):
    """Prefill of latent attention: q (tokens, heads, 192), v (tokens, heads, 128), packed.

    k   the result of concat_k_nope_k_pe, or keys of all columns
    output_scale   one number, float32: out is float8_e4m3fn and holds the result divided by it, as vLLM's static
                   quantization after attention computes it; None: out has the dtype of q

    Returns out, or (out, lse) with return_softmax_lse, for merging chunks of the context; lse is float32
    (heads, tokens), natural logarithm.
    """
    given = _of_output(q, v, out, output_scale)
    if isinstance(k, KeysApart):
        k, given["k_rope"] = k
    return asked(
        interface.flash_attn_varlen_func, NAMES,
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
        softmax_scale=softmax_scale, causal=causal,
        return_lse=return_softmax_lse, batch_invariant=asked_by(VLLM),
        **given,
    )  # fmt: skip


def _of_output(q, v, out, output_scale) -> dict:
    """`out` and `o_scale`, the factor of the kernel's output."""
    if output_scale is None:
        return {"out": out}
    check_is_tensor("output_scale", output_scale)
    if out is None:
        out = q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=E4M3.torch)
    return {"out": out, "o_scale": output_scale.reciprocal()}


def get_scheduler_metadata(
    batch_size,
    max_seqlen_q,
    max_seqlen_k,
    num_heads_q,
    num_heads_kv,
    headdim,
    cache_seqlens: torch.Tensor,
    qkv_dtype=torch.bfloat16,
    headdim_v=None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k_new: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    page_size: int | None = None,
    max_seqlen_k_new=0,
    causal=False,
    window_size=(-1, -1),
    has_softcap=False,
    num_splits=0,
    pack_gqa=None,
    sm_margin=0,
) -> None:
    """None: CTAs compute their work from the lengths, so nothing is computed before a launch."""


def flash_mla_with_kvcache(
    q,
    k_cache,
    block_table,
    cache_seqlens,
    head_dim_v,
    tile_scheduler_metadata=None,
    num_splits=None,
    softmax_scale=None,
    causal=False,
    is_fp8_kvcache=False,
    indices=None,
    attn_sink=None,
    extra_k_cache=None,
    extra_indices_in_kvcache=None,
    topk_length=None,
    extra_topk_length=None,
    out=None,
):
    """cute_fa4.flash_mla_with_kvcache with the interface of the FlashMLA backends, sparse or not.

    q         (batch, queries of a sequence, heads, 576), k_cache (num_blocks, block_size, 1, 576), or with
              is_fp8_kvcache (num_blocks, block_size, 1, 656) of bytes, which vLLM calls fp8_ds_mla
    indices   (batch, queries, keys) int32, block * block_size + row of the block, -1: none
    topk_length   (batch,) int32: the valid length of each list of indices, or None
    tile_scheduler_metadata, num_splits   anything; not read

    attn_sink     (heads,) float32; not included in lse

    extra_k_cache, extra_indices_in_kvcache, extra_topk_length   a second cache, and what each query sees there

    Returns (out, lse), (batch, queries, heads, 512) and (batch, heads, queries).
    """
    return mla.flash_mla_with_kvcache(
        q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, None, softmax_scale, causal,
        is_fp8_kvcache, indices, attn_sink, extra_k_cache, extra_indices_in_kvcache, topk_length, extra_topk_length,
        out=out, batch_invariant=asked_by(VLLM),
    )  # fmt: skip


def flash_mla_with_kvcache_fp8(
    q,
    k_cache,
    block_table,
    cache_seqlens,
    head_dim_v,
    tile_scheduler_metadata=None,
    num_splits=None,
    softmax_scale=None,
    causal=False,
    descale_q=None,
    descale_k=None,
):
    """The same over a float8 cache of 576 columns with one scale, as in the FlashMLA backend for fp8 caches.

    q, k_cache   float8_e4m3fn; a uint8 k_cache is reinterpreted as such
    descale_q, descale_k   float32, one number or (batch,)
    """
    if isinstance(k_cache, torch.Tensor) and k_cache.dtype is torch.uint8:
        k_cache = k_cache.view(E4M3.torch)
    return mla.flash_mla_with_kvcache(
        q, k_cache, block_table, cache_seqlens, head_dim_v,
        softmax_scale=softmax_scale, causal=causal,
        descale_q=descale_q, descale_k=descale_k, batch_invariant=asked_by(VLLM),
    )  # fmt: skip


def flash_mla_sparse_fwd(
    q, kv, indices, sm_scale, d_v=512, attn_sink=None, topk_length=None, out=None
):
    """cute_fa4.flash_mla_sparse_fwd with the interface of the sparse FlashMLA backend, which reads out and lse.

    Returns (out, None, lse): (queries, heads, 512) and (queries, heads).
    """
    return mla_sparse.flash_mla_sparse_fwd(
        q, kv, indices, sm_scale, d_v, attn_sink, topk_length, out=out, batch_invariant=asked_by(VLLM)
    )  # fmt: skip


def get_mla_metadata(*args, **kwargs) -> tuple[None, None]:
    """Nothing is computed before a launch: the backend's scheduler_metadata is None."""
    return mla.get_mla_metadata()


def _check_descale(name: str, scale: torch.Tensor | None) -> None:
    if isinstance(scale, torch.Tensor) and scale.device.type == "cpu" and bool((scale != 1).any()):
        raise NotImplementedError(
            f"{name}: {float(scale.flatten()[0])}: tensors of 16 bits have no scale; accepted: None, or ones"
        )
