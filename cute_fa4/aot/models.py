"""configs_for_model(): the configurations that a model's shapes need, so that none is compiled while it serves.

    call                                              configurations
    dense    flash_attn_func                          for long queries and short ones
    packed   flash_attn_varlen_func, cu_seqlens       for long queries and short ones
    paged    the same with page_table and seqused_k   for long queries and short ones, for each page size
    kvcache  flash_attn_with_kvcache, paged           cache complete; with new rows, and the kernel that appends them
    latent   flash_mla_with_kvcache, on request       one to eight queries, keys shared out or not, and what merges them
                                                      (pages of 1 without a causal mask: keys by index)
    latent_rows   the same over caches of 656 bytes a row
    ranks    cute_fa4.distributed, on request         parts of a sequence or a cache in float32, and what merges them

Short queries (decode) have packed heads, where the group divides a tile, and tiles of few rows (mhaswap); where a tile
of 128 rows has all of them, the kernel of one query tile runs (mha1q), else that of two (mha2q). Otherwise lengths,
batch and head counts are no part of a configuration, only the number of query heads for each key/value head is.
"""

from __future__ import annotations

import itertools
from functools import partial
from operator import index

from cute_fa4.system.messages import shown

CALLS = ("dense", "packed", "paged", "kvcache")
ON_REQUEST = ("ranks", "latent", "latent_rows")


