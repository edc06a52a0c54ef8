"""configs_for_model(): the configurations that a model's shapes need, so that none is compiled while it serves.

    call                                              configurations
    dense    flash_attn_func                          for long queries and short ones
    packed   flash_attn_varlen_func, cu_seqlens       for long queries and short ones
    paged    the same with page_table and seqused_k   for long queries and short ones, for each page size
    kvcache  flash_attn_with_kvcache, paged           cache complete; with new rows, and the kernel that appends them
    cascade  two paged calls, on request              of a common prefix, without a mask, and of the keys after it,
                                                      without a sink; both with the log-sum-exp
    latent   flash_mla_with_kvcache, on request       one to eight queries, with or without stream-K, and the merge
                                                      (pages of 1 without a causal mask: keys by index)
    latent_rows   the same over caches of 656 bytes a row
    latent_pages  the same over caches of 584 bytes a row, of which each key is a page, whatever page_sizes says
    indexer  cute_fa4.indexer, on request             scores of keys, with and without pages, and the keys with the
                                                      highest ones
    ranks    cute_fa4.distributed, on request         parts of a sequence or a cache in float32, and the merge kernels

The kernels come from the rule that calls use, applied to every length of queries
(sm100/choose/which_kernel.py). Lengths, batch and head counts are otherwise not part of a configuration; only the
number of query heads per key/value head is.
"""

from __future__ import annotations

import itertools
from operator import index
from pathlib import Path

from cute_fa4.aot import model_launches
from cute_fa4.aot.model_dtypes import Dtypes
from cute_fa4.aot.model_kernels import kernels_of_model
from cute_fa4.aot.model_layouts import layouts_of, masks_of, ropes_of
from cute_fa4.layouts.cache_scales import LINEAR
from cute_fa4.scales import Scales
from cute_fa4.system.messages import shown

CALLS = ("dense", "packed", "paged", "kvcache")
ON_REQUEST = ("cascade", "ranks", "latent", "latent_rows", "latent_pages", "indexer")


