"""Shared memory of a CTA of the pair from byte 0 to the last mbarrier.

field         bytes                      what
q             73728                      Q: 64 rows of 576 columns
kv            kv_slots * kv_slot_bytes   ring of units: 64 keys x 128 columns, K and V in the order of their use
rope          rope_slots * 8192          ring of the rotary columns of 64 keys
p             16384                      P: 64 rows x 128 keys
exchanged     2 * 1024                   a value of each softmax thread, for the other threads of its row
work_queue    112
mbarriers     8 * barriers.total
tmem_address  4

In 16 bits: eight slots of 16 KiB, which hold K of one key tile and V of one, and one slot of rotary columns. In 8 bits
a slot is half as large, and rotary columns have three: with one, K of the tile after next would have to wait for S.
"""

from dataclasses import dataclass

from ...blueprint.barriers import BarrierTable
from ...blueprint.chip import MBARRIER_BYTES, SMEM_CAPACITY_BYTES, TMEM_ADDRESS_BYTES
from ...blueprint.entries import WORK_QUEUE_BYTES
from ...blueprint.memory_maps import Region, SmemMap
from ...few_rows.warp_roles import SwappedWarpRoles
from .barriers import ROPE_SLOT
from .tiles import LatentPairTiles

BARRIERS_PER_SLOT = 2  # full and empty
MOST_ROPE_SLOTS = 3  # two are in flight while one is in use


@dataclass(frozen=True)
class LatentPairSmem(SmemMap):
    q: Region
    kv: Region
    rope: Region
    p: Region
    exchanged: Region
    work_queue: Region
    mbarriers: Region
    tmem_address: Region


def smem_map(
    tiles: LatentPairTiles, warps: SwappedWarpRoles, table: BarrierTable
) -> LatentPairSmem:
    """The map of a kernel with this barrier table, which sets the number of slots of the rings."""
    return LatentPairSmem.of_sizes(
        q=tiles.q_tile_bytes,
        kv=table.kv_slots * tiles.kv_slot_bytes,
        rope=table.numbers[ROPE_SLOT] * tiles.rope_slot_bytes,
        p=tiles.p_tile.nbytes,
        exchanged=(warps.threads_of("softmax"), 2),
        work_queue=WORK_QUEUE_BYTES,
        mbarriers=MBARRIER_BYTES * table.total,
        tmem_address=TMEM_ADDRESS_BYTES,
    )


def slots_that_fit(tiles: LatentPairTiles, without_rings: LatentPairSmem) -> tuple[int, int]:
    """(units, slots of rotary columns) that fit in the rest; without_rings: the map of a kernel without slots.

    K and V of a key tile come first, then rotary columns, then further units.
    """
    of_barriers = MBARRIER_BYTES * BARRIERS_PER_SLOT
    unit, rope = tiles.kv_slot_bytes + of_barriers, tiles.rope_slot_bytes + of_barriers
    free = SMEM_CAPACITY_BYTES - without_rings.nbytes
    if not tiles.rope_slot_bytes:
        return free // unit, 0
    ropes = max(1, min(MOST_ROPE_SLOTS, (free - tiles.units * unit) // rope))
    return max(0, (free - ropes * rope) // unit), ropes
