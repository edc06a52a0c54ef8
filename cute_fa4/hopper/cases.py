"""The variants of `hopper check`, and the problems of each."""

from __future__ import annotations

import random
from dataclasses import replace

from cute_fa4.hopper import gradient_cases
from cute_fa4.hopper.variant import Problem, Variant, decode, dense, latent, pair

VARIANTS = (
    *(Variant(depth, dtype, causal) for depth in (64, 128) for dtype in ("bf16", "fp16") for causal in (False, True)),
    *(Variant(depth) for depth in (72, 80, 96)),
    *(Variant(depth, causal=causal, keys="packed") for depth in (64, 128) for causal in (False, True)),
    *(Variant(keys="pages", page_size=size) for size in (8, 16, 64, 128, 256)),
    *(Variant(keys="pages", page_size=size, heads_first=True) for size in (32, 512)),
    Variant(64, keys="pages", page_size=16),
    Variant(64, keys="pages", page_size=16, group=8, pack_gqa=True),
    Variant(80, keys="pages", page_size=16),
    Variant(keys="lengths"),
    Variant(80, keys="lengths", group=4, pack_gqa=True),
    *(Variant(depth, group=1) for depth in (64, 128)),
    *(Variant(depth, causal=False, window=(127, 0)) for depth in (64, 128)),
    Variant(causal=False, window=(100, 20)),
    Variant(causal=False, window=(127, 0), sink=True, keys="pages", page_size=64),
    Variant(causal=False, chunk=64),
    Variant(96, chunk=192),
    Variant(softcap=5.0),
    Variant(causal=False, sink=True, keys="lengths"),
    Variant(64, num_splits=3),
    Variant(keys="packed", num_splits=2),
    Variant(keys="pages", page_size=16, group=8, pack_gqa=True, num_splits=5),
    Variant(64, keys="pages", page_size=16, tokens_per_split=256),
    Variant(causal=False, sink=True, keys="lengths", num_splits=4),
    Variant(64, sink=True, keys="lengths", num_splits=0),
    Variant(keys="packed", num_splits=0),
    Variant(keys="pages", page_size=16, group=8, pack_gqa=True, num_splits=0),
    Variant(64, causal=False, window=(700, 0), keys="pages", page_size=64, num_splits=0),
    *(Variant(depth) for depth in (8, 40, 120)),
    Variant(causal=False, window=(300, -3)),
    *(Variant(64, keys="pages", page_size=size) for size in (1, 7, 24)),
    *(Variant(keys="pages", page_size=size) for size in (3, 48, 784)),
    decode(),
    decode(num_splits=0),
    decode(num_splits=5, dtype="fp16"),
    decode(head_dim=64, num_splits=0, sink=True),
    decode(head_dim=80, group=4, page_size=64),
    decode(head_dim=40, group=2, page_size=1),
    decode(group=16, page_size=48, num_splits=3),
    decode(group=16, page_size=128, heads_first=True, causal=False, window=(1000, 0), num_splits=0),
    decode(head_dim=96, group=1, pack_gqa=False, page_size=3),
    decode(keys="packed", page_size=0, softcap=5.0),
    decode(keys="lengths", page_size=0, tokens_per_split=256),
    *(Variant(192, head_dim_v=128, causal=causal) for causal in (False, True)),
    Variant(192, head_dim_v=128, keys="packed"),
    Variant(192, head_dim_v=128, keys="pages", page_size=16),
    Variant(160, head_dim_v=64, keys="lengths", sink=True),
    decode(head_dim=192, head_dim_v=128, num_splits=0),
    latent(),
    latent(group=128, page_size=16),
    latent(group=8, dtype="fp16", page_size=5, num_splits=3),
    latent(causal=False, page_size=128, num_splits=1),
    *(pair(causal=causal) for causal in (False, True)),
    pair(dtype="fp16", window=(127, 0), causal=False),
    pair(64),
    pair(72, chunk=192),
    pair(96, keys="packed", causal=False),
    pair(keys="packed"),
    pair(keys="lengths", sink=True),
    pair(softcap=5.0),
    *(pair(keys="pages", page_size=size) for size in (16, 3)),
    pair(80, keys="pages", page_size=128, heads_first=True),
    pair(keys="pages", page_size=16, group=8, pack_gqa=True),
    *(Variant(256, causal=causal) for causal in (False, True)),
    Variant(256, keys="pages", page_size=16, sink=True),
    Variant(200, keys="packed", dtype="fp16"),
    Variant(256, keys="packed", window=(127, 0), causal=False),
    Variant(512),
    Variant(512, keys="pages", page_size=64, sink=True),
    *(Variant(depth, "e4m3", causal) for depth in (64, 128) for causal in (False, True)),
    *(Variant(128, "e4m3", causal, lse=False) for causal in (False, True)),
    Variant(dtype="e5m2", keys="pages", page_size=16, sink=True, out="e4m3", lse=False),
    Variant(96, "e5m2"),
    Variant(dtype="e4m3", keys="packed"),
    Variant(dtype="e4m3", causal=False, window=(127, 0), keys="pages", page_size=16, sink=True),
    Variant(dtype="e4m3", keys="lengths", softcap=5.0),
    decode(dtype="e4m3"),
    *(decode(cache="e4m3", group=2, num_splits=splits) for splits in (0, 1)),
    decode(cache="e4m3", group=2, keys="lengths", page_size=0),
    decode(head_dim=64, dtype="fp16", cache="e5m2", group=2, page_size=64, sink=True),
    Variant(dtype="e4m3", out="e4m3"),
    decode(dtype="e4m3", group=2, out="e4m3", num_splits=0),
    latent(dtype="e4m3"),
    latent(dtype="e4m3", group=128, page_size=16, num_splits=1),
    latent(listed=200, causal=False),
    latent(listed=129, causal=False, group=128, dtype="e4m3"),
    latent(listed=200, causal=False, group=64, num_splits=1),  # 64 rows stored by four lanes at a time
    latent(listed=300, causal=False, group=128, num_splits=1),  # pairs that claim queries
    latent(cache="rows"),
    latent(cache="rows", group=128, page_size=16, num_splits=1),  # not listed: rows of 528 bytes, see tcgen05.cu
    # not rows of 584 bytes: gathers of 64 bytes have no counterpart (cute_fa4_box_bytes of tcgen05.cu)
    Variant(192, head_dim_v=128, rope=64),
    Variant(192, head_dim_v=128, rope=64, keys="pages", page_size=16),
    pair(192, head_dim_v=128, rope=64, keys="packed"),
    Variant(192, head_dim_v=128, rope=64, rope_dtype="e4m3", keys="pages", page_size=16),
    Variant(192, "e4m3", head_dim_v=128, rope=64, rope_dtype="bf16", keys="packed"),
    Variant(96, "e4m3", head_dim_v=64, rope=32, rope_dtype="bf16", keys="pages", page_size=16),
    pair(96, dtype="e4m3", head_dim_v=64, rope=32, keys="packed"),
    Variant(192, "e4m3", head_dim_v=256, of_tokens=True),
    decode(head_dim=256, dtype="e4m3", group=2, num_splits=0),
    Variant(dtype="e4m3", of_tokens=True),
    Variant(dtype="e4m3", of_tokens=True, keys="pages", page_size=16, sink=True),
    decode(dtype="e4m3", of_tokens=True, page_size=64),
    *(Variant(dtype="e4m3", of_blocks=True, causal=causal) for causal in (False, True)),
    Variant(64, "e4m3", of_blocks=True, keys="pages", page_size=16, sink=True),
    *(pair(dtype="e4m3", causal=causal) for causal in (False, True)),
    pair(80, dtype="e5m2", keys="pages", page_size=16, group=4, pack_gqa=True),
    Variant(out="e4m3"),
    decode(cache="e4m3", group=2, out="e4m3"),
    Variant(cache="e4m3", keys="pages", page_size=16),
    Variant(64, cache="e4m3", keys="pages", page_size=3, sink=True),
    Variant(192, cache="e4m3", head_dim_v=128, keys="packed"),
    Variant(256, cache="e4m3", keys="pages", page_size=16, sink=True),
    decode(cache="nvfp4", group=2),
    decode(head_dim=64, cache="nvfp4", page_size=64, num_splits=0, sink=True),
    # pages of 3 would gather 64 bytes a row, see above
    decode(dtype="fp16", cache="nvfp4", page_size=32, causal=False, window=(127, 0)),
    Variant(causal=False, blocks=(256, 128)),
    Variant(64, causal=False, blocks=(128, 256), sink=True, softcap=5.0),
    Variant(192, "fp16", head_dim_v=128, causal=False, blocks=(128, 128), group=1),
)  # fmt: skip


