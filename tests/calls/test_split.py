"""num_splits and tokens_per_split: parts of the keys, merged, are attention over all of them.

The oracle is attention in float64, and the same call unsplit. Sizes: 5, 127, 129 and 900 keys are a part of a tile, one
tile but one key, two tiles, and eight tiles; parts go from one to more than there are tiles.
"""

import math

import pytest
import torch

from cute_fa4 import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache, masks
from cute_fa4.calls.options import resolve
from cute_fa4.calls.request import Where
from cute_fa4.calls.split_keys import split, workspace
from cute_fa4.operands import CallTensors
from cute_fa4.reference import allowed_error, attention_float64, max_error
from cute_fa4.sm100.choose.choose_config import choose_config
from tests.calls.simulated_device import full_of_nan
from tests.tuned import changed

pytestmark = pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")


def qkv(batch, seqlen_q, seqlen_k, heads=4, kv_heads=2, depth=64):
    q = torch.randn(batch, seqlen_q, heads, depth).bfloat16()
    return q, *torch.randn(2, batch, seqlen_k, kv_heads, depth).bfloat16()


@pytest.fixture
def poisoned(monkeypatch):
    """The workspace holds NaN: what is not written must not be read."""

    monkeypatch.setattr(workspace, "_allocated", full_of_nan)


@pytest.mark.parametrize("keys, parts", [(5, 2), (127, 9), (129, 1), (129, 2), (900, 3), (900, 11)])
@pytest.mark.parametrize("causal", [False, True])
def test_parts_merge_to_attention_over_all_keys(poisoned, keys, parts, causal):
    q, k, v = qkv(2, 5, keys)
    out, lse = flash_attn_func(q, k, v, causal=causal, num_splits=parts, return_lse=True)
    exact, exact_lse = attention_float64(q, k, v, causal=causal)
    allowed = allowed_error(q, k, v, causal=causal)
    assert max_error(out, exact) <= allowed.out
    assert max_error(lse, exact_lse) <= allowed.lse


def test_rows_without_keys_are_zero_and_a_sink_counts_once(poisoned):
    """20 queries on 8 keys, causal: 12 rows see none; with a sink they have its logit and out 0."""
    q, k, v = qkv(1, 20, 8, heads=2, kv_heads=1)
    sink = torch.tensor([0.5, -1.0])
    for learnable_sink in (None, sink):
        expected = flash_attn_func(
            q, k, v, causal=True, return_lse=True, learnable_sink=learnable_sink
        )
        found = flash_attn_func(
            q, k, v, causal=True, return_lse=True, learnable_sink=learnable_sink, num_splits=4
        )
        assert torch.equal(found[0][:, :12], torch.zeros_like(found[0][:, :12]))
        torch.testing.assert_close(found[0], expected[0], atol=2e-2, rtol=0)
        torch.testing.assert_close(found[1], expected[1], atol=1e-4, rtol=0)


PAGE = 16


