"""Which keys a CTA scores, and which of them its queries see.

A CTA has the queries of one tile and `tiles_each` key tiles. CTAs of one stretch of keys have consecutive numbers, so
that they read its keys from the L2 cache:

    CTA    = stretch * tiles of queries + tile of queries
    query i of a sequence sees keys start(i) <= j < end(i)
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...layouts.scalars import choose, maximum, minimum
from .config import KEYS, tiles_of


@dataclass(frozen=True)
class Keys:
    """Where keys lie, and which of them a query sees.

    scales   (rows of a page, pages) f32; without pages (keys, 1)
    pages    (batch, pages of a sequence) int32, or None
    starts   (batch, queries) int32, or None: 0
    ends     (batch, queries) int32, or (batch,): keys of each sequence
    """

    scales: cute.Tensor
    pages: cute.Tensor | None
    starts: cute.Tensor | None
    ends: cute.Tensor


@dataclass(frozen=True)
class Sizes:
    """Sizes of a launch. held: keys that a sequence may have; logits: columns of the result."""

    batch: Int32
    queries: Int32
    held: Int32
    logits: Int32
    tiles_each: Int32


@dataclass(frozen=True)
class Work:
    """Key tiles [begin, end) of a CTA, of which its queries see [first, last); keys [starts[i], ends[i]) of query i."""

    sequence: Int32
    query: Int32
    begin: Int32
    first: Int32
    last: Int32
    end: Int32
    starts: tuple
    ends: tuple


def grid_size(cfg, sizes: Sizes):
    """Number of CTAs."""
    stretches = tiles_of(sizes.logits, KEYS) + (sizes.tiles_each - 1)
    return sizes.batch * tiles_of(sizes.queries, cfg.queries) * (stretches // sizes.tiles_each)


@cute.jit
def seen(
    cfg: cutlass.Constexpr, keys: Keys, sizes: Sizes, sequence: Int32, query: Int32
) -> tuple[Int32, Int32]:
    """The keys [start, end) that a query sees, all of which exist; none for a query that does not exist."""
    start, end = Int32(0), Int32(0)
    if query < sizes.queries:
        if cutlass.const_expr(cfg.ends == "rows"):
            end = keys.ends[sequence, query]
        else:
            end = keys.ends[sequence] - (sizes.queries - 1 - query)
        if cutlass.const_expr(keys.starts is not None):
            start = maximum(keys.starts[sequence, query], 0)
    return start, minimum(minimum(end, sizes.held), sizes.logits)


@cute.jit
def work_of(cfg: cutlass.Constexpr, keys: Keys, sizes: Sizes, block: Int32) -> Work:
    """The work of a CTA."""
    of_sequence = tiles_of(sizes.queries, cfg.queries)
    tiles = sizes.batch * of_sequence
    stretch, tile = block // tiles, block % tiles
    sequence, query = tile // of_sequence, tile % of_sequence * cfg.queries
    begin = stretch * sizes.tiles_each
    end = minimum(begin + sizes.tiles_each, tiles_of(sizes.logits, KEYS))
    starts, ends = [], []
    lowest, highest = sizes.held, Int32(0)
    for i in cutlass.range_constexpr(cfg.queries):
        start_of, end_of = seen(cfg, keys, sizes, sequence, query + i)
        starts.append(start_of)
        ends.append(end_of)
        some = start_of < end_of
        lowest = choose(some, minimum(lowest, start_of), lowest)
        highest = choose(some, maximum(highest, end_of), highest)
    first = minimum(maximum(lowest // KEYS, begin), end)
    last = maximum(minimum(tiles_of(highest, KEYS), end), first)
    return Work(sequence, query, begin, first, last, end, tuple(starts), tuple(ends))
