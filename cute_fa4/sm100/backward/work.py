"""The rows that a CTA owns, and the tiles of the other side that they meet.

Query i has position i + Sk - Sq, regardless of which keys are visible. Masks give the bands of keys that a query sees,
and the bands of positions that see a key (blueprint/bands.py). So for both owners a row sees bands of the other side,
whose ends never decrease with the row: a tile's first row bounds what all rows see on the right, its last on the left.

Where keys are owned, a CTA processes the query heads of the group in turn: dK and dV of a group are summed in
tensor memory, always in the same order.
"""

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32

from ...layouts.scalars import choose, maximum, minimum
from ..blueprint.bands import bound
from ..pair.sync import rank_in_cluster
from .listed import ListedPlace, TileList, TileLists
from .owner import ROWS

# Heads whose pairs run at the same time: at least so many, or as many as have these rows together, whose Q, dO and
# float32 dQ of 128 columns take 128 MiB.
HEADS_SIDE_BY_SIDE = 16
ROWS_SIDE_BY_SIDE = 128 * 1024


@dataclass(frozen=True)
class Sizes:
    """Sizes of a call."""

    batch: Int32
    seqlen_q: Int32  # packed: of the longest sequence
    seqlen_k: Int32
    heads_q: Int32
    heads_kv: Int32
    total_q: Int32
    total_k: Int32
    mask_sizes: tuple  # of Int32
    cu_seqlens_q: cute.Tensor | None
    cu_seqlens_k: cute.Tensor | None
    used_q: cute.Tensor | None  # lengths of sequences that end before the next one begins
    used_k: cute.Tensor | None
    limit_k: cute.Tensor | None  # keys that may be seen, of those

    @property
    def tiles_of_queries(self) -> Int32:
        """Of all sequences and heads."""
        return tiles_of(self.seqlen_q) * self.heads_q * self.batch


@dataclass(frozen=True)
class Sequence:
    """Lengths, first rows in the tensors (dense: 0), and the first tile of L and delta of its queries.

    length_k: keys that may be seen; num_keys: those that positions of queries count
    """

    index: Int32
    length_q: Int32
    length_k: Int32
    num_keys: Int32
    first_q: Int32
    first_k: Int32
    stats_tile: Int32


@dataclass(frozen=True)
class Work:
    """The work of a CTA: own rows [row, row + 128) of a sequence and head, `turns` heads of tiles [first, end).

    tiles: the list of tiles, in place of first and end
    rank:  of the CTA in its pair, whose 256 rows all see some of the tiles
    number: of the pair in a sequence, where pairs take turns
    last_before: such a pair is the last one of tiles before this: the next pair of the sequence sees none of them
    """

    sequence: Sequence
    row: Int32
    head: Int32
    first: Int32
    end: Int32
    turns: Int32
    tiles: TileList | None = None
    rank: Int32 | None = None
    number: Int32 | None = None
    last_before: Int32 | None = None

    @property
    def count(self):
        if self.tiles is not None:
            return self.tiles.count
        return (self.end - self.first) * self.turns


def tiles_of(rows, of_tile: int = ROWS):
    return (rows + (of_tile - 1)) // of_tile


def grid_of(owner, sizes: Sizes):
    """CTAs of an owner's launch."""
    rows, heads = (
        (sizes.seqlen_k, sizes.heads_kv) if owner.owns_keys else (sizes.seqlen_q, sizes.heads_q)
    )
    return tiles_of(rows, ROWS * owner.ctas) * owner.ctas * heads * sizes.batch


def line_of_tile(owner, place):
    """Which line of L and delta, of 128 queries each, has those of a tile of the other side."""
    return place.tile // (ROWS // owner.other_rows)


def row_in_line(owner, place, row):
    """Where a row of that tile is in the line."""
    of_line = ROWS // owner.other_rows
    return row if of_line == 1 else row + place.tile % of_line * owner.other_rows


