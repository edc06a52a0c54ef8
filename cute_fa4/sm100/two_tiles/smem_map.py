"""Shared memory of a two-tile CTA from byte 0 to the last mbarrier.

    field         bytes                      what
    q             q_bytes                    Q0, Q1
    kv            kv_slots * kv_slot_bytes   ring: K or V tile in each slot, in the order K0 V0 K1 V1 ...
    k_rest        k_rests * k_rest_bytes     columns of a K tile that its slot has no room for; 0 up to depth 128
    o             o_buffers * o_chunk_bytes  chunks of O on their way to global memory: two, one with a k_rest, or none
    ones          ones_bytes                 ones that P is multiplied by for its row sums, for one MMA step; mostly 0
    row_scale     1024                       row scale: one f32 for each softmax thread
    row_bias      1024                       row bias: another f32 for each softmax thread
    scales        0, or 4 * a slot           where keys have scales: a ring of them (steps/token_scales.py)
    row_unit      0, or 1024                 where V has scales: the unit of O in each row
    votes         0, or 64                   where key tiles may be skipped: of each softmax warp, of two key tiles
    work_queue    112                        work queue: two entries, and the answer to a claim
    mbarriers     8 * barriers.total         mbarriers, in the order of the barrier table
    tmem_address  4                          where tcgen05.alloc leaves the tensor-memory address

Q tiles, slots and chunks are multiples of 1024 bytes, the period of the 128-byte swizzle, so every tile starts on one.
K and V share one ring instead of one each, so an odd slot is not wasted.
"""

from dataclasses import dataclass

from ..blueprint.barriers import BarrierTable
from ..blueprint.chip import (
    F32_BYTES,
    MBARRIER_BYTES,
    SWIZZLE_BYTES,
    TMEM_ADDRESS_BYTES,
    WARP_SIZE,
)
from ..blueprint.entries import CHECKED_QUEUE_BYTES, WORK_QUEUE_BYTES
from ..blueprint.memory_maps import Region, SmemMap, token_scales
from ..blueprint.tiles import ROWS_PER_Q_TILE, Tiles
from ..blueprint.warp_roles import WarpRoles

PIECE_BYTES = 16  # of a thread's st.shared.v4


@dataclass(frozen=True)
class TwoTilesSmem(SmemMap):
    q: Region
    kv: Region
    k_rest: Region
    o: Region
    ones: Region
    row_scale: Region
    row_bias: Region
    scales: Region
    row_unit: Region
    votes: Region
    work_queue: Region
    mbarriers: Region
    tmem_address: Region


def smem_map(
    tiles: Tiles,
    warps: WarpRoles,
    table: BarrierTable,
    checked_bytes: int = CHECKED_QUEUE_BYTES,
    ones_bytes: int = 0,
    scale_bytes: int | None = None,
    stages_o: bool = True,
) -> TwoTilesSmem:
    """The map of a kernel with this barrier table, whose ring has as many slots as the table.

    checked_bytes: of a work queue whose tiles are checked; ones_bytes: of the ones after V; scale_bytes: of the ring of
    scales; None: the size for scales of keys; stages_o: whether O goes through shared memory
    """
    scales = token_scales(tiles.problem, tiles.BN)
    if scale_bytes is not None:
        scales = scale_bytes // F32_BYTES
    threads = warps.threads_of("softmax")
    return TwoTilesSmem.of_sizes(
        q=tiles.q_bytes,
        kv=table.kv_slots * tiles.kv_slot_bytes,
        k_rest=tiles.k_rests * tiles.k_rest_bytes,
        o=tiles.o_buffers * tiles.o_chunk_bytes * stages_o,
        ones=ones_bytes,
        row_scale=(threads,),
        row_bias=(threads,),
        scales=(scales,),
        row_unit=(threads if "v" in tiles.problem.token_scales else 0,),
        votes=(2, threads // WARP_SIZE if tiles.problem.skip_softmax else 0),
        work_queue=checked_bytes if "work_checked" in table else WORK_QUEUE_BYTES,
        mbarriers=MBARRIER_BYTES * table.total,
        tmem_address=TMEM_ADDRESS_BYTES,
    )


def ones_bytes(tiles: Tiles) -> int:
    """A span with as many keys as an MMA step, and at least one piece for each thread that writes it."""
    return max(tiles.MMA_K * SWIZZLE_BYTES, tiles.num_q * ROWS_PER_Q_TILE * PIECE_BYTES)
