"""A public function under a tracer: its arguments -> those of an operator.

Arguments that a schema cannot hold are checked here, in Python that the tracer follows; the fakes check the rest, with
the same messages. Calls that no operator supports run outside of the graph: torch.compile breaks the graph there, or
with fullgraph=True reports why it cannot.
"""

from __future__ import annotations

import torch
from torch._dynamo import assume_constant_result
from torch.compiler import disable, is_dynamo_compiling

from cute_fa4.calls import append as caches
from cute_fa4.calls import prepare as ragged
from cute_fa4.calls import queries
from cute_fa4.calls.block_lists import Lists
from cute_fa4.calls.latent import check_latent_tensors
from cute_fa4.calls.operands import new_rows
from cute_fa4.calls.operands.blocks import are_tiles, has_two_tiles, of_operator, taken
from cute_fa4.calls.operands.tensors import check_tensors
from cute_fa4.calls.operands.tracing import is_traced, refuse_untraceable
from cute_fa4.calls.options import resolve
from cute_fa4.calls.skipping import COUNTS, FACTOR
from cute_fa4.calls.small_blocks import conversion_of, without_checks
from cute_fa4.calls.split_keys import merge as parts
from cute_fa4.compiler import policy
from cute_fa4.operands import BLOCKS, NAMES, OFFSETS_OF_QUERIES, ROWS, SCALES, tensors_of
from cute_fa4.operators import sharding
from cute_fa4.operators.fakes import new_out
from cute_fa4.operators.gradients import through_transforms
from cute_fa4.operators.refusals import tell_dynamo
from cute_fa4.operators.schemas import names_of
from cute_fa4.operators.spelling import function_of, is_known, spell_mask
from cute_fa4.operators.tiles import converted
from cute_fa4.sm100.blueprint.score_mods import ScoreMod, remember
from cute_fa4.sm100.blueprint.small_blocks import counted_from_first, with_kinds

_ops = torch.ops.cute_fa4

_OPTIONS = (
    "softmax_scale", "causal", "window_size", "mask", "learnable_sink", "softcap", "pack_gqa",
    "score_mod", "mask_mod", "aux_tensors", "num_splits", "tokens_per_split", "batch_invariant",
    "skip_softmax_threshold_scale_factor",
)  # fmt: skip
_SCALES = tuple(name for name in NAMES[SCALES] if name in names_of("all"))  # of every operator
_UNBUILT_OF_CACHE = ("rotary_cos", "rotary_sin", "qv")
# The arguments that only one operator has, for each operator.
_DENSE, _VARLEN, _APPEND = map(names_of, ("dense", "varlen", "append"))


def dense(function, given: dict):
    """flash_attn_func(**given) through an operator; `function` is flash_attn_func."""
    outside = _outside(given)
    if outside is not None:
        return outside(function, given)
    call = _named(given, _DENSE) | _lists(given)
    call |= _options(given, differentiable=True, blocks=of_operator(call))
    return _call(_ops.flash_attn, _ops.flash_attn_out, call | _tiles(call), given)


def varlen(function, given: dict):
    """The same for flash_attn_varlen_func."""
    outside = _outside(given)
    if outside is not None:
        return outside(function, given)
    given = _without_aliases(given)
    call = _named(given, _VARLEN) | _lists(given)
    call |= _options(given, differentiable=True, blocks=of_operator(call))
    for name in ("max_seqlen_q", "max_seqlen_k"):
        call[name] = _length(name, given[name])
    return _call(_ops.flash_attn_varlen, _ops.flash_attn_varlen_out, call | _tiles(call), given)


def kvcache(function, given: dict):
    """The same for flash_attn_with_kvcache; a cache that is only read goes to the varlen operator."""
    outside = _outside(given)
    if outside is not None:
        return outside(function, given)
    caches.refuse_unbuilt(**_named(given, _UNBUILT_OF_CACHE))
    given = _without_aliases(given)
    required = ("k", "v", "cache_seqlens", "cu_seqlens_k_new", "page_table")
    new_rows.check_given(**_named(given, required))
    cache = {"k": given["k_cache"], "v": given["v_cache"]}
    options = _options(given | cache)
    options["max_seqlen_q"] = _length("max_seqlen_q", given["max_seqlen_q"])
    held = given["cache_seqlens"]
    picked = not (given["cache_batch_idx"] is given["cache_leftpad"] is None)
    if picked and held is given["k"] is given["page_table"] is None:
        held = caches.rows_of_cache(given["k_cache"])
    lengths = _lengths(held, given)
    if given["k"] is None:
        call = _named(given, _VARLEN) | options | cache | {"seqused_k": lengths}
        return _call(_ops.flash_attn_varlen, _ops.flash_attn_varlen_out, call, given)
    call = _named(given, _APPEND) | options | {"cache_seqlens": lengths}
    if new_rows.brings_scales(given["k"], given["k_cache"], given["k_descale"], given["v_descale"]):
        operators = _ops.flash_attn_append_scales, _ops.flash_attn_append_scales_out
    else:
        operators = _ops.flash_attn_append, _ops.flash_attn_append_out
    return _call(*operators, call, given)


