"""The barriers of the backward pass: who raises each, who waits for it.

    barrier        means
    own_full       an own tile has arrived: Q, dO or K, V
    own_moved      an own tile is in tensor memory, where it moves there
    other_full     a tile of the ring has arrived; where keys are owned, the first brings L and delta of its queries
    other_empty    the products that read the tile have completed, and with them what reads dS
    s_ready        S is in tensor memory
    s_read         S has been read, and where keys are owned P is written over it
    dp_ready       dP is in tensor memory
    ds_ready       dP has been read, and dS is written
    done           the sums are complete

Roles: compute, warps 0 to 7 (two warpgroups with half of the columns each); mma, warp 8; load, warp 9.
"""

from ..blueprint.barriers import (
    CTA,
    Arrivals,
    Barrier,
    BarrierTable,
    announced_bytes,
    commit_by,
)
from ..blueprint.chip import WARP_SIZE

COMPUTE, MMA, LOAD = range(8), 8, 9
COMPUTE_THREADS = WARP_SIZE * len(COMPUTE)
THREADS = WARP_SIZE * (LOAD + 1)
PAIR = "pair"  # the tiles of an owner
MOVED = "moved"  # own tiles that move to tensor memory
RING = "ring"  # the slots of tile 0, then those of tile 1
S = "s"  # the places of S


def table(stores_p: bool, own: int, slots: int, places: int, moves: tuple) -> BarrierTable:
    """The table of one of the kernels. own: own tiles; slots: of the ring, of both tiles; places: of S.

    moves: how many own tiles move to tensor memory, and whether dS has columns of its own
    """
    load, mma, compute = (
        announced_bytes("load"),
        commit_by("mma"),
        Arrivals("compute", COMPUTE_THREADS),
    )
    once = "once"
    read = "P is written over S" if stores_p else "S has been read"
    own_moved = "an own tile is in its columns"
    moved = Barrier("own_moved", MOVED, (compute,), "mma, load", own_moved, once)
    own_moves, ds_apart = moves
    waiters = "mma, compute" if own_moves else "mma"
    until_read = "load, compute" if ds_apart else "load"
    rows = (
        Barrier("own_full", PAIR, (load,), waiters, "an own tile is ready", once),
        *([moved] if own_moves else []),
        Barrier("other_full", RING, (load,), "mma, compute", "a tile is ready", "other_empty"),
        Barrier("other_empty", RING, (mma,), until_read, "a tile's MMAs are done", "other_full"),
        Barrier("s_ready", S, (mma,), "compute", "S is ready", "s_read"),
        Barrier("s_read", S, (compute,), "mma", read, "s_ready"),
        Barrier("dp_ready", CTA, (mma,), "compute", "dP is ready", "ds_ready"),
        Barrier("ds_ready", CTA, (compute,), "mma", "dS is written", "dp_ready"),
        Barrier("done", CTA, (mma,), "compute", "the sums are complete", once),
    )
    return BarrierTable(rows, {PAIR: own, MOVED: own_moves, RING: slots, S: places, CTA: 1})
