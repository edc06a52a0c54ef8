"""Schemas of the operators, and what they do on real tensors: they call the public functions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.autograd.graph import increment_version

from cute_fa4.interface import flash_attn_func
from cute_fa4.kvcache import flash_attn_with_kvcache
from cute_fa4.operators import fakes
from cute_fa4.operators.spelling import function_of, mask_of
from cute_fa4.varlen import flash_attn_varlen_func

_DENSE = "Tensor q, Tensor k, Tensor v, *, Tensor? key_limit=None"
_VARLEN = (
    "Tensor q, Tensor k, Tensor v, *, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
    "SymInt? max_seqlen_q=None, SymInt? max_seqlen_k=None, Tensor? seqused_q=None, "
    "Tensor? seqused_k=None, bool seqused_k_excludes_new=False, Tensor? page_table=None, "
    "str kv_layout='NHD', Tensor? key_limit=None"
)
_APPEND = (
    "Tensor q, Tensor(k!) k_cache, Tensor(v!) v_cache, Tensor k, Tensor v, Tensor cache_seqlens, *, "
    "Tensor? page_table=None, str kv_layout='NHD', Tensor? cu_seqlens_q=None, "
    "Tensor? cu_seqlens_k_new=None, SymInt? max_seqlen_q=None, Tensor? key_limit=None"
)
# mask, score_mod and mask_mod as spelling.py spells them; a soft cap is a score_mod.
_OPTIONS = (
    "float? softmax_scale=None, str mask='Full()', SymInt[] mask_sizes=[], Tensor? learnable_sink=None, "
    "bool? pack_gqa=None, str score_mod='', str mask_mod='', Tensor[]? aux_tensors=None, bool return_lse=False"
)

# Rows are contiguous and lie at multiples of 16 bytes: a compiler must not choose other strides.
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)

_library = torch.library.Library("cute_fa4", "DEF")
OPERATORS: dict[str, torch._ops.OpOverload] = {}


def _define(name: str, arguments: str, function: Callable, check: Callable) -> None:
    """Operators `name` and `name`_out. function: the public one; check: what it refuses, by metadata."""
    schema = f"({arguments}, {_OPTIONS}) -> (Tensor out, Tensor lse)"
    _define_one(name, schema, function, check, lambda results: results)
    schema = f"(Tensor(out!) out, {arguments}, {_OPTIONS}) -> Tensor lse"
    _define_one(f"{name}_out", schema, function, check, lambda results: results[1])


def _define_one(name, schema, function, check, returned) -> None:
    _library.define(name + schema, tags=_TAGS)
    operator = getattr(torch.ops.cute_fa4, name).default
    arguments = operator._schema.arguments
    names = [a.name for a in arguments]
    defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
    written = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]

    def named(args: tuple, kwargs: dict) -> dict:
        """The arguments of a call by name; the dispatcher leaves out those with their default."""
        return {**defaults, **dict(zip(names, args, strict=False)), **kwargs}

    def run(*args, **kwargs):
        call = named(args, kwargs)
        results = _run(function, **call)
        if written:
            increment_version([call[each] for each in written])
        return returned(results)

    def fake(*args, **kwargs):
        return returned(fakes.results(check, **named(args, kwargs)))

    _library.impl(name, run, "CPU")
    _library.impl(name, run, "CUDA")
    # The function and the fake refuse gradients themselves, so that autograd needs no kernel between.
    _library.impl(name, torch.library.fallthrough_kernel, "Autograd")
    torch.library.register_fake(f"cute_fa4::{name}", fake, lib=_library)
    OPERATORS[name] = operator


def _run(function, q, *, mask, mask_sizes, score_mod, mask_mod, aux_tensors, return_lse, **rest):
    """A call of the public function; (out, lse)."""
    if type(q) is not torch.Tensor:  # a parameter, which the public function would send here
        q = q.as_subclass(torch.Tensor)
    results = function(
        q=q,
        mask=mask_of(mask, tuple(mask_sizes)),
        score_mod=function_of("score_mod", score_mod),
        mask_mod=function_of("mask_mod", mask_mod),
        aux_tensors=aux_tensors,
        return_lse=return_lse,
        **rest,
    )
    return results if return_lse else (results, q.new_empty(0, dtype=torch.float32))


_define("flash_attn", _DENSE, flash_attn_func, fakes.check_dense)
_define("flash_attn_varlen", _VARLEN, flash_attn_varlen_func, fakes.check_varlen)
_define("flash_attn_append", _APPEND, flash_attn_with_kvcache, fakes.check_append)
