"""Schemas of the operators, and what they do on real tensors: what the public functions do without a tracer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.autograd.graph import increment_version

from cute_fa4.calls.append import prepare_append_and_attention
from cute_fa4.calls.latent import prepare_latent_attention, values_of
from cute_fa4.calls.operands import rope as rope_tensors
from cute_fa4.calls.operands.apart import named_aux
from cute_fa4.calls.operands.tensors import check_no_gradient
from cute_fa4.calls.operands.tracing import refuse_tangents
from cute_fa4.calls.prepare import prepare_attention
from cute_fa4.calls.repeat import attend
from cute_fa4.calls.request import CallTensors, Choices, Numbers, in_order
from cute_fa4.calls.split_keys.workspace import given_workspace
from cute_fa4.operators import batching, fakes, gradients, sharding
from cute_fa4.operators.refusals import in_graph
from cute_fa4.operators.spelling import function_of, mask_of

_DENSE = (
    "Tensor q, Tensor k, Tensor v, *, Tensor? key_limit=None, Tensor? k_rope=None, Tensor? q_rope=None, "
    "Tensor? k_rope_descale=None"
)
_VARLEN = (
    "Tensor q, Tensor k, Tensor v, *, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
    "SymInt? max_seqlen_q=None, SymInt? max_seqlen_k=None, Tensor? seqused_q=None, "
    "Tensor? seqused_k=None, bool seqused_k_excludes_new=False, Tensor? page_table=None, "
    "str kv_layout='NHD', Tensor? key_limit=None, Tensor? cache_batch_idx=None, Tensor? cache_leftpad=None, "
    "Tensor? k_rope=None, Tensor? k_rope_page_table=None, Tensor? q_rope=None, Tensor? k_rope_descale=None"
)
_APPEND = (
    "Tensor q, Tensor(k!) k_cache, Tensor(v!) v_cache, Tensor k, Tensor v, Tensor cache_seqlens, *, "
    "Tensor? page_table=None, str kv_layout='NHD', Tensor? cu_seqlens_q=None, "
    "Tensor? cu_seqlens_k_new=None, SymInt? max_seqlen_q=None, Tensor? key_limit=None, "
    "Tensor? cache_batch_idx=None, Tensor? cache_leftpad=None"
)
_LATENT = "Tensor q, Tensor latent_cache, Tensor page_table, Tensor seqused_k, *, SymInt? max_seqlen_k=None"
# mask, score_mod and mask_mod as spelling.py spells them; a soft cap is a score_mod.
_OPTIONS = (
    "float? softmax_scale=None, str mask='Full()', SymInt[] mask_sizes=[], Tensor? learnable_sink=None, "
    "bool? pack_gqa=None, str score_mod='', str mask_mod='', Tensor[]? aux_tensors=None, "
    "int? num_splits=1, int? tokens_per_split=None, Tensor? q_descale=None, Tensor? k_descale=None, "
    "Tensor? v_descale=None, Tensor? o_scale=None, bool return_lse=False"
)

_WORKSPACE = "Tensor(workspace!)? workspace=None"

# Rows are contiguous and lie at multiples of 16 bytes: a compiler must not choose other strides.
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)

DIFFERENTIABLE = ("flash_attn", "flash_attn_varlen")

OPERATORS: dict[str, torch._ops.OpOverload] = {}


# New rows that get scales of their own, which are written with them.
_OPTIONS_WITH_SCALES = _OPTIONS.replace("Tensor? k_descale", "Tensor(ks!)? k_descale").replace(
    "Tensor? v_descale", "Tensor(vs!)? v_descale"
)


def _define(
    library, name: str, arguments: str, function: Callable, check: Callable, options=_OPTIONS
) -> None:
    """Operators `name` and `name`_out. function: on real tensors; check: what it refuses, by metadata.

    A workspace is written to, as out is: a call that has one is a call of `name`_out.
    """
    schema = f"({arguments}, {options}) -> (Tensor out, Tensor lse)"
    _define_one(library, name, schema, function, check, lambda results: results)
    schema = f"(Tensor(out!) out, {arguments}, {options}, {_WORKSPACE}) -> Tensor lse"
    _define_one(library, f"{name}_out", schema, function, check, lambda results: results[1])


def _define_one(library, name, schema, function, check, returned) -> None:
    library.define(name + schema, tags=_TAGS)
    operator = getattr(torch.ops.cute_fa4, name).default
    arguments = operator._schema.arguments
    names = [a.name for a in arguments]
    defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
    written = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]

    def named(args: tuple, kwargs: dict) -> dict:
        """The arguments of a call by name; the dispatcher leaves out those with their default."""
        # by position: Dynamo of PyTorch 2.8 cannot trace zip(strict=False)
        return {**defaults, **{names[at]: arg for at, arg in enumerate(args)}, **kwargs}

    def run(*args, **kwargs):
        call = named(args, kwargs)
        results = _run(function, **call)
        if written:
            increment_version([call[each] for each in written if call[each] is not None])
        return returned(results)

    def fake(*args, **kwargs):
        return returned(fakes.results(check, **named(args, kwargs)))

    def below_autograd(keyset, *args, **kwargs):
        """A node of the backward pass; where none is built, what asks for a derivative would get zeros."""
        sharding.register_rules()
        call = named(args, kwargs)
        tensors = {**call, **named_aux(call["aux_tensors"])}
        refuse_tangents(tensors)
        below = keyset & torch._C._after_autograd_keyset
        if name in DIFFERENTIABLE and gradients.wanted(call):
            in_graph(gradients.check, call=call)

            def attend():
                with torch._C._AutoDispatchBelowAutograd():
                    return operator.redispatch(below, **(call | {"return_lse": True}))

            return gradients.differentiable(attend, call)
        in_graph(
            check_no_gradient,
            tensors={n: t for n, t in tensors.items() if isinstance(t, torch.Tensor)},
        )
        with torch._C._AutoDispatchBelowAutograd():
            return operator.redispatch(below, *args, **kwargs)

    def batched(*args, **kwargs):
        return batching.rule(operator, named(args, kwargs), written)

    library.impl(name, run, "CPU")
    library.impl(name, run, "CUDA")
    library.impl(name, below_autograd, "Autograd", with_keyset=True)
    library.impl(name, batched, "FuncTorchBatched")
    torch.library.register_fake(f"cute_fa4::{name}", fake, lib=library)
    sharding.add_rule(operator, sharding.cuts_of_attention)
    OPERATORS[name] = operator


def _run(function, q, *, mask, mask_sizes, score_mod, mask_mod, return_lse, workspace=None, **rest):
    """(out, lse) of a call whose functions and mask are spelled."""
    if type(q) is not torch.Tensor:  # a parameter, whose class says nothing about the call
        q = q.as_subclass(torch.Tensor)
    with given_workspace(workspace, {"q": q, **rest}):
        results = function(
            q,
            mask=mask_of(mask, tuple(mask_sizes)),
            score_mod=function_of("score_mod", score_mod),
            mask_mod=function_of("mask_mod", mask_mod),
            return_lse=return_lse,
            **rest,
        )
    return results if return_lse else (results, q.new_empty(0, dtype=torch.float32))


def _attention(
    q,
    k,
    v,
    *,
    out=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    seqused_q=None,
    seqused_k=None,
    key_limit=None,
    page_table=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    **options,
):
    """Keys that are there already; out, or (out, lse)."""
    lengths = (
        *(cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, key_limit, page_table),
        *(cache_batch_idx, cache_leftpad),
    )
    if all(tensor is None for tensor in lengths):
        lengths = None
    return _attend(prepare_attention, q, k, v, out, lengths, None, **options)


def _append_and_attention(
    q,
    k_cache,
    v_cache,
    k,
    v,
    cache_seqlens,
    *,
    out=None,
    page_table=None,
    cu_seqlens_q=None,
    cu_seqlens_k_new=None,
    key_limit=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    **options,
):
    """New rows behind those of a cache, then attention over all of it; out, or (out, lse)."""
    lengths = (
        *(cu_seqlens_q, None, None, cache_seqlens, key_limit, page_table),
        *(cache_batch_idx, cache_leftpad),
    )
    new = (k, v, cu_seqlens_k_new)
    prepare = prepare_append_and_attention
    return _attend(prepare, q, k_cache, v_cache, out, lengths, new, **options)


def _latent_attention(q, latent_cache, page_table, seqused_k, *, out=None, **options):
    """Keys and values in one paged cache; out, or (out, lse)."""
    lengths = in_order(page_table=page_table, seqused_k=seqused_k)
    v = values_of(latent_cache)
    return _attend(
        prepare_latent_attention, q, latent_cache, v, out, lengths, None, latent=True, **options
    )


def _attend(
    prepare,
    q,
    k,
    v,
    out,
    lengths,
    new,
    *,
    softmax_scale,
    mask,
    learnable_sink,
    pack_gqa,
    score_mod,
    mask_mod,
    aux_tensors,
    return_lse,
    num_splits,
    tokens_per_split,
    q_descale,
    k_descale,
    v_descale,
    o_scale,
    max_seqlen_q=None,
    max_seqlen_k=None,
    kv_layout="NHD",
    seqused_k_excludes_new=False,
    latent=False,
    k_rope=None,
    k_rope_page_table=None,
    q_rope=None,
    k_rope_descale=None,
):
    """What is spelled in `mask` and `score_mod` (causal, a soft cap) has its "off" value here."""
    numbers = Numbers(softmax_scale, False, 0.0, max_seqlen_q, max_seqlen_k)
    choices = Choices(
        mask=mask,
        num_splits=num_splits,
        tokens_per_split=tokens_per_split,
        pack_gqa=pack_gqa,
        score_mod=score_mod,
        mask_mod=mask_mod,
        block_sparse_tensors=None,
        kv_layout=kv_layout,
        seqused_k_excludes_new=seqused_k_excludes_new,
        return_lse=return_lse,
        latent=latent,
    )
    scales = None
    if not (q_descale is k_descale is v_descale is o_scale is None):
        scales = (q_descale, k_descale, v_descale, o_scale)
    rope = rope_tensors.given_of(k_rope, k_rope_page_table, q_rope, k_rope_descale)
    tensors = CallTensors(q, k, v, out, lengths, learnable_sink, aux_tensors, new, scales, rope)
    return attend(prepare, tensors, ((None, None), tuple(numbers), tuple(choices)))


def _define_all() -> torch.library.Library:
    """The operators exist as long as what is returned does."""
    library = torch.library.Library("cute_fa4", "DEF")
    try:
        _define(library, "flash_attn", _DENSE, _attention, fakes.check_dense)
        _define(library, "flash_attn_varlen", _VARLEN, _attention, fakes.check_varlen)
        of_rows = _APPEND, _append_and_attention, fakes.check_append
        _define(library, "flash_attn_append", *of_rows)
        _define(library, "flash_attn_append_scales", *of_rows, _OPTIONS_WITH_SCALES)
        _define(library, "flash_mla", _LATENT, _latent_attention, fakes.check_latent)
        return library
    except BaseException:
        # Ctrl-C: torch has some of the names, which the next import could not define again.
        library._destroy()
        raise


_library = _define_all()
