"""Shared memory of a one-tile CTA from byte 0 to the last mbarrier.

    field         bytes                      what
    q             q_bytes                    Q
    kv            kv_slots * kv_slot_bytes   ring: K or V tile in each slot, in the order K0 V0 K1 V1 ...
    k_rest        k_rest_bytes               columns of a K tile that its slot has no room for; 0 up to depth 128
    o             2 * o_chunk_bytes          chunks of O in flight to global memory
    row_scale     1024                       row scale: one f32 for each softmax thread
    row_max       1024                       row maximum: likewise, after the last key tile of a warpgroup
    scales        0, or 4 * a slot           if keys have scales: a ring of scales (steps/token_scales.py)
    row_unit      0, or 2048                 if V has scales: the unit of each row's O, twice
    work_queue    112                        work queue: two entries, and the answer to a claim
    mbarriers     8 * barriers.total         mbarriers, in the order of the barrier table
    tmem_address  4                          where tcgen05.alloc leaves the tensor-memory address

Q, slots and chunks are multiples of 1024 bytes, the period of the 128-byte swizzle, so every tile starts on one.
"""

from dataclasses import dataclass

from ..blueprint.barriers import BarrierTable
from ..blueprint.chip import MBARRIER_BYTES, TMEM_ADDRESS_BYTES
from ..blueprint.entries import WORK_QUEUE_BYTES
from ..blueprint.memory_maps import Region, SmemMap, token_scales
from ..blueprint.tiles import Tiles
from ..blueprint.warp_roles import WarpRoles


@dataclass(frozen=True)
class OneTileSmem(SmemMap):
    q: Region
    kv: Region
    k_rest: Region
    o: Region
    row_scale: Region
    row_max: Region
    scales: Region
    row_unit: Region
    work_queue: Region
    mbarriers: Region
    tmem_address: Region


def smem_map(tiles: Tiles, warps: WarpRoles, table: BarrierTable) -> OneTileSmem:
    """The map of a kernel with this barrier table, whose ring has as many slots as the table."""
    threads = warps.threads_of("softmax")
    return OneTileSmem.of_sizes(
        q=tiles.q_bytes,
        kv=table.kv_slots * tiles.kv_slot_bytes,
        k_rest=tiles.k_rest_bytes,
        o=tiles.o_buffers * tiles.o_chunk_bytes,
        row_scale=(threads,),
        row_max=(threads,),
        scales=(token_scales(tiles.problem, tiles.BN),),
        row_unit=(2 * threads if "v" in tiles.problem.token_scales else 0,),
        work_queue=WORK_QUEUE_BYTES,
        mbarriers=MBARRIER_BYTES * table.total,
        tmem_address=TMEM_ADDRESS_BYTES,
    )
