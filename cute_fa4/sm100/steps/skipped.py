"""Skip-softmax: a key tile in which no row of a warp has a weight worth computing contributes nothing (BLASST).

With m a row's running maximum over all its scores up to and with the tile, and t the largest score of the tile:

    a row can do without the tile    2^(c t - c m) < scale factor / keys of the sequence, at most 1
    a warp skips it                  all of its 32 rows can: P is 0 without an exponential, the row sums stay
    MMA skips it                     all four warps of the query tile skip it: no P V, and O stays

A row beyond the sequence, and a row that sees no key of the tile, can do without it. A NaN among the scores can not.
The first key tile of a work tile is never skipped: its P V writes O. The maximum that P refers to may lag m
(row_math.update_maximum), so m is a number of its own. A row whose m moves has t = m and does not skip: the factor of O
is 1 in rows that count.

Each softmax warp leaves its vote in shared memory before it raises p_ready, and the MMA warp reads the four votes after
it has waited for p_ready. There is room for the votes of two key tiles: the S of a key tile is issued after the votes
of the last but one have been read, and a warp votes on a tile after it has waited for its S.
"""

from dataclasses import dataclass, replace

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cutlass_dsl import if_generate

from ..blueprint.chip import WARP_SIZE
from ..instructions import tensor_memory
from ..work import results, rows
from . import row_math
from .row_math import RowState
from .warpgroup import KeyTile, RowContext, Warpgroup
from .warps import MmaWarp

WARPS = 4  # of a query tile
# Votes. Where tiles are counted, those in which no row of the warp sees a key have their own.
NEEDED, SKIPPED, NEEDED_UNSEEN, SKIPPED_UNSEEN = 0.0, 1.0, -1.0, 2.0


@dataclass(frozen=True)
class WatchedRow(RowState):
    """A row whose key tiles may be skipped. highest: its running maximum."""

    highest: Float32


def begun(cfg, state: RowState) -> RowState:
    """The initial state of a row."""
    if not cfg.skip_softmax:
        return state
    return WatchedRow(state.row_max, state.row_sum, state.row_max)


def followed(state: RowState, highest) -> RowState:
    """The state of the row after a key tile, with the maximum up to it; None: it is not watched."""
    if highest is None:
        return state
    return WatchedRow(state.row_max, state.row_sum, highest)


def with_limit(cfg, args, work, i, row: RowContext) -> RowContext:
    """The row with log2 of the smallest weight that counts, at most 0; above 0 beyond the sequence."""
    if not cfg.skip_softmax:
        return row
    keys = cute.math.log2(Float32(work.sequence.num_keys), fastmath=True)
    place = rows.row_of(cfg, work, i, row.thread % cfg.tiles.rows_per_q_tile)
    limit = cute.arch.fmin(args.skip[0] - keys, Float32(0.0))
    exists = results.is_row(cfg, args, work, place)
    return replace(row, limit=cutlass.select_(exists, limit, Float32(1.0)))


def maxima(cfg, scores: list, state: RowState) -> tuple:
    """-> (the largest score of the tile, or None; the largest of it and the maximum of the row)."""
    if not cfg.skip_softmax:
        return None, row_math.row_maximum(scores, state.row_max)
    own = row_math.row_maximum(scores, -Float32.inf)
    return own, cute.arch.fmax(own, state.row_max, nan=True)


def vote(cfg, group: Warpgroup, row: RowContext, tile: KeyTile, own, highest, first):
    """Leave the vote of this warp; -> whether it needs the tile.

    own, highest: largest scores in units of log2, of the tile and so far; first: whether it is the first of a work tile
    """
    unseen = (own == -Float32.inf) | (row.limit > 0.0)
    small = own - highest < row.limit
    skips = cute.arch.vote_all_sync(unseen | small) & (not_(first))
    said = cutlass.select_(skips, Float32(SKIPPED), Float32(NEEDED))
    if cfg.count_skipped:
        of_unseen = cutlass.select_(skips, Float32(SKIPPED_UNSEEN), Float32(NEEDED_UNSEEN))
        said = cutlass.select_(cute.arch.vote_all_sync(unseen), of_unseen, said)
    with cute.arch.elect_one():
        group.smem.votes[tile.phase, row.thread // WARP_SIZE] = said
    return not_(skips)


def not_(condition):
    return condition == cutlass.Boolean(False)


def store_zeros(cfg, order, group: Warpgroup, work, tile: KeyTile, s_address):
    """P = 0 for a tile that this warp skips: other warps of the query tile may need it."""
    address, quarter = order.p_address(cfg, s_address, group.i), cfg.tiles.BN // 4
    order.may_store_p(group.events, work, tile.n, group.i, tile.phase)
    zeros = [Int32(0)] * cfg.tiles.tmem_columns_of(quarter)
    for first in range(0, cfg.tiles.BN, quarter):
        tensor_memory.store(address + cfg.tiles.tmem_columns_of(first), zeros)
    tensor_memory.wait_store()
    tensor_memory.fence_before()
    group.events.p_ready.arrive(tile.at)
    group.events.p_last.arrive(tile.at)


def unless_skipped(cfg, mma: MmaWarp, i, phase):
    """After the wait for p_ready of query tile i: -> a function that calls what issues MMAs, unless it is skipped."""
    if not cfg.skip_softmax:
        return lambda issue: issue()
    said = mma.smem.votes[phase, i * WARPS + cute.arch.lane_idx() % WARPS]
    needed = cute.arch.vote_any_sync(said < SKIPPED)
    if cfg.count_skipped:
        count(mma.skip[1], needed, cute.arch.vote_any_sync((said >= NEEDED) & (said <= SKIPPED)))

    def issue_if_needed(issue):
        if_generate(needed, issue)

    return issue_if_needed


@cute.jit
def count(counts: cute.Tensor, needed: cutlass.Boolean, seen: cutlass.Boolean):
    """Count a tile of which a row sees a key: counts[0], those that are skipped; counts[1], all."""
    if seen:
        with cute.arch.elect_one():
            cute.arch.atomic_add(counts.iterator + 1, Int32(1), sem="relaxed", scope="gpu")
            if needed == cutlass.Boolean(False):
                cute.arch.atomic_add(counts.iterator, Int32(1), sem="relaxed", scope="gpu")
