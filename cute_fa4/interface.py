"""The three public functions: torch tensors in, torch tensors out.

    flash_attn_func          (batch, seqlen, heads, head_dim)
    flash_attn_varlen_func   sequences of different lengths, their keys packed, padded or in pages
    flash_attn_with_kvcache  new rows are written after those of a cache, then attention over all of it

trace      operators/                       a tracer sees one operator instead of what follows
repeat     calls/repeat.py                  a call like an earlier one goes from its key to the launch
names      calls/operands/foreign.py        arguments that only other packages have: ignored, or refused
dtype      calls/operands/autocast.py       q, k and v under torch.autocast
check      calls/operands/tensors.py        metadata only: refusals come before any compile
           calls/options.py                 masks, score functions, sinks
choose     sm100/choose/which_kernel.py     which family runs such a call; choose_config.py: its FA4Config
compile    compile_cache.py                 once per FA4Config and executor; sizes are bound at each call
launch     calls/launch.py                  CUDA tensors: the kernel on torch's current stream
                                            CPU tensors: the same host code and PTX, executed by cute_fa4.emulator

calls/prepare.py shows how keys may lie, calls/append.py what flash_attn_with_kvcache does.
"""

from __future__ import annotations

import torch
from torch.compiler import is_dynamo_compiling

import cute_fa4.operators  # noqa: F401  registers them and their FLOP counts before the first call
from cute_fa4.calls.append import (
    prepare_append_and_attention,
    refuse_unbuilt,
    with_lengths_of_cache,
    with_rows_of_cache,
)
from cute_fa4.calls.entry import arguments_of, entry, named_rest
from cute_fa4.calls.launch import EmulatorWarning
from cute_fa4.calls.operands import autocast
from cute_fa4.calls.operands.foreign import check_arguments
from cute_fa4.calls.operands.tracing import is_traced, refuse_untraceable, wants_gradient
from cute_fa4.calls.options import functions_of
from cute_fa4.calls.prepare import one_of, prepare_attention
from cute_fa4.calls.queries import OF_QUERIES, are_wide, are_wide_in, quantised_of
from cute_fa4.calls.repeat import again, attend
from cute_fa4.calls.request import Choices
from cute_fa4.calls.small_blocks import with_lists_of_tiles
from cute_fa4.calls.split_keys.workspace import given_workspace
from cute_fa4.compiler import policy
from cute_fa4.masks import BoundMask
from cute_fa4.operands import ALIASES, CallTensors

_any_autocast = autocast.is_any_enabled

__all__ = [
    "EmulatorWarning",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
]


def _attend(function, tensors: CallTensors, asked: tuple, rest: tuple, unusual):
    """A call of flash_attn_func or flash_attn_varlen_func; arguments: as calls/entry.py gathers them."""
    if unusual:
        given = named_rest(function, rest)
        if given["workspace"] is not None:
            return _in_workspace(function, arguments_of(function, tensors, asked, rest))
        tensors, asked, rest = _checked(function, tensors, asked, given)
    if are_wide(tensors.q, tensors.k, tensors.k_block_scale):
        tensors = _with_quantised_q(tensors, arguments_of(function, tensors, asked, rest))
    result = again(tensors, asked)
    if result is not None:
        return result
    wanting = tensors.q, tensors.k, tensors.v, tensors.learnable_sink, tensors.aux_tensors
    if is_traced(tensors.q) or wants_gradient(*wanting):
        return through_operator(function, arguments_of(function, tensors, asked, rest))
    if _any_autocast():
        cast = autocast.cast(*(getattr(tensors, name) for name in _CAST))
        tensors = tensors._replace(**dict(zip(_CAST, cast, strict=True)))
    return attend(prepare_attention, tensors, asked)


