"""What calls ask for, option by option, on pairs of CTAs: against float64, and bit by bit against CTAs alone.

456 queries are a block of both CTAs, of which CTA 1 has 200; 200 are a block of CTA 0 alone. Alone they are work tiles
of 256 and 200 rows, so that no CTA has less than two query tiles: with one, both warpgroups would share its rows, and
add up in another order. Of 456 queries on 400 keys the first 56 see none under a causal mask; one sequence has no
queries.
"""

import pytest
import torch

from cute_fa4 import compile_cache, masks
from cute_fa4.calls import repeat
from cute_fa4.score_mods import alibi, alibi_slope
from tests import pairwise
from tests.serving.batches import (
    NO_PAGE,
    Batch,
    assert_agrees,
    dense_kv,
    dense_q,
    packed_kv,
    packed_q,
    paged_kv,
    positions,
    run,
    split,
)

QUERIES, KEYS = (456, 0, 200), (400, 50, 330)
GROUP = 4
MASKS = {
    "full": (masks.full(), lambda p, j: (p < p + 1) & (j > -1)),
    "causal": (masks.causal(), lambda p, j: j <= p),
}
OPTIONS = {
    "dtype": (torch.bfloat16, torch.float16),
    "depth": (
        72,
        80,
        96,
        128,
    ),  # of 64 CTAs alone store P beside S, with other powers on the FMA units
    "mask": tuple(MASKS),
    "packs": (False, True),
}
# What no other test of pairs has: depths between, fp16 beyond 64, shared rows.
QUICK = {
    "dtype": (torch.float16,),
    "depth": (72,),
    "mask": ("causal",),
    "packs": (True,),
}
# A number is the size of a page: rows one by one, gathered, copies of a part of a tile, of a tile, of more than that.
STORED = {
    "storage": ("dense", "packed", 1, 3, 16, 64, 128, 512),
    "scores": ("", "sink", "soft cap", "alibi", "sink, soft cap"),
    "mask": ("full", "causal"),
    "packs": (False, True),
}
QUICKLY_STORED = {
    "storage": (512,),
    "scores": ("sink",),
    "mask": ("causal",),
    "packs": (False,),
}


@pytest.fixture
def on(monkeypatch):
    """-> a function that says who runs calls from now on, and returns the list of the configurations they ask for."""
    monkeypatch.setenv("CUTE_FA4_MAXIMUM", "exact")
    asked = []
    compiled = compile_cache.function_for

    def record(config, executor):
        asked.append(config)
        return compiled(config, executor)

    def switch(word):
        monkeypatch.setenv("CUTE_FA4_PAIR", word)
        repeat.clear()
        asked.clear()
        return asked

    monkeypatch.setattr(compile_cache, "function_for", record)
    yield switch
    repeat.clear()


def name(value) -> str:
    return str(value).removeprefix("torch.").replace(" ", "_")


@pairwise.cases(
    "pairs of CTAs: depths and masks",
    OPTIONS,
    kernel=tuple(OPTIONS),
    quick=QUICK,
    seconds=3.0,
    ids=name,
)
def test_depths_and_masks(on, dtype, depth, mask, packs):
    assert_same_bits(on, mask, packs, "lengths", "", depth=depth, dtype=dtype)


@pairwise.cases(
    "pairs of CTAs: storages and scores",
    STORED,
    kernel=tuple(STORED),
    quick=QUICKLY_STORED,
    seconds=3.0,
    ids=name,
)
def test_storages_and_scores(on, storage, scores, mask, packs):
    assert_same_bits(on, mask, packs, storage, scores, depth=80, dtype=torch.bfloat16)


def assert_same_bits(on, mask, packs, storage, scores, **of_batch) -> None:
    """Bits of both, and the definition within its tolerance. Maxima are exact: lagged maxima go with another
    share of powers on the FMA units (test_attention.py has them)."""
    (bound, visible), group = MASKS[mask], GROUP if packs else 1
    queries, keys = [n // group for n in QUERIES], KEYS
    if storage == "dense":
        queries, keys = queries[:1], keys[:1]
    batch = Batch.draw(queries, keys, heads=(group, 1), **of_batch)
    stored = storages(batch, storage)
    options, reference = of_scores(scores, batch, group)
    call = dict(mask=bound, num_splits=1, pack_gqa=packs, **options)
    asked = on("on")
    out, lse = run(*stored, **call, mode="hostile", seed=1)
    assert [config.schedule.family for config in asked] == ["mhapair"]
    assert_agrees(batch, out, lse, visible=visible, **reference)
    asked = on("off")
    alone = run(*stored, **call)
    assert [config.schedule.family for config in asked] == ["mha2q"]
    for of_pair, of_one in zip(split(batch, out, lse), split(batch, *alone), strict=True):
        assert all(map(torch.equal, of_pair, of_one))


# Queries of two blocks on one key, one query on many keys, none on some, some on none; pages beyond a sequence are -1.
@pytest.mark.parametrize(
    "mask, page_size",
    [
        ("causal", 16),
        *(
            pytest.param(mask, page_size, marks=pytest.mark.sweep)
            for mask, page_size in (("full", 128), ("causal", 64), ("full", 1), ("causal", 512))
        ),
    ],
)
def test_lengths_of_nothing_and_of_one(on, mask, page_size):
    batch = Batch.draw((600, 1, 0, 140), (1, 300, 20, 0), heads=(1, 1), depth=128)
    kv = paged_kv(batch, page_size)
    kv["page_table"][kv["page_table"] == NO_PAGE] = -1
    bound, visible = MASKS[mask]
    asked = on("on")
    out, lse = run(packed_q(batch), kv, mask=bound, num_splits=1, mode="hostile", seed=2)
    assert [config.schedule.family for config in asked] == ["mhapair"]
    assert_agrees(batch, out, lse, visible=visible)


def storages(batch: Batch, storage) -> tuple[dict, ...]:
    if storage == "dense":
        return (dict(zip("qkv", map(torch.stack, (batch.q, batch.k, batch.v)), strict=True)),)
    if storage == "lengths":
        return dense_q(batch), dense_kv(batch)
    kv = packed_kv(batch) if storage == "packed" else paged_kv(batch, storage)
    return packed_q(batch), kv


def of_scores(scores: str, batch: Batch, heads: int) -> tuple[dict, dict]:
    """-> (options of the call, what the definition is told)."""
    call, reference = {}, {}
    if "sink" in scores:
        sinks = torch.randn(heads, generator=torch.Generator().manual_seed(1))
        call["learnable_sink"] = reference["sink"] = sinks
    if "soft cap" in scores:
        call["softcap"] = reference["softcap"] = 3.0
    if scores == "alibi":
        slopes = torch.tensor([alibi_slope(h, heads) for h in range(heads)], dtype=torch.float64)

        def biased(s, b):
            p, j = positions(batch.queries[b], batch.keys[b])
            return s - slopes[:, None, None] * (p - j).abs()

        call["score_mod"], reference["score_mod"] = alibi(heads), biased
    return call, reference
