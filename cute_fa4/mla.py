"""Multi-head latent attention, absorbed: decode from a latent cache, as FlashMLA's users call it.

DeepSeek's attention keeps a row of 576 numbers a token for all heads: 512 latent ones, of which every head makes its
keys and values, and 64 rotary ones. In decode the two up-projections are absorbed into q and out, and what is left is
attention of many query heads over one key head, whose first 512 columns are the values too:

    q (batch, seqlen_q, heads, 576)     q_nope W_UK (512 columns), q_rope (64)
    k_cache                             latent (512), k_rope (64)
    out (batch, seqlen_q, heads, 512)   what W_UV is applied to

The kernel reads a row once for both products (sm100/latent/), or by halves in two SMs (sm100/latent/pair/); rows of
656 bytes, with scales and rotary columns of their own, are widened on their way (sm100/latent/dequantized/,
latent/pair_dequantized/).
"""

from __future__ import annotations

import math

import torch
from torch.compiler import is_dynamo_compiling

from cute_fa4.calls.latent import (
    by_index,
    check_latent_tensors,
    names,
    of_each_key,
    of_each_query,
    prepare_latent_attention,
    scales_of,
    values_of,
)
from cute_fa4.calls.operands import autocast
from cute_fa4.calls.operands.foreign import check_neutral
from cute_fa4.calls.operands.latent_rows import (
    check_rows,
    check_written,
    has_rows,
    put_rows,
    rows_from,
    rows_of,
)
from cute_fa4.calls.operands.tensors import check_is_tensor, check_place, check_rank
from cute_fa4.calls.operands.tracing import is_traced, refuse_untraceable
from cute_fa4.calls.prepare import one_of
from cute_fa4.calls.queries import are_wide, quantised
from cute_fa4.calls.repeat import again, attend
from cute_fa4.calls.request import CallTensors
from cute_fa4.calls.split_keys.workspace import given_workspace
from cute_fa4.sm100.blueprint.problem import COLUMNS_OF_SCALE
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
    workspace: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    learnable_sink: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(softmax_scale * q k^T) k[:, :512] for each sequence and head, over a paged latent cache.

    q               (batch, seqlen_q, heads, 576); bf16, fp16, or float8. The heads of several queries share tiles: any
                    number of heads, seqlen_q of 1 to 8 is what the kernel is made for
    k_cache         (num_pages, page_size, 1, 576), or of rows of 656 bytes (num_pages, page_size, 1, 656); strides are
                    free as far as rows lie at multiples of one stride.
                    Any page size; multiples of 8 come in boxes, other sizes four rows at a time. Of q's dtype, or
                    float8: q of 16 bits is then quantised, each query and head with a scale of its own. Rows of 656
                    bytes, of float8_e4m3fn, uint8 or int8, are FlashMLA's FP8 cache and vLLM's fp8_ds_mla: 512 numbers
                    e4m3, 4 scales float32, each of 128 numbers, and 64 rotary numbers bf16. They take q of bf16,
                    and only the 512 numbers have the error of 8 bits
    block_table     (batch, pages) int32: the pages of each sequence. Entries beyond cache_seqlens are not read
    cache_seqlens   (batch,) int32: keys of each sequence, those of this call's queries included; what lies behind
                    them in a page may be anything
    head_dim_v      512
    tile_scheduler_metadata   accepted and not read: a CTA finds its work from cache_seqlens (FlashMLA's metadata tells
                    the same in advance), so that a captured graph is balanced for the lengths of its replay
    num_splits      None or FlashMLA's tensor: chosen; a number: as flash_attn_varlen_func has it
    softmax_scale   None: 576 ** -0.5. DeepSeek's models pass that of their heads before the absorption, 192 ** -0.5
                    times the factor of their rotary scaling
    causal          query i of m stands at key i + n - m: the last query sees every key. Without it all queries do
    is_fp8_kvcache  FlashMLA's, and not needed: rows of 656 bytes are known by their size. True with others is refused
    descale_q, descale_k   float32, of float8 q and k_cache: what is stored, times this, is meant. One number, or one
                    for each sequence, (batch,); descale_k also one for each row of the cache, (num_pages, page_size)
                    or (num_pages, page_size, 1), by which its keys and values are multiplied. Where
                    softmax_scale * descale_q * descale_k is not within 2^-64 to 2^16, out and LSE are NaN. None: 1
    indices         (batch, seqlen_q, keys) int32: the keys that each query sees, page * page_size + place in the page,
                    in any order. -1, or what is no key of the cache, is none. block_table and cache_seqlens are not
                    read then and may be None, causal is False. A key that is listed twice counts twice
    attn_sink       as learnable_sink, and lse does not count it: where the sink has a share w of the weights, the error
                    of lse is 1 / (1 - w) times that of the other. One of the two may be given
    topk_length     (batch,) or (batch, seqlen_q) int32: so many of each list of indices count, what follows may be
                    anything. None: all up to the last key of the list, found on the device
    extra_k_cache, extra_indices_in_kvcache, extra_topk_length   None
    tokens_per_split, workspace, out   as flash_attn_varlen_func has them
    learnable_sink  (heads,), float32, bf16 or fp16: a score of each head that takes weight and has no value, in natural
                    units, whatever softmax_scale is

    The parameters up to extra_topk_length have FlashMLA's names and order.

    Returns (out, lse): (batch, seqlen_q, heads, 512), and the natural log-sum-exp (batch, heads, seqlen_q), float32.
    A query that sees no key has out 0 and lse -inf (FlashMLA: +inf), or learnable_sink, which lse counts.

    Raises as flash_attn_func; NotImplementedError also for a second cache.
    """
    if not (extra_k_cache is extra_indices_in_kvcache is extra_topk_length is None):
        check_neutral(
            extra_k_cache=extra_k_cache, extra_indices_in_kvcache=extra_indices_in_kvcache,
            extra_topk_length=extra_topk_length,
        )  # fmt: skip
    if attn_sink is not None:
        sink = one_of("attn_sink", attn_sink, "learnable_sink", learnable_sink)
        given = dict(
            q=q, k_cache=k_cache, block_table=block_table, cache_seqlens=cache_seqlens, head_dim_v=head_dim_v,
            num_splits=num_splits, softmax_scale=softmax_scale, causal=causal, is_fp8_kvcache=is_fp8_kvcache,
            indices=indices, topk_length=topk_length, descale_q=descale_q, descale_k=descale_k,
            tokens_per_split=tokens_per_split, workspace=workspace, out=out, learnable_sink=sink,
        )  # fmt: skip
        if is_dynamo_compiling():
            found, lse = flash_mla_with_kvcache(**given)
        else:
            with named_as({"learnable_sink": "attn_sink"}):
                found, lse = flash_mla_with_kvcache(**given)
        return found, without_sink(lse, sink)
    if num_splits is None or isinstance(num_splits, torch.Tensor):
        num_splits = 0
    if head_dim_v != LATENT_DEPTHS[1]:
        raise ValueError(f"head_dim_v: {head_dim_v}; accepted: {LATENT_DEPTHS[1]}")
    of_rows = has_rows(k_cache)
    if of_rows:
        k_cache = rows_of(k_cache, q, descale_q, descale_k)
    elif is_fp8_kvcache:
        _refuse_other_rows(k_cache)
    if topk_length is not None:
        _check_listed(q, indices, topk_length)
    if indices is not None:
        call = by_index(q, k_cache, indices, out, topk_length)
        return _by_index(
            q, k_cache, call, out, causal, softmax_scale=softmax_scale, num_splits=num_splits,
            descale_q=descale_q, descale_k=descale_k, tokens_per_split=tokens_per_split, workspace=workspace,
            learnable_sink=learnable_sink,
        )  # fmt: skip
    if is_dynamo_compiling() or workspace is not None or is_traced(q):
        given = dict(
            q=q, k_cache=k_cache, block_table=block_table, cache_seqlens=cache_seqlens, num_splits=num_splits,
            softmax_scale=softmax_scale, causal=causal, tokens_per_split=tokens_per_split, out=out,
            descale_q=descale_q, descale_k=descale_k, learnable_sink=learnable_sink,
        )  # fmt: skip
        if is_dynamo_compiling() or is_traced(q):
            return _through_operator(given | {"workspace": workspace})
        with given_workspace(workspace, given | {"aux_tensors": None}):
            return flash_mla_with_kvcache(**given)
    check_latent_tensors(q, k_cache, block_table, cache_seqlens, out)
    if autocast.is_any_enabled():
        (q,) = autocast.cast(q)
    if are_wide(q, k_cache) and not of_rows:
        with names():
            q, descale_q, out = quantised(q, k_cache, values_of(k_cache), descale_q, out)
    choices = (
        None, num_splits, tokens_per_split, None, None, None, None, "NHD", False, True, False, True,
    )  # fmt: skip
    asked = (None, None), (softmax_scale, causal, 0.0, None, None), choices
    lengths = (None, None, None, cache_seqlens, None, block_table, None, None)
    scales = scales_of(descale_q, descale_k, k_cache, q.shape[0])
    tensors = CallTensors(
        q, k_cache, values_of(k_cache), out, lengths, learnable_sink, scales=scales
    )
    result = again(tensors, asked)
    return attend(prepare_latent_attention, tensors, asked) if result is None else result


def get_mla_metadata(*args, **kwargs) -> tuple[None, None]:
    """FlashMLA's plan of a batch, which is not needed here: (None, None), for the two parameters of the call."""
    return None, None


