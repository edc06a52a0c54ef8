"""Pairs of CTAs against float64 and, bit by bit, against CTAs alone: masks, layouts, pages, shared rows, schedules.

A block has 512 rows, of which either CTA has 256. 700 queries are a block and a half: of the last block the rows of
CTA 1 are past the end. 900 keys are eight tiles, as many as the ring has slots at head dim 128; the last has 4 keys.
"""

import pytest
import torch

from cute_fa4.calls import repeat
from cute_fa4.reference import allowed_error, attention_float64, max_error
from tests.attention.agreement import Schedule, attention
from tests.serving.batches import (
    Batch,
    assert_agrees,
    dense_kv,
    dense_q,
    packed_kv,
    packed_q,
    paged_kv,
    run,
)
from tests.suite import turns

pytestmark = pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")


@pytest.fixture(autouse=True)
def pairs(monkeypatch):
    monkeypatch.setenv("CUTE_FA4_PAIR", "on")
    repeat.clear()
    yield
    repeat.clear()


def test_bits_are_those_of_ctas_alone_under_every_schedule(monkeypatch):
    """Both walk the same keys of a row in the same order; a pair sees more tiles that are masked for a whole row."""
    monkeypatch.setenv("CUTE_FA4_MAXIMUM", "exact")
    repeat.clear()
    generator = torch.Generator().manual_seed(0)
    draw = lambda n, h: torch.randn(1, n, h, 128, generator=generator)
    q, k, v = (2 * draw(700, 2)).bfloat16(), draw(900, 1).bfloat16(), draw(900, 1).bfloat16()
    call = dict(causal=True, return_lse=True, num_splits=1)
    out, lse = attention(q, k, v, **call, schedule=Schedule("hostile"))
    exact, exact_lse = attention_float64(q, k, v, causal=True)
    allowed = allowed_error(q, k, v, causal=True)
    assert max_error(out, exact) <= allowed.out and max_error(lse, exact_lse) <= allowed.lse
    again = attention(q, k, v, **call, schedule=Schedule("random", 3))
    monkeypatch.setenv("CUTE_FA4_PAIR", "off")
    repeat.clear()
    alone = attention(q, k, v, **call)
    assert all(map(torch.equal, again, (out, lse)))
    assert all(map(torch.equal, alone, (out, lse)))


# Sequences of no queries, of one, of rows in CTA 0 alone, of both CTAs, of more than a block; of no keys, of fewer keys
# than queries. A pair takes over all of them, one after the other.
QUERIES, KEYS = [600, 0, 100, 300, 1], [700, 50, 300, 0, 130]
CAUSAL = dict(causal=True), lambda p, j: j <= p
EVEN_KEYS = (
    dict(causal=True, mask_mod=lambda b, h, i, j, aux: j % 2 == 0),
    lambda p, j: (j <= p) & (j % 2 == 0),
)
FULL = {}, lambda p, j: j >= 0


def of(
    storage_q, storage_kv, mask, *, heads=(2, 1), depth=128, depth_v=None, dtype=torch.bfloat16, **options
):  # fmt: skip
    sizes = dict(heads=heads, depth=depth, depth_v=depth_v, dtype=dtype)
    return storage_q, storage_kv, mask, sizes, options


PAGES = {size: (lambda batch, size=size: paged_kv(batch, size)) for size in (3, 16, 48, 128)}
CASES = {
    "packed causal, claimed one after the other": of(packed_q, packed_kv, CAUSAL, claims=100),
    "lengths, pages of 16, depth 64, fp16": of(
        dense_q, PAGES[16], CAUSAL, depth=64, dtype=torch.float16
    ),
    "pages of 3 (gathered), full, hostile": of(packed_q, PAGES[3], FULL, mode="hostile"),
    "pages of 48, packed groups, columns of 80 and 16": of(
        *(packed_q, PAGES[48], CAUSAL), heads=(4, 1), depth=80, depth_v=16, pack_gqa=True
    ),
    "a function of keys, depth 64": of(
        packed_q, packed_kv, EVEN_KEYS, depth=64, mode="random", seed=2
    ),
    "K of 192 columns, whole in its slot": of(packed_q, PAGES[16], CAUSAL, depth=192, depth_v=128),
}


@pytest.mark.parametrize("name", turns.by_turns(CASES))
def test_layouts_and_masks(name):
    storage_q, storage_kv, (mask, visible), sizes, options = CASES[name]
    batch = Batch.draw(QUERIES, KEYS, **sizes)
    out, lse = run(storage_q(batch), storage_kv(batch), num_splits=1, **mask, **options)
    assert_agrees(batch, out, lse, visible=visible)


@pytest.mark.sweep
@pytest.mark.parametrize("page_size", [None, 1, 8, 16, 64, 128, 256, 784])
@pytest.mark.parametrize("depth", [64, 72, 80, 96, 128, 136, 192])
def test_every_page_size_and_depth(page_size, depth):
    batch = Batch.draw(QUERIES, KEYS, heads=(2, 1), depth=depth, depth_v=min(depth, 128))
    kv = dense_kv(batch) if page_size is None else paged_kv(batch, page_size)
    out, lse = run(packed_q(batch), kv, num_splits=1, causal=True, mode="hostile")
    assert_agrees(batch, out, lse, visible=CAUSAL[1])


JUMP_NATS = 70  # more than 2^64: what the reference of the first two key tiles does not hold


@pytest.mark.parametrize(
    "row, key, causal, schedule, depth",
    [
        (100, 300, False, Schedule(), 128),
        (300, 300, False, Schedule("hostile", 1), 64),
        (300, 60, True, Schedule("hostile", 1), 128),
        pytest.param(550, 60, True, Schedule(), 64, marks=pytest.mark.sweep),
    ],
)
def test_a_row_of_either_cta_makes_both_run_the_work_tile_again(row, key, causal, schedule, depth):
    """Rows 0 to 255 and 512 to 599 are those of CTA 0. Key 300 lies in the third tile; the other block does not jump.

    Key 60 is in the first one, after its first 32, which a causal row of that tile or a later one sees whole.
    """
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, n, 1, depth, generator=generator)
        for n in (600, *([600 if causal else 400] * 2))
    )
    q[..., 0], k[..., 0] = 0.0, 0.0
    q[0, row, 0, 0], k[0, key, 0, 0] = 4.0, JUMP_NATS * depth**0.5 / 4.0
    q, k, v = (x.bfloat16() for x in (q, k, v))
    out, lse = attention(q, k, v, causal=causal, return_lse=True, num_splits=1, schedule=schedule)
    exact, exact_lse = attention_float64(q, k, v, causal=causal)
    allowed = allowed_error(q, k, v, causal=causal)
    assert max_error(out, exact) <= allowed.out and max_error(lse, exact_lse) <= allowed.lse
    assert lse[0, 0, row] > JUMP_NATS - 20  # it did jump, and was found
