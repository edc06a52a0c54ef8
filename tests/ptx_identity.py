"""Whether a change leaves the PTX of the kernels as it was: for moves of code that must not change what it says.

    python -m tests.ptx_identity write DIR       before the change: compile VARIANTS, keep their PTX in DIR
    python -m tests.ptx_identity compare DIR     after it: compile again, show the first lines that differ

Names of kernels are normalised, because they hold a hash of the configuration; nothing else is. `compare` exits with 1
where a variant differs, is new or is gone. The list covers every option that decides code: head dims, dtypes, layouts,
masks, pages, packed groups, sinks, functions of scores, LSE, claims, both architectures, the append kernel.
"""

import argparse
import difflib
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from cute_fa4 import masks, score_mods
from cute_fa4.sm100.choose_config import choose_config
from cute_fa4.sm100.mha1q.schedule import OneTile

CAUSAL = {"causal": True}
PACKED = {"q_layout": "packed", "kv_layout": "packed"}
PAGES = {"kv_layout": "paged", "seqused_k": True}
DECODE = {**PAGES, "group": 8, "pack_gqa": True}
PARTIAL = {"split_keys": True, "write_lse": True, "o_dtype": "f32"}
SHOWN_LINES = 40  # of a difference

VARIANTS = {
    # depths, dtypes, masks
    "full": {},
    "causal": CAUSAL,
    "causal lse": {**CAUSAL, "write_lse": True},
    "fp16 full": {"qkv_dtype": "fp16"},
    "d64 full": {"head_dim": 64},
    "d64 full, softmax adds up": {"head_dim": 64, "order": "p_beside_s"},
    "d64 causal lse": {"head_dim": 64, **CAUSAL, "write_lse": True},
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
    "sink bf16 window": {"sink": True, "sink_dtype": "bf16", "mask": masks.window(128, 0).mask},
    "soft cap": {"score_mod": score_mods.soft_cap(30.0), **CAUSAL},
    "alibi d64": {"score_mod": score_mods.alibi(8), "head_dim": 64, **CAUSAL},
    # instructions
    "no claims": {"claims": False, **CAUSAL},
    "no claims d64 packed": {"claims": False, "head_dim": 64, **PACKED},
    # one query tile
    "one tile": {"schedule": OneTile(), **CAUSAL},
    "one tile decode": {**DECODE, "schedule": OneTile(), "page_size": 16, **CAUSAL},
    "one tile decode split": {
        **DECODE,
        "schedule": OneTile(),
        "page_size": 16,
        "write_lse": True,
        "split_keys": True,
        "o_dtype": "f32",
    },
    "one tile d64 sink": {
        "schedule": OneTile(bn_cap=128),
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
    # lone query tiles, other orders, references that lag or are exact
    "d64 packed causal": {"head_dim": 64, **PACKED, **CAUSAL},
    "d64 exact": {"head_dim": 64, "maximum": "exact"},
    "lagged causal": {"maximum": "lagged", **CAUSAL},
    "crossed P": {"order": "p_crossed", **CAUSAL},
    "crossed P d64": {"order": "p_crossed", "head_dim": 64, "maximum": "exact"},
    # pairs of CTAs, deep heads, 8 bits
    "pair causal": {"family": "mhapair", **CAUSAL},
    "pair d64 packed": {"family": "mhapair", "head_dim": 64, **PACKED, "maximum": "exact"},
    "pair e4m3": {"family": "mhapair", "qkv_dtype": "e4m3", "descales": "qkv", **CAUSAL},
    "d192, V of 128": {"head_dim": 192, "head_dim_v": 128, **CAUSAL},
    "d256": {"head_dim": 256, **CAUSAL},
    "d256 pair": {"head_dim": 256, "family": "mhawidepair", **CAUSAL},
    "d512": {"head_dim": 512},
    "e4m3 causal": {"qkv_dtype": "e4m3", "descales": "qkv", **CAUSAL},
    "e4m3 pages of 16": {"qkv_dtype": "e4m3", **PAGES, "page_size": 16},
    "e4m3 scales of keys": {"qkv_dtype": "e4m3", "descales": "QKV", **PAGES, "page_size": 16},
    "e4m3 scales of blocks": {"qkv_dtype": "e4m3", "descales": "xyv", **CAUSAL},
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
    "latent": {
        **PAGES,
        "page_size": 64,
        "group": 16,
        "head_dim": 576,
        "head_dim_v": 512,
        "pack_gqa": True,
        "family": "mla_decode",
        "latent": True,
    },
    "latent pair": {
        **PAGES,
        "page_size": 64,
        "group": 128,
        "head_dim": 576,
        "head_dim_v": 512,
        "pack_gqa": True,
        "family": "mla_pair",
        "latent": True,
    },
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
    "rope behind a gap, one tile": {
        "qkv_dtype": "e4m3",
        "head_dim": 96,
        "head_dim_v": 64,
        "rope_depth": 32,
        "family": "mha1q",
        **CAUSAL,
    },
    "B300": {"arch": "sm_103a", **CAUSAL},
    "B300 d64": {"arch": "sm_103a", "head_dim": 64},
}
APPEND_VARIANTS = {
    "append dense": {},
    "append packed pages": {"packed": True, "page_size": 16},
}


def ptx_of(name: str) -> str:
    """The normalised PTX of a variant."""
    from cute_fa4.aot.build import build

    if name in APPEND_VARIANTS:
        config = _append_config(**APPEND_VARIANTS[name])
    else:
        config = choose_config(**{"qkv_dtype": "bf16", "head_dim": 128, **VARIANTS[name]})
    ptx = build(config, "variant", "native").ptx
    return re.sub(r"\bcute_fa4_\w+?(?=_param_\d+\b|\b)", "KERNEL", ptx)


def _append_config(**choices):
    from cute_fa4.sm100.append.config import AppendConfig

    return AppendConfig("bf16", depth=128, depth_v=128, **choices)


def compile_all(names) -> dict[str, str]:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        return dict(zip(names, pool.map(ptx_of, names), strict=True))


def _file(directory: Path, name: str) -> Path:
    return directory / (re.sub(r"\W+", "_", name) + ".ptx")


def write(directory: Path) -> int:
    directory.mkdir(parents=True, exist_ok=True)
    for name, ptx in compile_all([*VARIANTS, *APPEND_VARIANTS]).items():
        _file(directory, name).write_text(ptx)
    print(f"{len(VARIANTS) + len(APPEND_VARIANTS)} variants in {directory}")
    return 0


def compare(directory: Path, found: dict[str, str]) -> int:
    """0 where every variant in `directory` is what was found; differences are printed."""
    differing = 0
    for name, ptx in found.items():
        file = _file(directory, name)
        before = file.read_text() if file.exists() else ""
        if ptx == before:
            continue
        differing += 1
        print(f"--- {name}: {'differs' if before else 'is new'}")
        lines = difflib.unified_diff(before.splitlines(), ptx.splitlines(), "before", "after", n=2)
        print("\n".join(line for line, _ in zip(lines, range(SHOWN_LINES), strict=False)))
    gone = {file.name for file in directory.glob("*.ptx")}
    gone -= {_file(directory, name).name for name in found}
    for file in sorted(gone):
        print(f"--- {file}: is gone")
    same = len(found) - differing
    print(f"{same} of {len(found)} variants are the same, {differing} differ, {len(gone)} are gone")
    return int(bool(differing or gone))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("write", "compare"))
    parser.add_argument("directory", type=Path)
    asked = parser.parse_args()
    if asked.command == "write":
        return write(asked.directory)
    return compare(asked.directory, compile_all([*VARIANTS, *APPEND_VARIANTS]))


if __name__ == "__main__":
    sys.exit(main())