def selected(
    only: list[str] | None = None,
) -> tuple[tuple[Variant, ...], tuple[gradient_cases.Problem, ...]]:
    """(variants, problems of gradients) with one of these texts in their name; all by default.

    Raises ValueError for a text that is in no name.
    """
    names = [variant.name for variant in VARIANTS] + [
        problem.title for problem in gradient_cases.PROBLEMS
    ]
    for text in only or ():
        if not any(text in name for name in names):
            raise ValueError(
                f"--only {text!r} is in the name of no variant; names are like {names[0]!r} and {names[-1]!r}"
            )

    def wanted(name: str) -> bool:
        return not only or any(text in name for text in only)

    of_gradients = tuple(p for p in gradient_cases.PROBLEMS if wanted(p.title))
    return tuple(v for v in VARIANTS if wanted(v.name)), of_gradients


# Tile boundaries (128 rows, 128 keys; 256 rows a block), more queries than keys, one of each.
SMALL = (
    *(dense(*sizes) for sizes in ((2, 300, 300), (1, 256, 1024), (1, 1000, 2048), (3, 130, 257))),
    dense(2, 700, 130),
    dense(1, 1, 1),
)
# 400 to 1024 blocks on about 132 multiprocessors that hold one CTA each: most blocks are claimed.
LARGE = (
    *(dense(4, 2048, 2048, 16), dense(5, 1536, 300, 16), dense(4, 1025, 1500, 20)),
    *(dense(64, 130, 257, 8), dense(128, 1, 77, 8)),
)
# Long enough to reveal a lost or doubled phase anywhere in several hundred tiles.
LONG = (
    *(dense(1, 8192, 8192), dense(1, 16384, 16384), dense(1, 65536, 65536)),
    *(dense(1, 256, 65536), dense(2, 1, 131072)),
)
UNEVEN = (
    Problem((300, 1, 0, 64, 1000), (300, 5, 10, 200, 2500)),
    Problem((1,) * 20, tuple(1 + 37 * i for i in range(20))),
    Problem((300, 1, 0, 64), (300, 5, 10, 0)),
    Problem((0, 0, 0), (5, 0, 7)),
    Problem((0,) * 199 + (256,), (3,) * 199 + (256,), 8),
    Problem(
        tuple(i * i * 7 % 301 for i in range(64)), tuple(i * i * 11 % 501 for i in range(64)), 16
    ),
)