def configs_for_model(
    *,
    head_dim: int,
    heads_q: int,
    heads_kv: int,
    head_dim_v: int | None = None,
    dtype: str = "bf16",
    kv_dtype: str | None = None,
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
    arch: str = "sm_100a",
) -> list:
    """FA4Configs, AppendConfigs and CombineConfigs, without doubles.

    head_dim_v  of v; None: as head_dim
    dtype       "bf16", "fp16", "e4m3" or "e5m2"; out of the 8-bit ones is bf16
    kv_dtype    "e4m3" or "e5m2": caches of 8 bits under queries of dtype, which has 16; None: as dtype
    descales    letters of "qkvo": which 8-bit tensors have scales, and out; large where they have one for each token
                and head, "Qkv", "qKV"; x and y: q and k have one for each 32 numbers, "xyv" (MXFP8); of tensors of 16
                bits out alone
    o_dtype     of out: that of q or "e4m3", where q has 8 bits "bf16", "fp16" or "e4m3"; None: that of q, or bf16
    calls       of CALLS and ON_REQUEST
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

    Raises ValueError for a value that no call accepts, and with every reason for shapes that no kernel runs.
    """
    from cute_fa4 import masks
    from cute_fa4.compiler import policy
    from cute_fa4.sm100.append.config import AppendConfig
    from cute_fa4.sm100.chip import FP8_DTYPES
    from cute_fa4.sm100.choose_config import CLUSTER_PARTS, config_for, rope_family, split_configs
    from cute_fa4.sm100.config import BlockScaled
    from cute_fa4.sm100.score_mods import soft_cap

    calls = _several("calls", calls, str, "('dense',)")
    page_sizes = _several("page_sizes", page_sizes, int, "(16, 64)")
    windows = _several("windows", windows, (tuple, list, type(None)), "(None, (4095, 0))")
    return_lse = _several("return_lse", return_lse, bool, "(False,)")
    unknown = [call for call in calls if call not in CALLS + ON_REQUEST]
    if unknown:
        raise ValueError(f"calls: {unknown}; accepted: {', '.join(CALLS + ON_REQUEST)}")
    rope_page_sizes = _several("rope_page_sizes", rope_page_sizes, int, "(64,)")
    if rope_depth and not set(calls) <= {"dense", "packed"}:
        raise ValueError(
            f"calls: {shown(calls)} with rope_depth={rope_depth}; accepted: 'dense', 'packed': a cache with keys of "
            "each head has all their columns"
        )
    head_dim, heads_q, heads_kv = index(head_dim), index(heads_q), index(heads_kv)
    head_dim_v = head_dim if head_dim_v is None else index(head_dim_v)
    if heads_kv <= 0 or heads_q <= 0 or heads_q % heads_kv:
        raise ValueError(
            f"heads_q: {heads_q} with heads_kv {heads_kv}; accepted: a multiple of heads_kv"
        )
    bound = [masks.resolve_mask(causal, window, None) for window in windows]
    if chunk is not None:
        bound.append(masks.chunked_causal(chunk) if causal else masks.chunked(chunk))
    group = heads_q // heads_kv
    if kv_dtype is not None and (kv_dtype not in FP8_DTYPES or dtype in FP8_DTYPES):
        raise ValueError(
            f"kv_dtype: {kv_dtype!r} with dtype={dtype!r}; accepted: None, or {' or '.join(FP8_DTYPES)} with bf16 or "
            "fp16"
        )
    if kv_dtype is not None and "x" in descales:
        raise ValueError(
            f"descales: {descales!r} with kv_dtype={kv_dtype!r}; accepted: scales of blocks where q has eight bits, too"
        )
    stored = kv_dtype or dtype
    fp8 = stored in FP8_DTYPES
    if fp8 and "ranks" in calls:
        raise ValueError(f"calls: ranks with {stored}; accepted: bf16 or fp16")
    shared = {
        "qkv_dtype": dtype,
        "o_dtype": o_dtype,
        "descales": descales if fp8 else "o" * ("o" in descales),
        "head_dim": head_dim,
        "head_dim_v": head_dim_v,
        "group": group,
        "arch": arch,
        **policy.of_schedules(),
        "sink": sink is not None,
        "sink_dtype": sink or "f32",
        "score_mod": soft_cap(float(softcap)) if softcap else None,
    }
    tiles = _tiles(shared, policy.swaps() and not rope_depth)
    dtypes_of = partial(_dtypes, dtype, kv_dtype, o_dtype, descales)
    of_many = dtypes_of({})
    ropes = _ropes(index(rope_depth), rope_page_sizes, rope_dtype, scale_dtype)
    if rope_dtype is not None:
        tiles = [{"pack_gqa": False, "family": rope_family(stored)}]
    elif "x" in shared["descales"]:
        packs = dict.fromkeys((False, _shares_tiles(group)))
        tiles = [{"pack_gqa": pack, "family": BlockScaled.family} for pack in packs]
    variants = itertools.product(
        dict.fromkeys(b.mask for b in bound),
        dict.fromkeys(return_lse),
        [
            layout | rope
            for call in calls
            if call in CALLS
            for layout in _layouts(call, page_sizes)
            for rope in (ropes if call == "packed" else ropes[:1])
        ],
    )
    found = [
        config_for(**shared | dtypes_of(tile), mask=mask, write_lse=lse, **tile, **layout)
        for mask, lse, layout in variants
        for tile in (tiles if rope_dtype else _with_pairs(tiles, shared | of_many, mask))
    ]  # fmt: skip
    # Decode splits its keys: shared out (num_splits=0) or in parts, partial results, and what merges them.
    for config in [c for c in found if c.page_size and _decodes(c)]:
        for shares in (False, True):
            found += split_configs(config, config.write_lse, shares)
        if getattr(config.schedule, "clusters", False):  # or within clusters
            found += [config.with_(cluster_parts=parts) for parts in CLUSTER_PARTS if parts > 1]
    if "ranks" in calls:
        of_ranks = {"sink": False, "sink_dtype": "f32", "o_dtype": None, "descales": ""}
        found += _on_ranks({**shared, **of_ranks}, bound, page_sizes)
    if "latent" in calls:
        found += _latent(shared | of_many, heads_kv, bound, page_sizes)
    if "latent_rows" in calls:
        found += _latent(shared, heads_kv, bound, page_sizes, of_rows=True)
    if "kvcache" in calls:
        rows = [{}]
        if fp8 and "y" not in descales:  # as they are, and of 16 bits, quantised on the way
            of_rows = "".join(name for name in "kKvV" if name in descales)
            rows.append({"new_dtype": dtype if kv_dtype else "bf16", "descales": of_rows})
        found += [
            AppendConfig(
                stored, head_dim, head_dim_v, packed=packed, page_size=page, arch=arch, **of_new
            )
            for packed in (False, True)
            for page in page_sizes
            for of_new in rows
        ]
    return list(dict.fromkeys(found))


