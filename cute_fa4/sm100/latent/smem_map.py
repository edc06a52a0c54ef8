"""Shared memory of a CTA of the latent kernel from byte 0 to the last mbarrier.

field         bytes                          what
q             q_tile_bytes                   Q: at least 16 rows of 576 columns
kv            kv_slots * kv_slot_bytes       ring of slabs: 128 columns of a key tile in each slot
rope          rope_slots * rope_slot_bytes   ring of the rotary columns of key tiles
p             p_tile.nbytes                  P: a line for each key; with 64 rows it reuses rope
exchanged     2 * 512                        as in few_rows/smem_map.py, from here on
row_values    2 * 512
work_queue    112
mbarriers     8 * barriers.total
tmem_address  4

rows      Q         slabs        rope        P
8, 16     18 KiB    5 x 32 KiB   2 x 16 KiB  4 KiB
32        36 KiB    5 x 32 KiB   1 x 16 KiB  8 KiB
64        72 KiB    4 x 32 KiB   1 x 16 KiB  reuses rope

Q of 512 columns takes 1/9 less, and there is no rope; P of 64 rows takes 16 KiB.
"""

from dataclasses import dataclass, replace

from ..blueprint.barriers import BarrierTable
from ..blueprint.chip import MBARRIER_BYTES, SMEM_CAPACITY_BYTES, TMEM_ADDRESS_BYTES, WARP_SIZE
from ..blueprint.entries import WORK_QUEUE_BYTES
from ..blueprint.memory_maps import Region, SmemMap
from ..few_rows.warp_roles import SwappedWarpRoles
from .barriers import ROPE_SLOT
from .tiles import LatentTiles

BARRIERS_PER_SLOT = 2  # full and empty
MOST_ROPE_SLOTS = 2  # one is in flight while the other is in use


@dataclass(frozen=True)
class LatentSmem(SmemMap):
    q: Region
    kv: Region
    rope: Region
    p: Region
    exchanged: Region
    row_values: Region
    work_queue: Region
    mbarriers: Region
    tmem_address: Region


def smem_map(tiles: LatentTiles, warps: SwappedWarpRoles, table: BarrierTable) -> LatentSmem:
    """The map of a kernel with this barrier table, which sets the number of slots of each ring."""
    rows, in_warps = WARP_SIZE * tiles.rows_per_lane, len(warps.softmax)
    places = LatentSmem.of_sizes(
        q=tiles.q_tile_bytes,
        kv=table.kv_slots * tiles.kv_slot_bytes,
        rope=table.numbers[ROPE_SLOT] * tiles.rope_slot_bytes,
        p=0 if tiles.p_over_rope else tiles.p_tile.nbytes,
        exchanged=(rows, in_warps, 2),
        row_values=(rows, in_warps, tiles.row_values),
        work_queue=WORK_QUEUE_BYTES,
        mbarriers=MBARRIER_BYTES * table.total,
        tmem_address=TMEM_ADDRESS_BYTES,
    )
    if tiles.p_over_rope:
        places = replace(places, p=replace(places.rope, name="p", nbytes=tiles.p_tile.nbytes))
    return places


def slots_that_fit(tiles: LatentTiles, without_rings: LatentSmem) -> tuple[int, int]:
    """(slabs, slots of the rotary columns) that fit in the rest; without_rings: the map of a kernel without slots."""
    of_barriers = MBARRIER_BYTES * BARRIERS_PER_SLOT
    slab, rope = tiles.kv_slot_bytes + of_barriers, tiles.rope_slot_bytes + of_barriers
    free = SMEM_CAPACITY_BYTES - without_rings.nbytes
    if not tiles.rope_slot_bytes:
        return free // slab, 0
    slabs = max(0, (free - rope) // slab)
    most = 1 if tiles.p_over_rope else MOST_ROPE_SLOTS
    return slabs, max(0, min(most, (free - slabs * slab) // rope))
