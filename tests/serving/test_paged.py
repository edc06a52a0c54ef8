"""Paged K and V: the same bits as contiguous ones, for every page size, layout and length."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pytest
import torch

from cute_fa4 import flash_attn_varlen_func, flash_attn_with_kvcache
from tests.pairwise import sweep_only
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
from tests.suite import turns

# The least page, a part of a tile, a tile, several; the others divide a tile, or are divided by it, as these do.
PAGE_SIZES = [
    *turns.by_turns((8, 32, 128, 512)),
    *(pytest.param(size, marks=pytest.mark.sweep) for size in (16, 64, 256)),
]


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
        # Causal, as the test below: the same kernel.
        results.append(run(packed_q(batch), storage, page_table=wider, causal=True))
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


def test_pages_without_keys_are_refused_by_name():
    batch = Batch.draw([1], [1], depth=64)
    storage = paged_kv(batch, 4, "HND")
    empty = {name: storage[name][:, :, :0] for name in "kv"}
    with pytest.raises(
        ValueError, match="^k: pages of 0 keys, dimension 2 .*HND.*accepted: 1 key a page or more"
    ):
        run(packed_q(batch), {**storage, **empty})
    q, cache = torch.zeros(1, 1, 1, 64), torch.zeros(4, 0, 1, 64)
    with pytest.raises(ValueError, match="^k_cache: pages of 0 keys, dimension 1"):
        flash_attn_with_kvcache(
            *(x.bfloat16() for x in (q, cache, cache)),
            cache_seqlens=5,
            page_table=int32([0])[:, None],
        )


# Every size up to seven, which only gathers can load; above, odd ones and multiples of four, likewise; multiples of
# eight that do not nest with tiles of 128 keys, whose boxes have 8, 16 and 32 rows; a hybrid model's 544 and 784.
GATHERED = (1, 2, 3, 4, 5, 6, 7, 9, 12, 33, 130)
NOT_NESTING = (24, 40, 48, 56, 192, 544, 784)


@dataclass(frozen=True)
class Pages:
    """A case: a page size with what else decides how its keys are copied."""

    size: int
    depth: int = 128
    dtype: torch.dtype = torch.bfloat16
    layout: str = "NHD"
    mask: str = "causal"
    decode: bool = False

    def __str__(self):
        call = "decode" if self.decode else "prefill"
        name = str(self.dtype).removeprefix("torch.")
        return f"{self.size}-{self.depth}-{name}-{self.layout}-{self.mask}-{call}"


MASKS = {
    "full": (dict(), lambda p, j: j >= 0),
    "causal": (dict(causal=True), lambda p, j: j <= p),
    "window": (dict(window_size=(100, 0)), lambda p, j: (j <= p) & (j >= p - 100)),
}


def check_pages(case: Pages, beside_contiguous: bool) -> None:
    """The definition, and the bits of contiguous keys. Unused rows of pages are NaN, unused entries no page."""
    queries = [1, 4, 2] if case.decode else [3, 140, 1]
    keys = [
        case.size,
        300,
        128 + case.size // 2 + 1,
    ]  # a whole page; past two tiles; mid-page in the second tile
    heads = (8, 2) if case.decode else (2, 2)
    batch = Batch.draw(
        queries, keys, heads=heads, depth=case.depth, dtype=case.dtype, seed=case.size
    )
    asked, visible = MASKS[case.mask]
    asked = asked | dict(pack_gqa=case.decode)
    storage = paged_kv(batch, case.size, case.layout)
    paged = run(packed_q(batch), storage, **asked, mode="hostile", seed=case.size)
    assert_agrees(batch, *paged, visible=visible)
    if beside_contiguous:
        contiguous = run(packed_q(batch), packed_kv(batch), **asked)
        assert all(map(torch.equal, paged, contiguous))


# Which way rows are copied, with each depth and dtype, layout, mask, and prefill or decode once or more.
@pytest.mark.parametrize(
    "case",
    turns.by_turns(
        [
            Pages(1, decode=True),
            Pages(1, 72, torch.float16, "HND", "window"),
            Pages(2, 64, torch.float16, "HND", "full", decode=True),
            Pages(3, 80, mask="window"),
            Pages(6, 96, layout="HND", decode=True, mask="full"),
            Pages(33, 128, torch.float16, "HND"),
            Pages(24, 128, layout="HND", decode=True),
            Pages(48, 64, torch.float16, mask="window"),
            Pages(784, 96, mask="full", decode=True),
        ]
    ),
    ids=str,
)
def test_pages_of_any_size(case):
    check_pages(case, beside_contiguous=False)


def test_gathered_rows_have_the_bits_of_contiguous_keys():
    """At 128 columns, where another number of exponentials is on the FMA units. The sweep has the rest."""
    check_pages(Pages(1), beside_contiguous=True)


@sweep_only("pages", seconds=1)
@pytest.mark.parametrize(
    "case",
    [
        Pages(size, depth, (torch.bfloat16, torch.float16)[n % 2], layout, mask, decode)
        for n, (size, depth, layout, mask, decode) in enumerate(
            itertools.product(
                GATHERED + NOT_NESTING, (8, 64, 72, 96, 128), ("NHD", "HND"), MASKS, (False, True)
            )
        )
    ],
    ids=str,
)
def test_every_size_gives_the_bits_of_contiguous_keys(case):
    check_pages(case, beside_contiguous=True)


@pytest.mark.parametrize("page_size", [1, 3, 24])
def test_no_entry_beyond_the_pages_of_a_sequence_is_read(page_size):
    # The last sequence fills its row of the table, after which the table's memory ends: the emulator faults there.
    # Its second tile has four rows and more that are not there. Elsewhere entries are numbers of pages full of NaN.
    batch = Batch.draw([1, 1], [5, 131], depth=64)
    storage = paged_kv(batch, page_size)
    table = storage["page_table"][:, : -(-131 // page_size)].clone()
    used = set(table[table != NO_PAGE].tolist())
    table[table == NO_PAGE] = min(set(range(len(storage["k"]))) - used)
    assert_agrees(batch, *run(packed_q(batch), {**storage, "page_table": table}))


def test_pages_that_do_not_exist_are_rows_of_zeros(monkeypatch):
    # As on a GPU, where the host cannot see the table: pages before the first and after the last.
    monkeypatch.setattr("cute_fa4.calls.operands.lengths.check_contents", lambda *arguments: None)
    batch = Batch.draw([2], [40], depth=64)
    for page_size, missing in itertools.product((3, 24), (-1, 10_000)):
        storage = paged_kv(batch, page_size)
        table = storage["page_table"].clone()
        table[0, 1] = missing
        rows = slice(page_size, min(2 * page_size, 40))
        k, v = batch.k[0].clone(), batch.v[0].clone()
        k[rows] = v[rows] = 0
        there = Batch(batch.q, [k], [v])
        assert_agrees(there, *run(packed_q(batch), {**storage, "page_table": table}))


def test_heads_that_share_no_row_with_a_gather_are_refused_by_the_size_of_the_pages():
    # Rows 96 elements apart, heads 64: no row of one map has both.
    batch = Batch.draw([1], [20], depth=64)
    storage = paged_kv(batch, 3)
    odd = {
        name: torch.zeros(9 * 480).bfloat16().as_strided((9, 3, 2, 64), (480, 96, 64, 1))
        for name in "kv"
    }
    q = dict(q=torch.zeros(1, 2, 64).bfloat16(), cu_seqlens_q=int32([0, 1]), max_seqlen_q=1)
    storage["page_table"] = torch.arange(8, dtype=torch.int32)[None]
    with pytest.raises(
        ValueError,
        match="^k: strides .* with pages of 3 keys, .*96 elements.*64.*multiple of 8 keys",
    ):
        run(q, {**storage, **odd})
    # One head has no such distance, whatever its stride says.
    one = {
        name: torch.zeros(9 * 480).bfloat16().as_strided((9, 3, 1, 64), (480, 96, 64, 1))
        for name in "kv"
    }
    out, _ = run(packed_q(batch), {**storage, **one})
    assert (out[:1] == 0).all()
