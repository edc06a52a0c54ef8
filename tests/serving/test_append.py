"""The append kernel against plain assignments: every storage of new rows and cache, and nothing else written."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

from cute_fa4 import EmulatorWarning, flash_attn_with_kvcache
from cute_fa4.calls.append import prepare_append
from cute_fa4.operands import CallTensors
from tests.serving.batches import CANARY, Batch, assert_agrees, int32, offsets

HEADS, DEPTH = 3, 72  # three heads and nine 16-byte pieces of a row: no power of two anywhere
PAGE = 16
# Rows already there and new ones: none new, an empty cache, across a page's edge, up to the last row.
BEFORE, NEW = [5, 0, 15, 40, 33], [0, 7, 3, 8, 1]
CAPACITY = 48


def appended(k, v, k_cache, v_cache, before, first, table) -> CallTensors:
    return CallTensors(
        *(None, k_cache, v_cache),
        seqused_k=before,
        page_table=table,
        new_k=k,
        new_v=v,
        cu_seqlens_k_new=first,
    )


def quiet(function, *arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmulatorWarning)
        return function(*arguments, **options)


def new_rows(lengths, packed: bool, spare: int = 2):
    """-> (k, v, offsets or None, rows of each sequence of k and v)."""
    sequences = [[torch.randn(n, HEADS, DEPTH).half() for n in lengths] for _ in "kv"]
    if packed:
        extra = torch.full((spare, HEADS, DEPTH), math.nan).half()
        return *(torch.cat([*x, extra]) for x in sequences), offsets(lengths), sequences
    return *(torch.stack(x) for x in sequences), None, sequences


def caches(batch: int, layout: str):
    """-> (k_cache, v_cache) of canaries with rows before heads, table or None, where row p of sequence b is."""
    if layout == "dense":
        k, v = torch.full((2, batch, CAPACITY, HEADS, DEPTH), CANARY).half()
        return k, v, None, lambda cache, b, p: cache[b, p]
    pages = CAPACITY // PAGE
    table = torch.randperm(batch * pages + 2)[: batch * pages].reshape(batch, pages).int()
    inner = (PAGE, HEADS) if layout == "NHD" else (HEADS, PAGE)
    whole = torch.full((batch * pages + 2, 2, *inner, DEPTH), CANARY).half()
    k, v = (whole[:, i] if layout == "NHD" else whole[:, i].transpose(1, 2) for i in (0, 1))
    return k, v, table, lambda cache, b, p: cache[table[b, p // PAGE], p % PAGE]


@pytest.mark.parametrize("layout", ["dense", "NHD", "HND"])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "dense rows"])
def test_rows_land_after_those_of_the_cache_and_nowhere_else(packed, layout):
    new = NEW if packed else [4] * len(NEW)
    k, v, first, sequences = new_rows(new, packed)
    *both, table, row_of = caches(len(new), layout)
    expected = [cache.clone(memory_format=torch.preserve_format) for cache in both]
    for cache, rows in zip(expected, sequences, strict=True):
        for b, x in enumerate(rows):
            for i, row in enumerate(x):
                row_of(cache, b, BEFORE[b] + i).copy_(row)
    before = int32(BEFORE)
    tensors = appended(k, v, *both, before, first, table)
    quiet(prepare_append(tensors, len(new)), tensors)
    for cache, wanted in zip(both, expected, strict=True):
        assert torch.equal(cache, wanted)


def test_what_does_not_fit_is_dropped_where_the_host_cannot_see_it(monkeypatch):
    # As on a GPU: negative lengths, lengths beyond the cache, pages that do not exist, decreasing offsets.
    monkeypatch.setattr(
        "cute_fa4.calls.operands.new_rows._check_append_contents", lambda *arguments: None
    )
    for packed in (True, False):
        k, v, first, _ = new_rows([4] * 5, packed)
        *both, table, row_of = caches(5, "NHD")
        table[1, 0], table[2, 0] = -1, 10_000
        if packed:
            first[3], first[5] = 10_000, -3
        before = int32([-2, 0, 0, 2**31 - 2, CAPACITY - 1])
        tensors = appended(k, v, *both, before, first, table)
        quiet(prepare_append(tensors, 5), tensors)
        if not packed:
            # Rows 2 and 3 of sequence 0 would be at 0 and 1, but a negative length is no length. One row fits.
            wanted = torch.full_like(both[0], CANARY)
            row_of(wanted, 4, CAPACITY - 1).copy_(k[4, 0])
            assert torch.equal(both[0], wanted)


@pytest.mark.parametrize("cache_seqlens", [12, int32([12, 12])], ids=["int", "tensor"])
def test_new_rows_need_not_be_as_many_as_queries(cache_seqlens):
    # Five new rows, two queries: the last query stands at the last row.
    batch = Batch.draw([2, 2], [17, 17], heads=(4, 2))
    k_cache, v_cache = torch.full((2, 2, 24, 2, 64), math.nan).bfloat16()
    for cache, x in ((k_cache, batch.k), (v_cache, batch.v)):
        cache[:, :12] = torch.stack(x)[:, :12]
    q, k, v = (
        torch.stack(batch.q),
        torch.stack(batch.k)[:, 12:].contiguous(),
        torch.stack(batch.v)[:, 12:].contiguous(),
    )
    out, lse = quiet(
        flash_attn_with_kvcache,
        q, k_cache, v_cache, k, v, cache_seqlens=cache_seqlens, causal=True, return_softmax_lse=True,
    )  # fmt: skip
    assert torch.equal(k_cache[:, 12:17], k) and torch.equal(v_cache[:, 12:17], v)
    assert k_cache[:, 17:].isnan().all()
    assert_agrees(batch, out, lse, visible=lambda p, j: j <= p)


def test_packed_new_rows_of_packed_queries():
    batch = Batch.draw([3, 0, 1], [20, 6, 9], heads=(4, 2))
    k_cache, v_cache = torch.full((2, 3, 24, 2, 64), math.nan).bfloat16()
    before = [n - m for m, n in zip(batch.queries, batch.keys, strict=True)]
    for cache, x in ((k_cache, batch.k), (v_cache, batch.v)):
        for b, rows in enumerate(x):
            cache[b, : before[b]] = rows[: before[b]]
    new = [
        torch.cat([rows[n:] for rows, n in zip(x, before, strict=True)]) for x in (batch.k, batch.v)
    ]
    first = offsets(batch.queries)
    for k_first in (first, first.clone()):  # one tensor, which says that counts agree, or two
        out, lse = quiet(
            flash_attn_with_kvcache,
            torch.cat(batch.q), k_cache, v_cache, *new, cache_seqlens=int32(before),
            cu_seqlens_q=first, cu_seqlens_k_new=k_first, max_seqlen_q=3, causal=True, return_lse=True,
        )  # fmt: skip
        assert_agrees(batch, out, lse, visible=lambda p, j: j <= p)


def test_a_complete_cache_is_attended_whole():
    batch = Batch.draw([2, 2], [20, 20], heads=(4, 2))
    out, lse = quiet(
        flash_attn_with_kvcache,
        torch.stack(batch.q), torch.stack(batch.k), torch.stack(batch.v), return_lse=True,
    )  # fmt: skip
    assert_agrees(batch, out, lse)
