"""Every mbarrier of the kernel that dequantizes keys: who raises it, who waits for it, how many arrivals that takes.

barrier       number  raised by                              awaited by  means
q_full        1       load 1 (+ bytes)                       dequantize  the Q tile is in shared memory
q_free        1       mma 1 (commit)                         dequantize  the last S of this Q is made
s_ready       2       mma 1 (commit)                         softmax     S is made
p_ready       1       softmax 128                            mma         P is stored, O rescaled, S read
pv_done       1       mma 1 (commit)                         softmax     O is complete so far, P is read
kv_full       13      load 1 (+ bytes)                       dequantize  the K or V tile is ready
kv_empty      13      dequantize 128                         load        the slot has been read
q_wide        2       dequantize 128                         softmax     the scales of bf16 rows are ready
q_taken       1       dequantize 128                         load        Q has been read where it arrived
q_ready       1       dequantize 128                         mma         Q is ready as fp16
k_wide        2       dequantize 128                         mma         K is ready as fp16
k_free        2       mma 1 (commit)                         dequantize  S is made
v_wide        2       dequantize 128                         mma         V is ready as fp16
v_free        2       mma 1 (commit)                         dequantize  P V is added to O
work_ready    2       load 1                                 all others  a work tile is announced
work_read     2       softmax 128 + mma 32 + dequantize 256  load        the announcement has been read
work_claimed  1       load 1 (+ bytes)                       load        the answer to a claim is ready

The warp that copies V (roles/values.py) also waits for kv_empty and work_ready, and its 32 threads arrive on work_read.
At the first key tile of a work tile, p_ready also says that the old O has been read. With fp16 queries mma awaits
q_full, load awaits q_free, and q_wide, q_taken and q_ready are not used. Half of the dequantize warps have even key
tiles and Q, the others odd key tiles. Where blocks of the cache have scales (block_scales.py), scales 32 also arrives
on work_read, and there are

scales_full   4       scales 32                              dequantize  they are in shared memory
scales_empty  4       dequantize 128                         scales      they have been read

barrier       is not raised again too early because
q_full        q_taken
q_free        q_ready
s_ready       S of the tile after next is made after P V of this one, which waits for p_ready
p_ready       the next P waits for pv_done, which follows this wait
pv_done       the next P V waits for p_ready, which follows this wait
kv_full       kv_empty
kv_empty      kv_full
q_wide        Q of the work tile after next waits for q_free, whose S waits for p_ready of this one
q_taken       q_full
q_ready       q_free
k_wide        k_free
k_free        k_wide
v_wide        v_free
v_free        v_wide
work_ready    work_read
work_read     work_ready
work_claimed  one claim at a time
"""

from ...blueprint.barriers import (
    SCALE_SLOT,
    SCALE_SLOTS,
    Arrivals,
    Barrier,
    BarrierTable,
    changed_rows,
    commit_by,
    queue_rows,
    scale_rows,
)
from .. import barriers as swapped
from .warp_roles import DequantizedWarpRoles

BUFFERS = (
    2  # of K and V in fp16, by key tile & 1; of the row scales of Q, by work tile with keys & 1
)
BUFFER, Q_TILE = swapped.S_BUFFER, swapped.Q_TILE  # two of each buffer


def table(
    warps: DequantizedWarpRoles, kv_slots: int, clusters: bool = False, scales: bool = False
) -> BarrierTable:
    """The table of a kernel whose ring has kv_slots slots; clusters: as in few_rows/barriers.py.

    scales: blocks of the cache have scales (block_scales.py)
    """
    of_cluster = swapped.cluster_rows() * clusters
    numbers = {**swapped.table(warps, kv_slots).numbers, SCALE_SLOT: SCALE_SLOTS}
    return BarrierTable(rows(warps, scales) + of_cluster, numbers)


def rows(warps: DequantizedWarpRoles, scales: bool = False) -> tuple[Barrier, ...]:
    """Every barrier, in memory order: the swap-AB barriers, plus dequantization between the ring and the MMA."""
    changed = {
        "q_full": {"awaited_by": "dequantize", "reuse": "q_taken"},
        "q_free": {"awaited_by": "dequantize", "reuse": "q_ready"},
        "pv_done": {"means": "O is complete so far, P is read"},
        "kv_full": {"awaited_by": "dequantize"},
        "kv_empty": {"raised_by": (half(warps),), "means": "the slot has been read"},
        **of_queue(warps, scales),
        "work_ready": {"awaited_by": "all others"},
    }
    of_scales = scale_rows(warps, half(warps)) if scales else ()
    after = {"kv_empty": _of_dequantized(warps) + of_scales}
    return changed_rows(swapped.rows(warps), changed, after=after)


def half(warps: DequantizedWarpRoles) -> Arrivals:
    """Every thread of the warps that dequantize even, or odd key tiles."""
    return Arrivals("dequantize", warps.threads_of("dequantize_odd"))


def of_queue(warps: DequantizedWarpRoles, scales: bool = False) -> dict[str, dict]:
    """Changes to the barriers of the work queue, which the `dequantize` warps read too; by barrier.

    scales: and the `scales` warp
    """
    readers = (*swapped.READERS, "dequantize", *(("scales",) * scales))
    ready, read, _ = queue_rows(warps, readers)
    return {
        "work_ready": {"awaited_by": ready.awaited_by},
        "work_read": {"raised_by": read.raised_by},
    }


def _of_dequantized(warps: DequantizedWarpRoles) -> tuple[Barrier, ...]:
    mma, dequantize = commit_by("mma"), half(warps)
    return (
        Barrier(
            "q_wide",
            BUFFER,
            (dequantize,),
            "softmax",
            "the scales of bf16 rows are ready",
            "Q of the work tile after next waits for q_free, whose S waits for p_ready of this one",
        ),
        Barrier(
            *("q_taken", Q_TILE, (dequantize,), "load"),
            *("Q has been read where it arrived", "q_full"),
        ),
        Barrier("q_ready", Q_TILE, (dequantize,), "mma", "Q is ready as fp16", "q_free"),
        Barrier("k_wide", BUFFER, (dequantize,), "mma", "K is ready as fp16", "k_free"),
        Barrier("k_free", BUFFER, (mma,), "dequantize", "S is made", "k_wide"),
        Barrier("v_wide", BUFFER, (dequantize,), "mma", "V is ready as fp16", "v_free"),
        Barrier("v_free", BUFFER, (mma,), "dequantize", "P V is added to O", "v_wide"),
    )
