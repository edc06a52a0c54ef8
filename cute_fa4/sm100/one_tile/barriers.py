"""Every mbarrier of the one-tile kernel: who raises it, who waits for it, how many arrivals that takes.

barrier       number  raised by                              awaited by                means
q_full        1       load 1 (+ bytes)                       mma                       Q is in shared memory
q_free        1       mma 1 (commit)                         load                      the last S of this Q is made
s_ready       2       mma 1 (commit)                         softmax                   S is made, and P V before it
row_scale     2       softmax 128                            correction                the factors, or last the states
p_ready       2       softmax 128 + correction 128           mma, softmax              P is stored in part, O rescaled
p_last        2       softmax 128                            mma                       the last part of P is stored
o_ready       1       mma 1 (commit)                         correction                both O are complete
kv_full       5       load 1 (+ bytes)                       mma                       the K or V tile is ready
kv_empty      5       mma 1 (commit)                         load                      the slot's MMAs have completed
work_ready    2       load 1                                 softmax, correction, mma  a work tile is announced
work_read     2       softmax 256 + correction 128 + mma 32  load                      the announcement has been read
work_claimed  1       load 1 (+ bytes)                       load                      the answer to a claim is ready

row_scale brings a factor for each key tile of its warpgroup except the first of a work tile, and after the last one
the warpgroup's row sums and maxima. At the first key tile, p_ready says that the old O has been read, not that it is
rescaled. A warpgroup without a key tile in a work tile (the odd one, if there is a single key tile) raises no barrier
for it, and no other warp waits for that warpgroup.

With a scale per key (roles/token_scales.py), 32 threads of the scales warp read the queue too, and the last rows are

barrier       number  raised by    awaited by  means
scales_full   4       scales 32    softmax     the scales of a key tile are ready
scales_empty  4       softmax 128  scales      they have been read

Where 8-bit K has 16-bit rotary columns (steps/products.py), there is also

barrier    number  raised by       awaited by  means
kind_done  1       mma 1 (commit)  mma         the MMAs into S so far are done

barrier       is not raised again too early because
q_full        q_free
q_free        q_full
s_ready       the next S is issued after P V, which waits for P, stored after this S was read
row_scale     the next factor follows p_ready of this tile, the sums wait for p_ready of the last tile
p_ready       the next S, and so the next P, is issued after this wait
p_last        as p_ready
o_ready       the next O begins after p_ready, which correction raises when it has read this one
kv_full       kv_empty
kv_empty      kv_full
work_ready    work_read
work_read     work_ready
work_claimed  one claim at a time
scales_full   scales_empty
scales_empty  scales_full
kind_done     each is awaited
"""

from ..blueprint.barriers import (
    Q_TILE,
    QUEUE_READERS,
    SOFTMAX,
    Barrier,
    BarrierTable,
    announced_bytes,
    commit_by,
    every_thread,
    mixed_rows,
    one_softmax,
    queue_rows,
    ring_rows,
    scale_rows,
)
from ..blueprint.entries import WORK_ENTRIES
from ..blueprint.tiles import Tiles
from ..blueprint.warp_roles import WarpRoles


def table(tiles: Tiles, warps: WarpRoles, kv_slots: int) -> BarrierTable:
    """The table of a kernel."""
    return BarrierTable.of(
        rows(warps, bool(tiles.problem.token_scales)) + mixed_rows(tiles.problem.mixes_rope),
        q_tiles=tiles.num_q,
        warps=warps,
        work_entries=WORK_ENTRIES,
        kv_slots=kv_slots,
        qk_stages=tiles.qk_stages,
    )


def rows(warps: WarpRoles, with_scales: bool = False) -> tuple[Barrier, ...]:
    """Every barrier, in memory order. with_scales: every key has a scale."""
    softmax, correction = one_softmax(warps), every_thread(warps, "correction")
    load, mma = announced_bytes("load"), commit_by("mma")
    return (
        Barrier("q_full", Q_TILE, (load,), "mma", "Q is in shared memory", "q_free"),
        Barrier("q_free", Q_TILE, (mma,), "load", "the last S of this Q is made", "q_full"),
        Barrier(
            "s_ready",
            SOFTMAX,
            (mma,),
            "softmax",
            "S is made, and P V before it",
            "the next S is issued after P V, which waits for P, stored after this S was read",
        ),
        Barrier(
            "row_scale",
            SOFTMAX,
            (softmax,),
            "correction",
            "the factors, or last the states",
            "the next factor follows p_ready of this tile, the sums wait for p_ready of the last tile",
        ),
        Barrier(
            "p_ready",
            SOFTMAX,
            (softmax, correction),
            "mma, softmax",
            "P is stored in part, O rescaled",
            "the next S, and so the next P, is issued after this wait",
        ),
        Barrier("p_last", SOFTMAX, (softmax,), "mma", "the last part of P is stored", "as p_ready"),
        Barrier(
            "o_ready",
            Q_TILE,
            (mma,),
            "correction",
            "both O are complete",
            "the next O begins after p_ready, which correction raises when it has read this one",
        ),
        *ring_rows(),
        *queue_rows(warps, (*QUEUE_READERS, "scales") if with_scales else QUEUE_READERS),
        *(scale_rows(warps, softmax) if with_scales else ()),
    )
