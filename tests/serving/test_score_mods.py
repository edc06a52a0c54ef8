"""Score functions against float64: the ones of the package, the user's, and several at once."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch

from cute_fa4 import EmulatorWarning, flash_attn_func, masks
from cute_fa4.score_mods import (
    additive_bias,
    alibi,
    alibi_slope,
    composed,
    relative_logits,
    soft_cap,
)
from cute_fa4.sm100.blueprint.score_mods import ScoreMod
from tests.serving.batches import (
    Batch,
    assert_agrees,
    packed_kv,
    packed_q,
    paged_kv,
    positions,
    run,
)


def causal(p, j):
    return j <= p


# Two query tiles and two key tiles with a tail; one query of a long cache.
QUERIES, KEYS = [140, 1], [150, 200]


def distances(batch, b):
    p, j = positions(batch.queries[b], batch.keys[b])
    return p - j


# Nearly everything saturated; nearly nothing, for the sweep.
@pytest.mark.parametrize("cap", [0.5, pytest.param(30.0, marks=pytest.mark.sweep)])
def test_soft_cap_bounds_scores(cap):
    batch = Batch.draw(QUERIES, KEYS)
    out, lse = run(packed_q(batch), packed_kv(batch), causal=True, softcap=cap)
    assert_agrees(batch, out, lse, visible=causal, softcap=cap)


# No power of two, whose slopes are two sequences; a power of two, whose are one, for the sweep.
@pytest.mark.parametrize("heads", [pytest.param(4, marks=pytest.mark.sweep), 6])
def test_alibi(heads):
    batch = Batch.draw(QUERIES, KEYS, heads=(heads, 2))
    slopes = torch.tensor([alibi_slope(h, heads) for h in range(heads)], dtype=torch.float64)

    def reference(s, b):
        return s - slopes[:, None, None] * distances(batch, b).abs()

    out, lse = run(packed_q(batch), packed_kv(batch), score_mod=alibi(heads))
    assert_agrees(batch, out, lse, score_mod=reference)


@pytest.mark.parametrize("heads", [True, False])
def test_a_materialised_mask_is_added_and_hides_what_it_does_not_cover(heads):
    batch = Batch.draw(QUERIES, KEYS)
    bias = torch.randn(2, 2, 140, 180) if heads else torch.randn(2, 140, 180)
    bias[..., 3] = -torch.inf  # a mask in the bias itself

    def reference(s, b):
        m, n = s.shape[1:]
        full = torch.full((*bias.shape[1:-2], m, max(n, 180)), -torch.inf, dtype=torch.float64)
        full[..., :180] = bias[b][..., :m, :].double()
        return s + full[..., :n]

    out, lse = run(
        packed_q(batch), packed_kv(batch), score_mod=additive_bias(heads), aux_tensors=[bias]
    )
    assert_agrees(batch, out, lse, score_mod=reference)


def relative(s, logits, distance, extent):
    near = (distance >= 0) & (distance < extent)
    index = torch.where(near, distance, 0).expand(*s.shape)
    return s + torch.where(near, logits.double().transpose(0, 1).gather(2, index), 0.0)


def test_relative_logits_of_packed_rows():
    batch = Batch.draw(QUERIES, KEYS)
    extent, logits = 20, torch.randn(146, 2, 20, dtype=torch.bfloat16)
    rows = [logits[:140], logits[140:141]]
    out, lse = run(
        packed_q(batch),
        packed_kv(batch),
        causal=True,
        score_mod=relative_logits(extent),
        aux_tensors=[logits],
    )
    assert_agrees(
        batch, out, lse, visible=causal,
        score_mod=lambda s, b: relative(s, rows[b], distances(batch, b), extent),
    )  # fmt: skip


def test_relative_logits_of_a_dense_batch_count_rows_through_the_batch():
    batch = Batch.draw([30, 30], [50, 50])
    extent, logits = 20, torch.randn(60, 2, 20, dtype=torch.bfloat16)
    q, k, v = (torch.stack(x) for x in (batch.q, batch.k, batch.v))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmulatorWarning)
        out, lse = flash_attn_func(
            q,
            k,
            v,
            causal=True,
            return_lse=True,
            score_mod=relative_logits(extent),
            aux_tensors=[logits],
        )
    assert_agrees(
        batch, out, lse, visible=causal,
        score_mod=lambda s, b: relative(s, logits[30 * b : 30 * b + 30], distances(batch, b), extent),
    )  # fmt: skip


# --- the user's functions


def weighted(score, batch, head, q_idx, kv_idx, aux):
    """Every index and two tensors, so that a wrong one shows."""
    from cutlass import Float32

    per_key, per_sequence = aux[0], aux[1]
    place = (q_idx * 3 + head * 5 + aux.num_keys - aux.seqlen_q).to(Float32)
    return (
        score
        + per_key[batch, kv_idx].to(Float32)
        + place * Float32(0.001) * per_sequence[batch].to(Float32)
    )


def even_documents(batch, head, q_idx, kv_idx, aux):
    """Keys of the query's own document."""
    return aux[0][batch, kv_idx] == aux[1][batch, q_idx]


