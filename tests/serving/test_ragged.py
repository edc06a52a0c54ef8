"""Ragged batches: lengths of zero, lengths from tensors, every pair of layouts, nothing written beyond a sequence."""

from __future__ import annotations

import math

import pytest
import torch

from cute_fa4 import emulator, flash_attn_varlen_func
from cute_fa4.calls.attention import plan_attention
from cute_fa4.calls.options import resolve
from cute_fa4.calls.request import Where
from cute_fa4.operands import CallTensors
from tests.serving.batches import (
    CANARY,
    Batch,
    assert_agrees,
    dense_kv,
    dense_q,
    int32,
    offsets,
    packed,
    packed_kv,
    packed_q,
    paged_kv,
    run,
)
from tests.suite import turns


def causal(p, j):
    return j <= p


# Queries without keys, keys without queries, neither, more queries than keys, more than a CTA's 256 rows.
QUERIES = [3, 0, 0, 130, 5, 300, 1]
KEYS = [0, 9, 0, 70, 200, 300, 1]

Q_STORAGE = {"packed": packed_q, "dense": dense_q}
KV_STORAGE = {"packed": packed_kv, "dense": dense_kv, "paged": lambda batch: paged_kv(batch, 32)}


@pytest.mark.parametrize("q, kv", turns.by_turns([(q, kv) for q in Q_STORAGE for kv in KV_STORAGE]))
def test_every_pair_of_layouts_with_lengths_of_zero(q, kv):
    batch = Batch.draw(QUERIES, KEYS, heads=(2, 2))
    out, lse = run(Q_STORAGE[q](batch), KV_STORAGE[kv](batch), causal=True)
    assert_agrees(batch, out, lse, visible=causal)


def test_cross_attention_of_one_length_over_another():
    # Encoder keys: no causal mask, and lengths that have nothing to do with those of the queries.
    batch = Batch.draw([70, 1, 20], [5, 140, 0], heads=(2, 2))
    assert_agrees(batch, *run(packed_q(batch), packed_kv(batch)))


def test_used_lengths_cut_packed_sequences():
    # Stored are 50, 60 and 9 rows; only some count. The rest is NaN for keys, canaries for out.
    batch = Batch.draw([20, 0, 9], [50, 31, 1], heads=(2, 2))
    stored_q = [
        torch.cat([x, x.new_full((n, 2, 64), math.nan)])
        for x, n in zip(batch.q, (5, 7, 0), strict=True)
    ]
    stored = {
        name: [
            torch.cat([x, x.new_full((n, 2, 64), math.nan)])
            for x, n in zip(kv, (0, 9, 3), strict=True)
        ]
        for name, kv in (("k", batch.k), ("v", batch.v))
    }
    first_q, first_k = offsets(map(len, stored_q)), offsets(map(len, stored["k"]))
    out = torch.full_like(packed(stored_q), CANARY)
    with emulator.use(checks=("ptx", "phase_passed_twice")):
        _, lse = flash_attn_varlen_func(
            packed(stored_q),
            packed(stored["k"]),
            packed(stored["v"]),
            cu_seqlens_q=first_q,
            cu_seqlens_k=first_k,
            seqused_q=int32(batch.queries),
            seqused_k=int32(batch.keys),
            max_seqlen_q=25,
            causal=True,
            out=out,
            return_lse=True,
        )
    kept = torch.cat(
        [torch.arange(a, a + n) for a, n in zip(first_q.tolist(), batch.queries, strict=False)]
    )
    beyond = torch.ones(len(out), dtype=torch.bool)
    beyond[kept] = False
    assert (out[beyond] == CANARY).all()
    compact = torch.cat([out[kept], torch.full((5, 2, 64), CANARY).to(out.dtype)])
    assert_agrees(batch, compact, lse[:, kept], visible=causal)