def paged_batch(lengths, depth=64, heads=4, kv_heads=1, garbage=math.nan):
    """A cache of shuffled pages whose unused rows hold garbage, and the sequences themselves."""
    pages = [-(-length // PAGE) for length in lengths]
    order = torch.randperm(sum(pages)).tolist()
    cache = torch.full((2, sum(pages) + 1, PAGE, kv_heads, depth), garbage).bfloat16()
    table = torch.full((len(lengths), max(pages) + 1), sum(pages), dtype=torch.int32)
    sequences = []
    for b, length in enumerate(lengths):
        rows = torch.randn(2, length, kv_heads, depth).bfloat16()
        for p in range(pages[b]):
            table[b, p] = order.pop()
            part = rows[:, p * PAGE : (p + 1) * PAGE]
            cache[:, table[b, p], : part.shape[1]] = part
        sequences.append(rows)
    q = torch.randn(len(lengths), 1, heads, depth).bfloat16()
    used = torch.tensor(lengths, dtype=torch.int32)
    return q, cache, table, used, sequences


def decode(q, cache, table, used, **options):
    return flash_attn_with_kvcache(
        q, *cache, cache_seqlens=used, page_table=table, causal=True, **options
    )


@pytest.mark.parametrize("parts", [2, 5])
def test_ragged_paged_decode(poisoned, parts):
    """Lengths from none to 5000 in one batch: short sequences have parts without keys, one has no keys at all."""
    lengths = [0, 1, 127, 128, 129, 700]
    q, cache, table, used, sequences = paged_batch(lengths)
    out = decode(q, cache, table, used, num_splits=parts)
    assert torch.equal(out[0], torch.zeros_like(out[0]))
    for b, (k, v) in enumerate(sequences):
        if lengths[b]:
            exact, _ = attention_float64(q[b : b + 1], k[None], v[None], causal=True)
            limit = allowed_error(q[b : b + 1], k[None], v[None], causal=True)
            assert max_error(out[b : b + 1], exact) <= limit.out, lengths[b]


def test_packed_queries_and_rows_of_nobody_stay_as_they_were(poisoned):
    """Three queries of 0, 2 and 1 tokens in a tensor of six rows: rows 3 to 5 belong to no sequence."""
    q, cache, table, used, sequences = paged_batch([40, 300, 33])
    q = torch.randn(6, 4, 64).bfloat16()
    out = torch.full_like(q, 7.0)
    offsets = torch.tensor([0, 0, 2, 3], dtype=torch.int32)
    k, v = cache
    arguments = dict(
        cu_seqlens_q=offsets, max_seqlen_q=2, seqused_k=used, page_table=table, causal=True
    )
    expected = flash_attn_varlen_func(q, k, v, **arguments)
    flash_attn_varlen_func(q, k, v, out=out, num_splits=3, **arguments)
    torch.testing.assert_close(out[:3], expected[:3], atol=2e-2, rtol=0)
    assert (out[3:] == 7.0).all()


def test_a_fixed_cut_gives_the_same_bits_in_every_batch():
    """Alone, second of three, and last of sixteen: the number of parts differs, the cut and the bits do not."""
    torch.manual_seed(1)
    lengths = [300, 290, 700] + [20] * 13
    q, cache, table, used, _ = paged_batch(lengths)
    alone = decode(q[1:2], cache, table[1:2], used[1:2], tokens_per_split=128)
    three = decode(q[:3], cache, table[:3], used[:3], tokens_per_split=128)
    turned = decode(
        *(torch.cat((t[2:], t[:2])) if t.shape[0] == 16 else t for t in (q,)),
        cache,
        torch.cat((table[2:], table[:2])),
        torch.cat((used[2:], used[:2])),
        tokens_per_split=128,
    )
    assert torch.equal(alone[0], three[1]) and torch.equal(alone[0], turned[15])


def test_the_same_call_gives_the_same_bits():
    q, cache, table, used, _ = paged_batch([700, 20])
    first = decode(q, cache, table, used, num_splits=4)
    assert torch.equal(first, decode(q, cache, table, used, num_splits=4))


# --- stream-K split


@pytest.fixture
def few_sms(monkeypatch):
    """Six CTAs share the tiles, down to one each: some take several sequences, some a part of one."""
    monkeypatch.setattr(split, "num_sms", lambda device: 6)
    changed(monkeypatch, split_least_keys=256)
    monkeypatch.setattr(split, "cluster_parts", lambda *_: None)


# Swap-AB tiles, and one query tile, whose load warp has its own base.
@pytest.mark.parametrize("swap", ["auto", "off"])
def test_ragged_paged_decode_shared_out(swap, poisoned, few_sms, monkeypatch):
    """The same ragged batch, and again with other lengths in the same tensors, as a graph is replayed."""
    monkeypatch.setenv("CUTE_FA4_SWAP", swap)
    q, cache, table, used, sequences = paged_batch([0, 1, 127, 128, 129, 1100])
    for lengths in ([0, 1, 127, 128, 129, 1100], [0, 1, 90, 128, 1, 333]):
        used.copy_(torch.tensor(lengths))
        out, lse = decode(q, cache, table, used, num_splits=0, return_lse=True)
        assert torch.equal(out[0], torch.zeros_like(out[0])) and (lse[0] == -math.inf).all()
        for b, (k, v) in enumerate(sequences):
            if lengths[b]:
                one = q[b : b + 1], k[None, : lengths[b]], v[None, : lengths[b]]
                exact, exact_lse = attention_float64(*one, causal=True)
                limit = allowed_error(*one, causal=True)
                assert max_error(out[b : b + 1], exact) <= limit.out, lengths[b]
                assert max_error(lse[b : b + 1], exact_lse) <= limit.lse, lengths[b]
    assert torch.equal(out, decode(q, cache, table, used, num_splits=None)), "the same bits again"


def test_shared_keys_with_a_sink_lengths_of_queries_and_rows_of_nobody(poisoned, few_sms):
    """A sink counts once, in the piece that begins a block; queries beyond seqused_q keep what they hold."""
    torch.manual_seed(2)
    q, k, v = qkv(4, 3, 700, heads=2, kv_heads=2)
    given = dict(
        seqused_q=torch.tensor([3, 0, 1, 2], dtype=torch.int32),
        seqused_k=torch.tensor([700, 300, 0, 513], dtype=torch.int32),
        learnable_sink=torch.tensor([0.5, -1.0]),
        causal=True,
    )
    expected, found = torch.full_like(q, 7.0), torch.full_like(q, 7.0)
    _, expected_lse = flash_attn_varlen_func(q, k, v, out=expected, return_lse=True, **given)
    _, lse = flash_attn_varlen_func(q, k, v, out=found, return_lse=True, num_splits=0, **given)
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=0)
    for b, number in enumerate(given["seqused_q"]):
        assert (found[b, number:] == 7.0).all()
        torch.testing.assert_close(
            lse[b, :, :number], expected_lse[b, :, :number], atol=1e-4, rtol=0
        )


# --- speculative decoding: q drafted tokens a sequence, the last keys of its cache


def drafted_before(batch, head, q_idx, kv_idx, aux):
    """A tree of drafts: bit j of a token's number in aux[0] says that it sees draft j. All see what is no draft."""
    from cutlass import Int32, select_

    draft = kv_idx - (aux.num_keys - aux.seqlen_q)
    shown = (aux[0][aux.q_row] >> select_(draft > 0, draft, Int32(0))) & 1
    return (draft < 0) | (shown != 0)


def trees(batch: int, drafts: int) -> torch.Tensor:
    """(batch, drafts) int32: a draft sees itself and what its parent, a random earlier one, sees."""
    seen = torch.zeros(batch, drafts, dtype=torch.int32)
    for b in range(batch):
        for i in range(drafts):
            parent = int(torch.randint(-1, i, ()))
            seen[b, i] = (seen[b, parent] if parent >= 0 else 0) | 1 << i
    return seen


def exact_step(q, k, v, seen):
    """One sequence in float64: (drafts, heads, depth). seen: numbers of drafts as above; None: every earlier one."""
    drafts, heads, keys = q.shape[0], q.shape[1], k.shape[0]
    k, v = (x.double().repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) / q.shape[-1] ** 0.5
    draft = torch.arange(keys) - (keys - drafts)
    if seen is None:
        shows = draft[None] <= torch.arange(drafts)[:, None]
    else:
        shows = (draft < 0)[None] | ((seen[:, None] >> draft.clamp(min=0)[None]) & 1 > 0)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~shows, -math.inf).softmax(-1), v)


