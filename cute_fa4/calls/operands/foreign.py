"""Arguments as other packages have them: which ones have no effect here and pass, and how the others are refused.

flash-attn, flash-attn-4, scaled_dot_product_attention, FlashInfer, FlashMLA and vLLM give the same things other
names and another order. The public functions take what they do not know as *positional and **others, and ask here only
if there is any. Functions with another package's signature ask check_neutral about parameters that have no kernel.
docs/coming_from.md has the whole table.
"""

from __future__ import annotations

import difflib
import inspect

import torch
from torch.compiler import is_dynamo_compiling

from cute_fa4.compiler import policy
from cute_fa4.operands import OFFSETS_OF_QUERIES, OFFSETS_OF_SEQUENCES
from cute_fa4.system.messages import shown

PAGE = "docs/coming_from.md"

_GROUPED = "query heads may be any multiple of the key/value heads"
_VLLM = "cute_fa4.integrations.vllm has vLLM's signature"

_SECOND_QUERY = (
    "a second query for V is not supported: for MLA use cute_fa4.mla.flash_mla_with_kvcache, whose q has the columns "
    "of qv, then those of q"
)
_BLOCKS = "use block_sparse_tensors= of flash_attn_func and flash_attn_varlen_func"
_TENSOR_MASK = "use mask=, mask_mod=, or cute_fa4.scaled_dot_product_attention, which reads tensors"
_CONTEXT = "a cache on several GPUs: cute_fa4.distributed.decode_attention"
_BACKENDS = ("auto", None, "fa2", "fa3", "cutlass", "cute-dsl", "sparse", "trtllm-gen", "xqa")