def _attend_with_cache(function, tensors: CallTensors, asked: tuple, rest: tuple, unusual):
    """A call of flash_attn_with_kvcache, likewise."""
    if unusual:
        given = named_rest(function, rest)
        if given["workspace"] is not None:
            arguments = arguments_of(function, tensors, asked, rest, cached=True)
            return _in_workspace(function, arguments)
        tensors, asked, rest = _checked(function, tensors, asked, given)
        refuse_unbuilt(**{name: given[name] for name in ("rotary_cos", "rotary_sin", "qv")})
    if tensors.seqused_k is None:
        tensors = with_rows_of_cache(tensors)
    if are_wide(tensors.q, tensors.k, tensors.k_block_scale):
        arguments = arguments_of(function, tensors, asked, rest, cached=True)
        tensors = _with_quantised_q(tensors, arguments)
    if type(tensors.seqused_k) is torch.Tensor:
        result = again(tensors, asked)
        if result is not None:
            return result
    if is_traced(tensors.q):
        arguments = arguments_of(function, tensors, asked, rest, cached=True)
        return through_operator(function, arguments)
    if _any_autocast():
        q, k, v = autocast.cast(tensors.q, tensors.new_k, tensors.new_v)
        tensors = tensors._replace(q=q, new_k=k, new_v=v)
    return attend(prepare_append_and_attention, with_lengths_of_cache(tensors), asked)


_CAST = ("q", "k", "v", "k_rope", "q_rope")  # under torch.autocast


def _checked(function, tensors: CallTensors, asked: tuple, given: dict) -> tuple:
    """-> (tensors, asked, rest) with aliases resolved and functions traced as they are now.

    given: the rest by name. Refuses arguments that only other packages have, and switches that are not True or False.
    """
    check_arguments(function, given["positional"], given["others"], given)
    if given["q_quantize"] is not None:
        policy.check_quantize(given["q_quantize"])
    for name, alias in ALIASES.items():
        if given.get(alias) is not None:
            value = one_of(name, getattr(tensors, name), alias, given[alias])
            tensors, given[alias] = tensors._replace(**{name: value}), None
    mods, aux = functions_of(tensors.q, given, tensors.aux_tensors)
    if mods:
        given, tensors = given | mods, tensors._replace(aux_tensors=aux)
        asked = (*asked[:2], tuple(Choices(*asked[2])._replace(**mods)))
    tensors, asked, given = with_lists_of_tiles(tensors, asked, given)
    return tensors, asked, tuple(given.values())


def _in_workspace(function, arguments: dict):
    """function(**arguments) with the caller's workspace."""
    if is_traced(arguments["q"]):
        return through_operator(function, arguments)
    workspace, positional = arguments.pop("workspace"), arguments.pop("positional")
    others = arguments.pop("others")
    if positional:
        check_arguments(function, positional, others, arguments)  # refuses
    with given_workspace(workspace, arguments):
        return function(**arguments, **others)


def _with_quantised_q(tensors: CallTensors, arguments: dict) -> CallTensors:
    return tensors._replace(**dict(zip(OF_QUERIES, quantised_of(arguments), strict=True)))


# Names of functions -> their functions in operators/routes.py.
_ROUTES = {
    "flash_attn_func": "dense",
    "flash_attn_varlen_func": "varlen",
    "flash_attn_with_kvcache": "kvcache",
}


def through_operator(function, arguments: dict):
    """The result of function(**arguments), computed by an operator, which a tracer sees."""
    from cute_fa4.operators import routes

    positional, others = arguments.pop("positional"), arguments.pop("others")
    refuse_untraceable(function.__name__, arguments)
    try:
        check_arguments(function, positional, others, arguments)
        policy.check_quantize(arguments["q_quantize"])
        if are_wide_in(arguments):
            found = zip(OF_QUERIES, quantised_of(arguments), strict=True)
            arguments |= {name: value for name, value in found if name in arguments}
        q, k, v = autocast.cast(arguments["q"], arguments["k"], arguments["v"])
        arguments |= {"q": q, "k": k, "v": v}
        for name in ("k_rope", "q_rope"):
            if arguments.get(name) is not None:
                (arguments[name],) = autocast.cast(arguments[name])
        return getattr(routes, _ROUTES[function.__name__])(function, arguments)
    except (TypeError, ValueError, NotImplementedError) as error:
        if is_dynamo_compiling():
            routes.refuse(error.args[0])
        raise


