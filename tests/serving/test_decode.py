"""Decode and multi-token prediction: few queries over a long cache, packed heads and unpacked ones."""

from __future__ import annotations

import warnings

import pytest
import torch

from cute_fa4 import EmulatorWarning, emulator, flash_attn_with_kvcache
from tests.serving.batches import Batch, assert_agrees, dense_kv, int32, packed_q, paged_kv, run


def causal(p, j):
    return j <= p


# One query, two, and up to 16: multi-token prediction; caches that end in, on and past a tile.
QUERIES = [1, 2, 3, 7, 16]
KEYS = [129, 128, 3, 300, 16]


# In plain pytest a group that does not fill a tile, one that is packed in one tile, and one in two; the others, which
# take the same ways, in the sweep.
EVERY_GROUP = [
    g if g in (3, 8, 16) else pytest.param(g, marks=pytest.mark.sweep)
    for g in (1, 2, 3, 4, 7, 8, 16)
]


@pytest.mark.parametrize("group", EVERY_GROUP)
def test_every_group(group):
    packs = 128 % group == 0 and group > 1
    batch = Batch.draw(QUERIES, KEYS, heads=(2 * group, 2))
    out, lse = run(packed_q(batch), paged_kv(batch, 64), causal=True)
    assert_agrees(batch, out, lse, visible=causal)
    # A grid of one CTA for each sequence and scheduled head; each stores two query tiles at most. Threads
    # store tiles of up to 32 rows (mhaswap).
    heads = 2 if packs else 2 * group
    stores = sum(
        count
        for opcode, count in emulator.last_run().opcodes.items()
        if opcode.startswith("cp.async.bulk.tensor") and ".global.shared::cta" in opcode
    )
    tiles = sum(-(-m * (group if packs else 1) // 128) for m in QUERIES)
    few_rows = max(QUERIES) * (group if packs else 1) <= 32
    assert stores == (0 if few_rows else heads * tiles)


@pytest.mark.parametrize("group", [4])
def test_packed_and_unpacked_heads_give_the_same_numbers(group):
    # 256 queries with 4 heads are four CTAs packed; the rows of a CTA are others, the sums of each row the same. Of 300
    # the last 44 would be single-tile work if unpacked, which sums even and odd key tiles separately; if causal, key
    # tiles that are masked for one CTA are whole for another, where a maximum may lag.
    batch = Batch.draw([256, 5], [310, 40], heads=(group, 1))
    results = [run(packed_q(batch), paged_kv(batch, 64), pack_gqa=pack) for pack in (True, False)]
    assert_agrees(batch, *results[0])
    assert all(map(torch.equal, *results))


def test_packed_heads_with_window_sink_and_dense_storage():
    batch = Batch.draw([5, 5], [150, 9], heads=(8, 2))
    sink = torch.randn(8)
    q = dict(q=torch.stack(batch.q))
    out, lse = run(q, dense_kv(batch), window_size=(40, 0), learnable_sink=sink, pack_gqa=True)
    assert_agrees(batch, out, lse, visible=lambda p, j: (j <= p) & (p - 40 <= j), sink=sink)


def test_a_decode_loop_sees_every_token_it_appended():
    # Three steps of one token each, page boundaries on the way (15, 16, 17 keys); the caller counts.
    batch = Batch.draw([1, 1], [18, 35], heads=(4, 2))
    start = Batch(batch.q, [x[:-3] for x in batch.k], [x[:-3] for x in batch.v])
    storage = paged_kv(start, 16)
    # Room for what is appended: one more page for each sequence.
    table, lengths = storage["page_table"], storage["seqused_k"].clone()
    free = sorted(set(range(len(storage["k"]))) - set(table.flatten().tolist()))
    table[0, 1], table[1, 2] = free[:2]
    for step in range(3):
        at = [len(x) - 3 + step for x in batch.k]
        new = [torch.stack([x[b][at[b] : at[b] + 1] for b in (0, 1)]) for x in (batch.k, batch.v)]
        before = lengths.clone()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EmulatorWarning)
            out, lse = flash_attn_with_kvcache(
                torch.stack(batch.q), storage["k"], storage["v"], *new,
                cache_seqlens=lengths, block_table=table, causal=True, return_lse=True,
            )  # fmt: skip
        assert torch.equal(lengths, before), "cache_seqlens is the caller's to change"
        lengths += 1
        now = Batch(batch.q, *([x[b][: at[b] + 1] for b in (0, 1)] for x in (batch.k, batch.v)))
        assert_agrees(now, out, lse, visible=causal)
    assert torch.equal(lengths, int32(batch.keys))
