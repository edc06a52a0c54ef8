"""Scores of the lightning indexer against float64, and laws between calls."""

from __future__ import annotations

import pytest
import torch

from cute_fa4.sm100.indexer.config import IndexerConfig, queries_of_tile
from tests.attention.agreement import Schedule, schedules
from tests.sm100.indexer.problems import (
    CANARY,
    Problem,
    assert_agrees,
    dense,
    draw,
    int32,
    paged,
    seen_between,
)

SCHEDULES = [*schedules(3), Schedule("random", 7)]
# Queries that see all keys, a part, one tile, one key, none, and a range that leaves the tensor on both sides.
STARTS, ENDS = int32(0, 10, 130, 299, 50, -7), int32(300, 200, 140, 300, 50, 999)


def in_sweep(*values) -> list:
    """Each value compiles a kernel: the sweep runs them."""
    return [pytest.param(value, marks=pytest.mark.sweep) for value in values]


def of_prefill(heads: int, starts=STARTS, ends=ENDS, keys: int = 300) -> Problem:
    problem = draw(heads, len(starts), [keys], seed=heads)
    problem.sees = seen_between(problem, starts, ends)
    return problem


@pytest.mark.parametrize("heads", [64, 32])
def test_logits_of_a_prefill_agree_under_every_schedule(heads):
    problem = of_prefill(heads)
    found = [dense(problem, STARTS, ENDS, schedule) for schedule in SCHEDULES]
    assert_agrees(problem, found[0])
    assert all(torch.equal(each, found[0]) for each in found)


@pytest.mark.parametrize("heads", [8, 24, 128, *in_sweep(16, 40, 72, 120)])
def test_any_number_of_heads(heads):
    problem = of_prefill(heads)
    assert_agrees(problem, dense(problem, STARTS, ENDS))


def test_more_key_tiles_of_a_cta_than_slots_and_their_number_changes_no_bit(monkeypatch):
    from cute_fa4.calls import indexer

    starts, ends = int32(0, 300, 1000), int32(1100, 1000, 1001)
    problem = of_prefill(64, starts, ends, keys=1100)
    found = []
    for each in (9, 4, 1):
        monkeypatch.setattr(indexer, "tiles_each", lambda *given, each=each: each)
        found += [dense(problem, starts, ends, schedule) for schedule in SCHEDULES[:2]]
    assert_agrees(problem, found[0])
    assert all(torch.equal(each, found[0]) for each in found)


def test_the_last_logits_are_those_of_a_call_with_fewer_keys_and_queries():
    """Batch invariance: a logit has the same bits in every call."""
    problem = of_prefill(64)
    whole = dense(problem, STARTS, ENDS)
    alone = Problem(
        *(x[:, 1:2] for x in (problem.q, problem.weights)),
        [problem.keys[0][:200]],
        [problem.scales[0][:200]],
        problem.sees,
    )
    assert torch.equal(dense(alone, STARTS[1:2], ENDS[1:2])[0], whole[1, :200])


def test_without_clean_logits_only_seen_keys_are_written(monkeypatch):
    problem = of_prefill(64)
    clean = dense(problem, STARTS, ENDS)
    empty = torch.Tensor.new_empty
    monkeypatch.setattr(
        torch.Tensor, "new_empty", lambda *given, **how: empty(*given, **how).fill_(CANARY)
    )
    found = dense(problem, STARTS, ENDS, clean_logits=False)
    assert torch.equal(found, torch.where(problem.sees[0], clean, CANARY))


def test_a_nan_stays_with_its_key_query_and_head():
    problem = of_prefill(64, int32(0, 0, 6), int32(300, 300, 300))
    clean = dense(problem, int32(0, 0, 6), int32(300, 300, 300))
    problem.keys[0][5, 3] = torch.nan
    problem.scales[0][4] = torch.nan
    problem.weights[0, 1, 60] = torch.nan
    found = dense(problem, int32(0, 0, 6), int32(300, 300, 300))
    has_nan = torch.zeros(3, 300, dtype=torch.bool)
    has_nan[0, 4:6], has_nan[1] = True, True
    assert torch.equal(found.isnan(), has_nan)
    assert torch.equal(found[~has_nan], clean[~has_nan])


