"""Every mbarrier of the two-tile kernel: who raises it, who waits for it, how many arrivals that takes.

barrier       number  raised by                              awaited by                means
q_full        2       load 1 (+ bytes)                       mma                       the Q tile is in shared memory
q_free        2       mma 1 (commit)                         load                      the last S of this Q is made
s_ready       2       mma 1 (commit)                         softmax                   S is made; P over S: all P V too
row_scale     2       softmax 128                            correction                the factors, or last the row sums
p_ready       2       softmax 128 + correction 128           mma, softmax              P is stored in part, O rescaled
p_last        2       softmax 128                            mma                       the last part of P is stored
o_ready       2       mma 1 (commit)                         correction                O is complete
kv_full       4       load 1 (+ bytes)                       mma                       the K or V tile is ready
kv_empty      4       mma 1 (commit)                         load                      the slot's MMAs have completed
work_ready    2       load 1                                 softmax, correction, mma  a work tile is announced
work_read     2       softmax 256 + correction 128 + mma 32  load                      the announcement has been read
work_claimed  1       load 1 (+ bytes)                       load                      the answer to a claim is ready

row_scale brings a factor for each key tile but the first of a work tile, and the row sums after the last. At the first
key tile p_ready says that the old O has been read, not that it is rescaled. An order whose P has its own columns
(p_beside_s.py) has two more after p_last. Where S0 and S1 overlap (p_crossed.py), there is a third, s_apart: the
threads that raise s_free raise it once they have read the columns common to both, and mma waits for it. Where the
running maximum lags (`work/checked.py`), there is one more, the last, and the work queue has three entries:

barrier       number  raised by       awaited by           means
s_free        2       softmax 128     mma                  S has been read, the next one may be made
pv_done       2       mma 1 (commit)  softmax, correction  O is complete up to here and P has been read
work_checked  3       softmax 256     load                 whether a work tile is run again

Where every key has a scale (roles/token_scales.py), 32 threads of its warp also read the queue. The last rows are

barrier       number  raised by    awaited by  means
scales_full   4       scales 32    softmax     the scales of a key tile are ready
scales_empty  4       softmax 256  scales      they have been read

Where 8-bit K has 16-bit rotary columns (steps/products.py), there is

barrier    number  raised by       awaited by  means
kind_done  1       mma 1 (commit)  mma         the MMAs into S so far are done

barrier       is not raised again too early because
q_full        q_free
q_free        q_full
s_ready       the next S waits until softmax has read this one: for P, stored afterwards, or s_free
row_scale     the next factor follows p_ready of this tile, the sums wait for p_ready of the last tile
p_ready       the next S, and so the next P, is issued after this wait
p_last        as p_ready
s_free        the next S is issued after this wait
pv_done       the next P V waits for p_ready, which both raise after this wait
o_ready       the next O begins after p_ready, which correction raises when it has read this one
kv_full       kv_empty
kv_empty      kv_full
work_ready    work_read
work_read     work_ready
work_claimed  one claim at a time
work_checked  work_ready
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
    checked_rows,
    commit_by,
    every_thread,
    mixed_rows,
    one_softmax,
    queue_rows,
    ring_rows,
    scale_rows,
)
from ..blueprint.entries import CHECKED_ENTRIES, WORK_ENTRIES
from ..blueprint.tiles import Tiles
from ..blueprint.warp_roles import WarpRoles


def table(
    tiles: Tiles,
    warps: WarpRoles,
    kv_slots: int,
    of_the_order=(),
    checker: str | None = None,
) -> BarrierTable:
    """The table of a kernel.

    of_the_order: the rows that its order of the products adds; `checker`: the role that decides which work tiles rerun
    (`work/checked.py`); None: no work tile does
    """
    return BarrierTable.of(
        (
            *rows(warps, of_the_order, bool(tiles.problem.token_scales)),
            *mixed_rows(tiles.problem.mixes_rope),
            *(checked_rows(warps, checker) if checker else ()),
        ),
        q_tiles=tiles.num_q,
        warps=warps,
        work_entries=CHECKED_ENTRIES if checker else WORK_ENTRIES,
        kv_slots=kv_slots,
        qk_stages=tiles.qk_stages,
    )


def rows(warps: WarpRoles, of_the_order=(), with_scales: bool = False) -> tuple[Barrier, ...]:
    """Every barrier, in memory order. with_scales: keys have their own."""
    p_last = Barrier(
        "p_last",
        SOFTMAX,
        (one_softmax(warps),),
        "mma",
        "the last part of P is stored",
        "as p_ready",
    )
    softmax, correction = one_softmax(warps), every_thread(warps, "correction")
    load, mma = announced_bytes("load"), commit_by("mma")
    return (
        Barrier("q_full", Q_TILE, (load,), "mma", "the Q tile is in shared memory", "q_free"),
        Barrier("q_free", Q_TILE, (mma,), "load", "the last S of this Q is made", "q_full"),
        Barrier(
            "s_ready",
            SOFTMAX,
            (mma,),
            "softmax",
            "S is made; P over S: all P V too",
            "the next S waits until softmax has read this one: for P, stored afterwards, or s_free",
        ),
        Barrier(
            "row_scale",
            SOFTMAX,
            (softmax,),
            "correction",
            "the factors, or last the row sums",
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
        p_last,
        *of_the_order,
        Barrier(
            "o_ready",
            SOFTMAX,
            (mma,),
            "correction",
            "O is complete",
            "the next O begins after p_ready, which correction raises when it has read this one",
        ),
        *ring_rows(),
        *queue_rows(warps, (*QUEUE_READERS, "scales") if with_scales else QUEUE_READERS),
        *(scale_rows(warps, every_thread(warps, "softmax")) if with_scales else ()),
    )
