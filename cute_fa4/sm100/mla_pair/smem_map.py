"""Shared memory of a CTA of the pair from byte 0 to the last mbarrier.

field         bytes                      what
q             73728                      Q: 64 rows of 576 columns
kv            kv_slots * kv_slot_bytes   ring of units: 64 keys x 128 columns, K and V in the order of their use
rope          8192                       the rotary columns of 64 keys
p             16384                      P: 64 rows x 128 keys
exchanged     2 * 512                    a value of each softmax thread, for the one with the other keys of its row
work_queue    112
mbarriers     8 * barriers.total
tmem_address  4

Eight slots of 16 KiB: K of one key tile and V of one. The sizes are those of 16-bit operands.
"""

from dataclasses import dataclass

from ..chip import MBARRIER_BYTES, SMEM_CAPACITY_BYTES, TMEM_ADDRESS_BYTES
from ..memory_maps import Region, SmemMap
from ..mhaswap.smem_map import F32_BYTES
from ..mhaswap.warp_roles import SwappedWarpRoles
from ..sync.barriers import BarrierTable
from ..work.entries import WORK_QUEUE_BYTES
from .tiles import LatentPairTiles

BARRIERS_PER_SLOT = 2  # full and empty


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
    """The map of a kernel with this barrier table, whose ring has as many slots as the table."""
    return LatentPairSmem.of_sizes(
        q=tiles.q_tile_bytes,
        kv=table.kv_slots * tiles.kv_slot_bytes,
        rope=tiles.rope_slot_bytes,
        p=tiles.p_tile.nbytes,
        exchanged=2 * warps.threads_of("softmax") * F32_BYTES,
        work_queue=WORK_QUEUE_BYTES,
        mbarriers=MBARRIER_BYTES * table.total,
        tmem_address=TMEM_ADDRESS_BYTES,
    )


def slots_that_fit(tiles: LatentPairTiles, without_ring: LatentPairSmem) -> int:
    """Slots of the ring beside everything else; without_ring: the map of a kernel without slots."""
    slot = tiles.kv_slot_bytes + MBARRIER_BYTES * BARRIERS_PER_SLOT
    return max(0, (SMEM_CAPACITY_BYTES - without_ring.nbytes) // slot)
