"""Every mbarrier of the kernel with swapped operands: who raises it, who waits for it, how many arrivals that takes.

barrier       number  raised by             awaited by    means
q_full        1       load 1 (+ bytes)      mma           the Q tile is in shared memory
q_free        1       mma 1 (commit)        load          the last S of this Q is made
s_ready       2       mma 1 (commit)        softmax       S is made
p_ready       1       softmax 128           mma           P is stored, O rescaled, S read
pv_done       1       mma 1 (commit)        softmax       O is complete up to here and P has been read
kv_full       6       load 1 (+ bytes)      mma           the K or V tile is ready
kv_empty      6       mma 1 (commit)        load          the slot's MMAs have completed
work_ready    2       load 1                softmax, mma  a work tile is announced
work_read     2       softmax 128 + mma 32  load          the announcement has been read
work_claimed  1       load 1 (+ bytes)      load          the answer to a claim is ready

At the first key tile of a work tile, p_ready also says that the old O has been read. Where rows are gathered, a
dedicated warp announces and copies V (roles/values.py). It also waits for kv_empty and work_ready, and reads work tiles
like the other roles, so work_read takes 32 more arrivals. A CTA in a cluster has one more mbarrier: parts_in.

barrier       is not raised again too early because
q_full        q_free
q_free        q_full
s_ready       S of the tile after next is made after P V of this one, which waits for p_ready
p_ready       the next P waits for pv_done, which follows this wait
pv_done       the next P V waits for p_ready, which follows this wait
kv_full       kv_empty
kv_empty      kv_full
work_ready    work_read
work_read     work_ready
work_claimed  one claim at a time
"""

from ..blueprint.barriers import (
    KV_SLOT,
    KV_STAGE,
    Barrier,
    BarrierTable,
    announced_bytes,
    commit_by,
    every_thread,
    queue_rows,
    ring_rows,
)
from ..blueprint.entries import WORK_ENTRIES
from .warp_roles import SwappedWarpRoles

Q_TILE, S_BUFFER, WORK_ENTRY, CTA = "q_tile", "s_buffer", "work_entry", "cta"
READERS = ("softmax", "mma")  # of the work queue
PARTS_IN = "parts_in"  # of a CTA in a cluster
S_BUFFERS = 2  # S of the next key tile is computed during the softmax of this one; buffer: tile & 1


def table(
    warps: SwappedWarpRoles, kv_slots: int, qk_stages: int = 1, clusters: bool = False
) -> BarrierTable:
    """The table of a kernel whose ring has kv_slots slots; qk_stages: depth chunks of K.

    clusters: CTAs share the keys of a block and send each other their partial results
    """
    numbers = {
        Q_TILE: 1,
        S_BUFFER: S_BUFFERS,
        WORK_ENTRY: WORK_ENTRIES,
        CTA: 1,
        KV_SLOT: kv_slots,
        KV_STAGE: kv_slots * qk_stages,
    }
    return BarrierTable(rows(warps) + cluster_rows() * clusters, numbers)


def cluster_rows() -> tuple[Barrier, ...]:
    """The mbarrier of a CTA that merges the parts sent by the CTAs of its cluster (cluster.py)."""
    return (
        Barrier(
            PARTS_IN,
            CTA,
            (announced_bytes("softmax"),),
            "softmax",
            "every CTA's part of the rows merged here is ready",
            "a CTA of a cluster has one block",
        ),
    )


def rows(warps: SwappedWarpRoles) -> tuple[Barrier, ...]:
    """Every barrier, in memory order."""
    softmax = every_thread(warps, "softmax")
    load, mma = announced_bytes("load"), commit_by("mma")
    return (
        Barrier("q_full", Q_TILE, (load,), "mma", "the Q tile is in shared memory", "q_free"),
        Barrier("q_free", Q_TILE, (mma,), "load", "the last S of this Q is made", "q_full"),
        Barrier(
            "s_ready",
            S_BUFFER,
            (mma,),
            "softmax",
            "S is made",
            "S of the tile after next is made after P V of this one, which waits for p_ready",
        ),
        Barrier(
            "p_ready",
            Q_TILE,
            (softmax,),
            "mma",
            "P is stored, O rescaled, S read",
            "the next P waits for pv_done, which follows this wait",
        ),
        Barrier(
            "pv_done",
            Q_TILE,
            (mma,),
            "softmax",
            "O is complete up to here and P has been read",
            "the next P V waits for p_ready, which follows this wait",
        ),
        *ring_rows(),
        *queue_rows(warps, READERS),
    )  # fmt: skip