def configs_for_model(
    *,
    head_dim: int,
    heads_q: int,
    heads_kv: int,
    head_dim_v: int | None = None,
    dtype: str = "bf16",
    kv_dtype: str | None = None,
    v_block_scale_layout: str = LINEAR,
    four_over_six: bool = False,
    q_quantize: str | None = None,
    descales: str = "qkv",
    o_dtype: str | None = None,
    calls: tuple[str, ...] = CALLS,
    page_sizes: tuple[int, ...] = (16, 64),
    causal: bool = True,
    windows: tuple = (None,),
    chunk: int | None = None,
    sink: str | None = None,
    softcap: float = 0.0,
    return_lse: tuple[bool, ...] = (False,),
    rope_depth: int = 0,
    rope_page_sizes: tuple[int, ...] = (),
    rope_dtype: str | None = None,
    scale_dtype: str | None = None,
    splits: bool = True,
    batch_invariant: bool | None = None,
    training: bool = False,
    arch: str = "sm_100a",
    tuning: str | Path | None = None,
) -> list:
    """Configurations of every kind of kernel that the calls launch, without duplicates.

    head_dim_v  of v; None: as head_dim
    dtype       "bf16", "fp16", "e4m3" or "e5m2"; out for the 8-bit ones is bf16
    kv_dtype    "e4m3" or "e5m2": caches of 8 bits under queries of dtype, which has 16; "e2m1": of 4 bits (NVFP4);
                "mxe4m3": of 8 with scales of blocks (MXFP8); None: as dtype
    v_block_scale_layout  of caches of 4 bits, as the functions take it; packed calls, which have no cache, are linear
    four_over_six  of new rows that are written to them, likewise
    q_quantize  in such calls, as the functions take it; None: calls that leave it open; "before": calls whose q has
                kv_dtype already, and out dtype; latent and cascade calls, which get no out=, bf16. Over latent caches
                None is "auto", unless CUTE_FA4_FP8_QUERIES=never here
    descales    letters of "qkvo": which 8-bit tensors have scales, and out; large where they have one for each token
                and head, "Qkv", "qKV"; x and y: q and k have one for each 32 numbers, "xyv" (MXFP8); of tensors of 16
                bits out alone
    o_dtype     of out: that of q or "e4m3", where q has 8 bits "bf16", "fp16" or "e4m3"; None: that of q, or bf16
    calls       of CALLS and ON_REQUEST. "indexer": head_dim and heads_q are those of the indexer, whose q and keys are
                e4m3 whatever dtype says, and page_sizes those of its cache
    windows     of the model's layers: None for full attention, or a pair (left, right) as window_size takes it; the
                sizes themselves are bound at each call
    chunk       keys of a block that sees only itself (with causal: Llama 4), in addition to windows
    sink        dtype of learnable_sink: "f32", "bf16" or "fp16"; None: there is none
    return_lse  whether calls ask for it: (False,), (True,) or both
    rope_depth  columns of keys that calls have as k_rope, of head_dim (prefill of latent attention, whose calls are
                "dense" and "packed"); 0: k has all columns
    rope_page_sizes  keys of its pages, where packed calls have k_rope_page_table
    rope_dtype  "e4m3" or "e5m2": k_rope has 8 bits under 16; "bf16" or "fp16": it has 16 beside k of 8, and
                so has q_rope; None: as dtype
    scale_dtype "f32": k_rope of 8 bits has k_rope_descale; None: it has not
    splits      whether calls may split their keys: num_splits other than 1, or tokens_per_split. The list always has
                these kernels for calls over latent caches, which split unless num_splits=1
    batch_invariant  of the calls, as the functions take it; None, and for ranks always: as CUTE_FA4_BATCH_INVARIANT
                says here
    training    q, k and v of dense and packed calls and of those on ranks require gradients: kernels that write the
                log-sum-exp, and those of the backward pass, with a gradient of it where return_lse has True
    tuning      file of choices between kernels, which must also decide for the calls (CUTE_FA4_TUNING); None: as for
                calls now (docs/performance/tuning.md)

    Raises ValueError for a value that no call accepts, and with every reason for shapes that no kernel runs.
    """
    given = locals()
    from cute_fa4.compiler import policy
    from cute_fa4.sm100.blueprint.tuning import load, using
    from cute_fa4.sm100.choose.choose_config import config_for
    from cute_fa4.sm100.choose.launches import every_launch
    from cute_fa4.sm100.latent.dequantized.schedule import STORED, STORED_IN_PAGES

    if tuning is not None:
        with using(load(tuning)):
            return configs_for_model(**given | {"tuning": None})
    calls = _several("calls", calls, str, "('dense',)")
    page_sizes = _several("page_sizes", page_sizes, int, "(16, 64)")
    windows = _several("windows", windows, (tuple, list, type(None)), "(None, (4095, 0))")
    return_lse = _several("return_lse", return_lse, bool, "(False,)")
    rope_page_sizes = _several("rope_page_sizes", rope_page_sizes, int, "(64,)")
    _check_calls(calls, rope_depth)
    sizes = _sizes(head_dim, head_dim_v, heads_q, heads_kv)
    masks = masks_of(causal, windows, chunk)
    dtypes = Dtypes(dtype, kv_dtype, o_dtype, Scales.of(descales))
    dtypes.check(calls)
    policy.check_quantize(q_quantize, policy.QUANTIZE_IN_LISTS)
    if q_quantize == policy.BEFORE:
        parts = [configs_for_model(**given | each) for each in dtypes.quantised_before(calls)]
        return list(dict.fromkeys(itertools.chain(*parts)))
    policy.check_batch_invariant(batch_invariant)
    sizes["v_block_scale_layout"] = v_block_scale_layout
    plain = sizes | dtypes.of_problem() | _scores(sink, softcap) | {"arch": arch}
    shared = plain | policy.of_schedules(batch_invariant)

    ropes = ropes_of(index(rope_depth), rope_page_sizes, rope_dtype, scale_dtype)
    layouts = layouts_of(tuple(call for call in calls if call in CALLS), page_sizes, ropes)
    found = model_launches.backward(shared, masks, return_lse, calls) if training else []
    writes_lse = dict.fromkeys((*return_lse, *[True] * training))
    for mask, lse, layout in itertools.product(masks, writes_lse, layouts):
        of_calls = shared | layout | {"mask": mask}
        for problem, kernel in kernels_of_model(of_calls, dtypes, q_quantize, batch_invariant):
            config = config_for(**problem, **kernel.choices, write_lse=lse)
            early = shared["dependent_launch"]
            found += every_launch(config, cuts=splits, dependent_launch=early)
    if "ranks" in calls:
        of_ranks = plain | policy.of_schedules()  # these take no batch_invariant
        found += model_launches.on_ranks(of_ranks, masks, page_sizes)
    if "cascade" in calls:
        if not set(masks_of(causal, (None,), None)) & set(masks):
            raise ValueError(
                f"calls: 'cascade' with windows={shown(windows)}; accepted: None among them, for layers of full "
                "attention"
            )
        for part in _parts_of_cascade(causal, sink):
            found += configs_for_model(**given | part)
    of_latent = masks, page_sizes, batch_invariant
    if "latent" in calls:
        stays = policy.stays_over_latent(q_quantize)
        stored = dtypes.dequantized if stays else dtypes.quantised
        found += model_launches.latent(shared, heads_kv, *of_latent, stored)
    if "latent_rows" in calls:
        found += model_launches.latent(shared, heads_kv, *of_latent, STORED)
    if "latent_pages" in calls:
        of_keys = masks, (1,), batch_invariant
        found += model_launches.latent(shared, heads_kv, *of_keys, STORED_IN_PAGES)
    if "indexer" in calls:
        of_heads = sizes["head_dim"], index(heads_q), index(heads_kv)
        found += model_launches.indexer(*of_heads, page_sizes, arch)
    if "kvcache" in calls:
        depths = sizes["head_dim"], sizes["head_dim_v"]
        of_blocks = {"v_block_scale_layout": v_block_scale_layout, "four_over_six": four_over_six}
        found += model_launches.appends(dtypes, depths, page_sizes, arch, **of_blocks)
    return list(dict.fromkeys(found))


