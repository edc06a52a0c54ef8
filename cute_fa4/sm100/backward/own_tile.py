"""Own tile 0 moves to tensor memory once, where there is room: Q, or K.

It is an operand of every S of the CTA. In shared memory it is half of what S reads, and S then reads all the time, so
that copies of the ring prolong it. A thread moves its row, and each warpgroup half of the depth: 16 bits of
two neighbours are one column of the row's lane.
"""

from ...layouts.swizzle import CHUNK_BYTES
from ..blueprint.chip import F32_BYTES
from ..instructions import tensor_memory
from ..steps.pieces import load_piece

BATCH = 32  # values stored at a time


def move(owner, cta, thread):
    """The part of a compute thread, once the tile has arrived; the MMA warp waits for all of them."""
    cta.own_full.wait(0, 0)
    tile, half = owner.own_tiles[0], owner.depths[0] // 2
    group, value_bytes = thread.column // owner.columns, tile.bits // 8
    to = thread.first_lane + owner.own_column + group * (half * value_bytes // F32_BYTES)
    for first in range(0, half, BATCH):
        words = []
        for column in range(first, first + BATCH, CHUNK_BYTES // value_bytes):
            words += load_piece(cta.own_address + tile.offset(thread.row, group * half + column))
        tensor_memory.store(to + first * value_bytes // F32_BYTES, words)
    tensor_memory.wait_store()
    tensor_memory.fence_before()
    cta.own_moved.arrive(0)
