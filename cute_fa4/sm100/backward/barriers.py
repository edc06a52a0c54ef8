"""The barriers of the backward pass: who raises each, who waits for it.

    barrier        means
    own_full       an own tile has arrived: Q, dO or K, V
    own_moved      an own tile is in tensor memory, where it moves there
    own_there      the same in both CTAs of a pair
    other_full     a tile of the ring has arrived; where keys are owned, the first brings L and delta of its queries
    other_empty    the products that read the tile have completed, and with them what reads dS
    s_ready        S is in tensor memory
    s_read         S has been read; where dV is alone, p_ready says so
    p_ready        P is written, for dV
    dp_ready       dP is in tensor memory
    dp_read        dP has been read; where dS is written over it, ds_ready says so
    ds_ready       dS is written
    done           the sums are complete

Roles: compute, warpgroups with an equal part of the columns each (Warps); mma and load, a warp each.
"""

from dataclasses import dataclass, replace

from ..blueprint.barriers import (
    CTA,
    Arrivals,
    Barrier,
    BarrierTable,
    announced_bytes,
    commit_by,
)
from ..blueprint.chip import WARP_SIZE
from ..pair.barriers import by_warps_of_both

WARPGROUP = 4  # warps: 128 rows
PAIR = "pair"  # the tiles of an owner
MOVED = "moved"  # own tiles that move to tensor memory
RING = "ring"  # the slots of each part (Owner.parts)
S = "s"  # the places of S
READ_OR_WRITTEN = "s_read", "p_ready", "dp_read", "ds_ready"  # by compute warps, for MMAs


@dataclass(frozen=True)
class Warps:
    """The warps of a kernel with so many warpgroups of compute warps."""

    groups: int

    @property
    def compute(self) -> range:
        return range(WARPGROUP * self.groups)

    @property
    def mma(self) -> int:
        return self.compute.stop

    @property
    def load(self) -> int:
        return self.mma + 1

    @property
    def compute_threads(self) -> int:
        return WARP_SIZE * len(self.compute)

    @property
    def threads(self) -> int:
        return WARP_SIZE * (self.load + 1)


def table(
    warps: Warps, stores_p: bool, own: int, slots: int, places: int, moves: tuple
) -> BarrierTable:
    """The table of one of the kernels. own: own tiles; slots: of all parts of the ring; places: of S.

    moves: how many own tiles move to tensor memory, and which of P and dS has columns of its own
    """
    load, mma, compute = (
        announced_bytes("load"),
        commit_by("mma"),
        Arrivals("compute", warps.compute_threads),
    )
    once = "once"
    own_moved = "an own tile is in its columns"
    moved = Barrier("own_moved", MOVED, (compute,), "mma, load", own_moved, once)
    own_moves, apart = moves
    has_dp = own == 2
    s_read = Barrier("s_read", CTA, (compute,), "mma", "S has been read", "s_ready")
    p_ready = Barrier("p_ready", S, (compute,), "mma", "P is written", "s_ready")
    dp_read = Barrier("dp_read", CTA, (compute,), "mma", "dP has been read", "dp_ready")
    waiters = "mma, compute" if own_moves else "mma"
    until_read = "load, compute" if apart else "load"
    rows = (
        Barrier("own_full", PAIR, (load,), waiters, "an own tile is ready", once),
        *([moved] if own_moves else []),
        Barrier("other_full", RING, (load,), "mma, compute", "a tile is ready", "other_empty"),
        Barrier("other_empty", RING, (mma,), until_read, "a tile's MMAs are done", "other_full"),
        Barrier("s_ready", S, (mma,), "compute", "S is ready", "s_read" if has_dp else "p_ready"),
        *([s_read] if has_dp else []),
        *([p_ready] if stores_p else []),
        Barrier("dp_ready", CTA, (mma,), "compute", "dP is ready", "ds_ready"),
        *([dp_read] if apart == "dS" else []),
        Barrier("ds_ready", CTA, (compute,), "mma", "dS is written", "dp_ready"),
        Barrier("done", CTA, (mma,), "compute", "the sums are complete", once),
    )
    return BarrierTable(rows, {PAIR: own, MOVED: own_moves, RING: slots, S: places, CTA: 1})


def of_pair(table: BarrierTable) -> BarrierTable:
    """The table of two CTAs that share their MMAs (pair.py), from that of one.

    CTA 0 waits for warps of both ("at 0"). Own tiles that move are news within each CTA, except that CTA 0 waits for
    both: own_there.
    """
    rows: list[Barrier] = []
    for row in table.rows:
        if row.name in READ_OR_WRITTEN:
            rows.append(_at_0(row))
        elif row.name == "other_full":
            rows.append(replace(row, raised_by=(Arrivals("load", 1, "+ bytes of both"),)))
        elif row.name == "own_moved":
            rows.append(replace(row, awaited_by="load, compute"))
            there = "an own tile is in its columns in both"
            rows.append(_at_0(replace(row, name="own_there", awaited_by="mma", means=there)))
        else:
            rows.append(row)
    return BarrierTable(tuple(rows), table.numbers)


def _at_0(row: Barrier) -> Barrier:
    (arrivals,) = row.raised_by
    return replace(row, raised_by=(replace(by_warps_of_both(arrivals), how="at 0"),))