def _dtypes(
    dtype: str, kv_dtype: str | None, o_dtype: str | None, descales: str, tiles: dict
) -> dict:
    """Of queries of 16 bits over caches of 8: tiles of few rows take them as they are, others quantised."""
    from cute_fa4.compiler import policy

    if kv_dtype is None:
        return {}
    of_keys = "".join(name for name in "kKvVo" if name in descales)
    if "rows" in tiles and policy.widens():
        return {"kv_dtype": kv_dtype, "descales": of_keys}
    return {"qkv_dtype": kv_dtype, "o_dtype": o_dtype or dtype, "descales": f"Q{of_keys}"}


def _ropes(depth: int, page_sizes: tuple, dtype: str | None, scales: str | None) -> list[dict]:
    """What a configuration says of columns of keys in a tensor of their own: beside k first, then in pages."""
    if not depth:
        return [{}]
    of_all = {"rope_depth": depth, "rope_dtype": dtype, "scale_dtype": scales}
    return [of_all | {"rope_page_size": page} for page in (0, *page_sizes)]


def _latent(
    shared: dict, heads_kv: int, bound: list, page_sizes: tuple, of_rows: bool = False
) -> list:
    """What flash_mla_with_kvcache asks for: the log-sum-exp always, tiles for one to eight queries."""
    from cute_fa4.sm100.choose_config import LATENT_DEPTHS, config_for, latent_tile, split_configs

    depth, depth_v = LATENT_DEPTHS
    if (shared["head_dim"], heads_kv) != (depth, 1):
        call = "latent_rows" if of_rows else "latent"
        raise ValueError(
            f"calls: {call!r} with head_dim {shared['head_dim']}, heads_kv {heads_kv}; accepted: head_dim {depth}, a "
            "row of the latent cache, and heads_kv 1"
        )
    latent = {"head_dim_v": depth_v, "latent": True, "pack_gqa": True}
    latent |= {"kv_layout": "paged", "seqused_k": True, "write_lse": True}
    tiles = [latent_tile(queries, shared["group"], of_rows) for queries in range(1, 9)]
    tiles = [tile for i, tile in enumerate(tiles) if tile not in tiles[:i]]
    found = []
    for tile, mask, page in itertools.product(
        tiles, dict.fromkeys(b.mask for b in bound), page_sizes
    ):
        config = config_for(**shared | latent | tile, mask=mask, page_size=page)
        found += [config, *split_configs(config, True, shared=True)]
    return found


def _decodes(config) -> bool:
    """Whether calls of few queries ask for it."""
    shares = config.pack_gqa == _shares_tiles(config.group)
    return shares or getattr(config.schedule, "clusters", False)


def _on_ranks(shared: dict, bound: list, page_sizes: tuple) -> list:
    """What context_parallel_attention and decode_attention launch; sinks are counted where parts are merged.

    Windows and several queries of a cache are a function of the keys' places, which is compiled where it is called.
    """
    from dataclasses import replace

    from cute_fa4.compiler import policy
    from cute_fa4.sm100 import bands
    from cute_fa4.sm100.choose_config import config_for, split_configs
    from cute_fa4.sm100.combine.config import CombineConfig

    tiles = _tiles(shared, policy.swaps())
    masks_of_pieces = dict.fromkeys(kind for b in bound for kind in _pieces(b.mask))
    packed = {"q_layout": "packed", "kv_layout": "packed"}
    asked = [{"mask": kind, **layout} for kind in masks_of_pieces for layout in ({}, packed)]
    for page in (0, *page_sizes):
        layout = {"kv_layout": "paged", "page_size": page} if page else {}
        asked.append({"mask": bands.Full(), "seqused_k": True, **layout})
    found = []
    for problem, tile in itertools.product(asked, tiles):
        config = config_for(**shared, **problem, **tile, write_lse=True)
        found.append(split_configs(config, True)[0])
        if problem.get("seqused_k"):  # decode is split on each rank besides
            for shares in (False, True):
                partial, combine = split_configs(config, True, shares)
                found += [partial, replace(combine, o_dtype="f32")]
    depth, arch = shared["head_dim_v"], shared["arch"]
    for dtype, sent in (("f32", "f32"), (shared["qkv_dtype"], "f32"), (shared["qkv_dtype"],) * 2):
        found.append(CombineConfig(dtype, depth, write_lse=True, partial_dtype=sent, arch=arch))
    return found


