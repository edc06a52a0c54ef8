"""Every mbarrier of the kernel with scales of blocks: who raises it, who waits for it, how many arrivals that takes.

The barriers are those of two_tiles/barriers.py with the ring of scales, whose entries here go to the tensor core:

barrier       number  raised by       awaited by  means
scales_full   4       scales 32       mma         the scales of a key tile, with a first one of the queries, are ready
scales_empty  4       mma 1 (commit)  scales      they have been copied into tensor memory

barrier       is not raised again too early because
scales_full   scales_empty
scales_empty  scales_full
"""

from ...blueprint.barriers import Barrier, BarrierTable, changed_rows, commit_by
from ...blueprint.entries import WORK_ENTRIES
from ...blueprint.tiles import Tiles
from ...blueprint.warp_roles import WarpRoles
from .. import barriers as of_two_tiles


def table(tiles: Tiles, warps: WarpRoles, kv_slots: int, of_the_order: tuple) -> BarrierTable:
    """The table of a kernel whose ring of keys has kv_slots slots."""
    return BarrierTable.of(
        rows(warps, of_the_order),
        q_tiles=tiles.num_q,
        warps=warps,
        work_entries=WORK_ENTRIES,
        kv_slots=kv_slots,
        qk_stages=tiles.qk_stages,
    )


def rows(warps: WarpRoles, of_the_order: tuple) -> tuple[Barrier, ...]:
    """Every barrier, in memory order."""
    changed = {
        "scales_full": {
            "awaited_by": "mma",
            "means": "the scales of a key tile, with a first one of the queries, are ready",
        },
        "scales_empty": {
            "raised_by": (commit_by("mma"),),
            "means": "they have been copied into tensor memory",
        },
    }
    return changed_rows(of_two_tiles.rows(warps, of_the_order, with_scales=True), changed)
