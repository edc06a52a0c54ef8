"""Multi-head latent attention (MLA), absorbed: decode from a latent cache, with FlashMLA's interface.

DeepSeek's attention caches one row of 576 values per token for all heads: 512 latent values, from which every head
computes its keys and values, and 64 RoPE values. In decode the two up-projections are absorbed into q and out. What
remains is attention of many query heads over one key head, whose first 512 columns are also the values:

    q (batch, seqlen_q, heads, 576)     q_nope W_UK (512 columns), q_rope (64)
    k_cache                             latent (512), k_rope (64)
    out (batch, seqlen_q, heads, 512)   what W_UV is applied to

The kernel reads a row once for both products (sm100/latent/), or one half in each of two SMs (sm100/latent/pair/).
Rows of 656 and of 584 bytes, which include scales and RoPE columns, are dequantized in the CTA
(sm100/latent/dequantized/, latent/pair_dequantized/). So are rows of 576 8-bit values under a q that keeps 16 bits
(q_quantize="never").
"""

from __future__ import annotations

from functools import partial

import torch
from torch.compiler import is_dynamo_compiling

from cute_fa4.calls.latent import (
    by_index,
    by_page,
    check_latent_tensors,
    is_by_row,
    latent_tensors,
    names,
    of_each_key,
    of_each_query,
    prepare_latent_attention,
    scales_of,
    values_of,
)
from cute_fa4.calls.latent_heads import latent_heads, of_each_head
from cute_fa4.calls.operands import autocast
from cute_fa4.calls.operands.latent_rows import (
    check_rows,
    has_rows,
    is_in_pages,
    pages_of,
    rows_of,
    write,
)
from cute_fa4.calls.operands.tensors import OUT_OF, check_is_tensor, check_place, check_rank
from cute_fa4.calls.operands.tracing import is_traced, refuse_untraceable
from cute_fa4.calls.options import check_sink
from cute_fa4.calls.prepare import one_of
from cute_fa4.calls.queries import are_wide, quantised
from cute_fa4.calls.repeat import again, attend
from cute_fa4.calls.request import Choices, Numbers
from cute_fa4.calls.split_keys.workspace import given_workspace
from cute_fa4.compiler import policy
from cute_fa4.sm100.choose.choose_config import LATENT_DEPTHS, LATENT_ROW_BYTES
from cute_fa4.system.messages import named_as

__all__ = ["flash_mla_with_kvcache", "get_mla_metadata", "write_latent_rows"]


