"""Correction warpgroup where query tiles see different key tiles and warpgroups take turns in leading (hooks.py).

O and barriers are those of a warpgroup, rows are those of its query tile. Waits follow the order of the events:
the factors of the leader, then of the other warpgroup; at the end O of query tile 0, then of query tile 1.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cute_fa4.layouts.scalars import choose

from ...roles import merge
from ...roles.correction import finish_tile, rescale_tile
from ...roles.merge import Turns
from ...steps.warpgroup import CorrectionGroup
from ...work.tile import Work
from ..single_tile.correction import finish_single
from ..single_tile.tile import is_single


@dataclass(frozen=True)
class Count:
    """A query tile: its warpgroup, its key tiles, and the key tiles that the warpgroup had before."""

    warpgroup: Int32
    tiles: Int32
    before: Int32

    @staticmethod
    def of(work: Work, before: Turns, q_tile: int) -> "Count":
        leader = work.tiles.leader
        warpgroup = leader if q_tile else 1 - leader
        had = choose(warpgroup == 0, before.even, before.odd)
        return Count(warpgroup, work.tiles.count_of(q_tile), had)

    def phase(self, n):
        """Parity of key tile n."""
        return (self.before + n) & 1


@cute.jit
def two_tiles(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    group: CorrectionGroup,
    work: Work,
    before: Turns,
):
    """A work tile of two query tiles, from the first factor to the last store. before: key tiles of each warpgroup."""
    first, second = Count.of(work, before, 0), Count.of(work, before, 1)
    late = work.tiles.before(1)
    for n in cutlass.range(1, second.tiles + late, unroll=1):
        own = second.warpgroup, second.phase(n - late - 1)
        if cutlass.const_expr(not cfg.begins_late):
            rescale_tile(cfg, order, group, *own)
        else:
            if n > late:
                rescale_tile(cfg, order, group, *own)
        if n < first.tiles:
            rescale_tile(cfg, order, group, first.warpgroup, first.phase(n - 1))
    for q_tile in cutlass.range_constexpr(2):
        of = (first, second)[q_tile]
        place = work, of.warpgroup, q_tile, of.phase(of.tiles - 1), before.o & 1
        finish_tile(cfg, order, group, *place)


@cute.jit
def correct_tiles(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    group: CorrectionGroup,
    work: Work,
    before: Turns,
) -> Turns:
    """A work tile of two query tiles."""
    now = Turns.of(cfg, order, work)
    two_tiles(cfg, order, group, work, before)
    return before.plus(now)


@cute.jit
def correct_single_or_two(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    group: CorrectionGroup,
    work: Work,
    before: Turns,
) -> Turns:
    """A work tile of either kind."""
    now = Turns.of(cfg, order, work)
    if is_single(cfg, work):
        merge.key_tiles(cfg, order, group, now, before)
        finish_single(cfg, group, work, now, before)
    else:
        two_tiles(cfg, order, group, work, before)
    return before.plus(now)