def write_latent_rows(
    k_cache: torch.Tensor,
    latent: torch.Tensor,
    rope: torch.Tensor,
    slots: torch.Tensor,
    *,
    scales: torch.Tensor | None = None,
    columns_of_scale: int = COLUMNS_OF_SCALE,
) -> None:
    """Write rows of 656 bytes into a cache that flash_mla_with_kvcache reads, quantised by 128 numbers or by rows.

    k_cache   (num_pages, page_size, 1, 656), float8_e4m3fn, uint8 or int8; pages lie one behind the other
    latent    (rows, 512), any floating dtype: the largest number of a scale becomes 448 times it. With scales e4m3,
              stored as it is
    rope      (rows, 64), kept in bf16
    slots     (rows,) int32 or int64: page * page_size + place in the page, each of them a row of the cache;
              negative: written nowhere, as vLLM pads a batch
    scales    float32, what the numbers of latent are multiplied by: (rows,) or (rows, 1), one a token, or (rows, 4),
              one for each 128 numbers. None: found here
    columns_of_scale   of the scales found here: 128, or 512, one a token

    A row has four scales; one for a token is written to each of the four places, which costs 12 of 656 bytes and no
    time: the kernel reads any row alike. In plain torch operations on the stream of the call.
    """
    given = {"k_cache": k_cache, "latent": latent, "rope": rope, "slots": slots}
    for name, tensor in (given | ({} if scales is None else {"scales": scales})).items():
        check_is_tensor(name, tensor)
    check_rows(k_cache)
    if not k_cache.is_contiguous():
        raise ValueError(f"k_cache: strides {k_cache.stride()}; accepted: contiguous")
    scales = check_written(latent, rope, slots, scales, columns_of_scale)
    rows = rows_from(latent, rope, scales, columns_of_scale)
    put_rows(k_cache.view(torch.uint8).view(-1, LATENT_ROW_BYTES), slots, rows)