def flash_mla_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor,
    cache_seqlens: torch.Tensor,
    head_dim_v: int = LATENT_DEPTHS[1],
    tile_scheduler_metadata=None,
    num_splits=None,
    softmax_scale: float | None = None,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
    indices: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    extra_k_cache: torch.Tensor | None = None,
    extra_indices_in_kvcache: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None,
    *,
    descale_q: torch.Tensor | None = None,
    descale_k: torch.Tensor | None = None,
    tokens_per_split: int | None = None,
    batch_invariant: bool | None = None,
    workspace: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    learnable_sink: torch.Tensor | None = None,
    q_quantize: str | None = None,
    return_max_logits: bool = False,
) -> tuple[torch.Tensor, ...]:
    """softmax(softmax_scale * q k^T) k[:, :512] for each sequence and head, over a paged latent cache.

    q               (batch, seqlen_q, heads, 576), or 512 over rows of 512 columns or of 584 bytes; bf16, fp16, or
                    float8. The heads of all queries share tiles. Any number of heads; the kernel is optimized for
                    seqlen_q from 1 to 8
    k_cache         (num_pages, page_size, 1, 576), or (num_pages, page_size, 1, 656) for rows of 656 bytes. Strides are
                    free if all rows are at multiples of one stride.
                    Any page size; multiples of 8 are copied in boxes, other sizes four rows at a time. q's dtype, or
                    float8: a 16-bit q is then quantized with one scale per query and head, or stays as it is
                    (q_quantize). Rows of 656
                    bytes, of float8_e4m3fn, uint8 or int8, are FlashMLA's FP8 cache and vLLM's fp8_ds_mla: 512 values
                    in e4m3, 4 float32 scales for 128 values each, and 64 RoPE values in bf16. They need a bf16 q,
                    and only the 512 values have 8-bit errors.
                    (num_pages, page_size, 1, 584) is DeepSeek-V4's (FlashMLA's MODEL1): 448 values in e4m3, 7 e8m0
                    scales for 64 values each, and 64 RoPE values in bf16, all of which are keys and values. A page has
                    576 bytes for each row, then 8 for the scales of each; pages are a multiple of 576 bytes apart.
                    (num_pages, page_size, 1, 512): all columns are keys and values; float8 with a quantized q.
                    Several latent heads in place of the 1, but not with 584 bytes: query heads h * heads / heads_kv
                    and the following belong to latent head h, and each has launches of its own. Lists of indices are
                    the same for all
    block_table     (batch, pages) int32: the pages of each sequence. Entries beyond cache_seqlens are not read
    cache_seqlens   (batch,) int32: keys of each sequence, including those of this call's queries; later rows
                    of a page may hold anything
    head_dim_v      512
    tile_scheduler_metadata   accepted and not read: a CTA computes its work from cache_seqlens (FlashMLA's metadata is
                    computed in advance), so a captured graph is balanced for the lengths of each replay
    num_splits      None or FlashMLA's tensor: chosen; a number: as in flash_attn_varlen_func
    softmax_scale   None: 576 ** -0.5, or 512 ** -0.5. DeepSeek's models pass the scale of their heads before
                    absorption, 192 ** -0.5 times their RoPE scaling factor
    causal          query i of m has position i + n - m: the last query sees every key. False: every query does
    is_fp8_kvcache  not needed, because the size identifies rows of 656 and of 584 bytes. True with others is refused
    descale_q, descale_k   float32 factors of the stored values of float8 q and k_cache. One number, or one
                    per sequence, (batch,); descale_k also one per row of the cache, (num_pages, page_size)
                    or (num_pages, page_size, 1), for its keys and values. If
                    softmax_scale * descale_q * descale_k is outside 2^-64 to 2^16, out and LSE are NaN. None: 1
    indices         (batch, seqlen_q, keys) int32: the keys that each query sees, page * page_size + row of the page,
                    in any order. -1, or an index outside the cache, means no key. block_table and cache_seqlens are not
                    read then and may be None, causal is False. A key that is listed twice counts twice
    attn_sink       as learnable_sink, but excluded from lse. Pass at most one of the two
    topk_length     (batch,) or (batch, seqlen_q) int32: the valid length of each list of indices; later entries may be
                    anything. None: all up to the last key of the list, found on the device
    extra_k_cache, extra_indices_in_kvcache, extra_topk_length   a second cache, and as indices and topk_length the keys
                    that each query also sees, in that cache: a window and a compressed cache, for example. A call for
                    each cache, whose float32 results are merged by their log-sum-exps and rounded once. descale_k has
                    scales of both caches, none of them per row. None: one cache
    tokens_per_split, batch_invariant, workspace   as in flash_attn_varlen_func
    out             as in flash_attn_varlen_func, or of float32: the result is not rounded
    learnable_sink  (heads,), float32, bf16 or fp16: one logit per head that takes weight but has no value, in natural
                    units, independent of softmax_scale. +inf: out is 0; -inf: as None
    q_quantize      for a 16-bit q over a float8 k_cache of 576 columns. "never": q stays unchanged, and the kernel
                    dequantizes the cache, with the error of 16 bits (docs/serving/eight_bits.md). "auto": q is
                    quantized. None: the same, unless CUTE_FA4_FP8_QUERIES=never

    return_max_logits   also return max_logits, the largest score of each row, times softmax_scale, without sinks:
                    (batch, heads, seqlen_q), float32. One cache; keys are not split then: num_splits of more
                    than 1, tokens_per_split and an out of float32 are refused

    The parameters up to extra_topk_length have FlashMLA's names and order.

    Returns (out, lse): (batch, seqlen_q, heads, 512), and the natural log-sum-exp (batch, heads, seqlen_q), float32;
    with return_max_logits (out, lse, max_logits).
    A query that sees no key has out 0 and lse -inf (FlashMLA: +inf), or lse = learnable_sink.

    Raises the errors of flash_attn_func.
    """
    if latent_heads(k_cache) > 1:
        call = dict(
            q=q, k_cache=k_cache, block_table=block_table, cache_seqlens=cache_seqlens, head_dim_v=head_dim_v,
            num_splits=num_splits, softmax_scale=softmax_scale, causal=causal, is_fp8_kvcache=is_fp8_kvcache,
            indices=indices, attn_sink=attn_sink, extra_k_cache=extra_k_cache,
            extra_indices_in_kvcache=extra_indices_in_kvcache, topk_length=topk_length,
            extra_topk_length=extra_topk_length, descale_q=descale_q, descale_k=descale_k,
            tokens_per_split=tokens_per_split, batch_invariant=batch_invariant, workspace=workspace, out=out,
            learnable_sink=learnable_sink, q_quantize=q_quantize, return_max_logits=return_max_logits,
        )  # fmt: skip
        return of_each_head(flash_mla_with_kvcache, call)
    extra = dict(
        zip(EXTRA, (extra_k_cache, extra_indices_in_kvcache, extra_topk_length), strict=True)
    )
    has_extra = any(tensor is not None for tensor in extra.values())
    given = dict(
        q=q, k_cache=k_cache, block_table=block_table, cache_seqlens=cache_seqlens, head_dim_v=head_dim_v,
        num_splits=num_splits, softmax_scale=softmax_scale, causal=causal, is_fp8_kvcache=is_fp8_kvcache,
        indices=indices, topk_length=topk_length, descale_q=descale_q, descale_k=descale_k,
        tokens_per_split=tokens_per_split, batch_invariant=batch_invariant, workspace=workspace, out=out,
        learnable_sink=learnable_sink, q_quantize=q_quantize, return_max_logits=return_max_logits,
    )  # fmt: skip
    over_caches = partial(_over_two_caches, second=extra) if has_extra else _over_one_cache
    if attn_sink is None:
        found, lse, *largest = over_caches(given)
        return found, with_sink(lse, learnable_sink), *largest
    given["learnable_sink"] = one_of("attn_sink", attn_sink, "learnable_sink", learnable_sink)
    if is_dynamo_compiling():
        return over_caches(given)
    with named_as({"learnable_sink": "attn_sink"}):
        return over_caches(given)