def latent(given: dict):
    """flash_mla_with_kvcache(**given) through an operator."""
    none = ("mask", "pack_gqa", "score_mod", "mask_mod", "aux_tensors", *_SCALES)
    cache, table = given["k_cache"], given["block_table"]
    q, lengths = given["q"], given["cache_seqlens"]
    check_latent_tensors(q, cache, table, lengths, given["out"])
    options = (
        dict.fromkeys(none) | given | dict(window_size=(None, None), softcap=0.0, return_lse=True)
    )
    options |= {"k": cache, "v": cache}
    call = {"q": q, "latent_cache": cache, "page_table": table, "seqused_k": lengths}
    call |= {"k_block_scale": given["k_block_scale"], "return_max": given["return_max_logits"]}
    return _call(_ops.flash_mla, _ops.flash_mla_out, call | _options(options, latent=True), given)


def merged(outs: torch.Tensor, lses: torch.Tensor, dtype, sink=None):
    """The merge of stacked parts: a node where it is traced."""
    if is_traced(outs):
        refuse_untraceable("merge", {"outs": outs, "lses": lses})
        return torch.ops.cute_fa4.merge(outs, lses, sink, dtype=dtype)
    return parts.merged(outs, lses, dtype, sink)


def _call(functional, mutating, call: dict, given: dict):
    """given: arguments of the public function; out and workspace are written to."""
    _register_rules()
    out, workspace = given["out"], given["workspace"]
    if out is workspace is None:
        out, lse = through_transforms(functional, call)
    else:
        out = new_out(call) if out is None else out
        lse = mutating(out, **call, workspace=workspace)
    return (out, lse) if call["return_lse"] else out


# --- outside of the graph


_FUNCTION = (
    "score_mod, mask_mod: a Python function, whose closure and globals a graph cannot watch; accepted in a graph: "
    "functions of cute_fa4.score_mods, and cute_fa4.score_mods.ScoreMod.of(function), made outside of it from a "
    "function without captured tensors"
)


def _with_function(function, given: dict):
    refuse(_FUNCTION)
    return _not_traced(function, given)


@disable(reason=_FUNCTION)
def _not_traced(function, given: dict):
    return function(**given)


_MESSAGES = (
    "scaled_dot_product_attention inside of torch's context_parallel: rows of other ranks arrive in messages, at "
    "which a graph breaks; accepted: torch.compile with fullgraph=False, its default"
)


@disable(reason=_MESSAGES)
def outside_of_graphs(function, *arguments):
    """function(*arguments); one graph ends before it and another begins after it."""
    return function(*arguments)


@assume_constant_result
def constant(question):
    """question(), evaluated once, while the graph is made."""
    return question()


def _outside(given: dict):
    """The function that calls the public one where no operator can; None where one can."""
    if not is_dynamo_compiling():
        return None
    for name in ("score_mod", "mask_mod"):
        mod = given[name]
        if mod is not None and not (isinstance(mod, ScoreMod) and mod.captured == ()):
            return _with_function
    return None


# --- arguments of an operator


def _named(given: dict, names) -> dict:
    """The arguments that the function has."""
    return {name: given[name] for name in names if name in given}


def _without_aliases(given: dict) -> dict:
    """The parameters with two names under the first of them."""
    one_of = ragged.one_of
    table = one_of("page_table", given["page_table"], "block_table", given["block_table"])
    sink = one_of("learnable_sink", given["learnable_sink"], "s_aux", given["s_aux"])
    lse = given["return_lse"] or given["return_softmax_lse"]
    return given | {"page_table": table, "learnable_sink": sink, "return_lse": lse}