# Sixteen drafts of two heads are 32 rows, of four heads 64 rows of a block, of sixteen heads all 256 of a CTA.
@pytest.mark.parametrize(
    "drafts, heads, tree, parts",
    [
        (3, 4, True, 3),
        (16, 2, True, 0),
        *(
            pytest.param(*case, marks=pytest.mark.sweep)
            for case in (
                (5, 4, True, 0), (16, 4, False, 0), (16, 4, False, 3), (16, 16, True, 0), (16, 16, False, 3),
            )
        ),
    ],
)  # fmt: skip
def test_drafts_see_their_ancestors_and_all_keys_before(
    poisoned, few_sms, drafts, heads, tree, parts
):
    torch.manual_seed(drafts)
    lengths = [16, 129, 700, 1100]
    _, cache, table, used, sequences = paged_batch(lengths)
    q = torch.randn(len(lengths), drafts, heads, 64).bfloat16()
    seen, more = trees(len(lengths), drafts), {}
    if tree:
        more = dict(mask_mod=drafted_before, aux_tensors=[seen.view(-1)])
    out = decode(q, cache, table, used, num_splits=parts, **more)
    for b, (k, v) in enumerate(sequences):
        exact = exact_step(q[b], k, v, seen[b] if tree else None)
        limit = allowed_error(q[b : b + 1], k[None], v[None], causal=True)
        assert max_error(out[b], exact) <= limit.out, lengths[b]