def _over_one_cache(call: dict) -> tuple[torch.Tensor, ...]:
    """The call, by its arguments' names; lse is that of the keys, without learnable_sink."""
    q, k_cache, num_splits = call["q"], call["k_cache"], call["num_splits"]
    descale_q, descale_k = call["descale_q"], call["descale_k"]
    indices, topk_length = call["indices"], call["topk_length"]
    if num_splits is None or isinstance(num_splits, torch.Tensor):
        num_splits = 0
    if call["head_dim_v"] != LATENT_DEPTHS[1]:
        raise ValueError(f"head_dim_v: {call['head_dim_v']}; accepted: {LATENT_DEPTHS[1]}")
    policy.check_batch_invariant(call["batch_invariant"])
    policy.check_quantize(call["q_quantize"])
    read = "head_dim_v", "is_fp8_kvcache", "indices", "topk_length"
    given = {name: value for name, value in call.items() if name not in read}
    given |= {"num_splits": num_splits, "k_block_scale": None}
    if has_rows(k_cache):
        given["k_cache"] = rows_of(k_cache, q, descale_q, descale_k)
    elif is_in_pages(k_cache):
        given["k_cache"], given["k_block_scale"] = pages_of(k_cache, q, descale_q, descale_k)
    elif call["is_fp8_kvcache"]:
        _refuse_other_rows(k_cache)
    if topk_length is not None:
        _check_listed(q, indices, topk_length)
    if indices is not None:
        return _by_index(given, indices, topk_length)
    if given["k_block_scale"] is not None:
        given |= by_page(given["k_cache"], call["block_table"])
    return _over_pages(given)


