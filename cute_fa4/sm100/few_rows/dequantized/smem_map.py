"""Shared memory of a CTA that dequantizes its keys, from byte 0 to the last mbarrier.

    field         bytes                      what
    q             q_tile_bytes               Q: at least 16 rows
    q_arrived     q_tile_bytes               with bf16 queries: Q of the next work tile, as it arrives
    kv            kv_slots * kv_slot_bytes   ring: K or V as they are stored, in the order K0 V0 K1 V1 ...
    p             p_tile.nbytes              P: a line for each key
    exchanged     2 * 512                    as in few_rows/smem_map.py, from here on
    row_values    2 * 512                    with bf16 queries 3 * 512
    parts         4 rows (depth + 2)         in a cluster: parts of the rows merged here, from all its CTAs
    block_scales  4 * 128 * scales           where blocks have scales: a byte for each of a key, of four key tiles
    q_scales      2 * 4 * rows, at least 16  scale of each row's scores, of two work tiles in turn
    work_queue    112
    mbarriers     8 * barriers.total
    tmem_address  4

At depth 128 and 16 rows the ring has 13 slots of 16 KiB with 8 bits, 12 with MXFP8, 25 of 8 KiB with 4.
"""

from dataclasses import dataclass

from ...blueprint.barriers import SCALE_SLOTS, BarrierTable
from ...blueprint.chip import MBARRIER_BYTES, TMEM_ADDRESS_BYTES, WARP_SIZE
from ...blueprint.entries import WORK_QUEUE_BYTES
from ...blueprint.memory_maps import Region, SmemMap
from ..smem_map import parts_of
from .barriers import BUFFERS
from .tiles import DequantizedTiles
from .warp_roles import DequantizedWarpRoles


@dataclass(frozen=True)
class DequantizedSmem(SmemMap):
    q: Region
    q_arrived: Region
    kv: Region
    p: Region
    exchanged: Region
    row_values: Region
    parts: Region
    block_scales: Region
    q_scales: Region
    work_queue: Region
    mbarriers: Region
    tmem_address: Region


def smem_map(
    tiles: DequantizedTiles, warps: DequantizedWarpRoles, table: BarrierTable
) -> DequantizedSmem:
    """The map of a kernel with this barrier table, whose ring has as many slots as the table."""
    rows, in_warps = WARP_SIZE * tiles.rows_per_lane, len(warps.softmax)
    return DequantizedSmem.of_sizes(
        q=tiles.q_tile_bytes,
        q_arrived=tiles.q_tile_bytes * tiles.rows_have_scales,
        kv=table.kv_slots * tiles.kv_slot_bytes,
        p=tiles.p_tile.nbytes,
        exchanged=(rows, in_warps, 2),
        row_values=(rows, in_warps, tiles.row_values),
        parts=(parts_of(tiles, table),),
        block_scales=SCALE_SLOTS * sum(tiles.scale_bytes),
        q_scales=(tiles.q_box_rows, BUFFERS),
        work_queue=WORK_QUEUE_BYTES,
        mbarriers=MBARRIER_BYTES * table.total,
        tmem_address=TMEM_ADDRESS_BYTES,
    )