def stats_tiles(cfg, batch, seqlen_q, total_q):
    """Tiles of L and delta that a head needs. Packed: a sequence begins at tile cu // 128 + its index."""
    return total_q // ROWS + batch if cfg.packed else batch * tiles_of(seqlen_q)


def between(offsets, index, rows):
    """-> (first row, number of rows), clamped to the rows that exist: wrong offsets never lead outside a tensor."""
    first = minimum(maximum(offsets[index], 0), rows)
    return first, maximum(minimum(offsets[index + 1], rows), first) - first


def sequence_of(cfg, sizes: Sizes, index) -> Sequence:
    if not cfg.packed:
        q, k = sizes.seqlen_q, sizes.seqlen_k
        return Sequence(index, q, k, k, Int32(0), Int32(0), index * tiles_of(q))
    first_q, q = between(sizes.cu_seqlens_q, index, sizes.total_q)
    first_k, k = between(sizes.cu_seqlens_k, index, sizes.total_k)
    seen = k
    if cfg.used:
        q = minimum(maximum(sizes.used_q[index], 0), q)
        k = minimum(maximum(sizes.used_k[index], 0), k)
        seen = minimum(maximum(sizes.limit_k[index], 0), k)
    return Sequence(index, q, seen, k, first_q, first_k, first_q // ROWS + index)


def bands_of(cfg, owner, sizes: Sizes, of: Sequence, row) -> list:
    """[(lo, hi)] of the other side, whose union an own row sees; None where only the ends of tiles limit it.

    Queries past the end have no weight (delta.py), unless a function of scores gives their zeros one. Keys past the
    end would have a weight: where queries are owned, hi excludes them.
    """
    apart = of.num_keys - of.length_q
    if owner.owns_keys:
        end = of.length_q if cfg.has_functions else None
        bands = cfg.mask.queries(row, sizes.mask_sizes)
        return [(moved(lo, -apart), bound(minimum, moved(hi, -apart), end)) for lo, hi in bands]
    bands = cfg.mask.bands(row + apart, of.length_k, sizes.mask_sizes)
    from_start = cfg.mask.is_band and not cfg.mask.has_lower_bound
    return [(None if from_start else lo, minimum(hi, of.length_k)) for lo, hi in bands]


def moved(end, by):
    return None if end is None else end + by


def hull(bands: list) -> tuple:
    """(lo, hi) around all bands; None: open.

    >>> hull([(3, 5), (1, 4)]), hull([(None, 2), (1, None)])
    ((1, 5), (None, None))
    """
    lo, hi = bands[0]
    for other_lo, other_hi in bands[1:]:
        lo = None if lo is None or other_lo is None else minimum(lo, other_lo)
        hi = None if hi is None or other_hi is None else maximum(hi, other_hi)
    return lo, hi


def work_of(cfg, owner, sizes: Sizes, lists: TileLists | None, block) -> Work:
    """The work of a block of the grid. Tiles that see the most come first: the first keys, the last queries.

    Those of lists come in the order of the lists, if there is one. block: of a pair that takes turns, place_in_turn
    """
    group = sizes.heads_q // sizes.heads_kv
    heads = sizes.heads_kv if owner.owns_keys else sizes.heads_q
    longest = sizes.seqlen_k if owner.owns_keys else sizes.seqlen_q
    rows, rank = ROWS * owner.ctas, None
    if owner.ctas > 1:
        rank = rank_in_cluster()
        if not owner.takes_turns:
            block = block // owner.ctas
    if owner.takes_turns:
        tile, rest = block
    else:
        tile, rest = block // (heads * sizes.batch), block % (heads * sizes.batch)
    if not owner.owns_keys:
        tile = tiles_of(longest, rows) - 1 - tile
    if lists is not None and lists.order is not None:
        tile, rest = lists.placed(block, tile, rest)
    of = sequence_of(cfg, sizes, rest // heads)
    row = tile * rows
    first = first_tile(cfg, owner, sizes, of, row)
    _, end = hull(bands_of(cfg, owner, sizes, of, row + (rows - 1)))
    others = of.length_q if owner.owns_keys else of.length_k
    end = tiles_of(others if end is None else maximum(minimum(end, others), 0), owner.other_rows)
    own = of.length_k if owner.owns_keys else of.length_q
    has_work, last_before = row < own, None
    if owner.takes_turns:
        following = row + rows
        last_before = choose(following < own, first_tile(cfg, owner, sizes, of, following), end)
        # The first pair of a sequence stores dQ of all queries, also where none sees a key.
        if not cfg.accumulate:
            first, has_work = choose(tile == 0, 0, first), has_work | (tile == 0)
    end = choose(has_work, maximum(end, first), first)  # no rows, no work
    turns = group if owner.owns_keys else Int32(1)
    tiles = (
        None if lists is None else lists.of(of.index, rest % heads, tile, owner.other_rows < ROWS)
    )
    if rank is not None:
        row = row + rank * ROWS
    number = tile if owner.takes_turns else None
    return Work(of, row, rest % heads, first, end, turns, tiles, rank, number, last_before)


def first_tile(cfg, owner, sizes: Sizes, of: Sequence, row):
    """The first tile of the other side that an own row or a later one sees."""
    first, _ = hull(bands_of(cfg, owner, sizes, of, row))
    return Int32(0) if first is None else maximum(first, 0) // owner.other_rows


def heads_side_by_side(longest):
    """How many heads have pairs at the same time, where pairs take turns: the more, the less they wait for each other.

    Pairs of a head pass the same tiles within a few turns, so Q, dO and dQ come from the L2 cache. longest: rows
    """
    return maximum(ROWS_SIDE_BY_SIDE // maximum(longest, 1), HEADS_SIDE_BY_SIDE)


def place_in_turn(owner, sizes: Sizes, number, side) -> tuple:
    """-> (own tile, head of all sequences) of a pair that takes turns: those with smaller numbers begin before it.

    side: heads_side_by_side
    """
    tiles = tiles_of(sizes.seqlen_k, ROWS * owner.ctas)
    return side_by_side(number, tiles, sizes.heads_kv * sizes.batch, side)


def side_by_side(number, tiles, heads, side) -> tuple:
    """-> (own tile, head) of a number: so many heads at a time, whose first tiles come first.

    heads: of all sequences

    >>> [side_by_side(n, 2, 5, 4) for n in (0, 1, 4, 7, 8, 9)]
    [(0, 0), (0, 1), (1, 0), (1, 3), (0, 4), (1, 4)]
    """
    before = number // (tiles * side) * side
    side = minimum(heads - before, side)
    inside = number - before * tiles
    return inside // side, before + inside % side


@dataclass(frozen=True)
class Place:
    """Where a role is: a tile of the other side and a head of the group."""

    tile: Int32
    turn: Int32

    @staticmethod
    def of(work: Work) -> "Place | ListedPlace":
        if work.tiles is not None:
            return ListedPlace.of(work.tiles)
        if work.number is not None:
            return DescendingPlace(work.end - 1, Int32(0))
        return Place(work.first, Int32(0))

    def next(self, work: Work) -> "Place":
        last = self.tile + 1 == work.end
        return Place(choose(last, work.first, self.tile + 1), self.turn + choose(last, 1, 0))


class DescendingPlace(Place):
    """Pairs that take turns begin with the last queries, which all of a causal mask's keys see: those of all heads.

    So a pair follows the one before it at a short distance. If it began with the first queries that it sees, or passed
    the heads of a group one after another, the pair before would come to them later by as many tiles as that has more.
    """

    def next(self, work: Work) -> "DescendingPlace":
        last = self.turn + 1 == work.turns
        return DescendingPlace(self.tile - choose(last, 1, 0), choose(last, 0, self.turn + 1))


def q_head(owner, work: Work, place: Place):
    return work.head * work.turns + place.turn if owner.owns_keys else work.head


def kv_head(owner, sizes: Sizes, work: Work):
    if owner.owns_keys:
        return work.head
    return work.head // (sizes.heads_q // sizes.heads_kv)