def _over_pages(given: dict) -> tuple[torch.Tensor, ...]:
    """The call over keys in pages. given: arguments by name, and k_block_scale."""
    out, lse = _attended(given)
    return (out, *lse.unbind()) if given["return_max_logits"] else (out, lse)


def _attended(given: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse); with return_max_logits lse is (2, batch, heads, seqlen_q), and max_logits comes second."""
    q, k_cache, descale_q, out = (given[name] for name in ("q", "k_cache", "descale_q", "out"))
    if is_dynamo_compiling() or is_traced(q):
        return _through_operator(given)
    workspace = given["workspace"]
    if workspace is not None:
        given = given | {"workspace": None}
        with given_workspace(workspace, given | {"aux_tensors": None}):
            return _attended(given)
    check_latent_tensors(q, k_cache, given["block_table"], given["cache_seqlens"], out)
    if autocast.is_any_enabled():
        (q,) = autocast.cast(q)
    if _is_quantised(q, given):
        with names():
            q, descale_q, out = quantised(q, k_cache, values_of(k_cache), descale_q, out)
    splits = (given[name] for name in ("num_splits", "tokens_per_split", "batch_invariant"))
    largest = given["return_max_logits"]
    choices = tuple(Choices(None, *splits, return_lse=True, latent=True, return_max=largest))
    numbers = tuple(Numbers(given["softmax_scale"], given["causal"]))
    asked = (None, None), numbers, choices
    scales = scales_of(descale_q, given["descale_k"], k_cache, q.shape[0])
    tensors = latent_tensors(
        dict(
            q=q, latent_cache=k_cache, page_table=given["block_table"], seqused_k=given["cache_seqlens"], out=out,
            learnable_sink=given["learnable_sink"], k_block_scale=given["k_block_scale"],
        ) | scales
    )  # fmt: skip
    result = again(tensors, asked)
    return attend(prepare_latent_attention, tensors, asked) if result is None else result


def _is_quantised(q, given: dict) -> bool:
    """Whether a q of 16 bits gets 8, as the cache has; rows with scales of their own are dequantized."""
    cache, keeps = given["k_cache"], policy.stays_over_latent(given["q_quantize"])
    if keeps and are_wide(q, cache) and cache.shape[-1] == LATENT_DEPTHS[1]:
        raise ValueError(
            f"q_quantize: 'never', or CUTE_FA4_FP8_QUERIES=never, with q of {q.dtype} over {LATENT_DEPTHS[1]} columns "
            f"of {cache.dtype}; accepted: 'auto', which quantizes q, or a q of 8 bits; rows of "
            f"{LATENT_DEPTHS[0]} columns, of 656 and of 584 bytes are dequantized"
        )
    return are_wide(q, cache) and not (
        has_rows(cache) or given["k_block_scale"] is not None or keeps
    )


def get_mla_metadata(*args, **kwargs) -> tuple[None, None]:
    """FlashMLA's plan of a batch, not needed here: (None, None), for the two parameters of the call."""
    return None, None


