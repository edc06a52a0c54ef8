"""The operators, and their implementation on real tensors: that of the public functions without a tracer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.autograd.graph import increment_version

from cute_fa4.calls.append import prepare_append_and_attention
from cute_fa4.calls.latent import latent_tensors, prepare_latent_attention
from cute_fa4.calls.operands.apart import named_aux
from cute_fa4.calls.operands.blocks import of_operator
from cute_fa4.calls.operands.tensors import check_no_gradient
from cute_fa4.calls.operands.tracing import refuse_tangents
from cute_fa4.calls.prepare import prepare_attention
from cute_fa4.calls.repeat import attend
from cute_fa4.calls.request import asked_of
from cute_fa4.calls.split_keys.workspace import given_workspace
from cute_fa4.operands import tensors_of
from cute_fa4.operators import batching, fakes, gradients, schemas, sharding
from cute_fa4.operators.refusals import in_graph
from cute_fa4.operators.registration import after_autograd, arguments_of, plain
from cute_fa4.operators.spelling import function_of, mask_of

# Rows are contiguous and lie at multiples of 16 bytes: a compiler must not choose other strides.
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)

DIFFERENTIABLE = ("flash_attn", "flash_attn_varlen")

OPERATORS: dict[str, torch._ops.OpOverload] = {}


def _define(library, name: str, arguments: str, function: Callable, check: Callable) -> None:
    """Operators `name` and `name`_out. function: on real tensors; check: raises its refusals, by metadata.

    A workspace is written to, as out is: a call that has one is a call of `name`_out.
    """
    schema = f"({arguments}) -> (Tensor out, Tensor lse)"
    _define_one(library, name, schema, function, check, lambda results: results)
    schema = f"(Tensor(out!) out, {arguments}, {schemas.WORKSPACE}) -> Tensor lse"
    _define_one(library, f"{name}_out", schema, function, check, lambda results: results[1])


def _define_one(library, name, schema, function, check, returned) -> None:
    library.define(name + schema, tags=_TAGS)
    operator = getattr(torch.ops.cute_fa4, name).default
    arguments = operator._schema.arguments
    written = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    named = arguments_of(operator)

    def run(*args, **kwargs):
        call = named(args, kwargs)
        results = _run(function, **call)
        if written:
            increment_version([call[each] for each in written if call[each] is not None])
        return returned(results)

    def fake(*args, **kwargs):
        return returned(fakes.results(check, named(args, kwargs)))

    def below_autograd(keyset, *args, **kwargs):
        """A node of the backward pass; where none is supported, a derivative would silently be zeros."""
        call = named(args, kwargs)
        tensors = {**call, **named_aux(call["aux_tensors"])}
        refuse_tangents(tensors)
        if name in DIFFERENTIABLE and gradients.wanted(call):
            call = gradients.joined(call)
            in_graph(gradients.check, call=call)

            def redispatched(**call):
                return after_autograd(operator, keyset, (), call)

            return gradients.differentiable(redispatched, call)
        in_graph(
            check_no_gradient,
            tensors={n: t for n, t in tensors.items() if isinstance(t, torch.Tensor)},
        )
        return after_autograd(operator, keyset, args, kwargs)

    def batched(*args, **kwargs):
        return batching.rule(operator, named(args, kwargs), written)

    library.impl(name, run, "CPU")
    library.impl(name, run, "CUDA")
    library.impl(name, below_autograd, "Autograd", with_keyset=True)
    library.impl(name, batched, "FuncTorchBatched")
    torch.library.register_fake(f"cute_fa4::{name}", fake, lib=library)
    sharding.add_rule(operator, sharding.cuts_of_attention)
    OPERATORS[name] = operator


def _run(function, q, *, workspace=None, **rest):
    """(out, lse) of a call whose functions and mask are spelled as strings."""
    q = plain(q)  # a parameter's class says nothing about the call
    with given_workspace(workspace, {"q": q, **rest}):
        results = function({"q": q, **rest})
    return results if rest["return_lse"] else (results, q.new_empty(0, dtype=torch.float32))


def _attention(call: dict):
    """Attention over existing keys; out, or (out, lse)."""
    return attend(prepare_attention, tensors_of(call), _asked(call))


def _append_and_attention(call: dict):
    """Append new rows to a cache, then attend to all of it; returns out, or (out, lse)."""
    return attend(prepare_append_and_attention, tensors_of(call, cached=True), _asked(call))


def _latent_attention(call: dict):
    """Keys and values in one paged cache; out, or (out, lse)."""
    tensors = latent_tensors(call)
    return attend(prepare_latent_attention, tensors, _asked(call | {"latent": True}))


def _asked(call: dict) -> tuple:
    """Parameters spelled in `mask` and `score_mod` (causal, a soft cap) have their "off" values here."""
    spelled: dict[str, object] = {
        name: function_of(name, call[name]) for name in ("score_mod", "mask_mod")
    }
    spelled["mask"] = mask_of(call["mask"], tuple(call["mask_sizes"]))
    spelled["block_sparse_tensors"] = of_operator(call)
    off = {"window_size": (None, None), "causal": False, "softcap": 0.0}
    return asked_of(call | spelled | off)


def _define_all() -> torch.library.Library:
    """Define all operators; they exist as long as the returned library does."""
    library = torch.library.Library("cute_fa4", "DEF")
    try:
        dense, varlen, latent = map(schemas.arguments_of, ("dense", "varlen", "latent"))
        _define(library, "flash_attn", dense, _attention, fakes.check_dense)
        _define(library, "flash_attn_varlen", varlen, _attention, fakes.check_varlen)
        append = _append_and_attention, fakes.check_append
        written = schemas.CACHES
        of_rows = schemas.arguments_of("append", written)
        _define(library, "flash_attn_append", of_rows, *append)
        of_scales = schemas.arguments_of("append", (*written, *schemas.WRITTEN_SCALES))
        _define(library, "flash_attn_append_scales", of_scales, *append)
        _define(library, "flash_mla", latent, _latent_attention, fakes.check_latent)
        return library
    except BaseException:
        # Ctrl-C: torch holds some of the names, which the next import could not define again.
        library._destroy()
        raise


_library = _define_all()