@entry(_attend, through_operator)
def flash_attn_func(
    q: torch.Tensor = None,
    k: torch.Tensor = None,
    v: torch.Tensor = None,
    *positional,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] | None = (None, None),
    mask: BoundMask | None = None,
    key_limit: torch.Tensor | None = None,
    learnable_sink: torch.Tensor | None = None,
    softcap: float | None = 0.0,
    num_splits: int | None = 1,
    tokens_per_split: int | None = None,
    batch_invariant: bool | None = None,
    skip_softmax_threshold_scale_factor: float | None = None,
    skipped_tiles: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    k_rope: torch.Tensor | None = None,
    q_rope: torch.Tensor | None = None,
    k_rope_descale: torch.Tensor | None = None,
    score_mod=None,
    mask_mod=None,
    aux_tensors=None,
    block_sparse_tensors=None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    o_scale: torch.Tensor | None = None,
    k_block_scale: torch.Tensor | None = None,
    v_block_scale: torch.Tensor | None = None,
    v_block_scale_layout: str = "linear",
    q_quantize: str | None = None,
    return_lse: bool = False,
    out: torch.Tensor | None = None,
    **others,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(softmax_scale * q k^T) v, for each batch and head.

    q             (batch, seqlen_q, heads_q, head_dim), bf16, fp16, float8_e4m3fn or float8_e5m2
    k, v          (batch, seqlen_k, heads_kv, head_dim); heads_q is a multiple of heads_kv,
                  query head h reads key/value head h // (heads_q / heads_kv). Their dtype is that of q, or
                  float8: q of 16 bits then stays unchanged, or is quantised per query and head (q_quantize)
    k_rope        (batch, seqlen_k, d) or (batch, seqlen_k, 1, d), of the dtype of k or of float8 under 16 bits: the
                  last d columns of every key, which all heads share (multi-head latent attention); k has the columns
                  before them, q has all: head_dim is their sum. d is up to 64, after a multiple of 64; in float8 like
                  k, up to 128 after a multiple of 16 up to 128. May be a slice of a latent cache. None: k has all
    q_rope        (batch, seqlen_q, heads_q, d), of the dtype of k_rope, bf16 or fp16, beside q and k of float8 with a
                  multiple of 16 columns, up to 128: scores are q_descale * k_descale * (q k + q_rope k_rope), so divide
                  these columns by the scale of their tensor. From a q of 16 bits with all columns over such k, the
                  call makes both
    k_rope_descale  float32, for k_rope of float8 under k of 16 bits: the value is the stored number times this. One
                  number, or one for each row of k_rope (its shape without the columns). None: 1
    softmax_scale positive; None: head_dim ** -0.5
    causal        query i sees keys j <= i + seqlen_k - seqlen_q: the last query sees every key
    window_size   (left, right): query i sees keys from i + seqlen_k - seqlen_q - left to ... + right;
                  None or -1: that side is open; below -1 the query's own key is hidden. With causal, right is
                  at most 0
    mask          a mask of cute_fa4.masks, in addition to these
    key_limit     (batch,) int32: keys from here on are hidden (padding), positions stay
    learnable_sink  (heads_q,), f32, bf16 or fp16: a score in the softmax's denominator only; +inf: out 0, lse +inf
    softcap       0 or None: off; otherwise scores become softcap * tanh(score / softcap)
    num_splits    parts of the keys of a sequence, in parallel, and merged. None or 0: chosen from metadata, where there
                  are fewer blocks than SMs; 1: never; N: N. Beside block_sparse_tensors up to 1: docs/block_sparsity.md
    tokens_per_split  keys of a part (a multiple of 128), instead of num_splits: the same sequence gives the same bits
                  in every batch
    batch_invariant  True: the bits of a row depend on that row of q and on its keys and values alone, in parts of
                  tokens_per_split, or 512 or 2,048 keys (docs/invariance.md). None: as CUTE_FA4_BATCH_INVARIANT says
    skip_softmax_threshold_scale_factor  a positive number: 32 queries skip 128 keys if each of their weights there is
                  below this / seqlen_k of the largest so far in its row (docs/serving/skip_softmax.md). None: off
    skipped_tiles  (2,) int32: the call adds the number of tiles whose product with v it skips, and of all. None: off
    workspace     memory for the partial results of split keys, of any dtype, contiguous; if it is too small, the
                  message gives the bytes required. Calls that share it must be on one stream. None: torch allocates
                  it for the call
    pack_gqa      True or None: the query heads of a group share a tile where possible: tiles of up to 32 rows for few
                  queries take any group, tiles of 128 rows take groups that divide 128. False: never. The results
                  are the same
    score_mod     score_mod(score, batch, head, q_idx, kv_idx, aux) -> score, traced into the kernel. aux may be
                  omitted. Captured tensors are aux tensors, too. docs/serving/masks.md says what a function may do
    mask_mod      mask_mod(batch, head, q_idx, kv_idx, aux) -> whether the key is visible
    aux_tensors   tensors that these read as aux[0], aux[1], ...: float32, float16, bfloat16, int32, int64, uint8, bool
    block_sparse_tensors  lists of the key blocks that each block of queries sees: cute_fa4.BlockSparseTensors
    q_descale, k_descale, v_descale  float32, for float8 tensors: the value is the stored number times this. One
                  number, or (batch, heads_kv), or one for each token and head (the shape without head_dim).
                  Where softmax_scale * q_descale * k_descale is not within 2^-64 to 2^16, out and LSE are NaN
                  (k_descale per token is not checked). q and k together: torch.float8_e8m0fnu, one for each 32
                  numbers of a row, head_dim / 32 in the last dimension (MXFP8; cute_fa4.mxfp8). None: 1
    o_scale       float32: out stores the result times this; one number, or (batch, heads_kv). None: 1
    k_block_scale, v_block_scale  float8_e4m3fn, of k and v of 4 bits (NVFP4) under q of 16 bits: k and v are uint8 with
                  head_dim / 2 bytes a row, two E2M1 numbers each, the even column in the low bits, and these are as
                  they with head_dim / 16. Or float8_e8m0fnu with head_dim / 32, of float8_e4m3fn k and v (MXFP8). Meant
                  is number * block scale * k_descale; cute_fa4.nvfp4, .mxfp8; head dims of 64, 128, 192, 256
    v_block_scale_layout  "linear", or "interleaved4": v_block_scale in the order that kernels of TensorRT-LLM read
                  (docs/serving/four_bits.md), of dense k and v or pages of multiples of 4 rows; k_block_scale is linear
    q_quantize    for q of 16 bits over k and v of float8. "never": q stays unchanged, with the error of 16 bits;
                  scales per token: head dims up to 128, no k_rope. "auto": all of q is quantised where a key/value head
                  has more than 32 rows (queries of the longest sequence times the heads of a group), beyond 128 columns
                  and with k_rope. None: "never" where it runs and tokens_per_split is given, batch_invariant holds, or
                  lengths of queries differ; else "auto". CUTE_FA4_FP8_QUERIES sets what None means
    return_lse    also return the log-sum-exp of the scaled scores
    out           written in place and returned; shape, dtype and device of q, separate memory. For float8 tensors
                  bf16, or fp16 where a tensor of this dtype is given or was q. float8_e4m3fn for any q where such a
                  tensor is given: times o_scale, rounded, clipped to its range; head dims of v: multiples of 16

    head_dim is a multiple of 8 up to 256 or of 16 up to 512; v, and so out, may have another one. For float8 tensors it
    is a multiple of 16 up to 256, for v of 16 up to 128 or of 32 up to 256. The last dimension is contiguous; the other
    strides are any multiples of 16 bytes, so slices and transposed views need no copy.

    q, k, v, k_rope, learnable_sink, aux_tensors have gradients in bf16, fp16, head dims up to 256 (docs/backward.md).
    deterministic changes nothing: both passes always are. Parameters after v are keyword-only, because their order
    differs between the packages that have a function of this name. positional and others take parameters of those
    packages: neutral values such as dropout_p=0.0 pass, others are refused with a replacement (docs/coming_from.md).

    Under torch.autocast q, k and v are cast to the dtype of the region, as by torch's own attention. out= is not cast.

    Returns out, or (out, lse) with return_lse=True; lse is float32, natural logarithm, of shape
    (batch, heads_q, seqlen_q). A query that sees no key has out 0 and lse -inf, or the sink.

    CUDA tensors (compute capability 10.0 or 10.3) are launched on torch's current stream without
    synchronising. CPU tensors are executed by the emulator, with one EmulatorWarning per process.

    Raises TypeError and ValueError with the argument, its value and what is accepted; NotImplementedError for
    parameters and gradients that are not supported. capabilities() answers the same questions beforehand.
    """


@entry(_attend, through_operator)
def flash_attn_varlen_func(
    q: torch.Tensor = None,
    k: torch.Tensor = None,
    v: torch.Tensor = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    *positional,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    seqused_k_excludes_new: bool = False,
    page_table: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    kv_layout: str = "NHD",
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] | None = (None, None),
    mask: BoundMask | None = None,
    key_limit: torch.Tensor | None = None,
    learnable_sink: torch.Tensor | None = None,
    s_aux: torch.Tensor | None = None,
    softcap: float | None = 0.0,
    num_splits: int | None = 1,
    tokens_per_split: int | None = None,
    batch_invariant: bool | None = None,
    skip_softmax_threshold_scale_factor: float | None = None,
    skipped_tiles: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    k_rope: torch.Tensor | None = None,
    k_rope_page_table: torch.Tensor | None = None,
    q_rope: torch.Tensor | None = None,
    k_rope_descale: torch.Tensor | None = None,
    score_mod=None,
    mask_mod=None,
    aux_tensors=None,
    block_sparse_tensors=None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    o_scale: torch.Tensor | None = None,
    k_block_scale: torch.Tensor | None = None,
    v_block_scale: torch.Tensor | None = None,
    v_block_scale_layout: str = "linear",
    q_quantize: str | None = None,
    return_lse: bool = False,
    return_softmax_lse: bool = False,
    out: torch.Tensor | None = None,
    **others,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(softmax_scale * q k^T) v for each sequence and head.

    q              (total_q, heads_q, head_dim) with cu_seqlens_q, or (batch, seqlen_q, heads_q,
                   head_dim) without; dtypes as flash_attn_func
    k, v           packed (total_k, heads_kv, head_dim) with cu_seqlens_k, dense (batch, seqlen_k, heads_kv, head_dim),
                   or paged (num_pages, page_size, heads_kv, head_dim) with page_table and seqused_k; with
                   kv_layout="HND" a page is (heads_kv, page_size, head_dim). Any strides with rows at
                   multiples of one stride: K and V may be slices of one cache
    k_rope         as flash_attn_func: packed (total_k, d), dense (batch, seqlen_k, d), as k is, or with
                   k_rope_page_table pages (num_pages, rows, d) with their own page size; a dimension of one head before
                   the columns is accepted
    k_rope_page_table   (batch, pages) int32: the pages of k_rope of each sequence, in order, for any layout of k
    cu_seqlens_q, cu_seqlens_k   (batch + 1,) int32: sequence b is rows [c[b], c[b + 1])
    max_seqlen_q   for packed q: at least the length of the longest sequence; rows beyond it may be skipped.
                   None: read from cu_seqlens_q on the CPU; total_q on CUDA, where total_q and the number
                   of sequences size the grid
    max_seqlen_k   accepted and checked against the page table; the kernel does not need it
    seqused_q      (batch,) int32: number of queries of each sequence; rows after them are not written
    seqused_k      (batch,) int32: number of keys of each sequence; rows after them may hold anything
    seqused_k_excludes_new   seqused_k does not count this call's queries: keys are seqused_k plus
                   the queries of the sequence
    page_table     (batch, pages) int32, also called block_table: the pages of each sequence, in
                   order. Entries beyond seqused_k may hold anything
    key_limit      (batch,) int32: keys from here on are hidden, positions stay
    learnable_sink also called s_aux
    return_lse     also called return_softmax_lse
    out            written in place and returned. Rows that belong to no sequence are not written

    Query i of a sequence of m queries and n keys stands at position i + n - m: the last query sees
    the last key. Up to max_seqlen_k the order of parameters is that of flash-attn.
    The other parameters are those of flash_attn_func. page_size is any number of keys; TMA loads
    multiples of 8 in boxes, other sizes four rows at a time.

    Returns out, or (out, lse); lse is float32 (heads_q, total_q) or (batch, heads_q, seqlen_q).
    A query that sees no key has out 0 and lse -inf, or the sink.

    Contents of CUDA tensors are never read on the host: the call neither synchronises nor checks
    them, and the kernel clips what it reads there to the rows that exist. Contents of CPU tensors
    are checked.

    Raises as flash_attn_func.
    """


