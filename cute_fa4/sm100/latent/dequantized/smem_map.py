"""Shared memory of a CTA that dequantizes the rows of a latent cache, from byte 0 to the last mbarrier.

field         bytes                    what
q             q_tile_bytes             Q: at least 16 rows of 576 columns
kv            kv_slots * 16 KiB        ring of stored slabs: 128 bytes of every key
v             4 * 32 KiB               the slabs of a key tile in 16 bits: V of the four outputs
rope          16 KiB                   the rotary columns of a key tile
p             p_tile.nbytes            P: a line for each key; with 32 rows it reuses rope
lines         128 * line_bytes         scales or values next to a slab (formats.py): 4 KiB over rows of 656 bytes
exchanged     2 * 512                  as in few_rows/smem_map.py, from here on
row_values    2 * 512
work_queue    112
mbarriers     8 * barriers.total
tmem_address  4

rows      Q         slots        wide slabs   rope     P
8, 16     18 KiB    3 x 16 KiB   128 KiB      16 KiB   4 KiB
32        36 KiB    2 x 16 KiB   128 KiB      16 KiB   reuses rope

Over rows of 584 bytes Q has 512 columns, there is no rope, and P has its own place with 32 rows, too.
"""

from dataclasses import dataclass, replace

from ...blueprint.barriers import BarrierTable
from ...blueprint.chip import MBARRIER_BYTES, SMEM_CAPACITY_BYTES, TMEM_ADDRESS_BYTES, WARP_SIZE
from ...blueprint.entries import WORK_QUEUE_BYTES
from ...blueprint.memory_maps import Region, SmemMap
from .barriers import SLABS
from .formats import RowFormat
from .tiles import RowsTiles
from .warp_roles import RowsWarpRoles

BARRIERS_PER_SLOT = 2  # full and empty
# A thread reads the line of a key before it frees the slab next to it. The next lines are copied together with the
# same slab of the next tile: with more slots than slabs they could overwrite lines that are still to be read.
MOST_SLOTS = SLABS


def rope_slots(row: RowFormat) -> int:
    """Slots of the ring of rotary columns, which has none if they are in a slab."""
    return 0 if row.rope_in_v else 1


@dataclass(frozen=True)
class RowsSmem(SmemMap):
    q: Region
    kv: Region
    v: Region
    rope: Region
    p: Region
    lines: Region
    exchanged: Region
    row_values: Region
    work_queue: Region
    mbarriers: Region
    tmem_address: Region


def smem_map(tiles: RowsTiles, warps: RowsWarpRoles, table: BarrierTable) -> RowsSmem:
    """The map of a kernel with this barrier table, which sets the number of slots of the ring."""
    rows, in_warps = WARP_SIZE * tiles.rows_per_lane, len(warps.softmax)
    places = RowsSmem.of_sizes(
        q=tiles.q_tile_bytes,
        kv=table.kv_slots * tiles.kv_slot_bytes,
        v=SLABS * tiles.wide_slab_bytes,
        rope=rope_slots(tiles.row) * tiles.rope_slot_bytes,
        p=0 if tiles.p_over_rope else tiles.p_tile.nbytes,
        lines=tiles.line_bytes,
        exchanged=(rows, in_warps, 2),
        row_values=(rows, in_warps, tiles.row_values),
        work_queue=WORK_QUEUE_BYTES,
        mbarriers=MBARRIER_BYTES * table.total,
        tmem_address=TMEM_ADDRESS_BYTES,
    )
    if tiles.p_over_rope:
        places = replace(places, p=replace(places.rope, name="p", nbytes=tiles.p_tile.nbytes))
    return places


def slots_that_fit(tiles: RowsTiles, without_ring: RowsSmem) -> int:
    """Slots of the ring that fit in the rest; without_ring: the map of a kernel without slots."""
    slot = tiles.kv_slot_bytes + MBARRIER_BYTES * BARRIERS_PER_SLOT
    return max(0, min(MOST_SLOTS, (SMEM_CAPACITY_BYTES - without_ring.nbytes) // slot))