def _lists(given: dict) -> dict:
    """The arguments for block_sparse_tensors."""
    if given["block_sparse_tensors"] is None:
        return {}
    found = taken(given["block_sparse_tensors"])
    blocks = found.pop("block_sparse_tensors")
    return found | {"block_size": [blocks.queries, blocks.keys]}


def _tiles(call: dict) -> dict:
    """The arguments that differ where blocks are smaller than tiles (calls/small_blocks.py), functions as keys."""
    blocks, aux = of_operator(call), call["aux_tensors"] or []
    of_kernel = call["q_descale"], call.get(FACTOR)
    if blocks is None or are_tiles(blocks, *of_kernel):
        return {}
    found = Lists({name: call.get(name) for name in NAMES[BLOCKS]}, blocks)
    where = without_checks(tensors_of(call), call)
    hides, invariant = call["mask_mod"] != "", policy.batch_invariant(call["batch_invariant"])
    of_tiles = has_two_tiles(*of_kernel), invariant
    conversion = conversion_of(found, where, hides, of_tiles, contents=False)
    lists, kinds = conversion.lists(converted(conversion))
    taken_lists = {name: getattr(lists, name) for name in NAMES[BLOCKS]}
    return taken_lists | {
        "block_size": list(lists.block_size),
        "score_mod": _counted_from_first(call["score_mod"], len(aux)),
        "mask_mod": _with_kinds(call["mask_mod"], len(aux), blocks.queries),
        "aux_tensors": [*aux, kinds],
    }


@assume_constant_result
def _with_kinds(key: str, number: int, queries: int) -> str:
    return remember(with_kinds(function_of("mask_mod", key), number, queries)).key


@assume_constant_result
def _counted_from_first(key: str, given: int) -> str:
    mod = counted_from_first(function_of("score_mod", key), given)
    return "" if mod is None else remember(mod).key


def _options(given: dict, differentiable: bool = False, blocks=None, latent=False) -> dict:
    """causal, window_size, mask, softcap, ... -> the options that every operator has."""
    q, k, v, out = (given[name] for name in NAMES[ROWS])
    check_tensors(q, k, v, out, differentiable, latent)
    if given.get(COUNTS) is not None:
        raise NotImplementedError(
            f"{COUNTS}: given to a call that a tracer or autograd records; accepted: None; count in a call of its own"
        )
    for name in ("score_mod", "mask_mod"):
        if isinstance(given[name], ScoreMod) and not _is_known(given[name].key):
            _remember(given[name])
    options = resolve(
        given["q"], **_named(given, _OPTIONS), blocks=blocks, gradients=differentiable
    )
    return dict(
        softmax_scale=options.softmax_scale,
        mask=spell_mask(options.mask.mask),
        mask_sizes=list(options.mask.sizes),
        learnable_sink=options.sink,
        pack_gqa=options.pack_gqa,
        score_mod="" if options.score_mod is None else options.score_mod.key,
        mask_mod="" if options.mask_mod is None else options.mask_mod.key,
        aux_tensors=list(options.aux) or None,
        num_splits=options.num_splits,
        tokens_per_split=options.tokens_per_split,
        batch_invariant=options.batch_invariant,
        **_named(given, _SCALES),
        return_lse=bool(given["return_lse"]),
    )


# A compiler calls these while it traces. It guards keys by value, and functions by identity.
_is_known = assume_constant_result(is_known)
_remember = assume_constant_result(remember)
refuse = assume_constant_result(tell_dynamo)
_register_rules = assume_constant_result(sharding.register_rules)
assume_constant_result(policy.batch_invariant)
assume_constant_result(queries.dequantizes)  # the rule of kernels, which holds a lock


def _length(name: str, value):
    """A number or symbol unchanged; otherwise the result of check_length, which may raise."""
    plain = isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)
    return value if plain else ragged.check_length(name, value)


def _lengths(cache_seqlens, given: dict) -> torch.Tensor | None:
    q, offsets = given["q"], given[OFFSETS_OF_QUERIES]
    batch = q.shape[0] if offsets is None else offsets.shape[0] - 1
    if cache_seqlens is None or isinstance(cache_seqlens, torch.Tensor):
        return caches.cache_lengths(cache_seqlens, batch, q.device)
    length = _length("cache_seqlens", cache_seqlens)
    return torch.full((batch,), length, dtype=torch.int32, device=q.device)
