"""Configurations whose PTX is recorded (ptx_identity.py), by name: every rule and every option is in one of them."""

from cute_fa4 import masks, score_mods
from cute_fa4.sm100.one_tile.schedule import OneTile

CAUSAL = {"causal": True}
PACKED = {"q_layout": "packed", "kv_layout": "packed"}
PAGES = {"kv_layout": "paged", "seqused_k": True}
DECODE = {**PAGES, "group": 8, "pack_gqa": True}
OF_576 = {"page_size": 64, "head_dim": 576, "head_dim_v": 512}
LATENT = {**PAGES, **OF_576, "pack_gqa": True, "latent": True}
LARGEST = {"write_lse": True, "write_max": True}
PARTIAL = {"split_keys": True, "write_lse": True, "o_dtype": "f32"}
WIDE_E4M3 = {"kv_dtype": "e4m3", "head_dim": 192, "family": "mhawidewiden", **CAUSAL}


def even_keys(batch, head, q_index, kv_index, aux_tensors):
    """A mask function: every other key is seen."""
    return kv_index % 2 == 0


OF_BLOCKS = {"qkv_dtype": "e4m3", "descales": "xyv", **CAUSAL}
NVFP4 = {"kv_dtype": "e2m1", "descales": "kv", "page_size": 16}
NVFP4_PREFILL = {**PAGES, **NVFP4, "family": "mhawiden2q"}
VARIANTS = {
    # depths, dtypes, masks
    "full": {},
    "causal": CAUSAL,
    "causal lse": {**CAUSAL, "write_lse": True},
    "fp16 full": {"qkv_dtype": "fp16"},
    "d64 full": {"head_dim": 64},
    "d64 full lse": {"head_dim": 64, "write_lse": True},
    "d64 causal lse": {"head_dim": 64, **CAUSAL, "write_lse": True},
    "d64 causal lse quarter": {
        "head_dim": 64,
        **CAUSAL,
        "write_lse": True,
        "first_reference": "quarter",
    },
    "d64 fp16 packed": {"head_dim": 64, "qkv_dtype": "fp16", **PACKED},
    "d72 causal": {"head_dim": 72, **CAUSAL},
    "d80 full": {"head_dim": 80},
    "d96 causal": {"head_dim": 96, **CAUSAL},
    "window": {"mask": masks.window(512, 0).mask},
    "window both sides": {"mask": masks.window(64, 64).mask},
    "chunked causal": {"mask": masks.both(masks.causal(), masks.chunked(64)).mask},
    "either": {"mask": masks.either(masks.causal(), masks.window(8, 8)).mask},
    # layouts
    "packed causal": {**PACKED, **CAUSAL},
    "packed queries, dense keys": {"q_layout": "packed"},
    "lengths": {"seqused_q": True, "seqused_k": True},
    "padded keys": {"padded_keys": True},
    "pages of 8": {**PAGES, "page_size": 8},
    "pages of 16 causal": {**PAGES, "page_size": 16, **CAUSAL},
    "pages of 16 in parts": {**PAGES, "page_size": 16, "fold_pages": False},
    "pages of 16 heads first": {**PAGES, "page_size": 16, "page_heads_first": True},
    "pages of 128": {**PAGES, "page_size": 128},
    "pages of 512 d64": {**PAGES, "page_size": 512, "head_dim": 64},
    "packed queries, pages": {**PAGES, "q_layout": "packed", "page_size": 16, **CAUSAL},
    # heads that share a tile
    "decode": {**DECODE, "page_size": 16, **CAUSAL},
    "decode d64 lse": {**DECODE, "page_size": 64, "head_dim": 64, "write_lse": True},
    # parts of the keys
    "parts": PARTIAL,
    "decode in parts": {**DECODE, "page_size": 16, **CAUSAL, **PARTIAL},
    "decode shared out": {**DECODE, "page_size": 16, **CAUSAL, **PARTIAL, "share_keys": True},
    "packed, shared out": {**PACKED, **CAUSAL, **PARTIAL, "share_keys": True, "claims": False},
    # scores
    "sink": {"sink": True, **CAUSAL},
    "skipped tiles": {"skip_softmax": True, **CAUSAL},
    "skipped tiles, counted, d64": {"skip_softmax": True, "count_skipped": True, "head_dim": 64},
    "sink bf16 window": {"sink": True, "sink_dtype": "bf16", "mask": masks.window(128, 0).mask},
    "soft cap": {"score_mod": score_mods.soft_cap(30.0), **CAUSAL},
    "alibi d64": {"score_mod": score_mods.alibi(8), "head_dim": 64, **CAUSAL},
    # instructions
    "no claims": {"claims": False, **CAUSAL},
    "no claims d64 packed": {"claims": False, "head_dim": 64, **PACKED},
    # one query tile
    "one tile": {"schedule": OneTile(), **CAUSAL},
    "one tile decode": {**DECODE, "schedule": OneTile(), "page_size": 16, **CAUSAL},
    "own parts": {"maximum": "exact", "lone_tiles": False, "own_parts": True, **CAUSAL},
    "one query tile": {"maximum": "exact", "lone_tiles": False, "one_query_tile": True, **CAUSAL},
    "one query tile, runs": {
        **{"maximum": "exact", "lone_tiles": False, "one_query_tile": True, "page_size": 16},
        **{**DECODE, "write_lse": True, "split_keys": True, "o_dtype": "f32"},
    },
    "one tile decode split": {
        **DECODE,
        "schedule": OneTile(),
        "page_size": 16,
        "write_lse": True,
        "split_keys": True,
        "o_dtype": "f32",
    },
    "one tile d64 sink": {
        "schedule": OneTile(),
        "head_dim": 64,
        "sink": True,
        "write_lse": True,
    },
    "one tile d72 packed": {
        "schedule": OneTile(),
        "head_dim": 72,
        **PACKED,
        "mask": masks.window(64, 64).mask,
    },
    "one tile B300 soft cap": {
        "schedule": OneTile(),
        "arch": "sm_103a",
        "score_mod": score_mods.soft_cap(30.0),
    },
    # single query tiles, other orders, lagged and exact maxima
    "d64 packed causal": {"head_dim": 64, **PACKED, **CAUSAL},
    "d64 exact": {"head_dim": 64, "maximum": "exact"},
    "lagged causal": {"maximum": "lagged", **CAUSAL},
    # pairs of CTAs, deep heads, 8 bits
    "pair causal": {"family": "mhapair", **CAUSAL},
    "pair d64 packed": {"family": "mhapair", "head_dim": 64, **PACKED, "maximum": "exact"},
    "d192, V of 128": {"head_dim": 192, "head_dim_v": 128, **CAUSAL},
    "d256": {"head_dim": 256, **CAUSAL},
    "d256 pair": {"head_dim": 256, "family": "mhawidepair", **CAUSAL},
    "d512": {"head_dim": 512},
    "e4m3 causal": {"qkv_dtype": "e4m3", "descales": "qkv", **CAUSAL},
    "e4m3 pages of 16": {"qkv_dtype": "e4m3", **PAGES, "page_size": 16},
    "e4m3 scales of keys": {"qkv_dtype": "e4m3", "descales": "QKV", **PAGES, "page_size": 16},
    "e4m3 scales of blocks": OF_BLOCKS,
    "e4m3 scales of blocks d192": {**OF_BLOCKS, "head_dim": 192, "head_dim_v": 128},
    "e4m3 scales of blocks d256": {**OF_BLOCKS, "head_dim": 256},
    # few rows, clusters, a latent cache
    "few rows": {**DECODE, "page_size": 16, "rows": 8, **CAUSAL},
    "few rows in a cluster": {**DECODE, "page_size": 16, "rows": 8, "cluster_parts": 4},
    "e4m3 few rows": {
        **DECODE,
        "qkv_dtype": "e4m3",
        "descales": "qkv",
        "page_size": 16,
        "rows": 8,
        "head_dim": 64,
        **CAUSAL,
    },
    "bf16 over e4m3": {
        **DECODE,
        "kv_dtype": "e4m3",
        "descales": "kv",
        "page_size": 16,
        "rows": 8,
        **CAUSAL,
    },
    "bf16 over e2m1": {**DECODE, **NVFP4, "rows": 8, **CAUSAL},
    "bf16 over mxe4m3": {**DECODE, **NVFP4, "kv_dtype": "mxe4m3", "rows": 8, **CAUSAL},
    "e2m1 prefill": {**NVFP4_PREFILL, **CAUSAL},
    "mxe4m3 prefill": {**NVFP4_PREFILL, "kv_dtype": "mxe4m3"},
    "e2m1 prefill, d64, interleaved": {
        **NVFP4_PREFILL,
        "head_dim": 64,
        "v_block_scale_layout": "interleaved4",
    },
    "e2m1 d256": {**PAGES, **NVFP4, "head_dim": 256, "v_block_scale_layout": "interleaved4"},
    "latent": {**LATENT, "group": 16, "family": "mla_decode"},
    "latent pair": {**LATENT, "group": 128, "family": "mla_pair"},
    "latent, largest scores": {**LATENT, **LARGEST, "group": 16, "family": "mla_decode"},
    "latent pair, largest scores": {**LATENT, **LARGEST, "group": 128, "family": "mla_pair"},
    "latent, sink": {**LATENT, "sink": True, "group": 16, "family": "mla_decode"},
    "latent pair, sink": {**LATENT, "sink": True, "group": 128, "family": "mla_pair"},
    "latent of 512 columns": {**LATENT, "group": 16, "head_dim": 512, "family": "mla_decode"},
    "latent of 512 columns, e4m3": {
        **LATENT,
        "qkv_dtype": "e4m3",
        "descales": "qkv",
        "group": 16,
        "head_dim": 512,
        "family": "mla_decode",
    },
    "latent pair of 512 columns": {**LATENT, "group": 128, "head_dim": 512, "family": "mla_pair"},
    "latent rows": {
        **PAGES,
        "page_size": 64,
        "group": 16,
        "head_dim": 576,
        "head_dim_v": 512,
        "pack_gqa": True,
        "family": "mla_widen",
        "kv_dtype": "e4m3",
        "rope_dtype": "bf16",
        "scale_dtype": "f32",
        "latent": True,
    },
    "latent of 8 bits, queries of 16": {
        **PAGES,
        "page_size": 64,
        "group": 16,
        "head_dim": 576,
        "head_dim_v": 512,
        "pack_gqa": True,
        "family": "mla_widen",
        "kv_dtype": "e4m3",
        "descales": "kv",
        "latent": True,
    },
    "latent pair of 8 bits, queries of 16": {
        **PAGES,
        "page_size": 64,
        "group": 128,
        "head_dim": 576,
        "head_dim_v": 512,
        "pack_gqa": True,
        "family": "mla_widenpair",
        "kv_dtype": "e4m3",
        "descales": "kv",
        "latent": True,
    },
    "latent rows pair": {
        **PAGES,
        "page_size": 64,
        "group": 128,
        "head_dim": 576,
        "head_dim_v": 512,
        "pack_gqa": True,
        "family": "mla_widenpair",
        "kv_dtype": "e4m3",
        "rope_dtype": "bf16",
        "scale_dtype": "f32",
        "latent": True,
    },
    "rope": {"head_dim": 192, "head_dim_v": 128, "rope_depth": 64, **CAUSAL},
    "rope pages": {"head_dim": 192, "head_dim_v": 128, "rope_depth": 64, "rope_page_size": 64},
    "rope 8 bits": {"head_dim": 192, "head_dim_v": 128, "rope_depth": 64, "rope_dtype": "e4m3"},
    "rope 8 bits, scales": {
        "head_dim": 192,
        "head_dim_v": 128,
        "rope_depth": 64,
        "rope_page_size": 64,
        "rope_dtype": "e4m3",
        "scale_dtype": "f32",
    },
    "rope beside 8 bits": {
        "qkv_dtype": "e4m3",
        "head_dim": 192,
        "head_dim_v": 128,
        "rope_depth": 64,
        "rope_dtype": "bf16",
        "descales": "QK",
        **CAUSAL,
    },
    "rope after a gap, one tile": {
        "qkv_dtype": "e4m3",
        "head_dim": 96,
        "head_dim_v": 64,
        "rope_depth": 32,
        "family": "mha1q",
        **CAUSAL,
    },
    # what no variant above has
    "many rows over e4m3": {
        "kv_dtype": "e4m3",
        "descales": "kv",
        "family": "mhawiden2q",
        **CAUSAL,
    },
    "wide heads over e4m3": {
        **WIDE_E4M3,
        "head_dim_v": 256,
        "descales": "kv",
        **PAGES,
        "page_size": 16,
    },
    "rope over e4m3": {**WIDE_E4M3, "head_dim_v": 128, "rope_depth": 64},
    "rope of 16 bits over e4m3": {
        **{**WIDE_E4M3, "head_dim_v": 128, "rope_depth": 64, "rope_dtype": "bf16", **PACKED}
    },
    "rows of a cache": {
        "kv_layout": "dense",
        "seqused_k": True,
        "cache_batch_idx": True,
        "cache_leftpad": True,
    },
    "bias": {"score_mod": score_mods.additive_bias(True), "aux": (("f32", 4),)},
    "mask function": {"mask_mod": score_mods.ScoreMod.of(even_keys)},
    "listed blocks": {
        "q_block": 256,
        "kv_block": 128,
        "full_blocks": True,
        "mask_mod": score_mods.ScoreMod.of(even_keys),
        "write_lse": True,
    },
    "listed blocks, one tile": {"q_block": 128, "kv_block": 256, "head_dim": 64},
    "listed blocks, packed": {
        **{"q_block": 256, "kv_block": 128, "full_blocks": True},
        **{**PACKED, "packed_lists": True, "list_offsets": True},
    },
    "listed blocks, pages": {"q_block": 256, "kv_block": 128, **PAGES, "page_size": 16},
    "listed blocks, lengths": {
        **{"q_block": 128, "kv_block": 128},
        **{"seqused_q": True, "seqused_k": True},
    },
    "listed blocks, longest first": {"q_block": 256, "kv_block": 128, "longest_first": True},
    "listed blocks, cut": {
        **{"q_block": 256, "kv_block": 128, "longest_first": True, "cut_lists": True},
        "write_lse": True,
    },
    "listed blocks, scales of blocks": {
        **{"q_block": 256, "kv_block": 128, "full_blocks": True},
        **{"qkv_dtype": "e4m3", "descales": "xyv"},
    },
    "few rows, 32": {**DECODE, "page_size": 128, "rows": 32, "write_lse": True},
    "B300": {"arch": "sm_103a", **CAUSAL},
    "B300 d64": {"arch": "sm_103a", "head_dim": 64},
}
APPEND_VARIANTS = {
    "append dense": {},
    "append packed pages": {"packed": True, "page_size": 16},
    "append fp16 72/64": {"dtype": "fp16", "depth": 72, "depth_v": 64},
    "append B300, rows of a cache": {"cache_batch_idx": True, "arch": "sm_103a"},
    "append to e4m3 with scales": {"dtype": "e4m3", "new_dtype": "bf16", "descales": "KV"},
    "append to e2m1": {"dtype": "e2m1", "new_dtype": "bf16", "descales": "kv", "page_size": 16},
    "append to mxe4m3": {"dtype": "mxe4m3", "new_dtype": "bf16", "descales": "kv", "page_size": 16},
    "append to e2m1, interleaved": {
        "dtype": "e2m1",
        "new_dtype": "bf16",
        "descales": "kv",
        "page_size": 16,
        "v_block_scale_layout": "interleaved4",
        "four_over_six": True,
    },  # fmt: skip
}
COMBINE_VARIANTS = {
    "combine": {},
    "combine packed shared lse": {"packed": True, "shared": True, "write_lse": True},
    "combine of cut lists": {"cut": True, "write_lse": True},
    "combine lengths, in order": {"seqused_q": True, "dependent_launch": False, "depth": 512},
    "combine, sink": {"depth": 512, "write_lse": True, "sink": True, "sink_dtype": "bf16"},
    "combine B300 e4m3 of bf16": {"o_dtype": "e4m3", "partial_dtype": "bf16", "arch": "sm_103a"},
}
BACKWARD_VARIANTS = {
    "backward fp16 packed lengths": {
        **{"dtype": "fp16", "packed": True, "used": True, "joint": False},
        "mask": masks.causal().mask,
    },
    "backward B300 192/128 soft cap": {
        **{"depth": 192, "dlse": True, "arch": "sm_103a"},
        "score_mod": score_mods.soft_cap(30.0),
    },
    "backward on pairs": {
        **{"pairs": True, "joint": False, "packed": True},
        "mask": masks.causal().mask,
    },
    "backward by one kernel": {
        **{"joint": True, "packed": True, "used": True, "depth": 72, "accumulate": True},
        "mask": masks.causal().mask,
    },
    "backward B300 256 on pairs": {
        **{"depth": 256, "depth_v": 256, "arch": "sm_103a", "dtype": "fp16", "accumulate": True},
    },
    "backward of a bias": {
        **{"score_mod": score_mods.additive_bias(True), "aux": (("f32", 4),), "wanted": (0,)},
    },
    "backward of lists added up": {
        **{"listed": True, "accumulate": True, "mask_mod": score_mods.ScoreMod.of(even_keys)},
    },
}
LISTS_VARIANTS = {
    "lists of tiles": {"makes": "tiles"},
    "kinds of lists B300": {"makes": "kinds", "arch": "sm_103a"},
    "lists of the backward pass": {"makes": "order"},
}
