"""TABLES"""

from dataclasses import replace

from ..mhawiden.warp_roles import WidenedWarpRoles
from ..mla_decode import barriers as latent
from ..sync.barriers import Arrivals, Barrier, BarrierTable, commit_by

SLAB, K_BUFFER = "slab", "k_buffer"
SLABS = 4  # of a key tile, each with a place of its own
K_BUFFERS = 2  # of slabs in tensor memory, in turn


def table(warps: WidenedWarpRoles, kv_slots: int, rope_slots: int) -> BarrierTable:
    """The table of a kernel whose rings have so many slots."""
    numbers = dict(latent.table(warps, kv_slots, rope_slots).numbers)
    return BarrierTable(rows(warps), numbers | {SLAB: SLABS, K_BUFFER: K_BUFFERS})


def rows(warps: WidenedWarpRoles) -> tuple[Barrier, ...]:
    """Every barrier, in memory order: those of a latent cache, with the widening between the ring and the MMA."""
    widen = Arrivals("widen", warps.threads_of("widen"))
    changed = {
        "kv_full": {"awaited_by": "widen", "means": "a slab is there as it is stored"},
        "kv_empty": {"raised_by": (widen,), "means": "the slot has been read"},
        "work_ready": {"awaited_by": "softmax, mma, widen"},
    }
    out = []
    for row in latent.rows(warps):
        if row.name == "work_read":
            row = replace(row, raised_by=(*row.raised_by, widen))
        out.append(replace(row, **changed.get(row.name, {})))
        if row.name == "rope_empty":
            out += _of_widened(widen)
    return tuple(out)


def _of_widened(widen: Arrivals) -> tuple[Barrier, ...]:
    mma = commit_by("mma")
    return (
        Barrier("slab_wide", SLAB, (widen,), "mma", "the slab is there as K and V", "slab_free"),
        Barrier("slab_free", SLAB, (mma,), "widen", "V P is added to its O", "slab_wide"),
        Barrier("k_free", K_BUFFER, (mma,), "widen", "its part of S is made", "slab_wide"),
    )
