"""Pairs of CTAs against float64 and, bit by bit, against CTAs alone: masks, layouts, pages, shared rows, schedules.

A block has 512 rows, of which either CTA has 256. 700 queries are a block and a half: of the last block the rows of
CTA 1 lie behind the end. 900 keys are eight tiles, as many as the ring has slots at head dim 128; the last has 4 keys.
"""

import pytest
import torch

from cute_fa4 import masks
from cute_fa4.calls import repeat
from cute_fa4.reference import allowed_error, attention_float64, max_error
from cute_fa4.system import devices
from tests.attention.agreement import Schedule, attention
from tests.serving.batches import (
    FP8,
    Batch,
    assert_agrees,
    dense_kv,
    dense_q,
    packed_kv,
    packed_q,
    paged_kv,
    run,
)

pytestmark = pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")


E4M3, E5M2 = FP8


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


# Depths with whole lines of the swizzle in a CTA's half of V, with half of one, and with the least columns of an MMA.
@pytest.mark.parametrize(
    "dtype, depth, depth_v",
    [
        (E4M3, 128, 128),
        pytest.param(E5M2, 128, 128, marks=pytest.mark.sweep),
        pytest.param(E4M3, 64, 64, marks=pytest.mark.sweep),
        pytest.param(E4M3, 16, 112, marks=pytest.mark.sweep),
        pytest.param(E5M2, 112, 16, marks=pytest.mark.sweep),
    ],
    ids=str,
)
def test_eight_bits(dtype, depth, depth_v):
    """Four key tiles: in the last two P lies where both other S have been read before, by either parity."""
    batch = of_eight_bits(dtype, depth, depth_v)
    out, lse, scales = called_with_scales(batch, "hostile")
    assert_agrees(batch, out, lse, visible=CAUSAL[1], scales=scales)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "dtype, depth, depth_v", [(E4M3, 128, 128), (E4M3, 64, 64), (E5M2, 16, 112)], ids=str
)
def test_eight_bits_are_those_of_ctas_alone(monkeypatch, dtype, depth, depth_v):
    batch = of_eight_bits(dtype, depth, depth_v)
    of_pairs = called_with_scales(batch)
    monkeypatch.setenv("CUTE_FA4_PAIR", "off")
    repeat.clear()
    alone = called_with_scales(batch)
    assert torch.equal(of_pairs[0], alone[0]) and torch.equal(of_pairs[1], alone[1])


@pytest.mark.sweep
def test_eight_bits_for_a_b300(monkeypatch):
    """Powers are exact there, and a tile's maximum comes with its scores."""
    monkeypatch.setattr(devices, "EMULATED_ARCH", "sm_103a")
    batch = of_eight_bits(E4M3, 128, 128)
    out, lse, scales = called_with_scales(batch, "hostile")
    assert_agrees(batch, out, lse, visible=CAUSAL[1], scales=scales)


def of_eight_bits(dtype, depth, depth_v) -> Batch:
    return Batch.draw([300], [500], heads=(1, 1), depth=depth, depth_v=depth_v, dtype=dtype)


def called_with_scales(batch: Batch, mode="in_order") -> tuple:
    """-> (out, lse, scales of q, k and v) of a dense causal call, whose lengths nobody reads."""
    given = scales_of(1, 1)
    tensors = batch.q[0][None], batch.k[0][None], batch.v[0][None]
    call = dict(num_splits=1, causal=True, return_lse=True, **given)
    out, lse = attention(*tensors, **call, schedule=Schedule(mode))
    return out, lse, [given[f"{name}_descale"] for name in "qkv"]


