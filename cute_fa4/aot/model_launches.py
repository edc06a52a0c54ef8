"""Further launches of a model: backward passes, appended rows, latent attention, its indexer, parts on several GPUs."""

from __future__ import annotations

import itertools

from cute_fa4.aot.model_kernels import kernels
from cute_fa4.compiler import policy


def backward(shared: dict, masks: list, return_lse: tuple, calls: tuple) -> list:
    """The kernels of the backward pass. ValueError for a model that has none.

    Gradients of parts on several ranks are added to float32 sums, and have the masks of parts; a call on ranks is dense
    or packed.
    """
    from cute_fa4.sm100.backward.config import BackwardConfig

    depths = shared["head_dim"], shared["head_dim_v"]
    of_parts = list(dict.fromkeys(kind for mask in masks for kind in _pieces(mask)))
    layouts = {
        "dense": [(False, False, masks)],
        "packed": [(True, False, masks)],
        "ranks": [(False, True, of_parts), (True, True, of_parts)],
    }
    found = [
        BackwardConfig(
            shared["qkv_dtype"],
            *depths,
            packed=packed,
            mask=mask,
            score_mod=shared["score_mod"],
            dlse=dlse,
            accumulate=accumulate,
            arch=shared["arch"],
            pairs=policy.pairs(),
        )
        for call in dict.fromkeys(calls)
        for packed, accumulate, kinds in layouts.get(call, ())
        for mask in kinds
        for dlse in dict.fromkeys((False, *return_lse))
    ]
    why = dict.fromkeys(reason for config in found for reason in config.refusals())
    if why or not found:
        text = (
            "; ".join(why)
            or f"calls: {calls}; accepted: 'dense', 'packed', 'ranks', which have gradients"
        )
        raise ValueError(f"training: True and {text}")
    return found


def appends(dtypes, depths: tuple[int, int], page_sizes: tuple, arch: str, **of_blocks) -> list:
    """The kernels that append new rows to a cache. ValueError for fields that contradict each other.

    dtypes: model_dtypes.Dtypes; of_blocks: fields of AppendConfig for scales of blocks
    """
    from cute_fa4.sm100.choose.launches import append_launch

    fields = {"arch": arch, **of_blocks}
    found = [
        append_launch(
            dtypes.stored,
            depths,
            new_dtype,
            dtypes.descales,
            packed=packed,
            page_size=page,
            **fields,
        )
        for packed in (False, True)
        for page in page_sizes
        for new_dtype in dtypes.of_new_rows()
    ]
    why = dict.fromkeys(reason for config in found for reason in config.contradictions())
    if why:
        raise ValueError("; ".join(why))
    return found


def latent(
    shared: dict,
    heads_kv: int,
    masks: list,
    page_sizes: tuple,
    invariant: bool | None = None,
    stored: dict | None = None,
) -> list:
    """The kernels of flash_mla_with_kvcache, which always return the log-sum-exp.

    stored: fields for the rows of the cache, where they differ from those of shared
    """
    from cute_fa4.sm100.choose.choose_config import LATENT_DEPTHS, config_for
    from cute_fa4.sm100.choose.launches import every_launch

    depth, depth_v = LATENT_DEPTHS
    call = {None: "latent", "f32": "latent_rows"}.get((stored or {}).get("scale_dtype"))
    if call is None:
        call, depth = "latent_pages", depth_v
    # A cache that is multiplied as it is stored may have values alone.
    as_stored = call == "latent" and "kv_dtype" not in (stored or {})
    depths = (depth, depth_v) if as_stored else (depth,)
    in_pages = call == "latent_pages"
    if shared["head_dim"] not in depths or (in_pages and heads_kv != 1):
        raise ValueError(
            f"calls: {call!r} with head_dim {shared['head_dim']}, heads_kv {heads_kv}; accepted: head_dim "
            f"{' or '.join(map(str, depths))}, a row of the latent cache"
            + ", and heads_kv 1"
            * in_pages
        )
    latent: dict[str, object] = {"head_dim_v": depth_v, "latent": True}
    latent |= {"kv_layout": "paged", "seqused_k": True, "write_lse": True}
    latent |= stored or {}
    found = []
    for mask, page in itertools.product(masks, page_sizes):
        problem = shared | latent | {"mask": mask, "page_size": page}
        for kernel in kernels(problem, invariant=invariant):
            config, early = config_for(**problem | kernel.choices), shared["dependent_launch"]
            for in_float32 in (False, True):
                found += every_launch(config, in_float32, dependent_launch=early)
            if config.sink and page == 1:  # two caches, by index: merged before the sink counts
                of_keys = config.with_(sink=False, sink_dtype="f32")
                found += every_launch(of_keys, True, dependent_launch=early)
            if page == 1:  # flash_mla_sparse_fwd, a key a page
                found.append(config.with_(write_max=True))
    return found