def write_latent_rows(
    k_cache: torch.Tensor,
    latent: torch.Tensor,
    rope: torch.Tensor,
    slots: torch.Tensor,
    *,
    scales: torch.Tensor | None = None,
    columns_of_scale: int | None = None,
) -> None:
    """Quantize rows, and write them to a cache of rows of 656 or 584 bytes.

    k_cache   (num_pages, page_size, 1, 656), contiguous, or (num_pages, page_size, 1, 584), pages a multiple of 576
              bytes apart; float8_e4m3fn, uint8 or int8
    latent    (rows, 512), or (rows, 448) for 584 bytes; any floating dtype: the largest value becomes 448 times its
              scale, or up to half of that where scales are powers of two. With scales: e4m3, stored unchanged
    rope      (rows, 64), kept in bf16
    slots     (rows,) int32 or int64: page * page_size + row of the page; must be rows of the cache;
              negative: not written, for vLLM's padding
    scales    factors of latent. 656 bytes: float32, (rows,) or (rows, 1), one per token, or (rows, 4),
              one per 128 values; 584: float8_e8m0fnu, (rows, 7), one per 64. None: computed here
    columns_of_scale   values per computed scale: 128 (the default), or 512 for one per token; 584 bytes: 64

    A row of 656 bytes has four scales. A per-token scale is written to all four places, which costs 12 of 656 bytes and
    no time, because the kernel reads both kinds of rows in the same way. Scales of rows of 584 bytes are the least
    powers of two that suffice, at least 2^-126. Runs as plain torch operations on the current stream.
    """
    given = {"k_cache": k_cache, "latent": latent, "rope": rope, "slots": slots}
    for name, tensor in (given | ({} if scales is None else {"scales": scales})).items():
        check_is_tensor(name, tensor)
    if not is_in_pages(k_cache):
        check_rows(k_cache)
        if not k_cache.is_contiguous():
            raise ValueError(f"k_cache: strides {k_cache.stride()}; accepted: contiguous")
    write(k_cache, latent, rope, slots, scales, columns_of_scale)


EXTRA = {
    "k_cache": "extra_k_cache",
    "indices": "extra_indices_in_kvcache",
    "topk_length": "extra_topk_length",
}


def _over_two_caches(given: dict, second: dict) -> tuple[torch.Tensor, ...]:
    """The call over its cache, and over a second one whose keys are listed, too; lse as of _over_one_cache.

    given: arguments by name. second: those of the other cache, by the names in EXTRA
    """
    from cute_fa4.operators import routes

    if given["return_max_logits"]:
        raise NotImplementedError(
            "return_max_logits: True with extra_k_cache; accepted: False: each cache has its own launch; call once for "
            "each and take the larger one"
        )
    for name in ("k_cache", "indices"):
        if second[name] is None:
            lacks = next(EXTRA[other] for other in EXTRA if second[other] is not None)
            raise ValueError(
                f"{lacks}: given without {EXTRA[name]}; accepted: extra_k_cache and {EXTRA['indices']}, or neither"
            )
    if given["indices"] is None:
        raise ValueError(
            "extra_k_cache: given without indices; accepted: indices, the keys of k_cache that each query sees"
        )
    check_is_tensor("q", given["q"])
    check_rank("q", given["q"])
    check_is_tensor("k_cache", given["k_cache"])
    if is_by_row(given["descale_k"], given["k_cache"], given["q"].shape[0]):
        raise ValueError(
            f"descale_k: shape {tuple(given['descale_k'].shape)} with extra_k_cache; accepted: one number, or one for "
            "each sequence, of both caches"
        )
    (q,) = autocast.cast(given["q"])
    out, sink = given["out"], check_sink(given["learnable_sink"], q)
    # Parts are not rounded. Like q, for its placements where it is a DTensor.
    outs = torch.empty_like(
        q[..., : LATENT_DEPTHS[1]].expand(2, *(-1,) * q.dim()),
        dtype=torch.float32,
        memory_format=torch.contiguous_format,
    )
    given = given | {"learnable_sink": None}  # it takes weight from the keys of both
    _, of_first = flash_mla_with_kvcache(**given | {"out": outs[0]})
    _, of_second = called_as(EXTRA, given | second | {"out": outs[1]})
    dtype = OUT_OF[q.dtype] if out is None else out.dtype
    merged, lse = routes.merged(outs, torch.stack((of_first, of_second)), dtype, sink)
    return merged if out is None else out.copy_(merged), lse