def test_a_cache_length_may_leave_out_the_new_tokens():
    # The same call in both countings: seqused_k with and without this call's queries.
    batch = Batch.draw([4, 1, 0], [40, 1, 20], heads=(2, 2))
    storage = paged_kv(batch, 32)
    counted = run(packed_q(batch), storage, causal=True)
    storage["seqused_k"] = storage["seqused_k"] - int32(batch.queries)
    left_out = run(packed_q(batch), storage, causal=True, seqused_k_excludes_new=True)
    assert all(map(torch.equal, left_out, counted))


def test_a_maximum_that_is_not_given_or_too_large_changes_nothing():
    batch = Batch.draw([4, 1, 0], [40, 1, 20], heads=(2, 2))
    q = packed_q(batch)
    given = run(q, packed_kv(batch), causal=True, pack_gqa=False)
    for longest in (None, 10_000):
        again = run({**q, "max_seqlen_q": longest}, packed_kv(batch), causal=True, pack_gqa=False)
        assert all(map(torch.equal, again, given))


@pytest.mark.parametrize("kv", KV_STORAGE)
def test_no_keys_at_all(kv):
    # A descriptor cannot describe a tensor without rows; the rows of out still have to be written, and only they.
    batch = Batch.draw([3, 2], [0, 0], heads=(2, 2))
    storage = KV_STORAGE[kv](batch)
    storage["k"], storage["v"] = storage["k"][:0], storage["v"][:0]
    if kv == "dense":
        storage["k"] = storage["v"] = torch.zeros(2, 0, 2, 64, dtype=torch.bfloat16)
    if kv == "paged":
        storage["page_table"] = storage["page_table"][:, :0]
    sink = torch.tensor([0.25, -1.0])
    out, lse = run(packed_q(batch), storage, learnable_sink=sink)
    assert_agrees(batch, out, lse, sink=sink)


def test_no_sequences_and_no_queries_compile_and_write_nothing():
    k = torch.zeros(4, 1, 64, dtype=torch.bfloat16)
    q = torch.full((3, 2, 64), CANARY).bfloat16()
    nobody = dict(cu_seqlens_q=int32([0]), cu_seqlens_k=int32([0]), max_seqlen_q=0)
    out = flash_attn_varlen_func(q, k, k, **nobody, out=q.clone())
    assert (out == CANARY).all()
    empty = dict(cu_seqlens_q=int32([0, 0]), cu_seqlens_k=int32([0, 4]))
    out, lse = flash_attn_varlen_func(q[:0], k, k, **empty, return_lse=True)
    assert out.shape == (0, 2, 64) and lse.shape == (2, 0)


@pytest.mark.parametrize(
    "schedule, pack",
    [({}, False), (dict(claims=0), True), (dict(mode="hostile", seed=1), True)],
    ids=str,
)
def test_sequences_are_found_32_at_a_time(schedule, pack):
    """100 sequences are three times 32 and a rest; a third has no rows, those around 31, 63 and 95 have several blocks.

    One CTA walks them all in order, every CTA looks for one on its own, or goes back and forth.
    """
    lengths = [(0, 1, 2)[i % 3] for i in range(100)]
    for i in (0, 31, 32, 63, 64, 95, 99):
        lengths[i] = 257 if i % 2 else 20
    batch = Batch.draw(lengths, lengths, heads=(2, 1))
    out, lse = run(packed_q(batch), packed_kv(batch), causal=True, pack_gqa=pack, **schedule)
    assert_agrees(batch, out, lse, visible=causal)


@pytest.mark.sweep  # 70,000 claims take half a minute
def test_a_batch_of_70000_sequences():
    # Beyond the 65,535 of a grid's y and z: the grid has a CTA for each sequence, in case they all have rows. Three do:
    # the first, one beyond 65,535, the last. The first CTA claims the others and finds no work after the third block.
    many, rows = 70_000, {0: (2, 3), 65_536: (1, 40), 69_999: (3, 9)}
    lengths = torch.zeros(2, many, dtype=torch.int32)
    for b, pair in rows.items():
        lengths[:, b] = int32(pair)
    zero = torch.zeros(2, 1, dtype=torch.int32)
    q_first, k_first = torch.cat([zero, lengths.cumsum(1, dtype=torch.int32)], dim=1)
    queries, keys = zip(*rows.values(), strict=True)
    few = Batch.draw(queries, keys, heads=(1, 1))
    out, lse = run(
        packed_q(few) | dict(cu_seqlens_q=q_first),
        packed_kv(few) | dict(cu_seqlens_k=k_first),
        causal=True,
    )
    assert emulator.last_run().counters["clusters cancelled"] == many - 1
    assert_agrees(few, out, lse, visible=causal)