@entry(_attend_with_cache, through_operator, cached=True)
def flash_attn_with_kvcache(
    q: torch.Tensor = None,
    k_cache: torch.Tensor = None,
    v_cache: torch.Tensor = None,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    *positional,
    cache_seqlens: int | torch.Tensor | None = None,
    page_table: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    kv_layout: str = "NHD",
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k_new: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] | None = (None, None),
    mask: BoundMask | None = None,
    key_limit: torch.Tensor | None = None,
    learnable_sink: torch.Tensor | None = None,
    s_aux: torch.Tensor | None = None,
    softcap: float | None = 0.0,
    num_splits: int | None = 1,
    tokens_per_split: int | None = None,
    batch_invariant: bool | None = None,
    skip_softmax_threshold_scale_factor: float | None = None,
    skipped_tiles: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
    pack_gqa: bool | None = None,
    score_mod=None,
    mask_mod=None,
    aux_tensors=None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    o_scale: torch.Tensor | None = None,
    k_block_scale: torch.Tensor | None = None,
    v_block_scale: torch.Tensor | None = None,
    v_block_scale_layout: str = "linear",
    four_over_six: bool = False,
    q_quantize: str | None = None,
    return_lse: bool = False,
    return_softmax_lse: bool = False,
    out: torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    rotary_cos=None,
    rotary_sin=None,
    qv=None,
    **others,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Append new keys and values to a cache, then compute attention of new queries over it.

    q                  (batch, seqlen_q, heads_q, head_dim), or (total_q, heads_q, head_dim) with
                       cu_seqlens_q
    k_cache, v_cache   (batch, seqlen, heads_kv, head_dim), or with page_table (num_pages, page_size,
                       heads_kv, head_dim), with kv_layout="HND" (num_pages, heads_kv, page_size,
                       head_dim)
    k, v               new rows, (batch, seqlen_new, heads_kv, head_dim) or, with cu_seqlens_k_new, (total_new,
                       heads_kv, head_dim); written to the cache from cache_seqlens on. None: the cache is complete.
                       Rows of 16 bits for a float8 cache are quantised as they are written: row / k_descale, row /
                       v_descale, clipped to the dtype's range. Where the scales are per token of the cache, each new
                       row gets its own scale, which is written there: largest magnitude / largest number of the dtype.
                       A cache of 4 bits gets the codes and block scales of cute_fa4.nvfp4.quantize(k, k_descale,
                       four_over_six), True: the better of two scales; one of MXFP8 mxfp8.quantise(k / k_descale)
    cache_seqlens      (batch,) int32, or one number: rows that the cache holds before k. The tensor is not
                       modified: the caller adds the new rows to it. None: all rows
    cu_seqlens_k_new   (batch + 1,) int32
    cache_batch_idx    (batch,) int32: sequence b of the batch is sequence cache_batch_idx[b] of the cache, or
                       row cache_batch_idx[b] of page_table; the cache may have more or fewer than batch.
                       An index out of range has no keys (on CUDA) or is an error (on the CPU).
                       If two sequences write to one sequence of the cache, either may remain
    cache_leftpad      (batch,) int32: the first key of sequence b is row cache_leftpad[b] of its cache; rows
                       before it may hold anything. cache_seqlens and key_limit still count from row 0; masks
                       and score functions see that key as key 0. Paged caches are then loaded row by row,
                       as with pages of one key

    The new rows of a sequence must fit its cache: rows that do not fit are dropped (on CUDA, where lengths
    are not read on the host) or an error (on the CPU). The other parameters and the results are
    those of flash_attn_varlen_func. Under torch.autocast q, k and v are cast, the caches are not:
    they must have the dtype of the region. rotary_cos, rotary_sin and qv are not supported.
    """