def indexer(head_dim: int, heads_q: int, heads_kv: int, page_sizes: tuple, arch: str) -> list:
    """The kernels of cute_fa4.indexer for calls of any number of queries. ValueError for heads that have none."""
    from cute_fa4.sm100.indexer.config import (
        CTAS_OF_ROW,
        DEPTH,
        WIDE_TILE,
        IndexerConfig,
        TopKConfig,
        queries_of_tile,
    )

    if (head_dim, heads_kv) != (DEPTH, 1):
        raise ValueError(
            f"calls: 'indexer' with head_dim {head_dim}, heads_kv {heads_kv}; accepted: head_dim {DEPTH} and heads_kv 1"
        )
    few = dict.fromkeys(queries_of_tile(heads_q, queries) for queries in range(1, WIDE_TILE + 1))
    forms = [(queries_of_tile(heads_q), 0, "rows")]
    forms += itertools.product(few, page_sizes, ("lengths", "rows"))
    found = [
        IndexerConfig(heads_q, queries, page, ends, clean, arch)
        for queries, page, ends in forms
        for clean in (True, False)
    ]
    why = dict.fromkeys(reason for config in found for reason in config.refusals())
    if why:
        raise ValueError(f"calls: 'indexer' and {'; '.join(why)}")
    return [*found, *(TopKConfig(arch, ctas) for ctas in CTAS_OF_ROW)]


def on_ranks(shared: dict, masks: list, page_sizes: tuple) -> list:
    """The kernels of context_parallel_attention and decode_attention; sinks are counted where parts are merged.

    Windows, and several queries over a cache, use a function of key positions, which is compiled at the call.
    """
    from cute_fa4.sm100.blueprint import bands
    from cute_fa4.sm100.choose.choose_config import config_for
    from cute_fa4.sm100.choose.launches import every_launch
    from cute_fa4.sm100.combine.config import CombineConfig

    shared = shared | {"sink": False, "sink_dtype": "f32", "o_dtype": None, "descales": ""}
    masks_of_pieces = dict.fromkeys(kind for mask in masks for kind in _pieces(mask))
    packed = {"q_layout": "packed", "kv_layout": "packed"}
    asked = [{"mask": kind, **layout} for kind in masks_of_pieces for layout in ({}, packed)]
    for page in (0, *page_sizes):
        layout = {"kv_layout": "paged", "page_size": page} if page else {}
        asked.append({"mask": bands.Full(), "seqused_k": True, **layout})
    found = []
    each = ((problem, kernel) for problem in asked for kernel in kernels(shared | problem))
    for problem, kernel in each:
        config = config_for(**shared, **problem, **kernel.choices, write_lse=True)
        splits = bool(problem.get("seqused_k"))  # decode is split on each rank besides
        early = shared["dependent_launch"]
        found += every_launch(config, in_float32=True, cuts=splits, dependent_launch=early)
    depth, of_all = shared["head_dim_v"], {"write_lse": True, "arch": shared["arch"]}
    of_all["dependent_launch"] = shared["dependent_launch"] is None
    for dtype, sent in (("f32", "f32"), (shared["qkv_dtype"], "f32"), (shared["qkv_dtype"],) * 2):
        found.append(CombineConfig(dtype, depth, partial_dtype=sent, **of_all))
    return found


def _pieces(mask) -> list:
    """Masks of the parts of a sequence: nothing hidden, the mask itself, and one side of a window."""
    from cute_fa4.sm100.blueprint import bands

    if isinstance(mask, bands.Window):
        sides = [bands.Window(a, b) for a, b in ((True, True), (True, False), (False, True))]
        return [bands.Full(), bands.Causal(), *sides]
    return [bands.Full()] + [mask] * isinstance(mask, bands.Causal)
