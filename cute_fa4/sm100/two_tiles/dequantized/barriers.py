"""Every mbarrier of the kernel that dequantizes in slots: who raises it, who waits, how many arrivals that takes.

The barriers are those of two_tiles/barriers.py, with raw_full before kv_full, which the `dequantize` warps raise:

barrier   number  raised by         awaited by  means
raw_full  4       load 1 (+ bytes)  dequantize  8-bit K or V is ready
kv_full   4       dequantize 64     mma         the K or V tile is ready
kv_empty  4       mma 1 (commit)    load        the slot's MMAs have completed

K of more than 128 columns has a rest in two places outside the ring (tiles.py). Then dequantize waits for kv_empty,
too, where a row of K arrives in the rest alone. raw_full is then of K and V of even and of odd key tiles:

barrier    number  raised by         awaited by  means
raw_full   4       load 1 (+ bytes)  dequantize  8-bit K or V is ready
rest_full  2       load 1 (+ bytes)  dequantize  what arrives in the rest of K is ready

and where its columns of 16 bits are handed over first, as a row of 8 bits has more bytes than a line

barrier     number  raised by      awaited by  means
rest_ready  2       dequantize 64  mma         the rest of K is ready

The 64 threads of these warps also read the work queue: work_read takes 64 more arrivals.

barrier   is not raised again too early because
raw_full  kv_empty of the slot, whose MMAs wait for kv_full, raised after this wait
rest_full  kv_empty of the slot of that K, whose MMAs wait for kv_full, raised after this wait
rest_ready  rest_full
"""

from dataclasses import replace

from ...blueprint.barriers import (
    K_REST,
    KV_TURN,
    QUEUE_READERS,
    Barrier,
    BarrierTable,
    announced_bytes,
    changed_rows,
    every_thread,
    queue_rows,
    raw_row,
)
from ...blueprint.entries import WORK_ENTRIES
from ...blueprint.tiles import Tiles
from .. import barriers as of_two_tiles
from .warp_roles import SlotWarpRoles


def table(
    tiles: Tiles, warps: SlotWarpRoles, kv_slots: int, of_the_order: tuple = ()
) -> BarrierTable:
    """The table of a kernel whose ring has kv_slots slots. of_the_order: the rows that its order adds."""
    return BarrierTable.of(
        rows(tiles, warps, of_the_order),
        q_tiles=tiles.num_q,
        warps=warps,
        work_entries=WORK_ENTRIES,
        kv_slots=kv_slots,
        qk_stages=tiles.qk_stages,
        k_rests=tiles.k_rests,
    )


def rest_rows(warps: SlotWarpRoles, is_early: bool) -> tuple[Barrier, ...]:
    """The barriers of what arrives in the rest of K, and of the rest, if it is handed over before the slot."""
    full = Barrier(
        "rest_full",
        K_REST,
        (announced_bytes("load"),),
        "dequantize",
        "what arrives in the rest of K is ready",
        "kv_empty of the slot of that K, whose MMAs wait for kv_full, raised after this wait",
    )
    ready = Barrier(
        "rest_ready",
        K_REST,
        (every_thread(warps, "dequantize"),),
        "mma",
        "the rest of K is ready",
        "rest_full",
    )
    return (full, ready) if is_early else (full,)


def rows(tiles: Tiles, warps: SlotWarpRoles, of_the_order: tuple = ()) -> tuple[Barrier, ...]:
    """Every barrier, in memory order: those of two query tiles, and raw_full for rows of 8 bits."""
    dequantize = every_thread(warps, "dequantize")
    ready, read, _ = queue_rows(warps, (*QUEUE_READERS, "dequantize"))
    changed = {
        "kv_full": {"raised_by": (dequantize,)},
        "work_ready": {"awaited_by": ready.awaited_by},
        "work_read": {"raised_by": read.raised_by},
    }
    after = {"o_ready": (raw_row(),)}
    if tiles.k_rests > 1:
        after["o_ready"] = (replace(raw_row(), per=KV_TURN), *rest_rows(warps, tiles.rest_is_early))
        changed["kv_empty"] = {"awaited_by": "load, dequantize"}
    return changed_rows(of_two_tiles.rows(warps, of_the_order), changed, after=after)
