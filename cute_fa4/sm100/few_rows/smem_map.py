"""Shared memory of a CTA with swapped operands from byte 0 to the last mbarrier.

    field         bytes                      what
    q             q_tile_bytes               Q: at least 16 rows
    kv            kv_slots * kv_slot_bytes   ring: K or V tile in each slot, in the order K0 V0 K1 V1 ...
    k_rest        k_rest_bytes               columns of a K tile that its slot has no room for; 0 up to depth 128
    p             p_tile.nbytes              P: a line for each key
    exchanged     2 * 512                    row maxima of each softmax warp, of two key tiles in turn; last, row sums
    row_values    2 * 512                    the bias each softmax warp adds to a row's scores, and the row's factor;
                                             with a scale for each query and head 3 * 512, the last of them that scale
    parts         4 rows (depth + 2)         in a cluster: parts of the rows merged here, from all its CTAs (cluster.py)
    work_queue    112                        work queue: two entries, and the answer to a claim
    mbarriers     8 * barriers.total         mbarriers, in the order of the barrier table
    tmem_address  4                          where tcgen05.alloc leaves the tensor-memory address

With 64 rows, exchanged and row_values take twice the bytes. Q, slots and P are multiples of 1024 bytes, the period of
the 128-byte swizzle, so every tile starts on one.
"""

from dataclasses import dataclass

from ..blueprint.barriers import SLOTS_BESIDE_A_REST, BarrierTable
from ..blueprint.chip import (
    MBARRIER_BYTES,
    SMEM_CAPACITY_BYTES,
    TMEM_ADDRESS_BYTES,
    WARP_SIZE,
    align_up,
)
from ..blueprint.entries import WORK_QUEUE_BYTES
from ..blueprint.memory_maps import Region, SmemMap
from .barriers import PARTS_IN
from .tiles import SwappedTiles
from .warp_roles import SwappedWarpRoles

F32_BYTES = 4
PARTS_ALIGNMENT = 16  # of the region after it


@dataclass(frozen=True)
class SwappedSmem(SmemMap):
    q: Region
    kv: Region
    k_rest: Region
    p: Region
    exchanged: Region
    row_values: Region
    parts: Region
    work_queue: Region
    mbarriers: Region
    tmem_address: Region


def smem_map(tiles: SwappedTiles, warps: SwappedWarpRoles, table: BarrierTable) -> SwappedSmem:
    """The map of a kernel with this barrier table, whose ring has as many slots as the table."""
    rows, in_warps = WARP_SIZE * tiles.rows_per_lane, len(warps.softmax)
    return SwappedSmem.of_sizes(
        q=tiles.q_tile_bytes,
        kv=table.kv_slots * tiles.kv_slot_bytes,
        k_rest=tiles.k_rest_bytes,
        p=tiles.p_tile.nbytes,
        exchanged=(rows, in_warps, 2),
        row_values=(rows, in_warps, tiles.row_values),
        parts=(parts_of(tiles, table),),
        work_queue=WORK_QUEUE_BYTES,
        mbarriers=MBARRIER_BYTES * table.total,
        tmem_address=TMEM_ADDRESS_BYTES,
    )


def parts_of(tiles: SwappedTiles, table: BarrierTable) -> int:
    """float32 values of a cluster's partial results: one row per row of a tile, with a maximum and a sum each."""
    if PARTS_IN not in table:
        return 0
    nbytes = tiles.rows * (tiles.problem.ov_depth + 2) * F32_BYTES
    return align_up(nbytes, PARTS_ALIGNMENT) // F32_BYTES


def slots_that_fit(tiles: SwappedTiles, without_ring: SmemMap) -> int:
    """Slots of the ring that fit after all other regions; without_ring: the map of a kernel without slots."""
    slot_bytes = tiles.kv_slot_bytes + MBARRIER_BYTES * (tiles.qk_stages + 1)  # kv_full, kv_empty
    slots = max(0, (SMEM_CAPACITY_BYTES - without_ring.nbytes) // slot_bytes)
    return min(slots, SLOTS_BESIDE_A_REST) if tiles.rest_qk_depth else slots
