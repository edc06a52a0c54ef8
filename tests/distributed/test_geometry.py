"""The plan, without processes: each query meets each visible key once, in calls that the kernel has.

The oracle is the definition: position of the query, window, documents. Sizes: 3 to 6 rows a rank, so that every border
of chunks, windows and documents meets every other in the product.
"""

import itertools

import pytest
import torch

from cute_fa4.distributed import positions
from cute_fa4.distributed.geometry import Band
from cute_fa4.distributed.schedule import Problem, gathered_calls, hops, ring_calls, whole_calls

BANDS = [Band(left, right) for left, right in itertools.product((None, 0, 1, 4, 9), repeat=2)]
BANDS += [Band(None, -3), Band(-3, None), Band(9, -3), Band(-3, 9)]  # the past or the future alone


def visible(problem: Problem) -> torch.Tensor:
    """(queries, keys) of the whole sequence: 1 where a query sees a key, by definition."""
    m, n = problem.ranks * problem.q_rows, problem.ranks * problem.k_rows
    p, j = torch.arange(m)[:, None] + n - m, torch.arange(n)
    seen = torch.ones(m, n, dtype=torch.bool)
    if problem.band.left is not None:
        seen &= j >= p - problem.band.left
    if problem.band.right is not None:
        seen &= j <= p + problem.band.right
    if problem.documents is not None:
        edges = torch.tensor(problem.documents)
        of = torch.searchsorted(edges, torch.arange(n), right=True)
        seen &= (of[:, None] == of) & (of < len(edges))[:, None]
    return seen.int()


def met(calls, q_rows: int, k_rows: int) -> torch.Tensor:
    """(q_rows, k_rows): how often calls of the kernel, last query over last key, show a key to a query."""
    count = torch.zeros(q_rows, k_rows, dtype=torch.int32)
    for call in calls:
        assert call.q_rows > 0 and call.k_rows > 0
        assert min(call.band.left or 0, call.band.right or 0) >= 0
        q, k = call.q_at, call.k_at
        for q_end, k_end in call.ends or ((call.q_rows, call.k_rows),):
            q_end, k_end = call.q_at + q_end, call.k_at + k_end
            i = torch.arange(q_end - q)[:, None] + (k_end - k) - (q_end - q)
            j = torch.arange(k_end - k)
            shown = torch.ones(q_end - q, k_end - k, dtype=torch.bool)
            if call.band.left is not None:
                shown &= j >= i - call.band.left
            if call.band.right is not None:
                shown &= j <= i + call.band.right
            assert shown.any(1).all(), "a row without keys would be attention for nothing"
            count[q:q_end, k:k_end] += shown.int()
            q, k = q_end, k_end
    return count


def problems(ranks: int, order: str):
    for q_rows, k_rows in ((4, 4), (6, 6), (4, 6), (6, 4)):
        for band in BANDS:
            yield Problem(ranks, q_rows, k_rows, order, band)
            if q_rows == k_rows:
                n = ranks * k_rows
                for documents in ((0, n), (0, 1, 1, n - 2), (0, 3, n // 2 + 1, n)):
                    yield Problem(ranks, q_rows, k_rows, order, band, documents)


@pytest.mark.parametrize("order", ["zigzag", "contiguous"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_every_query_meets_every_visible_key_once(ranks, order):
    for problem in problems(ranks, order):
        expected = visible(problem)
        m, n = ranks * problem.q_rows, ranks * problem.k_rows
        assert torch.equal(met(whole_calls(problem), m, n), expected), problem
        for rank in range(ranks):
            rows = positions(rank, ranks, problem.q_rows, order=order)
            calls = gathered_calls(problem, rank)
            assert torch.equal(met(calls, problem.q_rows, n), expected[rows]), problem
            distances = {0, *(hop.distance for hop in hops(problem))}
            for distance in range(ranks):
                calls = ring_calls(problem, rank, distance)
                keys = positions((rank - distance) % ranks, ranks, problem.k_rows, order=order)
                found = met(calls, problem.q_rows, problem.k_rows)
                assert torch.equal(found, expected[rows][:, keys]), problem
                assert not calls or distance in distances, problem


@pytest.mark.parametrize("order", ["zigzag", "contiguous"])
def test_what_travels_is_enough_and_begins_at_the_one_who_has_it(order):
    """Each hop sends rows that the sender has at that time, and all that the receivers' calls read."""
    for problem in problems(5, order):
        held = (0, problem.k_rows)
        for hop in hops(problem):
            if hop.first_of_ring:
                held = (0, problem.k_rows)
            assert held[0] <= hop.first < hop.end <= held[1]
            held = (hop.first, hop.end)
            for rank in range(5):
                for call in ring_calls(problem, rank, hop.distance):
                    assert hop.first <= call.k_at and call.k_at + call.k_rows <= hop.end


def test_zigzag_gives_every_rank_the_same_work_under_a_causal_mask():
    """Scores of a rank, over all hops; the contiguous order gives the last rank 2 R - 1 times what the first has."""
    for order, ratio in (("zigzag", 1.0), ("contiguous", 7.0)):
        problem = Problem(4, 64, 64, order, Band(None, 0))
        work = [
            sum(c.scores for d in range(4) for c in ring_calls(problem, r, d)) for r in range(4)
        ]
        assert max(work) / min(work) == pytest.approx(ratio, rel=0.15)


def test_zigzag_takes_one_call_a_hop():
    """What adjoins is joined: half of the keys for all queries, or all keys for half of the queries."""
    problem = Problem(8, 64, 64, "zigzag", Band(None, 0))
    assert {len(ring_calls(problem, r, d)) for r in range(8) for d in range(8)} == {1}


@pytest.mark.parametrize(
    "band, distances, rows",
    [
        (Band(15, 0), [1], 15),
        (Band(16, 0), [1], 16),
        (Band(17, 0), [1, 2], 16),
        (Band(3, 5), [1, 7], 5),
        (Band(None, 0), list(range(1, 8)), 16),
    ],
)
def test_a_window_needs_the_neighbour_alone_and_of_it_only_the_window(band, distances, rows):
    """8 ranks of 16 rows. A window of 15 keys before a query reaches 15 rows of the rank before."""
    made = hops(Problem(8, 16, 16, "contiguous", band))
    assert [hop.distance for hop in made] == distances
    assert max(hop.end - hop.first for hop in made) == rows
