"""skip_softmax_threshold_scale_factor: every kind of call follows the rule, tile by tile, of a float64 oracle."""

import math
import re
from dataclasses import dataclass, field

import pytest
import torch

from cute_fa4 import capabilities, flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from cute_fa4.reference import EXP2_RELATIVE_ERROR_OF_FP8
from tests.attention import skipping
from tests.attention.skipping import KEYS, Rule

# Relative error of a weight and of a result, each rounded to nearest; P of 8 bits has 3 bits after the first.
FP8 = torch.float8_e4m3fn
ERROR = {torch.bfloat16: 2 * 2.0**-8, torch.float16: 2 * 2.0**-11, FP8: 2.0**-4 + 2.0**-8}
SLACK = 1.2  # exponentials, sums in float32
SCALES = 1.0, 0.1, 0.5, 0.05, 1.0, 0.2, 0.05, 0.05  # of the keys of successive tiles


@dataclass(frozen=True)
class Case:
    """A call. lengths: (queries, keys) of sequences; more than one, or `layout`, makes a call of varlen."""

    depth: int = 128
    lengths: tuple = ((300, 700),)
    heads: tuple[int, int] = (1, 1)
    dtype: torch.dtype = torch.bfloat16
    factor: float = 0.2
    causal: bool = False
    window: tuple = (None, None)
    layout: str = "dense"
    sink: bool = False
    options: dict = field(default_factory=dict)


CASES = {
    "full": Case(),
    "d64": Case(depth=64),
    "d96": Case(depth=96),
    "d192, v of 128": Case(depth=192),
    "fp16": Case(dtype=torch.float16),
    "fp8": Case(dtype=FP8),
    "fp8 d64": Case(dtype=FP8, depth=64, causal=True),
    "causal": Case(causal=True),
    "causal d64": Case(causal=True, depth=64),
    "window": Case(window=(300, 0)),
    "groups": Case(heads=(8, 2), lengths=((70, 600),), causal=True),
    "groups apart": Case(heads=(4, 2), lengths=((70, 600),), options=dict(pack_gqa=False)),
    "group of 3": Case(heads=(3, 1), lengths=((140, 400),)),
    "sinks": Case(sink=True, heads=(2, 1), causal=True),
    "sinks d64": Case(sink=True, depth=64),
    "soft cap": Case(options=dict(softcap=2.0), factor=0.5),
    "packed": Case(layout="packed", lengths=((300, 500), (37, 300), (0, 200), (129, 900)), causal=True),
    "packed d64": Case(layout="packed", lengths=((130, 500), (37, 300)), depth=64),
    "packed, a row": Case(layout="packed", lengths=((1, 700), (5, 300), (257, 400)), causal=True),
    "pages": Case(layout="paged", lengths=((150, 500), (37, 300)), causal=True),
    "pages d64, groups": Case(layout="paged", lengths=((150, 500), (37, 300)), depth=64, heads=(4, 1)),
    "decode": Case(layout="cache", lengths=((1, 700), (1, 300)), heads=(8, 2), causal=True),
    "decode d64": Case(layout="cache", lengths=((2, 700), (2, 129)), heads=(8, 1), depth=64, causal=True),
    "decode of one head": Case(layout="cache", lengths=((1, 900),), causal=True),
    "parts": Case(options=dict(num_splits=3), sink=True, causal=True),
    "parts d64": Case(options=dict(num_splits=2), depth=64),
    "parts of 256": Case(options=dict(tokens_per_split=256), layout="packed", lengths=((300, 700), (37, 300))),
    "parts of a cache": Case(
        options=dict(num_splits=4), layout="cache", lengths=((1, 1100), (1, 300)), heads=(8, 2), causal=True,
    ),
    "parts of fp8": Case(options=dict(num_splits=2), dtype=FP8),
    "short sequences": Case(layout="packed", lengths=((100, 130), (100, 260)), factor=400.0),
}  # fmt: skip


