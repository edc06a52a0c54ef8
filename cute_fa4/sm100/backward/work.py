"""Which rows a CTA owns, and which tiles of the other side they meet.

A query i sees the keys from i + Sk - Sq - left to i + Sk - Sq + right. The same said of a key j: queries from
j - (Sk - Sq) - right to j - (Sk - Sq) + left see it. So of both owners a row sees a stretch of the other side, and both
ends of the stretch move by one from row to row.

Where keys are owned, every query head of the group passes by, one after the other: dK and dV of a group are summed in
tensor memory, always in the same order.
"""

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32

from ...layouts.scalars import choose, maximum, minimum
from .config import ROWS


@dataclass(frozen=True)
class Sizes:
    """Of a call. left, right: of the mask; unused ones are ignored."""

    batch: Int32
    seqlen_q: Int32  # packed: of the longest sequence
    seqlen_k: Int32
    heads_q: Int32
    heads_kv: Int32
    total_q: Int32
    total_k: Int32
    left: Int32
    right: Int32
    cu_seqlens_q: cute.Tensor | None
    cu_seqlens_k: cute.Tensor | None


@dataclass(frozen=True)
class Sequence:
    """Lengths, first rows in the tensors (dense: 0), and the first tile of its numbers of queries."""

    index: Int32
    length_q: Int32
    length_k: Int32
    first_q: Int32
    first_k: Int32
    stats_tile: Int32


@dataclass(frozen=True)
class Work:
    """What a CTA does: own rows [row, row + 128) of a sequence and head, `turns` heads of tiles [first, end)."""

    sequence: Sequence
    row: Int32
    head: Int32
    first: Int32
    end: Int32
    turns: Int32

    @property
    def count(self):
        return (self.end - self.first) * self.turns


def tiles_of(rows):
    return (rows + (ROWS - 1)) // ROWS


def stats_tiles(cfg, batch, seqlen_q, total_q):
    """Tiles of numbers that a head needs. Packed: a sequence begins at tile cu // 128 + its index."""
    return total_q // ROWS + batch if cfg.packed else batch * tiles_of(seqlen_q)


def between(offsets, index, rows):
    """-> (first row, number of rows), cut to the rows that exist: wrong offsets never lead outside of a tensor."""
    first = minimum(maximum(offsets[index], 0), rows)
    return first, maximum(minimum(offsets[index + 1], rows), first) - first


def sequence_of(cfg, sizes: Sizes, index) -> Sequence:
    if not cfg.packed:
        q, k = sizes.seqlen_q, sizes.seqlen_k
        return Sequence(index, q, k, Int32(0), Int32(0), index * tiles_of(q))
    first_q, q = between(sizes.cu_seqlens_q, index, sizes.total_q)
    first_k, k = between(sizes.cu_seqlens_k, index, sizes.total_k)
    return Sequence(index, q, k, first_q, first_k, first_q // ROWS + index)


def seen(cfg, owner, sizes: Sizes, of: Sequence, row):
    """-> (first, last) of the other side that a row sees; None where nothing but the ends of the sequence limits it.

    Queries beyond the end have no weight (delta.py), keys beyond it would: where queries are owned, `last` says so.
    """
    apart = of.length_k - of.length_q
    if owner.owns_keys:
        first = row - apart - sizes.right if cfg.right else None
        return first, (row - apart + sizes.left if cfg.left else None)
    first = row + apart - sizes.left if cfg.left else None
    last = of.length_k - 1
    return first, minimum(row + apart + sizes.right, last) if cfg.right else last


def work_of(cfg, owner, sizes: Sizes, block) -> Work:
    """Of a block of the grid. Tiles that see the most come first: the first keys, the last queries."""
    group = sizes.heads_q // sizes.heads_kv
    heads = sizes.heads_kv if owner.owns_keys else sizes.heads_q
    longest = sizes.seqlen_k if owner.owns_keys else sizes.seqlen_q
    tile, rest = block // (heads * sizes.batch), block % (heads * sizes.batch)
    if not owner.owns_keys:
        tile = tiles_of(longest) - 1 - tile
    of = sequence_of(cfg, sizes, rest // heads)
    row = tile * ROWS
    first, _ = seen(cfg, owner, sizes, of, row)
    _, last = seen(cfg, owner, sizes, of, row + (ROWS - 1))
    others = of.length_q if owner.owns_keys else of.length_k
    first = Int32(0) if first is None else maximum(first, 0) // ROWS
    end = tiles_of(others) if last is None else maximum(minimum(last + 1, others), 0)
    end = end if last is None else tiles_of(end)
    own = of.length_k if owner.owns_keys else of.length_q
    end = choose(row < own, maximum(end, first), first)  # of no rows there is nothing to do
    turns = group if owner.owns_keys else Int32(1)
    return Work(of, row, rest % heads, first, end, turns)


@dataclass(frozen=True)
class Place:
    """Where a role is: a tile of the other side and a head of the group."""

    tile: Int32
    turn: Int32

    @staticmethod
    def of(work: Work) -> "Place":
        return Place(work.first, Int32(0))

    def next(self, work: Work) -> "Place":
        last = self.tile + 1 == work.end
        return Place(choose(last, work.first, self.tile + 1), self.turn + choose(last, 1, 0))


def q_head(owner, work: Work, place: Place):
    return work.head * work.turns + place.turn if owner.owns_keys else work.head


def kv_head(owner, sizes: Sizes, work: Work):
    if owner.owns_keys:
        return work.head
    return work.head // (sizes.heads_q // sizes.heads_kv)
