"""Shared memory of a CTA of the pair from byte 0 to the last mbarrier.

field         bytes                       what
q             73728                       Q: 64 rows of 576 columns
kv            4 * 16384                   ring of dequantized units: 64 keys x 128 columns bf16
stored        6 * 10240                   ring of stored units, with room for the lines of their keys: of 32 or 64 bytes
rope          1 * 8192                    ring of the rotary columns of 64 keys
stored_rope   8192                        the same of 8 bits, as they are stored, if they have 8
p             16384                       P: 64 rows x 128 keys
exchanged     2 * 1024                    a value of each softmax thread, for the other threads of its row
work_queue    112
mbarriers     8 * barriers.total
tmem_address  4
"""

from dataclasses import dataclass

from ...blueprint.barriers import BarrierTable
from ...blueprint.chip import MBARRIER_BYTES, TMEM_ADDRESS_BYTES
from ...blueprint.entries import WORK_QUEUE_BYTES
from ...blueprint.memory_maps import Region, SmemMap
from ..barriers import ROPE_SLOT
from .barriers import STORED_SLOT
from .tiles import RowsPairTiles
from .warp_roles import RowsPairWarpRoles

# Numbers of unit slots are even: each dequantize warpgroup has half of them.
KV_SLOTS, STORED_SLOTS = 4, 6


@dataclass(frozen=True)
class RowsPairSmem(SmemMap):
    q: Region
    kv: Region
    stored: Region
    rope: Region
    stored_rope: Region
    p: Region
    exchanged: Region
    work_queue: Region
    mbarriers: Region
    tmem_address: Region


def smem_map(tiles: RowsPairTiles, warps: RowsPairWarpRoles, table: BarrierTable) -> RowsPairSmem:
    """The map of a kernel with this barrier table."""
    return RowsPairSmem.of_sizes(
        q=tiles.q_tile_bytes,
        kv=table.kv_slots * tiles.kv_slot_bytes,
        stored=table.numbers[STORED_SLOT] * tiles.stored_bytes,
        rope=table.numbers[ROPE_SLOT] * tiles.rope_slot_bytes,
        stored_rope=tiles.stored_rope_bytes,
        p=tiles.p_tile.nbytes,
        exchanged=(warps.threads_of("softmax"), 2),
        work_queue=WORK_QUEUE_BYTES,
        mbarriers=MBARRIER_BYTES * table.total,
        tmem_address=TMEM_ADDRESS_BYTES,
    )