def test_operands_may_be_slices():
    """Strides of queries, heads and keys are those of the tensors."""
    starts, ends = int32(0, 7), int32(150, 100)
    problem = of_prefill(16, starts, ends, keys=150)
    contiguous = dense(problem, starts, ends)
    wide = torch.zeros(1, 2, 20, 256, dtype=torch.uint8).view(problem.q.dtype)
    wide[:, :, 2:18, 128:] = problem.q
    problem.q = wide[:, :, 2:18, 128:]
    rows = torch.zeros(150, 3, 128, dtype=torch.uint8).view(problem.q.dtype)
    rows[:, 1] = problem.keys[0]
    problem.keys = [rows[:, 1]]
    problem.weights = problem.weights.transpose(1, 2).contiguous().transpose(1, 2)
    problem.scales = [problem.scales[0][:, None].expand(-1, 2)[:, 0]]
    assert torch.equal(dense(problem, starts, ends), contiguous)


@pytest.mark.parametrize("queries, keys", [(0, 5), (3, 0), (0, 0)])
def test_empty_calls(queries, keys):
    problem = draw(32, queries, [keys])
    bounds = torch.zeros(queries, dtype=torch.int32)
    found = dense(problem, bounds, bounds + 9)
    assert found.shape == (queries, keys) and found.dtype == torch.float32


def test_sizes_of_tiles():
    """Every number of heads has a tile that the tensor core multiplies, for any number of queries."""
    for heads in range(8, 129, 8):
        for queries in (1, 2, 3, 100, None):
            config = IndexerConfig(heads, queries_of_tile(heads, queries))
            assert not config.refusals(), config.name
            assert queries is None or config.queries < queries + 2
    assert IndexerConfig(12, 3, page_size=24, ends="x", arch="sm_90a").refusals()


# --- pages


def causal(problem: Problem, lengths) -> torch.Tensor:
    """Query i of n sees lengths - n + 1 + i keys."""
    queries = problem.q.shape[1]
    ends = torch.tensor(lengths)[:, None] - (queries - 1 - torch.arange(queries))
    return problem.sees & (torch.arange(problem.sees.shape[2]) < ends[..., None])


LENGTHS = [300, 1, 64, 129]


@pytest.mark.parametrize("heads, queries", [(64, 1), (64, 2), (32, 3), (24, 1)])
def test_logits_over_pages_agree_under_every_schedule(heads, queries):
    problem = draw(heads, queries, LENGTHS)
    problem.sees = causal(problem, LENGTHS)
    found = [paged(problem, 64, int32(*LENGTHS), schedule) for schedule in SCHEDULES]
    assert_agrees(problem, found[0])
    assert all(torch.equal(each, found[0]) for each in found)


@pytest.mark.parametrize("page_size", [8, 64, 384, *in_sweep(16, 32, 128, 256)])
def test_the_bits_do_not_depend_on_the_page_size_or_on_pages(page_size):
    problem = draw(64, 1, LENGTHS)
    problem.sees = causal(problem, LENGTHS)
    found = paged(problem, page_size, int32(*LENGTHS))
    assert_agrees(problem, found)
    for b, n in enumerate(LENGTHS):
        of_b = Problem(
            problem.q[b : b + 1], problem.weights[b : b + 1], [problem.keys[b]], [problem.scales[b]], problem.sees,
        )  # fmt: skip
        assert torch.equal(dense(of_b, int32(0), int32(n))[0], found[b, :n])


def test_each_query_may_have_its_own_length_and_the_result_any_width():
    lengths = [[300, 5], [0, 1], [64, 64], [130, 129]]
    problem = draw(64, 2, LENGTHS)
    problem.sees = torch.arange(333) < torch.tensor(lengths)[..., None]
    problem.sees &= torch.arange(333) < torch.tensor(LENGTHS)[:, None, None]
    lengths = torch.tensor(lengths, dtype=torch.int32)
    lengths[3, 0] = 129
    assert_agrees(problem, paged(problem, 64, lengths, max_context_len=333))
    problem.sees = problem.sees[..., :100]
    assert_agrees(problem, paged(problem, 64, lengths, max_context_len=100))


def test_a_table_entry_that_is_no_block_hides_its_keys():
    problem = draw(64, 1, [300])
    whole = paged(problem, 64, int32(300))
    from tests.sm100.indexer import problems

    for wrong in (-1, 9999):
        cache, table = problems.cache_of(problem, 64)
        table[0, 2] = wrong
        given = problem.q, cache, problem.weights.flatten(0, 1), int32(300), table, None, 300, True
        found = problems.emulated(problems.fp8_paged_mqa_logits, *given)
        assert torch.isneginf(found[0, 128:192]).all()
        assert torch.equal(found[0, 192:], whole[0, 192:])
        assert torch.equal(found[0, :128], whole[0, :128])