def _refuse_other_rows(k_cache) -> None:
    """is_fp8_kvcache says that rows have 656 bytes."""
    check_is_tensor("k_cache", k_cache)
    raise ValueError(
        f"k_cache: shape {tuple(k_cache.shape)} with is_fp8_kvcache=True; accepted: (num_pages, page_size, 1, "
        f"{LATENT_ROW_BYTES}), rows of {LATENT_ROW_BYTES} bytes; a float8 cache of {LATENT_DEPTHS[0]} columns has "
        "is_fp8_kvcache=False, and descale_k"
    )


def without_sink(lse: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """log(exp(lse) - exp(sink)) of (batch, heads, seqlen_q): the log-sum-exp of the keys alone; -inf without keys."""
    share = sink.float()[:, None] - lse
    # lse is rounded: where the sink has all the weight it may stand on either side of it.
    alone = share >= -(2.0**-20) * lse.abs().clamp(min=1.0)
    of_keys = lse + torch.log(-torch.expm1(share.clamp(max=0.0)))
    return torch.where((lse == -math.inf) | alone, -math.inf, of_keys)


def _check_listed(q, indices, topk_length) -> None:
    """topk_length says how many keys of each list count."""
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


def _by_index(q, k_cache, call, out, causal, **options):
    """What by_index makes of a call, with its options; results in the shape of q."""
    if causal:
        raise ValueError("causal: True with indices, which say what a query sees; accepted: False")
    options["descale_k"] = of_each_key(options["descale_k"], k_cache, q.shape[0])
    for name in ("descale_q", "descale_k"):
        options[name] = of_each_query(options[name], q)
    found, lse = flash_mla_with_kvcache(**call, **options)
    batch, queries, heads, _ = q.shape
    lse = lse.view(batch, queries, heads).transpose(1, 2)
    return found.view(batch, queries, heads, -1) if out is None else out, lse


def _through_operator(given: dict):
    """The same call, as an operator that tracers see as one node."""
    from cute_fa4.operators import routes

    refuse_untraceable("flash_mla_with_kvcache", given)
    try:
        (q,) = autocast.cast(given["q"])
        descale_q, out = given.pop("descale_q"), given["out"]
        if are_wide(q, given["k_cache"]) and not has_rows(given["k_cache"]):
            with names():
                cache = given["k_cache"]
                q, descale_q, out = quantised(q, cache, values_of(cache), descale_q, out)
        scales = scales_of(descale_q, given.pop("descale_k"), given["k_cache"], q.shape[0])
        return routes.latent(given | {"q": q, "out": out, "scales": scales})
    except (TypeError, ValueError, NotImplementedError) as error:
        if is_dynamo_compiling():
            routes.refuse(error.args[0])
        raise