def test_a_user_function_gets_the_indices_and_tensors_it_was_promised():
    batch = Batch.draw(QUERIES, KEYS)
    per_key, per_sequence = torch.randn(2, 200).half(), torch.tensor([3.0, -2.0])

    def reference(s, b):
        _, m, n = s.shape
        place = torch.arange(m)[:, None] * 3 + torch.arange(2)[:, None, None] * 5 + n - m
        return s + per_key[b, :n].double() + place * 0.001 * per_sequence[b].double()

    for storage in (packed_kv(batch), paged_kv(batch, 32)):
        out, lse = run(
            packed_q(batch),
            storage,
            causal=True,
            score_mod=weighted,
            aux_tensors=[per_key, per_sequence],
        )
        assert_agrees(batch, out, lse, visible=causal, score_mod=reference)


def test_soft_cap_mask_function_window_sink_and_score_function_together():
    batch = Batch.draw(QUERIES, KEYS)
    of_key, of_query = (
        torch.randint(0, 3, (2, 200), dtype=torch.int32),
        torch.randint(0, 3, (2, 140)),
    )
    sink = torch.tensor([1.0, -2.0], dtype=torch.float16)

    def doubled(score, batch, head, q_idx, kv_idx, aux):
        return score + score

    out, lse = run(
        packed_q(batch),
        packed_kv(batch),
        mask=masks.window(90, 4),
        softcap=2.0,
        score_mod=doubled,
        mask_mod=even_documents,
        aux_tensors=[of_key, of_query],
        learnable_sink=sink,
    )
    documents = iter(
        [
            of_query[b, :m, None] == of_key[b, None, :n]
            for b, (m, n) in enumerate(zip(QUERIES, KEYS, strict=True))
        ]
    )
    assert_agrees(
        batch, out, lse, softcap=2.0, sink=sink, score_mod=lambda s, b: 2 * s,
        visible=lambda p, j: (p - 90 <= j) & (j <= p + 4) & next(documents),
    )  # fmt: skip


def test_mods_compose_in_order():
    batch = Batch.draw([5], [40])
    both = composed(alibi(2), soft_cap(1.5))
    slopes = torch.tensor([alibi_slope(h, 2) for h in range(2)], dtype=torch.float64)

    def reference(s, b):
        return 1.5 * torch.tanh((s - slopes[:, None, None] * distances(batch, b).abs()) / 1.5)

    assert_agrees(
        batch, *run(packed_q(batch), packed_kv(batch), score_mod=both), score_mod=reference
    )
    assert composed(None, both) is both and composed(both, None) is both


def test_hidden_keys_do_not_reach_a_function_with_their_values():
    # NaN after the last key of a page: the function sees scores of rows that do not exist, the mask removes them.
    batch = Batch.draw([2], [37])
    out, lse = run(packed_q(batch), paged_kv(batch, 32), softcap=5.0)
    assert_agrees(batch, out, lse, softcap=5.0)


# --- the compile key of a function


def scaled_by(factor):
    return lambda score, *indices: score * factor


def test_functions_that_differ_have_different_keys():
    one_line = [lambda s, *_: s + 1, lambda s, *_: s - 1, lambda s, *_: s + 2]
    functions = [*one_line, scaled_by(2.0), scaled_by(3.0), weighted]
    keys = [ScoreMod.of(function).key for function in functions]
    for a, b in itertools.combinations(keys, 2):
        assert a != b


FACTOR = 2.0


def reads_a_global(score, *indices):
    return score * FACTOR


def calls_a_global(score, *indices):
    return reads_a_global(score) + 1


def test_the_key_follows_values_that_a_function_finds_outside(monkeypatch):
    before = [ScoreMod.of(f).key for f in (reads_a_global, calls_a_global)]
    assert before == [ScoreMod.of(f).key for f in (reads_a_global, calls_a_global)]
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    after = [ScoreMod.of(f).key for f in (reads_a_global, calls_a_global)]
    assert all(a != b for a, b in zip(before, after, strict=True))


def test_equal_closures_share_a_key():
    assert ScoreMod.of(scaled_by(2.0)) == ScoreMod.of(scaled_by(2.0))


# --- what a function may return: said while it is traced, before the compiler complains about itself

RETURNED = {
    "a score_mod without return": (dict(score_mod=lambda *_: None), "score_mod: .* returned None; .*return the score"),
    "a score_mod that says yes": (dict(score_mod=lambda *_: True), "score_mod: .* returned True; accepted: a score"),
    "a score_mod of two scores": (dict(score_mod=lambda s, *_: (s, s)), "score_mod: .* returned .*; accepted: a score"),
    "a mask_mod without return": (dict(mask_mod=lambda *_: None), "mask_mod: .* returned None; .*return the condition"),
    "a mask_mod of an int": (dict(mask_mod=lambda *_: 1), "mask_mod: .* returned 1; accepted: a comparison"),
    "a mask_mod of an index": (dict(mask_mod=lambda b, h, i, j, aux: j), "mask_mod: .* returned Int32; accepted:"),
}  # fmt: skip


@pytest.mark.parametrize("options, text", RETURNED.values(), ids=RETURNED.keys())
def test_a_function_that_returns_something_else_is_named(options, text):
    x = torch.zeros(1, 8, 1, 64, dtype=torch.bfloat16)
    with pytest.raises(TypeError, match=f"^{text}") as refused:
        flash_attn_func(x, x, x, **options)
    assert len(str(refused.value)) < 300


def test_a_mask_mod_may_be_the_same_for_every_key():
    q, k, v = torch.randn(3, 1, 8, 1, 64, dtype=torch.bfloat16)
    assert torch.equal(flash_attn_func(q, k, v, mask_mod=lambda *_: True), flash_attn_func(q, k, v))
    assert (flash_attn_func(q, k, v, mask_mod=lambda *_: False) == 0).all()