# --- how many parts


def chosen(seqlen_q=1, seqlen_k=16384, batch=1, heads=64, kv_heads=8, **options):
    """Parts of a dense call with such shapes, from metadata alone; None: no split."""
    q = torch.empty(batch, seqlen_q, heads, 128, dtype=torch.bfloat16, device="meta")
    k = torch.empty(batch, seqlen_k, kv_heads, 128, dtype=torch.bfloat16, device="meta")
    group = heads // kv_heads
    config = choose_config(
        qkv_dtype="bf16", head_dim=128, group=group, pack_gqa=seqlen_q * group <= 256
    )
    found = split.split_of(q, k, Where(), resolve(q, **options), config)
    return found and found.parts


def test_automatic_splits_fill_the_chip_as_far_as_their_merge_pays():
    """For n tiles, n / p + p / 10 is smallest at p * p = 10 n; a part has at least one tile."""
    assert chosen(num_splits=0) == 148 // 8
    assert chosen(num_splits=None) == chosen(num_splits=0)
    assert chosen(num_splits=0, seqlen_k=2048) == 12, "12 * 12 of 16 * 10"
    assert chosen(num_splits=0, seqlen_k=512) == 4
    assert chosen(num_splits=0, seqlen_k=511) is None, "not four tiles"
    assert chosen(num_splits=0, batch=64) is None, "512 blocks keep 148 SMs busy"
    assert chosen(num_splits=0, window_size=(1024, 0)) == 8
    assert chosen(num_splits=1) is None
    assert chosen(num_splits=7) == 7
    assert chosen(tokens_per_split=4096, num_splits=0) == 4


@pytest.mark.parametrize(
    "batch, seqlen_q, seqlen_k, why",
    [
        (2, 8192, 8192, None),
        (1, 1184, 4096, None),  # 5 * 32 blocks
        (1, 1024, 4096, "4 * 32 blocks for 148 SMs"),
        (64, 1, 8192, "256 rows of a CTA are more than 16 parts of one"),
        (64, 16, 8192, None),  # as much for either
        (64, 15, 8192, "256 rows of a CTA are more than 16 parts of 15"),
    ],
)
def test_ctas_own_all_parts_where_they_fill_the_chip_in_no_more_memory(
    batch, seqlen_q, seqlen_k, why
):
    q = torch.empty(batch, seqlen_q, 32, 128, dtype=torch.bfloat16, device="meta")
    k = torch.empty(batch, seqlen_k, 32, 128, dtype=torch.bfloat16, device="meta")
    config = choose_config(
        qkv_dtype="bf16", head_dim=128, maximum="exact", lone_tiles=False, family="mha2q"
    )
    found = split.split_of(q, k, Where(), resolve(q, batch_invariant=True), config)
    assert isinstance(found, split.Split if why else split.OwnParts), why
    assert found.tiles_each == split.INVARIANT_TOKENS // 128


WIDE = dict(head_dim=256, family="mhawide")
SINKS = dict(head_dim=64, family="mha2q", maximum="exact", lone_tiles=False, sink=True)


@pytest.mark.parametrize(
    "choices, tokens",
    [
        (SINKS, split.INVARIANT_TOKENS),
        (SINKS | dict(one_query_tile=True), split.INVARIANT_TOKENS),
        (SINKS | dict(kv_layout="paged", page_size=7, seqused_k=True), split.INVARIANT_TOKENS),
        (SINKS | dict(mask=masks.Window(True, True)), split.INVARIANT_TOKENS_IN_MEMORY),
        (WIDE, split.INVARIANT_TOKENS_IN_MEMORY),
    ],
)
def test_parts_of_invariant_calls_are_short_where_ctas_merge_them(choices, tokens):
    """The same for decode and prefill, and for any storage: a part is part of the arithmetic."""
    assert split.invariant_tokens(choose_config(qkv_dtype="bf16", **choices)) == tokens


