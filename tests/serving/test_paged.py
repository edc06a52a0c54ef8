"""Paged K and V: the same bits as contiguous ones, for every page size, layout and length."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from cute_fa4 import flash_attn_varlen_func, flash_attn_with_kvcache
from cute_fa4.sm100.choose_config import DEPTHS, KEYS_PER_TILE, choose_config
from cute_fa4.sm100.tiles import is_page_size
from tests.serving.batches import (
    NO_PAGE,
    Batch,
    assert_agrees,
    int32,
    packed_kv,
    packed_q,
    paged_kv,
    run,
)

PAGE_SIZES = [8, 16, 32, 64, 128, 256, 512]


def lengths(page_size: int) -> list[int]:
    """One key and seven; one short of a page, a page, one past it; past a tile of 128 and mid-page."""
    return [1, 7, page_size - 1, page_size, page_size + 1, 128 + page_size // 2 + 1]


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_both_layouts_give_the_bits_of_the_contiguous_run(page_size):
    # Depth 128 has two chunks of 64, which small pages bring in one folded copy. One to three queries: the tiles
    # of keys are what differs, not those of queries.
    keys = lengths(page_size)
    batch = Batch.draw([1, 2, 3, 1, 2, 3], keys, depth=128, seed=page_size)
    contiguous = run(packed_q(batch), packed_kv(batch), causal=True)
    assert_agrees(batch, *contiguous, visible=lambda p, j: j <= p)
    for layout in ("NHD", "HND"):
        paged = run(packed_q(batch), paged_kv(batch, page_size, layout), causal=True)
        assert all(map(torch.equal, paged, contiguous)), layout


@pytest.mark.parametrize("depth, dtype", [(64, torch.float16), (80, torch.bfloat16)])
def test_depths_that_do_not_fold(depth, dtype):
    # One chunk of 64; and 80, whose second chunk is cut at the tensor's edge. 150 queries: both query tiles.
    batch = Batch.draw([150, 1], [300, 9], depth=depth, dtype=dtype)
    contiguous = run(packed_q(batch), packed_kv(batch), causal=True)
    paged = run(packed_q(batch), paged_kv(batch, 16, "HND"), causal=True)
    assert all(map(torch.equal, paged, contiguous))
    assert_agrees(batch, *paged, visible=lambda p, j: j <= p)


def test_every_alignment_of_the_table_reads_the_same_entries():
    # Rows at multiples of 16, 8 and 4 bytes: loads of four, two and one entry.
    batch = Batch.draw([2, 2], [300, 200], depth=128)
    storage = paged_kv(batch, 16)
    table = storage.pop("page_table")
    results = []
    for width in (table.shape[1], table.shape[1] + 2, table.shape[1] + 1):
        wider = torch.full((len(table), width), NO_PAGE, dtype=torch.int32)
        wider[:, : table.shape[1]] = table
        results.append(run(packed_q(batch), storage, page_table=wider))
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][0], results[2][0])


def test_pages_at_odd_distances_are_copied_chunk_by_chunk():
    # Pages of 16 rows at every 20: no group of eight rows begins at a multiple of eight, so no page comes folded.
    batch = Batch.draw([3, 1], [40, 130], depth=128)
    storage = paged_kv(batch, 16)
    apart = {}
    for name in "kv":
        pages = storage[name]
        wide = pages.new_full((len(pages), 20, *pages.shape[2:]), math.nan)
        wide[:, :16] = pages
        apart[name] = wide[:, :16]
    together = run(packed_q(batch), storage, causal=True)
    assert torch.equal(run(packed_q(batch), {**storage, **apart}, causal=True)[0], together[0])


def test_the_cache_may_be_two_tensors_of_one_page():
    # A dimension of size 1 has any stride: the distance of pages is then no multiple of anything.
    batch = Batch.draw([2], [60], depth=64)
    k, v = (x[0][None].contiguous() for x in ([batch.k[0]], [batch.v[0]]))
    pages = [torch.full((1, 64, 1, 64), math.nan, dtype=k.dtype) for _ in "kv"]
    for page, x in zip(pages, (k, v), strict=True):
        page[0, :60] = x[0]
    odd = [p.as_strided(p.shape, (12345, *p.stride()[1:])) for p in pages]
    table = torch.zeros(1, 1, dtype=torch.int32)
    used = torch.tensor([60], dtype=torch.int32)
    out, lse = run(packed_q(batch), k=odd[0], v=odd[1], page_table=table, seqused_k=used)
    assert_agrees(batch, out, lse)


def test_the_aliases_of_other_packages_are_the_same_call():
    batch = Batch.draw([4, 3], [20, 33], depth=64)
    storage, q = paged_kv(batch, 64), packed_q(batch)
    sink = torch.tensor([0.5, -1.0])
    out, lse = run(q, storage, learnable_sink=sink, window_size=(-1, 0))
    storage["block_table"] = storage.pop("page_table")
    theirs, their_lse = flash_attn_varlen_func(
        **q, **storage, s_aux=sink, causal=True, return_softmax_lse=True, window_size=[-1, -1]
    )
    assert torch.equal(theirs[:7], out[:7]) and torch.equal(their_lse[:, :7], lse[:, :7])


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("page_size", [1, 4, 12, 48, 192])
def test_page_sizes_without_a_kernel_are_refused_with_the_ones_that_have_one(page_size, layout):
    batch = Batch.draw([1], [page_size + 1], depth=64)
    accepted = "accepted: 8, 16, 32, 64, 128 or a multiple of 128 keys a page"
    axis = 1 if layout == "NHD" else 2
    with pytest.raises(
        ValueError, match=f"^k: pages of {page_size} keys, dimension {axis} .*{accepted}"
    ):
        run(packed_q(batch), paged_kv(batch, page_size, layout))


def test_a_cache_is_called_by_its_name_and_the_other_layout_is_named_where_it_would_fit():
    q = torch.zeros(1, 1, 1, 64, dtype=torch.bfloat16)
    cache = torch.zeros(4, 2, 16, 64, dtype=torch.bfloat16)  # two heads of pages of 16 keys
    with pytest.raises(ValueError, match="^k_cache: pages of 2 keys.*pass kv_layout='HND'"):
        flash_attn_with_kvcache(
            *(q, cache, cache.clone()), cache_seqlens=5, page_table=int32([0])[:, None]
        )


def test_the_page_sizes_of_messages_are_those_of_the_configurations():
    for depth, page in itertools.product(DEPTHS, range(1, 1100)):
        config = choose_config(
            qkv_dtype="bf16", head_dim=depth, kv_layout="paged", page_size=page, seqused_k=True
        )
        refused = any("page_size=" in why and "multiple of 8" in why for why in config.refusals())
        assert refused != is_page_size(page, KEYS_PER_TILE), (depth, page)