def called_as(names: dict, given: dict) -> tuple[torch.Tensor, ...]:
    """The call; refusals have the caller's names for its parameters."""
    if is_dynamo_compiling():
        return flash_mla_with_kvcache(**given)
    with named_as(names):
        return flash_mla_with_kvcache(**given)


def _refuse_other_rows(k_cache) -> None:
    """is_fp8_kvcache requires rows of 656 bytes."""
    check_is_tensor("k_cache", k_cache)
    raise ValueError(
        f"k_cache: shape {tuple(k_cache.shape)} with is_fp8_kvcache=True; accepted: (num_pages, page_size, 1, "
        f"{LATENT_ROW_BYTES}), rows of {LATENT_ROW_BYTES} bytes; a float8 cache of {LATENT_DEPTHS[0]} columns has "
        "is_fp8_kvcache=False, and descale_k"
    )


def with_sink(lse: torch.Tensor, sink: torch.Tensor | None) -> torch.Tensor:
    """log(exp(lse) + exp(sink)) of (batch, heads, seqlen_q): the kernels leave the sink out (sm100/steps/sinks.py)."""
    return lse if sink is None else torch.logaddexp(lse, sink.float()[:, None])


def _check_listed(q, indices, topk_length) -> None:
    """topk_length is the valid length of each list of indices."""
    if indices is None:
        raise ValueError("topk_length: given without indices; accepted: None")
    for name, tensor in (("indices", indices), ("topk_length", topk_length)):
        check_is_tensor(name, tensor)
    check_place("topk_length", topk_length, q.device)
    check_rank("indices", indices, ("batch", "seqlen_q", "keys"))
    accepted = indices.shape[:1], indices.shape[:2]
    if topk_length.shape not in accepted or topk_length.dtype is not torch.int32:
        raise ValueError(
            f"topk_length: shape {tuple(topk_length.shape)}, dtype {topk_length.dtype}; accepted: "
            f"{tuple(accepted[0])} or {tuple(accepted[1])}, torch.int32"
        )


def _by_index(given: dict, indices, topk_length) -> tuple[torch.Tensor, ...]:
    """The call over listed keys; results have the shape of q."""
    q, k_cache, out = given["q"], given["k_cache"], given["out"]
    given = given | by_index(q, k_cache, indices, out, topk_length)
    if given["causal"]:
        raise ValueError("causal: True with indices, which say what a query sees; accepted: False")
    given["descale_k"] = of_each_key(given["descale_k"], k_cache, q.shape[0])
    for name in ("descale_q", "descale_k"):
        given[name] = of_each_query(given[name], q)
    found, *of_rows = _over_pages(given)
    batch, queries, heads, _ = q.shape
    of_rows = [each.view(batch, queries, heads).transpose(1, 2) for each in of_rows]
    return found.view(batch, queries, heads, -1) if out is None else out, *of_rows


def _through_operator(given: dict):
    """The same call, as an operator that tracers see as one node."""
    from cute_fa4.operators import routes

    refuse_untraceable("flash_mla_with_kvcache", given)
    try:
        (q,) = autocast.cast(given["q"])
        descale_q, out, cache = given["descale_q"], given["out"], given["k_cache"]
        if _is_quantised(q, given):
            with names():
                q, descale_q, out = quantised(q, cache, values_of(cache), descale_q, out)
        scales = scales_of(descale_q, given["descale_k"], cache, q.shape[0])
        return routes.latent(given | {"q": q, "out": out} | scales)
    except (TypeError, ValueError, NotImplementedError) as error:
        if is_dynamo_compiling():
            routes.refuse(error.args[0])
        raise
