"""The schedule of K and V messages and of attention calls: the same on every rank, computed from numbers only.

ring, 4 ranks: at hop t a rank has the keys of the rank t before it, and forwards them while it computes.

    hop      rank 0    rank 1    rank 2    rank 3
    0        K0        K1        K2        K3
    1        K3        K0        K1        K2
    2        K2        K3        K0        K1
    3        K1        K2        K3        K0

Hops that no rank needs are skipped, and rows that no rank needs at this hop or later are not sent. With a causal
window of at most L rows and the contiguous order, each rank sends its last rows to its neighbor once. If later keys
are needed, a second ring runs in the other direction. Every rank makes every hop, whether it needs the rows or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from cute_fa4.distributed.geometry import Band, Call, Chunk, calls_between, chunks_of


@dataclass(frozen=True)
class Problem:
    """The inputs of a plan. q_rows, k_rows: per rank; documents: as in calls_between."""

    ranks: int
    q_rows: int
    k_rows: int
    order: str
    band: Band
    documents: tuple[int, ...] | None = None

    def queries(self, rank: int) -> list[Chunk]:
        """Positions are counted in keys: the last query of the sequence is aligned with its last key."""
        shift = self.ranks * (self.k_rows - self.q_rows)
        return chunks_of(rank, self.ranks, self.q_rows, self.order, shift)

    def keys(self, rank: int) -> list[Chunk]:
        return chunks_of(rank, self.ranks, self.k_rows, self.order)

    def calls(self, rank: int, distance: int) -> list[Call]:
        """Calls of a rank's queries with the keys of the rank `distance` before it."""
        keys = self.keys((rank - distance) % self.ranks)
        return calls_between(self.queries(rank), keys, self.band, self.documents)


@dataclass(frozen=True)
class Hop:
    """distance: the keys are those of the rank `distance` before the receiver; rows [first, end) are sent.

    step      1: to the next rank, -1: to the previous rank
    first_of_ring  the sender sends its own keys, not those received at the previous hop
    """

    distance: int
    step: int
    first: int
    end: int
    first_of_ring: bool


@lru_cache(maxsize=256)
def hops(problem: Problem) -> tuple[Hop, ...]:
    """Hops of one or two rings, as few as the mask allows."""
    ranks = problem.ranks
    reached = {s: rows_needed(problem, s) for s in range(1, ranks)}
    needed = [s for s in reached if reached[s]]
    forward, backward = _fewest(needed, ranks)
    found = []
    for step, length in ((1, forward), (-1, backward)):
        for t in range(1, length + 1):
            later = [reached[s * step % ranks] for s in range(t, length + 1)]
            rows = [bounds for bounds in later if bounds]
            first, end = min(b[0] for b in rows), max(b[1] for b in rows)
            found.append(Hop(t * step % ranks, step, first, end, t == 1))
    return tuple(found)


@lru_cache(maxsize=1024)
def rows_needed(problem: Problem, distance: int) -> tuple[int, int] | None:
    """First and end of the rows that some rank needs from the rank at this distance before it."""
    calls = [c for rank in range(problem.ranks) for c in problem.calls(rank, distance)]
    if not calls:
        return None
    return min(c.k_at for c in calls), max(c.k_at + c.k_rows for c in calls)


def _fewest(needed: list[int], ranks: int) -> tuple[int, int]:
    """Numbers of forward and backward hops that cover all these distances.

    >>> _fewest([1, 2, 3], 4), _fewest([1], 8), _fewest([1, 7], 8), _fewest([], 8)
    ((3, 0), (1, 0), (1, 1), (0, 0))
    """
    ways = []
    for forward in (0, *needed):
        rest = [s for s in needed if s > forward]
        backward = ranks - rest[0] if rest else 0
        ways.append((forward + backward, -forward, backward))
    _, forward, backward = min(ways)
    return -forward, backward


@lru_cache(maxsize=1024)
def ring_calls(problem: Problem, rank: int, distance: int) -> tuple[Call, ...]:
    return tuple(problem.calls(rank, distance))


@lru_cache(maxsize=1024)
def gathered_calls(problem: Problem, rank: int) -> tuple[Call, ...]:
    """Calls of a rank's queries with all keys, in the order of the sequence."""
    whole = [Chunk(0, problem.ranks * problem.k_rows)]
    return tuple(calls_between(problem.queries(rank), whole, problem.band, problem.documents))


@lru_cache(maxsize=256)
def whole_calls(problem: Problem) -> tuple[Call, ...]:
    """Calls of all queries with all keys."""
    ranks, shift = problem.ranks, problem.ranks * (problem.k_rows - problem.q_rows)
    queries, keys = Chunk(shift, ranks * problem.q_rows), Chunk(0, ranks * problem.k_rows)
    return tuple(calls_between([queries], [keys], problem.band, problem.documents))
