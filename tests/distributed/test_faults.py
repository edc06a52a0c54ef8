"""An error on one rank is an error on every rank, before data is sent; a rank that dies ends the call on all ranks.

The time of every answer is bounded by the patience of the pool, and of a death by the timeout of its group: no case may
hang. After a refusal the group works as before, which the next case shows.
"""

import re
import time

import pytest
import torch

from cute_fa4.distributed import context_parallel_attention
from tests.distributed import cases
from tests.distributed.pool import Failed, Pool

SHAPE = (1, 8, 4, 64)
PLAIN = (SHAPE, SHAPE, torch.float32, {})


def but(q_shape=SHAPE, k_shape=SHAPE, dtype=torch.float32, **options) -> tuple:
    return q_shape, k_shape, dtype, options


# What rank 1 of three is asked instead; the error there; what the others are told.
ON_ONE_RANK = {
    "no keys": (but(k_shape=(1, 0, 4, 64)), "ValueError", "k: 0 rows on rank 1"),
    "other length": (but((1, 4, 4, 64), (1, 4, 4, 64)), "RankError", "q.shape differs|k.shape differs"),
    "other dtype": (but(dtype=torch.bfloat16), "RankError", "q.dtype differs: torch.float32 on ranks 0, 2"),
    "other heads": (but((1, 8, 8, 64)), "RankError", r"q.shape differs: \[1, 8, 4, 64\] on ranks 0, 2"),
    "other layout": (but(layout="all_gather"), "RankError", "layout differs: ring on ranks 0, 2; all_gather on rank 1"),
    "other mask": (but(causal=True), "RankError", r"window differs: \[null, null\] on ranks 0, 2"),
    "no such layout": (but(layout="rings"), "ValueError", "layout: 'rings'; accepted: 'ring'"),
    "odd rows": (but((1, 7, 4, 64), (1, 7, 4, 64)), "ValueError", "q: 7 rows on 3 ranks in zigzag order"),
    "no such dtype": (but(dtype=torch.float64), "TypeError", "q: dtype torch.float64"),
}  # fmt: skip


@pytest.mark.parametrize("name", ON_ONE_RANK)
def test_what_is_wrong_on_one_rank_is_an_error_on_every_rank(pool, name):
    wrong, kind, text = ON_ONE_RANK[name]
    results = pool.run(cases.asked, ([PLAIN, wrong, PLAIN],), ranks=3)
    assert all(isinstance(result, Failed) for result in results), results
    assert [r.kind for r in results] == ["RankError", kind, "RankError"]
    for result in results:
        assert re.search(text, result.text), result.text
    if kind != "RankError":
        assert f"rank 1 of 3 refused the call: {kind}: " in results[0].text


@pytest.mark.parametrize(
    "options, text",
    [
        (dict(layout="all_to_all"), "4 query heads and 4 key/value heads on 3 ranks; accepted"),
        (dict(cu_seqlens=[0, 8]), "q: shape .* has 4 dimensions"),
        (dict(stages=0), "stages: 0; accepted: 1 to"),
        (dict(check="never"), "check: 'never'; accepted"),
        (
            dict(batch_invariant=True),
            "batch_invariant: True in context_parallel_attention, which merges",
        ),
        (dict(backend="flash"), "backend: 'flash'; accepted"),
        (dict(softcap=30.0), "softcap: 30.0 with backend='sdpa'"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_what_is_wrong_everywhere_is_refused_by_name(pool, options, text):
    """A group of the wrong size among them: 4 heads on 3 ranks."""
    results = pool.run(cases.asked, ([but(**options)] * 3,), ranks=3)
    assert all(re.search(text, result.text) for result in results), results


def test_without_torch_distributed_it_says_what_to_call():
    q = torch.randn(SHAPE)
    with pytest.raises(RuntimeError, match="group: torch.distributed is not initialised; call"):
        context_parallel_attention(q, q, q)


@pytest.mark.parametrize("check, expected", [("always", 3), ("first", 1)])
def test_ranks_compare_at_every_call_or_at_the_first_of_a_kind(pool, check, expected):
    assert pool.run(cases.checks_made, (check,), ranks=2) == [expected] * 2


@pytest.mark.parametrize("computing", [False, True], ids=["before the call", "in it"])
def test_a_rank_that_dies_ends_the_call_of_all_others(computing):
    """Killed; the timeout of its group is 15 s, the patience of the pool 240."""
    with Pool(3, timeout_s=15) as processes:
        begin = time.monotonic()
        results = processes.run(cases.end, (1, PLAIN, computing), dead=(1,))
        seconds = time.monotonic() - begin
    for result in (results[0], results[2]):
        assert result.kind == "GroupError", result.trace
        assert "another rank has ended or was slower than the timeout" in result.text
    assert seconds < 60