def drawn(case: Case) -> list[tuple]:
    """q, k, v of each sequence, of numbers that the dtype has."""
    generator = torch.Generator().manual_seed(7)
    sequences, of_v = [], min(case.depth, 128)
    for queries, keys in case.lengths:
        shapes = (
            (queries, case.heads[0], case.depth),
            (keys, case.heads[1], case.depth),
            (keys, case.heads[1], of_v),
        )
        q, k, v = (torch.randn(shape, generator=generator) for shape in shapes)
        for tile, begin in enumerate(range(0, keys, KEYS)):
            k[begin : begin + KEYS] *= SCALES[tile % len(SCALES)]
        q *= 2.0
        q[queries // 2 :] *= 0.5  # more even weights: fewer tiles are skipped
        sequences.append(tuple(x.to(case.dtype) for x in (q, k, v)))
    return sequences


def call(case: Case, sequences: list, counts, sink) -> list[tuple]:
    """-> (out, lse) of each sequence, (queries, heads, d) and (heads, queries)."""
    options = dict(
        causal=case.causal, window_size=case.window, learnable_sink=sink, return_lse=True, skipped_tiles=counts,
        skip_softmax_threshold_scale_factor=factor_of(case), **case.options,
    )  # fmt: skip
    if case.layout == "dense":
        ((q, k, v),) = sequences
        out, lse = flash_attn_func(q[None], k[None], v[None], **options)
        return [(out[0], lse[0])]
    if case.layout == "cache":
        return of_cache(sequences, options)
    q, k, v = (torch.cat(x) for x in zip(*sequences, strict=True))
    offsets_q, offsets_k = (
        torch.tensor([0, *(len(s[i]) for s in sequences)]).cumsum(0).int() for i in (0, 1)
    )
    if case.layout == "paged":
        k, v, table, lengths = paged(sequences, case)
        options |= dict(page_table=table, seqused_k=lengths)
        out, lse = flash_attn_varlen_func(q, k, v, offsets_q, **options)
    else:
        out, lse = flash_attn_varlen_func(q, k, v, offsets_q, offsets_k, **options)
    bounds = list(zip(offsets_q[:-1].tolist(), offsets_q[1:].tolist(), strict=True))
    return [(out[a:b], lse[:, a:b]) for a, b in bounds]


def paged(sequences: list, case: Case, rows: int = 16) -> tuple:
    """-> k and v in pages, the page table, the lengths; unused rows are NaN."""
    pages = max(-(-len(k) // rows) for _, k, _ in sequences)
    table = torch.randperm(len(sequences) * pages, generator=torch.Generator().manual_seed(1))
    table = table.reshape(len(sequences), pages).int()
    pools = []
    for i in (1, 2):
        pool = torch.full((table.numel(), rows, *sequences[0][i].shape[1:]), math.nan).to(
            case.dtype
        )
        for b, sequence in enumerate(sequences):
            for n in range(-(-len(sequence[i]) // rows)):
                part = sequence[i][n * rows : (n + 1) * rows]
                pool[table[b, n], : len(part)] = part
        pools.append(pool)
    return *pools, table, torch.tensor([len(k) for _, k, _ in sequences]).int()


def of_cache(sequences: list, options: dict) -> list[tuple]:
    longest = max(len(k) for _, k, _ in sequences)
    caches = [
        torch.stack([torch.cat((s[i], s[i].new_zeros(longest - len(s[i]), *s[i].shape[1:]))) for s in sequences])
        for i in (1, 2)
    ]  # fmt: skip
    q = torch.stack([q for q, _, _ in sequences])
    lengths = torch.tensor([len(k) for _, k, _ in sequences]).int()
    out, lse = flash_attn_with_kvcache(q, *caches, cache_seqlens=lengths, **options)
    return list(zip(out, lse, strict=True))


def factor_of(case: Case) -> float:
    """A factor for the mean length, so that `factor` of a case is a threshold."""
    keys = [keys for _, keys in case.lengths]
    return case.factor * sum(keys) / len(keys)


def rule_of(case: Case, queries: int, keys: int, sink) -> Rule:
    left, right = case.window
    right = 0 if case.causal else right

    def visible(i, j):
        at = i + keys - queries
        low = -1 if left is None else at - left
        high = keys if right is None else at + right
        return ((j >= low) & (j <= high)).expand(len(i), -1)

    packs = case.heads[0] > case.heads[1] and case.options.get("pack_gqa") is not False
    packs = packs and 128 % (case.heads[0] // case.heads[1]) == 0
    cap = case.options.get("softcap", 0.0)
    longest = max(n for _, n in case.lengths)
    split = case.options.get("num_splits", 1), 0
    if "tokens_per_split" in case.options:
        each = case.options["tokens_per_split"]
        split = -(-longest // each), each // KEYS
    return Rule(factor_of(case), case.depth**-0.5, packs, visible, sink, cap, split)


def assert_follows_the_rule(case: Case) -> None:
    sequences, counts = drawn(case), torch.zeros(2, dtype=torch.int32)
    sink = torch.linspace(8.0, -1.0, case.heads[0]) if case.sink else None
    found = call(case, sequences, counts, sink)
    skipped, warps, tiles = 0, 0, 0
    for (q, k, v), (out, lse) in zip(sequences, found, strict=True):
        expected = skipping.attention(q, k, v, rule_of(case, len(q), len(k), sink))
        error = (out.double() - expected.out).abs()
        assert (error <= SLACK * ERROR[case.dtype] * expected.weighed + 1e-5).all(), error.max()
        error_of_lse = EXP2_RELATIVE_ERROR_OF_FP8 if case.dtype is FP8 else 1e-3
        torch.testing.assert_close(lse.double(), expected.lse, atol=error_of_lse, rtol=0)
        skipped, warps = skipped + expected.tiles, warps + expected.warps
        tiles += expected.all_tiles
    assert counts.tolist() == [skipped, tiles]
    assert warps > 0, "the case skips nothing"


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_call_follows_the_rule(case):
    assert_follows_the_rule(case)


def small(depth: int = 128):
    """q, k, v of a call without any structure; a threshold of 0.2 skips tiles of half of the rows."""
    ((q, k, v),) = drawn(Case(depth=depth, lengths=((200, 500),), causal=True))
    return q[None], k[None], v[None]


@pytest.mark.parametrize("depth", (64, 128))
def test_a_threshold_below_every_weight_changes_no_bit(depth, monkeypatch):
    monkeypatch.setenv("CUTE_FA4_MAXIMUM", "exact")
    tensors, options = small(depth), dict(return_lse=True)
    dense = flash_attn_func(*tensors, **options)
    skipping_none = flash_attn_func(*tensors, **options, skip_softmax_threshold_scale_factor=1e-30)
    for found, expected in zip(skipping_none, dense, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("depth", (64, 128))
def test_the_error_is_bounded_by_the_skipped_weight(depth):
    """A row loses at most threshold * keys of its largest weight, 1: the sum of its weights moves by as much."""
    q, k, v = small(depth)
    threshold = 1e-3
    _, dense = flash_attn_func(q, k, v, return_lse=True)
    counts = torch.zeros(2, dtype=torch.int32)
    options = dict(skip_softmax_threshold_scale_factor=threshold * k.shape[1], skipped_tiles=counts)
    _, lse = flash_attn_func(q, k, v, return_lse=True, **options)
    lost = 1 - torch.exp(lse.double() - dense.double())
    assert (lost >= -1e-4).all() and (lost <= threshold * k.shape[1]).all()


def test_nan_in_a_tile_of_small_scores_is_not_skipped():
    q, k, v = small()
    k[0, 300, 0, 5] = math.nan
    out = flash_attn_func(q, k, v, skip_softmax_threshold_scale_factor=100.0)
    assert out.isnan().all()


def test_hidden_rows_do_not_vote():
    """Rows beyond a sequence have the scores of its neighbour, which alone would need every tile."""
    ((q, k, v),) = drawn(Case(lengths=((40, 640),)))
    others = torch.randn_like(q) * 0.01
    counts, of_rows = torch.zeros(2, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    factor = 0.2 * 640
    packed = torch.cat((q[:20], others)), k, v
    both = torch.tensor([0, 20, 60]).int(), torch.tensor([0, 640, 640]).int()
    flash_attn_varlen_func(
        *packed, *both, skip_softmax_threshold_scale_factor=factor, skipped_tiles=counts
    )
    alone = q[None, :20], k[None], v[None]
    flash_attn_func(*alone, skip_softmax_threshold_scale_factor=factor, skipped_tiles=of_rows)
    assert of_rows[0] > 0 and counts.tolist() == of_rows.tolist()


REFUSED = {
    "zero": (dict(skip_softmax_threshold_scale_factor=0), ValueError, "skip_softmax_threshold_scale_factor: 0; acc"),
    "a word": (dict(skip_softmax_threshold_scale_factor="a"), TypeError, "skip_softmax_threshold_scale_factor: 'a'; a"),
    "True": (dict(skip_softmax_threshold_scale_factor=True), TypeError, "skip_softmax_threshold_scale_factor: True; a"),
    "infinite": (dict(skip_softmax_threshold_scale_factor=math.inf), ValueError, "inf; accepted: a finite number"),
    "invariance": (dict(batch_invariant=True), NotImplementedError, "scale_factor: 9.0 with batch_invariant: which"),
    "counts alone": (
        dict(skip_softmax_threshold_scale_factor=None, skipped_tiles=torch.zeros(2).int()), ValueError,
        "skipped_tiles: given without skip_softmax_threshold_scale_factor",
    ),
    "long counts": (dict(skipped_tiles=torch.zeros(2).long()), ValueError, "skipped_tiles: dtype torch.int64"),
    "three counts": (dict(skipped_tiles=torch.zeros(3).int()), ValueError, "skipped_tiles: dtype torch.int32, shape"),
}  # fmt: skip


@pytest.mark.parametrize("options, error, message", REFUSED.values(), ids=REFUSED.keys())
def test_refusals_name_the_argument(options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        flash_attn_func(*small(), **{"skip_softmax_threshold_scale_factor": 9.0} | options)


def test_k_rope_is_refused():
    q, k, v = small()
    rope = k[..., 0, 64:].contiguous()
    with pytest.raises(NotImplementedError, match="scale_factor: 9.0 with k_rope; accepted"):
        flash_attn_func(q, k[..., :64], v, k_rope=rope, skip_softmax_threshold_scale_factor=9.0)


def test_gradients_and_graphs():
    q, k, v = small()
    with pytest.raises(NotImplementedError, match="with skip_softmax_threshold_scale_factor"):
        flash_attn_func(q.requires_grad_(), k, v, skip_softmax_threshold_scale_factor=9.0)
    q = q.detach()
    compiled = torch.compile(flash_attn_func, fullgraph=True, backend="aot_eager")
    options = dict(causal=True, skip_softmax_threshold_scale_factor=100.0)
    expected = flash_attn_func(q, k, v, **options)
    assert torch.equal(compiled(q, k, v, **options), expected)
    assert not torch.equal(flash_attn_func(q, k, v, causal=True), expected)
    with pytest.raises(Exception, match="skipped_tiles: given to a call that a tracer"):
        compiled(q, k, v, **options, skipped_tiles=torch.zeros(2).int())


@pytest.mark.parametrize(
    "more, runs",
    [
        (dict(head_dim=128), True),
        (dict(head_dim=64, dtype="fp16", cache_seqlens=True, page_table=True, group=8), True),
        (dict(head_dim=256), False),
        (dict(head_dim=128, batch_invariant=True), False),
        (dict(head_dim=128, kv_dtype="e4m3", q_quantize="never"), False),
        (dict(head_dim=128, block_sparse_tensors=True, seqlen_q=512, causal=False), True),
        (dict(head_dim=128, num_splits=4), True),
    ],
)
def test_capabilities_tell(more, runs):
    asked = dict(dtype="bf16", skip_softmax_threshold_scale_factor=1.0) | more
    rows = capabilities(**asked)
    assert rows and all(row.runs == runs for row in rows)
    if runs:
        assert all(row.families == ("mha2q",) for row in rows)
    else:
        assert all("skip_softmax_threshold_scale_factor" in row.reasons[0] for row in rows)
