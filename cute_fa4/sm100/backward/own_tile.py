"""Own tiles move to tensor memory once, where there is room: Q and dO, or K and V.

They are operands of every S and dP of the CTA. In shared memory an own tile is half of what such a product reads, and
the product then reads all the time, so that copies of the ring prolong it. A thread moves its row, and each
warpgroup an equal part of the depth: 16 bits of two neighbours are one column of the row's lane.

Until it has moved, the tile is in the last slots of its ring, which are empty then. So it leaves room for more slots
(Owner.own_offset, first_over_own).
"""

from ...layouts.swizzle import CHUNK_BYTES
from ..blueprint.chip import F32_BYTES
from ..instructions import tensor_memory
from ..steps.pieces import load_piece

BATCH = 32  # values stored at a time


def move(owner, cta, thread, i: int):
    """The part of a compute thread, once own tile i has arrived; the MMA warp waits for all of them."""
    cta.own_full.wait(i, 0)
    tile, part = owner.own_tiles[i], owner.depths[i] // owner.warps.groups
    group, value_bytes = thread.column // owner.columns, tile.bits // 8
    to = thread.first_lane + owner.own_column(i) + group * (part * value_bytes // F32_BYTES)
    batch = min(BATCH, part)
    for first in range(0, part, batch):
        words = []
        for column in range(first, first + batch, CHUNK_BYTES // value_bytes):
            words += load_piece(
                cta.base + owner.own_offset(i) + tile.offset(thread.row, group * part + column)
            )
        tensor_memory.store(to + first * value_bytes // F32_BYTES, words)
    tensor_memory.wait_store()
    tensor_memory.fence_before()
    cta.own_moved.arrive(owner.moved.index(i))
    if owner.ctas > 1:
        cta.own_there.arrive(owner.moved.index(i))