# Up to 16 drafts, no key up to 70,000, one sequence up to 256, and one long sequence beside many short ones.
DECODE = (
    *(dense(*sizes) for sizes in ((1, 1, 1), (2, 1, 127), (2, 4, 128), (3, 2, 129), (1, 16, 5000), (1, 1, 70000))),
    *(dense(*sizes) for sizes in ((64, 1, 1000), (256, 1, 200))),
)  # fmt: skip
UNEVEN_DECODE = (
    Problem((1,) * 6, (0, 1, 127, 128, 129, 5000)),
    Problem((4, 0, 1, 3), (300, 7, 0, 2)),
    Problem((1,) * 20, tuple(1 + 37 * i for i in range(20))),
    Problem((1,) * 64, (70000,) + (500,) * 63),
    Problem((2,) * 256, tuple(i * i * 11 % 701 for i in range(256))),
    Problem(tuple(i % 17 for i in range(40)), tuple(i * i * 7 % 901 for i in range(40))),
)


def problems(variant: Variant, amount: str) -> tuple[Problem, ...]:
    """The problems of a variant; amount: "quick" (a few small ones), "most", or "all" (with long sequences)."""
    uneven: tuple[Problem, ...] = UNEVEN if variant.keys in ("packed", "pages") else ()
    if variant.decode:
        uneven = UNEVEN_DECODE if uneven else ()
        if variant.keys == "latent":  # as many queries for each sequence
            uneven = tuple(p for p in UNEVEN_DECODE if len(set(p.queries)) == 1)
        found = DECODE[:4] + uneven[:3] if amount == "quick" else DECODE + uneven + _random(variant)
        return tuple(_with_whole_groups(variant, p) for p in found)
    found = SMALL[:3] + uneven[:2]
    if amount != "quick":
        found = SMALL + LARGE + uneven + _random(variant)
    if amount == "all" and variant in LONG_VARIANTS:
        found += LONG
    return tuple(_with_whole_groups(variant, p) for p in found)


def _with_whole_groups(variant: Variant, problem: Problem) -> Problem:
    return replace(problem, heads=-(-problem.heads // variant.group) * variant.group)


def guarded_problems(variant: Variant) -> tuple[Problem, ...]:
    """Problems that also run between unmapped pages."""
    return problems(variant, "quick")


LONG_VARIANTS = (
    Variant(64, causal=False),
    Variant(),
    Variant(keys="packed"),
    Variant(keys="pages", page_size=16),
    *(pair(causal=causal) for causal in (False, True)),
)


def _random(variant: Variant, number: int = 12) -> tuple[Problem, ...]:
    """Random problems, the same on every machine: up to 12 sequences, some without queries or keys if allowed."""
    dice = random.Random(variant.title + str(variant.head_dim))
    found, most = [], 8 if variant.decode else 400
    for _ in range(number):
        if variant.keys in ("dense", "lengths", "latent"):
            rows = dice.randint(1, most if variant.decode else 900)
            found.append(dense(dice.randint(1, 6), rows, dice.randint(1, 1300)))
        else:
            batch = dice.randint(1, 12)
            queries, keys = (tuple(dice.randint(0, n) for _ in range(batch)) for n in (most, 900))
            found.append(Problem(queries, keys))
    return tuple(found)