def _check_calls(calls: tuple, rope_depth: int) -> None:
    unknown = [call for call in calls if call not in CALLS + ON_REQUEST]
    if unknown:
        raise ValueError(f"calls: {unknown}; accepted: {', '.join(CALLS + ON_REQUEST)}")
    if rope_depth and not set(calls) <= {"dense", "packed"}:
        raise ValueError(
            f"calls: {shown(calls)} with rope_depth={rope_depth}; accepted: 'dense', 'packed': a cache with keys of "
            "each head has all columns in k"
        )


def _parts_of_cascade(causal: bool, sink: str | None) -> tuple[dict, dict]:
    """Arguments of configs_for_model for the two calls of cascade attention, whose results the caller merges.

    The prefix is one sequence of all queries, which see all of it; the sink is counted there. Layers with windows have
    no common prefix.
    """
    part = dict(calls=("paged",), windows=(None,), chunk=None, return_lse=(True,), training=False)
    return part | {"causal": False, "sink": sink}, part | {"causal": causal, "sink": None}


def _sizes(head_dim: int, head_dim_v: int | None, heads_q: int, heads_kv: int) -> dict:
    """Configuration fields for the sizes of a model."""
    head_dim, heads_q, heads_kv = index(head_dim), index(heads_q), index(heads_kv)
    head_dim_v = head_dim if head_dim_v is None else index(head_dim_v)
    if heads_kv <= 0 or heads_q <= 0 or heads_q % heads_kv:
        raise ValueError(
            f"heads_q: {heads_q} with heads_kv {heads_kv}; accepted: a multiple of heads_kv"
        )
    return {"head_dim": head_dim, "head_dim_v": head_dim_v, "group": heads_q // heads_kv}


def _scores(sink: str | None, softcap: float) -> dict:
    """Configuration fields for scores other than their mask."""
    from cute_fa4.sm100.blueprint.score_mods import soft_cap

    return {
        "sink": sink is not None,
        "sink_dtype": sink or "f32",
        "score_mod": soft_cap(float(softcap)) if softcap else None,
    }


def _several(name: str, values, kind, such_as: str) -> tuple:
    """The values of an argument that is a tuple or a list; TypeError for one value, which looks like several."""
    if not isinstance(values, (tuple, list)):
        raise TypeError(f"{name}: {shown(values)}; accepted: a tuple or a list, such as {such_as}")
    if kind is int:
        values = [
            index(v) if hasattr(v, "__index__") and not isinstance(v, bool) else v for v in values
        ]
    for value in values:
        if not isinstance(value, kind):
            raise TypeError(
                f"{name}: {shown(value)} in {shown(values)}; accepted: such as {such_as}"
            )
    return tuple(values)