# name -> (values that change nothing here, the remedy for other values)
UNSUPPORTED = {
    "dropout_p": ((0, None), "dropout is not supported: call model.eval(), or pass 0"),
    "alibi_slopes": (
        (None,),
        "score_mod=score_mods.alibi(num_heads) has the usual slopes; a score_mod that reads aux_tensors has any",
    ),
    "return_attn_probs": ((False, None), "return_lse=True returns the log-sum-exp; probabilities are never stored"),
    "qv": ((None,), _SECOND_QUERY),
    "q_v": ((None,), _SECOND_QUERY),
    "sm_margin": ((0, None), "the number of CTAs is not limited"),
    "scheduler_metadata": ((None,), "a CTA derives its work from the lengths; plans of other packages are not read"),
    "gather_kv_indices": ((None,), "use page_table= with pages of one key, a row for each sequence"),
    "pos_encoding_mode": (("NONE", None), "rotate q and k before the call"),
    "backend": (_BACKENDS, "the call chooses the kernel; cudnn's offsets, which count elements, are not read"),
    "cp_world_size": ((1,), _CONTEXT),
    "cp_rank": ((0,), _CONTEXT),
    "cp_tot_seqused_k": ((None,), _CONTEXT),
    "mask": ((None,), "for a tree of drafts use a mask_mod= that reads aux_tensors: docs/serving/split_keys.md"),
    "mask_mod": ((None,), "functions of flash-attn-4 have other arguments: use mask_mod= of the functions here"),
    "aux_tensors": ((None,), "use aux_tensors= of the functions here, with their mask_mod= or score_mod="),
    "score_mod_bwd": (
        (None,),
        "gradients are derived from the score_mod; score_mod=score_mods.ScoreMod.of(function, backward=...) has others",
    ),
    "aux_tensor_leading_dims": ((None,), "use aux_tensors= of the functions here, which may have any strides"),
    "block_sparse_tensors": ((None,), _BLOCKS),
    "custom_mask": ((None,), _TENSOR_MASK),
    "packed_custom_mask": ((None,), _TENSOR_MASK),
    "skip_softmax_threshold_scale_factor": ((None,), "skipped by flash_attn_func and its variants only"),
    "use_fp16_qk_reduction": ((False, None), "scores are summed in float32"),
    "use_fp16_softmax": ((None, False), "probabilities are computed in float32"),
    "uses_spcompress": ((None, False), "nothing is skipped"),
    "uses_shared_paged_kv_idx": ((True,), "use one table for K and V: views of a pool whose pages hold both"),
    "enable_block_sparse_attention": ((False,), _BLOCKS),
    "o_sf_scale": ((None,), "FP4 output is not supported"),
    "o_sf_vec_size": ((None,), "FP4 output is not supported"),
    "prefix_len_ptr": ((None,), "use a mask_mod= that reads aux_tensors"),
    "token_pos_in_items_ptr": ((None,), "use a mask_mod= that reads aux_tensors"),
    "token_pos_in_items_len": ((0,), "use a mask_mod= that reads aux_tensors"),
    "max_item_len_ptr": ((None,), "use a mask_mod= that reads aux_tensors"),
    "v_indptr": ((None,), "values have the offsets of the keys"),
    "o_indptr": ((None,), "out has the offsets of q"),
    "jit_args": ((None,), "use score_mod= and mask_mod= of the functions here"),
    "jit_kwargs": ((None,), "use score_mod= and mask_mod= of the functions here"),
    "cum_seq_lens_q": ((None,), f"use {OFFSETS_OF_QUERIES}=; requests over a latent cache have equally many queries"),
    "max_q_len": ((None,), "use max_seqlen_q=; requests over a latent cache have equally many queries"),
    "enable_dcp": ((False,), _CONTEXT),
    "cp_world": ((1,), _CONTEXT),
    "causal_seqlens_kv_global": ((None,), _CONTEXT),
    "multi_ctas_kv_counter_buffer": ((None,), "counters of another package's kernel are not read"),
    "enable_pdl": ((None, True, False), "programmatic dependent launch is on wherever it is safe"),
    "is_var_seq": ((True, False), "lengths are read on the device"),
    "cute_dsl_impl": (("auto", "modular", "monolithic"), "the call chooses the kernel"),
    "kv_scale_format": (("auto", "pow2_fp32", "arbitrary_fp32"), "any float32 may be the scale of a row"),
    **dict.fromkeys(
        ("hca_swa_indices", "hca_compressed_block_tables", "hca_seq_lens", "hca_sparse_indices_format"),
        ((None,), "keys of both caches are listed by row: sparse_indices, extra_sparse_indices"),
    ),
    "hca_is_causal": ((True,), "a query sees the keys of its lists"),
    "hca_use_persistent": ((False, True), "the call chooses the kernel"),
    "bf16q_fp8kv_transform_mode": ((None, "k_only", "separate_kv"), "the call chooses the kernel"),
}  # fmt: skip
# Plans that other packages compute from the lengths before a call; accepted as tensors, and not read.
NOT_NEEDED = ("scheduler_metadata", "multi_ctas_kv_counter_buffer")
OTHER_NAMES = {
    "attn_mask": ((None,), _TENSOR_MASK),
    "is_causal": ((False, None), "causal=, which counts from the last key where seqlen_q and seqlen_k differ"),
    "scale": ((None,), "softmax_scale="),
    "sm_scale": ((None,), "softmax_scale="),
    "enable_gqa": ((False, True, None), _GROUPED),
    "query": ((), "q=, (batch, seqlen, heads, head_dim); or cute_fa4.scaled_dot_product_attention"),
    "key": ((), "k=, (batch, seqlen, heads, head_dim); or cute_fa4.scaled_dot_product_attention"),
    "value": ((), "v=, (batch, seqlen, heads, head_dim); or cute_fa4.scaled_dot_product_attention"),
    "logits_soft_cap": ((0, None), "softcap="),
    "window_left": ((-1, None), "window_size=(left, None)"),
    "window_size_left": ((-1, None), "window_size=(left, right)"),
    "window_size_right": ((-1, None), "window_size=(left, right)"),
    "attention_chunk": ((0, None), "mask=masks.chunked_causal(size) or masks.chunked(size)"),
    "sinks": ((None,), "learnable_sink="),
    "s_aux": ((None,), "learnable_sink="),
    "attn_sink": ((None,), "learnable_sink="),
    "return_softmax_lse": ((False, None), "return_lse="),
    "page_table": ((None,), "flash_attn_varlen_func or flash_attn_with_kvcache"),
    "block_table": ((None,), "flash_attn_varlen_func or flash_attn_with_kvcache"),
    **dict.fromkeys(OFFSETS_OF_SEQUENCES, ((None,), "flash_attn_varlen_func")),
    "seqused_k": ((None,), "flash_attn_varlen_func; for dense keys key_limit="),
    "kv_cache": ((), "k_cache= and v_cache=, which may be slices of one tensor"),
    "paged_kv_cache": ((), "k= and v=, which may be slices of one tensor, with page_table="),
    "kv_cache_sf": ((None,), "k_block_scale= and v_block_scale=, with v_block_scale_layout="),
    "kv_layout": (("NHD",), "tensors (batch, seqlen, heads, head_dim), such as x.transpose(1, 2)"),
    "k_rope": ((None,), "flash_attn_func or flash_attn_varlen_func; a cache with K of each head has all columns in k"),
    "k_rope_page_table": ((None,), "flash_attn_varlen_func"),
    "q_rope": ((None,), "flash_attn_func or flash_attn_varlen_func, with k_rope"),
    "k_rope_descale": ((None,), "flash_attn_func or flash_attn_varlen_func, with k_rope"),
    "k_pe": ((None,), "k_rope="),
    "kpe": ((None,), "k_rope="),
    "fa_version": ((2, 3, 4), _VLLM),
}  # fmt: skip