def _pieces(mask) -> list:
    """Masks of the parts of a sequence: nothing hidden, the mask itself, and one side of a window."""
    from cute_fa4.sm100 import bands

    if isinstance(mask, bands.Window):
        sides = [bands.Window(a, b) for a, b in ((True, True), (True, False), (False, True))]
        return [bands.Full(), bands.Causal(), *sides]
    return [bands.Full()] + [mask] * isinstance(mask, bands.Causal)


def _shares_tiles(group: int) -> bool:
    """Whether the query heads of a group can share a tile of 128 rows."""
    return group > 1 and 128 % group == 0


def _tiles(model: dict, swaps: bool) -> list[dict]:
    """What calls ask of tiles, from long queries to one. swaps: short queries have tiles with swapped operands."""
    from cute_fa4.compiler import policy
    from cute_fa4.sm100.choose_config import is_wide, tile_for, wide_family_for

    group = model["group"]
    if is_wide(
        model["head_dim"], model["head_dim_v"]
    ):  # by the number of queries, alone or in pairs
        families = dict.fromkeys(wide_family_for(rows, 1, policy.pairs()) for rows in (1, 1000))
        packs = dict.fromkeys((False, _shares_tiles(group)))
        return [{"pack_gqa": pack, "family": family} for pack in packs for family in families]
    shared = ((False, None), (True, None)) if _shares_tiles(group) else ((False, None),)
    few = (tile_for(queries, group, None, swaps) for queries in range(1, 64))
    found = dict.fromkeys((*shared, *few))
    found = [{"pack_gqa": pack} | ({} if rows is None else {"rows": rows}) for pack, rows in found]
    return [*found, {"pack_gqa": _shares_tiles(group), "family": "mha1q"}]


def _with_pairs(tiles: list[dict], model: dict, mask) -> list[dict]:
    """The same, and pairs of CTAs beside CTAs of two query tiles, where the lengths of a call may choose them."""
    from cute_fa4.compiler import policy
    from cute_fa4.sm100.choose_config import is_wide
    from cute_fa4.sm100.mhapair import pays

    if is_wide(model["head_dim"], model["head_dim_v"]) or set("KVxy") & set(model["descales"]):
        return tiles
    asked = pays.Asked(
        *(model["qkv_dtype"], model["head_dim"], model["head_dim_v"], mask),
        plain=model["score_mod"] is None,
        exact=model["maximum"] == "exact",
    )
    if not policy.may_pair(pays.may_pay(asked)):
        return tiles
    of_two = [tile for tile in tiles if set(tile) == {"pack_gqa"}]
    return [*tiles, *(tile | {"family": "mhapair"} for tile in of_two)]


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


def _layouts(call: str, page_sizes: tuple) -> list[dict]:
    if call == "dense":
        return [{}]
    if call == "packed":
        return [{"q_layout": "packed", "kv_layout": "packed"}]
    queries = ("packed",) if call == "paged" else ("dense", "packed")
    return [
        {
            "q_layout": q_layout,
            "kv_layout": "paged",
            "seqused_k": True,
            "cache_excludes_new": new,
            "page_size": page,
        }
        for q_layout in queries
        for new in ((False,) if call == "paged" else (False, True))
        for page in page_sizes
    ]