# --- what the host cannot see: as on a GPU, contents go to the kernel unchecked


def unchecked(q, k, v, out, **where):
    """Attention without the checks of contents; the emulator's bounds checks are on."""
    lengths = {name: x for name, x in where.items() if name in CallTensors._fields}
    tensors = CallTensors(q, k, v, out, **lengths)
    numbers = {name: x for name, x in where.items() if name not in lengths}
    where = Where(tensors, **numbers)
    launch = plan_attention(tensors, where, resolve(q, causal=True), True)
    return launch(tensors)


BAD_OFFSETS = [
    [-5, 3, 6],
    [0, 9, 3],
    [0, 3, 1_000_000],
    [2**31 - 1, -(2**31), 2**31 - 1],
    [-(2**31), -7, -1],
]


@pytest.mark.parametrize("bad", BAD_OFFSETS, ids=str)
@pytest.mark.parametrize("side", ["q", "k"])
def test_bad_offsets_never_leave_the_tensors(bad, side):
    batch = Batch.draw([3, 3], [20, 30], heads=(1, 1))
    # Guarded: the tensors are the middle of larger ones, whose other rows are canaries.
    whole = torch.full((60, 1, 64), CANARY).bfloat16()
    out = whole[20:26]
    good = dict(cu_seqlens_q=offsets([3, 3]), cu_seqlens_k=offsets([20, 30]), max_seqlen_q=3)
    good[f"cu_seqlens_{side}"] = int32(bad)
    unchecked(
        packed(batch.q)[:6].clone(),
        packed(batch.k)[:50].clone(),
        packed(batch.v)[:50].clone(),
        out,
        **good,
    )
    assert (whole[:20] == CANARY).all() and (whole[26:] == CANARY).all()


@pytest.mark.parametrize("page", [-1, -2, 99, 2**31 - 1, -(2**31), 2**26], ids=str)
@pytest.mark.parametrize("page_size", [16, 128])
def test_pages_that_do_not_exist_are_not_read(page, page_size):
    # The first page of a sequence is bad, and the last one, of which V reads a part.
    batch = Batch.draw([3, 2], [20, page_size + 5], heads=(1, 1), depth=128)
    storage = paged_kv(batch, page_size)
    storage["page_table"][0, 0] = storage["page_table"][1, 1] = page
    q = packed_q(batch)
    out = torch.full_like(q["q"], CANARY)
    unchecked(
        **q, k=storage["k"], v=storage["v"], out=out,
        page_table=storage["page_table"], seqused_k=storage["seqused_k"],
    )  # fmt: skip
    assert (out[5:] == CANARY).all()


@pytest.mark.parametrize("used", [-1, -(2**31), 10_000, 2**31 - 1], ids=str)
def test_lengths_beyond_the_table_are_cut_to_it(used):
    batch = Batch.draw([3, 2], [64, 128], heads=(1, 1))
    storage = paged_kv(batch, 32)
    table = storage["page_table"][:, :2].contiguous()  # of 64 keys
    q, out = packed_q(batch), torch.full_like(packed(batch.q), CANARY)
    _, lse = unchecked(
        **q, k=storage["k"], v=storage["v"], out=out,
        page_table=table, seqused_k=int32([used, used]),
    )  # fmt: skip
    seen = Batch(
        batch.q,
        [x[: 64 if used > 0 else 0] for x in batch.k],
        [x[: 64 if used > 0 else 0] for x in batch.v],
    )
    assert_agrees(seen, out, lse, visible=causal)