def lengths_on_the_device(batch, pages, seqlen_q=1, heads=64, page=16):
    """What num_splits=0 makes of paged decode of `batch` sequences, a page table `pages` wide, from metadata alone."""
    q = torch.empty(batch, seqlen_q, heads, 128, dtype=torch.bfloat16, device="meta")
    k = torch.empty(1, page, 8, 128, dtype=torch.bfloat16, device="meta")
    lengths = torch.empty(batch, dtype=torch.int32, device="meta")
    table = torch.empty(batch, pages, dtype=torch.int32, device="meta")
    where = Where(CallTensors(seqused_k=lengths, page_table=table))
    config = choose_config(
        qkv_dtype="bf16", head_dim=128, group=heads // 8, pack_gqa=True, kv_layout="paged",
        page_size=page, seqused_k=True,
    )  # fmt: skip
    return split.split_of(q, k, where, resolve(q, num_splits=0), config)


def test_where_only_the_device_knows_the_lengths_keys_are_shared_out():
    found = lengths_on_the_device(batch=64, pages=1024)
    assert (found.ctas, found.blocks, found.slots) == (148, 64 * 8, 148 + 64 * 8)
    assert (found.positions, found.heads, found.least) == (1, 8, 1)
    assert lengths_on_the_device(batch=1, pages=64).ctas == 8 * 9, "as many as tiles"
    assert lengths_on_the_device(batch=1, pages=256).ctas == 8 * 18, "as many as their merge pays"
    assert lengths_on_the_device(batch=64, pages=32).ctas == 148
    assert lengths_on_the_device(batch=64, pages=31) is None, "496 keys"
    assert lengths_on_the_device(batch=2, pages=1024, seqlen_q=40).blocks == 2 * 8 * 2
    assert lengths_on_the_device(batch=64, pages=1024, seqlen_q=40) is None, (
        "1024 blocks, no decode"
    )
    assert lengths_on_the_device(batch=1 << 12, pages=1 << 18) is None, "more tiles than 2^30"


@pytest.mark.parametrize(
    "options, error, text",
    [
        (dict(num_splits=-1), ValueError, "num_splits: -1; accepted: None or 0"),
        (dict(num_splits=2000), ValueError, "num_splits: 2000"),
        (dict(num_splits=1.0), TypeError, "num_splits: a float"),
        (dict(num_splits=True), TypeError, "num_splits: a bool"),
        (dict(tokens_per_split=100), ValueError, "tokens_per_split: 100; accepted: a positive"),
        (dict(tokens_per_split=0), ValueError, "tokens_per_split: 0"),
        (dict(tokens_per_split=128, num_splits=3), ValueError, "num_splits: 3 with tokens"),
        (dict(tokens_per_split=128, seqlen_k=1 << 20), ValueError, "8192 parts"),
    ],
    ids=str,
)
def test_what_is_no_split_is_refused(options, error, text):
    with pytest.raises(error, match=text):
        chosen(**options)


def test_rows_that_32_bits_do_not_hold_are_refused():
    """256 packed sequences of up to 2^17 queries and 64 heads: 2^31 rows to merge, one too many."""
    q = torch.empty(1 << 17, 64, 128, dtype=torch.bfloat16, device="meta")
    k = torch.empty(64, 16, 8, 128, dtype=torch.bfloat16, device="meta")
    offsets = torch.empty(257, dtype=torch.int32, device="meta")
    where = Where(CallTensors(cu_seqlens_q=offsets), max_seqlen_q=1 << 17)
    config = choose_config(qkv_dtype="bf16", head_dim=128, group=8)
    with pytest.raises(
        ValueError, match=f"launch for {1 << 31}; accepted: at most {(1 << 31) - 1}"
    ):
        split.split_of(q, k, where, resolve(q, num_splits=2), config)
