"""Shared memory of a wide CTA from byte 0 to the last mbarrier.

    field         bytes                      what
    q             q_bytes                    Q
    kv            kv_slots * kv_slot_bytes   ring: a unit of K or V in each slot, K0's units, K1's, V0's, ...
    o             o_chunk_bytes              a chunk of O on its way to global memory
    row_scale     2 * 512                    row scale: one f32 for each row, of two key tiles in turn
    work_queue    112                        work queue: two entries, and the answer to a claim
    mbarriers     8 * barriers.total         mbarriers, in the order of the barrier table
    tmem_address  4                          where tcgen05.alloc leaves the tensor-memory address

Q, slots and the chunk are multiples of 1024 bytes, the period of the 128-byte swizzle, so every tile starts on one.
"""

from dataclasses import dataclass

from ..blueprint.barriers import BarrierTable
from ..blueprint.chip import MBARRIER_BYTES, TMEM_ADDRESS_BYTES
from ..blueprint.entries import WORK_QUEUE_BYTES
from ..blueprint.memory_maps import Region, SmemMap
from .barriers import S_BUFFERS
from .tiles import WideTiles


@dataclass(frozen=True)
class WideSmem(SmemMap):
    q: Region
    kv: Region
    o: Region
    row_scale: Region
    work_queue: Region
    mbarriers: Region
    tmem_address: Region


def smem_map(tiles: WideTiles, table: BarrierTable) -> WideSmem:
    """The map of a kernel with this barrier table, whose ring has as many slots as the table."""
    return WideSmem.of_sizes(
        q=tiles.q_bytes,
        kv=table.kv_slots * tiles.kv_slot_bytes,
        o=tiles.o_buffers * tiles.o_chunk_bytes,
        row_scale=(S_BUFFERS * tiles.rows_per_q_tile,),
        work_queue=WORK_QUEUE_BYTES,
        mbarriers=MBARRIER_BYTES * table.total,
        tmem_address=TMEM_ADDRESS_BYTES,
    )
