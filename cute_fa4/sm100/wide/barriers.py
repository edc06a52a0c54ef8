"""Every mbarrier of the wide kernel: who raises it, who waits for it, how many arrivals that takes.

barrier       number  raised by                              awaited by                means
q_full        1       load 1 (+ bytes)                       mma                       Q is in shared memory
q_free        1       mma 1 (commit)                         load                      the last S of this Q is made
s_ready       2       mma 1 (commit)                         softmax                   S is made
row_scale     2       softmax 128                            correction                the factors, or last the row sums
p_ready       2       softmax 128 + correction 128           mma, softmax              P is stored in part, O rescaled
p_last        2       softmax 128                            mma                       the last part of P is stored
pv_done       1       mma 1 (commit)                         correction                O is complete up to here
kv_full       9       load 1 (+ bytes)                       mma                       the K or V tile is ready
kv_empty      9       mma 1 (commit)                         load                      the slot's MMAs have completed
work_ready    2       load 1                                 softmax, correction, mma  a work tile is announced
work_read     2       softmax 128 + correction 128 + mma 32  load                      the announcement has been read
work_claimed  1       load 1 (+ bytes)                       load                      the answer to a claim is ready

S, P and their barriers have two buffers; key tile t of the CTA, counted over all its work tiles, uses buffer t & 1.
row_scale carries a factor for each key tile except the first of a work tile, and the row sums after the last: message
e arrives on barrier e & 1. At the first key tile p_ready means that the old O has been read, not that it is rescaled.
A slot of the ring holds a unit of 64 columns of K or V.

barrier       is not raised again too early because
q_full        q_free
q_free        q_full
s_ready       S of the tile after next is made after P V of this one, which waits for P
row_scale     the one after next follows S of two tiles on, the sums wait for p_ready of the last tile
p_ready       P of the tile after next follows its S, which is issued after this wait
p_last        as p_ready
pv_done       the next P V waits for p_ready, which correction raises after this wait
kv_full       kv_empty
kv_empty      kv_full
work_ready    work_read
work_read     work_ready
work_claimed  one claim at a time
"""

from ..blueprint.barriers import (
    KV_SLOT,
    KV_STAGE,
    QUEUE_READERS,
    Arrivals,
    Barrier,
    BarrierTable,
    announced_bytes,
    changed_rows,
    commit_by,
    every_thread,
    queue_rows,
    ring_rows,
)
from ..blueprint.entries import WORK_ENTRIES
from ..blueprint.warp_roles import WarpRoles
from .warp_roles import DequantizingWarpRoles

Q_TILE, S_BUFFER, WORK_ENTRY, CTA = "q_tile", "s_buffer", "work_entry", "cta"
S_BUFFERS = 2


def table(warps: WarpRoles, kv_slots: int) -> BarrierTable:
    """The table of a kernel whose ring has `kv_slots` slots."""
    return BarrierTable(rows(warps), numbers(kv_slots))


def numbers(kv_slots: int) -> dict[str, int]:
    """How many instances there are of each kind that a barrier can be per."""
    return {
        Q_TILE: 1,
        S_BUFFER: S_BUFFERS,
        WORK_ENTRY: WORK_ENTRIES,
        CTA: 1,
        KV_SLOT: kv_slots,
        KV_STAGE: kv_slots,
    }


def rows(warps: WarpRoles) -> tuple[Barrier, ...]:
    """Every barrier, in memory order."""
    softmax, correction = every_thread(warps, "softmax"), every_thread(warps, "correction")
    load, mma = announced_bytes("load"), commit_by("mma")
    return (
        Barrier("q_full", Q_TILE, (load,), "mma", "Q is in shared memory", "q_free"),
        Barrier("q_free", Q_TILE, (mma,), "load", "the last S of this Q is made", "q_full"),
        Barrier(
            "s_ready",
            S_BUFFER,
            (mma,),
            "softmax",
            "S is made",
            "S of the tile after next is made after P V of this one, which waits for P",
        ),
        Barrier(
            "row_scale",
            S_BUFFER,
            (softmax,),
            "correction",
            "the factors, or last the row sums",
            "the one after next follows S of two tiles on, the sums wait for p_ready of the last tile",
        ),
        Barrier(
            "p_ready",
            S_BUFFER,
            (softmax, correction),
            "mma, softmax",
            "P is stored in part, O rescaled",
            "P of the tile after next follows its S, which is issued after this wait",
        ),
        Barrier(
            "p_last", S_BUFFER, (softmax,), "mma", "the last part of P is stored", "as p_ready"
        ),
        Barrier(
            "pv_done",
            Q_TILE,
            (mma,),
            "correction",
            "O is complete up to here",
            "the next P V waits for p_ready, which correction raises after this wait",
        ),
        *ring_rows(),
        *queue_rows(warps),
    )


def dequantizing_rows(
    warps: DequantizingWarpRoles, raw: Barrier, kv_full: Arrivals
) -> tuple[Barrier, ...]:
    """The same where two warps dequantize in slots. raw: 8-bit columns have arrived; kv_full: who raises it then."""
    readers = sum(map(warps.threads_of, (*QUEUE_READERS, "dequantize")))
    changed = {
        "kv_full": {"raised_by": (kv_full,)},
        "work_ready": {"awaited_by": "all others"},
        "work_read": {"raised_by": (Arrivals("all others", readers),)},
    }
    return changed_rows(rows(warps), changed, after={"pv_done": (raw,)})
