"""Attention between pieces of a sequence on different ranks, expressed as calls on whole tensors; numbers only.

A sequence of n keys is distributed over R ranks, L = n / R rows each:

    contiguous    rank r has rows [r L, (r + 1) L)
    zigzag        2 R chunks of c = L / 2 rows; rank r has chunks r and 2 R - 1 - r, so that under a causal mask every
                  rank has the same work:

                      chunk     0   1   2   3   4   5   6   7
                      rank      0   1   2   3   3   2   1   0

The kernel has no positions. It takes m queries and n keys, aligns the last query with the last key, and applies a
window (left, right) around that diagonal. To express queries [p, p + m) and keys [b, b + n) of a longer sequence as
such a call, rows that see no key and keys that no row sees are removed, and the window is shifted by the distance
of the two ends:

    d = (p + m) - (b + n)        left' = left - d        right' = right + d

After the removal neither side is negative, so every pair of pieces of a sequence is one valid call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

ORDERS = ("contiguous", "zigzag")


@dataclass(frozen=True)
class Chunk:
    """`rows` consecutive rows of a sequence from position `first`, stored in a tensor from row `at`."""

    first: int
    rows: int
    at: int = 0

    @property
    def end(self) -> int:
        return self.first + self.rows


@dataclass(frozen=True)
class Band:
    """A query at position p sees keys p - left .. p + right; a side of None is open."""

    left: int | None = None
    right: int | None = None


@dataclass(frozen=True)
class Call:
    """Attention of rows [q_at, q_at + q_rows) of q to rows [k_at, k_at + k_rows) of k, ends aligned.

    ends   None, or the ends of several documents in these rows: ((queries, keys), ...), counted from q_at and k_at
    """

    q_at: int
    q_rows: int
    k_at: int
    k_rows: int
    band: Band = Band()
    ends: tuple[tuple[int, int], ...] | None = None

    @property
    def is_causal(self) -> bool:
        return self.band == Band(None, 0)

    @property
    def scores(self) -> int:
        """Visible pairs of a query and a key, counted."""
        total, q, k = 0, 0, 0
        for q_end, k_end in self.ends or ((self.q_rows, self.k_rows),):
            total += _visible(q_end - q, k_end - k, self.band)
            q, k = q_end, k_end
        return total


def _visible(m: int, n: int, band: Band) -> int:
    """Visible pairs of m queries and n keys with aligned ends."""
    left = m + n if band.left is None else band.left
    right = m + n if band.right is None else band.right
    return sum(max(0, min(n, i + n - m + right + 1) - max(0, i + n - m - left)) for i in range(m))


def chunks_of(rank: int, ranks: int, rows: int, order: str, shift: int = 0) -> list[Chunk]:
    """The pieces of a rank with `rows` rows, in memory order. shift is added to positions.

    >>> [(c.first, c.at) for c in chunks_of(1, 4, 6, "zigzag")]
    [(3, 0), (18, 3)]
    """
    if order == "contiguous":
        return [Chunk(rank * rows + shift, rows)]
    half = rows // 2
    return [
        Chunk(rank * half + shift, half),
        Chunk((2 * ranks - 1 - rank) * half + shift, half, half),
    ]


def calls_between(
    queries: list[Chunk], keys: list[Chunk], band: Band, documents: Sequence[int] | None = None
) -> list[Call]:
    """Calls that cover each visible pair of query and key of these chunks exactly once.

    documents  starts of the documents, and the end of the last: a query sees keys of its own document. Rows after the
               end are padding
    """
    if documents is None and _is_causal_in_memory(queries, keys, band):
        rows = sum(chunk.rows for chunk in keys)
        return [_plain(Call(0, rows, 0, rows, band))]
    if documents is None:
        return _joined([_plain(c) for q in queries for k in keys for c in _one(q, k, band)])
    found = []
    for q in queries:
        for k in keys:
            found += _grouped(
                [c for of_q, of_k in _documents(q, k, documents) for c in _one(of_q, of_k, band)]
            )
    return _joined(found)


def _is_causal_in_memory(queries, keys, band: Band) -> bool:
    """Whether causal by position equals causal by row: the same chunks on both sides, in ascending order."""
    positions = [chunk.first for chunk in keys]
    return band == Band(None, 0) and queries == keys and positions == sorted(positions)


def _one(q: Chunk, k: Chunk, band: Band) -> list[Call]:
    """The call between two chunks if any key is visible, with an unsimplified band."""
    first, end = k.first, k.end
    if band.left is not None:
        first = max(first, q.first - band.left)
    if band.right is not None:
        end = min(end, q.end + band.right)
    if first >= end or not q.rows:
        return []
    q_first, q_end = q.first, q.end
    if band.right is not None:
        q_first = max(q_first, first - band.right)
    if band.left is not None:
        q_end = min(q_end, end + band.left)
    if q_first >= q_end:
        return []
    d = q_end - end
    moved = Band(
        None if band.left is None else band.left - d,
        None if band.right is None else band.right + d,
    )
    rows = q_end - q_first
    return [Call(q.at + q_first - q.first, rows, k.at + first - k.first, end - first, moved)]


def _plain(call: Call) -> Call:
    """Open the sides of the window that hide nothing, which gives fewer kinds of masks."""
    if call.ends is not None:
        return call
    left, right = call.band.left, call.band.right
    if left is not None and left >= call.k_rows - 1:
        left = None
    if right is not None and right >= call.q_rows - 1:
        right = None
    return replace(call, band=Band(left, right))


def _documents(q: Chunk, k: Chunk, documents: Sequence[int]):
    """(rows of q, rows of k) of each document that both have."""
    for begin, end in zip(documents, documents[1:], strict=False):
        parts = [_within(chunk, begin, end) for chunk in (q, k)]
        if all(part.rows > 0 for part in parts):
            yield parts


def _within(chunk: Chunk, begin: int, end: int) -> Chunk:
    first = max(chunk.first, begin)
    return Chunk(first, min(chunk.end, end) - first, chunk.at + first - chunk.first)


def _grouped(calls: list[Call]) -> list[Call]:
    """Combine documents that are adjacent on both sides and share a band into one call."""
    found: list[list[Call]] = []
    for call in calls:
        last = found[-1][-1] if found else None
        follows = last is not None and (
            call.q_at == last.q_at + last.q_rows
            and call.k_at == last.k_at + last.k_rows
            and call.band == last.band
        )
        if follows:
            found[-1].append(call)
        else:
            found.append([call])
    return [_packed(group) if len(group) > 1 else _plain(group[0]) for group in found]


def _packed(group: list[Call]) -> Call:
    first = group[0]
    ends = tuple((c.q_at + c.q_rows - first.q_at, c.k_at + c.k_rows - first.k_at) for c in group)
    return Call(first.q_at, ends[-1][0], first.k_at, ends[-1][1], first.band, ends)


def _joined(calls: list[Call]) -> list[Call]:
    """Combine calls without a mask that share queries and have adjacent keys, or the reverse."""
    for one in calls:
        for other in calls:
            if one is other or one.band != Band() or other.band != Band():
                continue
            if one.ends is not None or other.ends is not None:
                continue
            joined = _adjacent(one, other)
            if joined is not None:
                return _joined([joined if c is one else c for c in calls if c is not other])
    return calls


def _adjacent(one: Call, other: Call) -> Call | None:
    same_queries = (one.q_at, one.q_rows) == (other.q_at, other.q_rows)
    if same_queries and one.k_at + one.k_rows == other.k_at:
        return replace(one, k_rows=one.k_rows + other.k_rows)
    same_keys = (one.k_at, one.k_rows) == (other.k_at, other.k_rows)
    if same_keys and one.q_at + one.q_rows == other.q_at:
        return replace(one, q_rows=one.q_rows + other.q_rows)
    return None
