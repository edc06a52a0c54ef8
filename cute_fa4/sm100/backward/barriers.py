"""The barriers of the backward pass: who raises each, who waits for it.

    barrier        means
    own_full       an own tile has arrived: Q, dO or K, V
    other_full     a tile of a slot has arrived; where keys are owned, the first brings L and delta of its queries
    other_empty    the products that read the slot have completed
    second_empty   those that read the only slot of tile 1 have, where there is only one
    s_ready        S is in tensor memory
    s_read         S has been read, and where keys are owned P is written over it
    dp_ready       dP is in tensor memory
    ds_ready       dS is written over dP
    done           the sums are complete

Roles: compute, warps 0 to 7 (two warpgroups with half of the columns each); mma, warp 8; load, warp 9.
"""

from ..blueprint.barriers import (
    CTA,
    KV_SLOT,
    KV_STAGE,
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
SLOTS = 2  # of the ring
PAIR = "pair"  # the two tiles of an owner


def table(owns_keys: bool, single: bool) -> BarrierTable:
    """The table of one of the two kernels. single: the ring has one slot for tile 1."""
    load, mma, compute = (
        announced_bytes("load"),
        commit_by("mma"),
        Arrivals("compute", COMPUTE_THREADS),
    )
    once = "once"
    read = "P is written over S" if owns_keys else "S has been read"
    rows = (
        Barrier("own_full", PAIR, (load,), "mma", "an own tile is ready", once),
        Barrier("other_full", KV_STAGE, (load,), "mma, compute", "a tile is ready", "other_empty"),
        Barrier("other_empty", KV_SLOT, (mma,), "load", "a slot's MMAs are done", "other_full"),
        Barrier("s_ready", CTA, (mma,), "compute", "S is ready", "s_read"),
        Barrier("s_read", CTA, (compute,), "mma", read, "s_ready"),
        Barrier("dp_ready", CTA, (mma,), "compute", "dP is ready", "ds_ready"),
        Barrier("ds_ready", CTA, (compute,), "mma", "dS is written over dP", "dp_ready"),
        Barrier("done", CTA, (mma,), "compute", "the sums are complete", once),
    )
    if single:
        means = "tile 1 may be overwritten"
        rows += (Barrier("second_empty", CTA, (mma,), "load", means, "other_full"),)
    return BarrierTable(rows, {PAIR: 2, KV_SLOT: SLOTS, KV_STAGE: 2 * SLOTS, CTA: 1})