# The parameter after the last one that may be passed by position, in packages with such a function.
NEXT = {
    "flash_attn_func": "dropout_p in flash-attn, softmax_scale in flash-attn-4, attn_mask in torch",
    "flash_attn_varlen_func": "dropout_p in flash-attn, seqused_q in flash-attn-4",
    "flash_attn_with_kvcache": "rotary_cos in flash-attn, qv in flash-attn-3",
}
SWITCHES = (
    "deterministic",
    "return_lse",
    "return_softmax_lse",
    "seqused_k_excludes_new",
    "four_over_six",
)


def check_switch(name: str, value) -> bool:
    """The value of a switch, which is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}: {shown(value)}; accepted: True or False")
    return value


def check_arguments(function, positional: tuple, others: dict, given: dict) -> None:
    """Refuse arguments that a public function lacks, and switches that are neither True nor False.

    given: arguments by name; only the switches are checked.
    """
    if positional:
        raise TypeError(_too_many(function, positional))
    for name, value in others.items():
        _check_other(function, name, value)
    for name in SWITCHES:
        if name in given:
            check_switch(name, given[name])
    pack_gqa = given.get("pack_gqa")
    if pack_gqa is not None and not isinstance(pack_gqa, bool):
        raise TypeError(f"pack_gqa: {shown(pack_gqa)}; accepted: None (chosen), True or False")
    policy.check_batch_invariant(given.get("batch_invariant"))


def check_neutral(**given) -> None:
    """NotImplementedError for the first argument, by its name in UNSUPPORTED, whose value would change something.

    >>> check_neutral(dropout_p=0.0, alibi_slopes=None)
    >>> check_neutral(sm_margin=8)
    Traceback (most recent call last):
    NotImplementedError: sm_margin: 8; accepted: 0; the number of CTAs is not limited; see docs/coming_from.md
    """
    for name, value in given.items():
        if name in NOT_NEEDED and isinstance(value, torch.Tensor):
            continue
        neutral, instead = UNSUPPORTED[name]
        if not _is_one_of(value, neutral):
            raise NotImplementedError(
                f"{name}: {shown(value)}; accepted: {neutral[0]!r}; {instead}; see {PAGE}"
            )


def _too_many(function, positional: tuple) -> str:
    by_position = _by_position(function)
    name = function.__name__
    return (
        f"{name}: argument {len(by_position) + 1} by position: {shown(positional[0])}; accepted by position: "
        f"{', '.join(by_position)}; give the others by keyword, because packages differ in their order: "
        f"the next parameter is {NEXT[name]}; see {PAGE}"
    )


def _check_other(function, name: str, value) -> None:
    asked = f"{name}: {shown(value)}"
    if name in UNSUPPORTED:
        check_neutral(**{name: value})
    elif name in OTHER_NAMES:
        off, instead = OTHER_NAMES[name]
        if not _is_one_of(value, off):
            raise TypeError(
                f"{asked}: not a parameter of {function.__name__}; accepted: {instead}; see {PAGE}"
            )
    else:
        raise TypeError(_unknown(function, name))


def _is_one_of(value, accepted: tuple) -> bool:
    if isinstance(value, torch.Tensor):
        return False
    return any(value is each or (value == each and each is not None) for each in accepted)


def _unknown(function, name: str) -> str:
    names = [
        each.name
        for each in inspect.signature(function).parameters.values()
        if each.kind is not each.VAR_POSITIONAL and each.kind is not each.VAR_KEYWORD
    ]
    text = (
        f"{name}: not a parameter of {function.__name__}; accepted: {', '.join(names)}; see {PAGE}"
    )
    if is_dynamo_compiling():  # Dynamo cannot trace the search
        return text
    near = difflib.get_close_matches(name, [*names, *UNSUPPORTED, *OTHER_NAMES], n=1)
    return f"{text}; did you mean {near[0]}?" if near else text


def _by_position(function) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