# Sequences of no queries, of one, of rows in CTA 0 alone, of both CTAs, of more than a block; of no keys, of fewer keys
# than queries. A pair takes over all of them, one after the other.
QUERIES, KEYS = [600, 0, 100, 300, 1], [700, 50, 300, 0, 130]
CAUSAL = dict(causal=True), lambda p, j: j <= p
CHUNKS_OF_EVEN_KEYS = (
    dict(mask=masks.chunked_causal(192), mask_mod=lambda b, h, i, j, aux: j % 2 == 0),
    lambda p, j: (j <= p) & (j // 192 == p // 192) & (j % 2 == 0),
)
WINDOW = dict(window_size=(100, 0)), lambda p, j: (j <= p) & (j >= p - 100)


def scales_of(*sizes) -> dict:
    """Positive numbers around 1, no powers of two, for each sequence and head."""
    generator = torch.Generator().manual_seed(0)
    return {f"{name}_descale": 0.5 + torch.rand(sizes, generator=generator) for name in "qkv"}


def of(
    storage_q, storage_kv, mask, *, heads=(2, 1), depth=128, depth_v=None, dtype=torch.bfloat16, **options
):  # fmt: skip
    sizes = dict(heads=heads, depth=depth, depth_v=depth_v, dtype=dtype)
    return storage_q, storage_kv, mask, sizes, options


PAGES = {size: (lambda batch, size=size: paged_kv(batch, size)) for size in (3, 16, 48, 128)}
CASES = {
    "packed causal, claimed one after the other": of(packed_q, packed_kv, CAUSAL, claims=100),
    "lengths, pages of 16, depth 64 (P beside S), fp16": of(
        dense_q, PAGES[16], CAUSAL, depth=64, dtype=torch.float16
    ),
    "pages of 3 (gathered), window, hostile": of(packed_q, PAGES[3], WINDOW, mode="hostile"),
    "pages of 48, packed groups, e5m2 of 80 and 16, scales of sequences": of(
        *(packed_q, PAGES[48], CAUSAL),
        **dict(heads=(4, 1), depth=80, depth_v=16, dtype=E5M2, pack_gqa=True),
        **scales_of(len(QUERIES), 1),
    ),
    "chunks and a function of keys, depth 64": of(
        packed_q, packed_kv, CHUNKS_OF_EVEN_KEYS, depth=64, mode="random", seed=2
    ),
    "K of 192 columns, whole in its slot": of(packed_q, PAGES[16], CAUSAL, depth=192, depth_v=128),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_layouts_and_masks(case):
    storage_q, storage_kv, (mask, visible), sizes, options = case
    batch = Batch.draw(QUERIES, KEYS, **sizes)
    out, lse = run(storage_q(batch), storage_kv(batch), num_splits=1, **mask, **options)
    scales = [options.get(f"{name}_descale") for name in "qkv"]
    assert_agrees(
        batch,
        out,
        lse,
        visible=visible,
        scales=scales if any(map(torch.is_tensor, scales)) else None,
    )


@pytest.mark.sweep
@pytest.mark.parametrize("page_size", [None, 1, 8, 16, 64, 128, 256, 784])
@pytest.mark.parametrize("depth", [64, 72, 80, 96, 128, 136, 192])
def test_every_page_size_and_depth(page_size, depth):
    batch = Batch.draw(QUERIES, KEYS, heads=(2, 1), depth=depth, depth_v=min(depth, 128))
    kv = dense_kv(batch) if page_size is None else paged_kv(batch, page_size)
    out, lse = run(packed_q(batch), kv, num_splits=1, causal=True, mode="hostile")
    assert_agrees(batch, out, lse, visible=CAUSAL[1])


@pytest.mark.sweep
@pytest.mark.parametrize("page_size", [None, 3, 16, 128])
@pytest.mark.parametrize(
    "mask", [CAUSAL, WINDOW, CHUNKS_OF_EVEN_KEYS], ids=["causal", "window", "function"]
)
def test_eight_bits_in_every_layout(page_size, mask):
    batch = Batch.draw(QUERIES, KEYS, heads=(2, 1), depth=128, dtype=E4M3)
    kv = packed_kv(batch) if page_size is None else paged_kv(batch, page_size)
    given = scales_of(len(QUERIES), 1)
    out, lse = run(packed_q(batch), kv, num_splits=1, **mask[0], **given, mode="random", seed=1)
    scales = [given[f"{name}_descale"] for name in "qkv"]
    assert_agrees(batch, out, lse, visible=mask[1], scales=scales)


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

    Key 60 lies in the first one behind its first 32, which a causal row of that tile or a later one sees whole.
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
