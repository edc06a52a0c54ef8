"""Correction warpgroup: rescale O when a row maximum moved, store it at the end; S and its barriers have two buffers.

O is free        arrive on p_ready of the next key tile: the first P V of a work tile may begin
tile t, not the  wait row_scale, message t - 1 -> does any row of the warp have a factor below 1? -> pv_done of tile
first            t - 1 -> O *= factor -> p_ready of tile t
after the last   wait row_scale (the row sums), pv_done -> O / sum to global memory, O is free
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..instructions import tensor_memory
from ..steps import row_math, store
from ..steps.warpgroup import CorrectionGroup
from ..sync.kernel_args import Events, Smem
from ..work import scales
from ..work.tile import Work


def receive(cfg, smem: Smem, events: Events, message, row):
    """Wait for softmax's message on a row: message t - 1 is the factor of tile t, that of the last tile the row sum."""
    events.row_scale.wait(message & 1, (message >> 1) & 1)
    return smem.row_scale[row + (message & 1) * cfg.tiles.rows_per_q_tile]


@cute.jit
def rescale(
    cfg: cutlass.Constexpr, smem: Smem, tmem: Int32, events: Events, tile: Int32, row: Int32
):
    """Rescale before the product of a tile that is not the first of its work tile."""
    factor = receive(cfg, smem, events, tile - 1, row)
    events.pv_done.wait(0, (tile - 1) & 1)
    if cute.arch.vote_any_sync(factor < 1.0):
        tensor_memory.fence_after()
        store.rescale(cfg, tmem + cfg.tmem.o[0], factor)
        tensor_memory.fence_before()
    events.p_ready.arrive(tile & 1)


@cute.jit
def finish(
    cfg: cutlass.Constexpr,
    group: CorrectionGroup,
    work: Work,
    last: Int32,
):
    """Store O to global memory; last: its last key tile."""
    smem, events, row = group.smem, group.events, group.row
    factor = scales.of_output(cfg, group.args, work)
    inverse = scales.times(row_math.inverse(receive(cfg, smem, events, last, row)), factor)
    events.pv_done.wait(0, last & 1)
    tensor_memory.fence_after()

    def free():
        tensor_memory.fence_before()
        events.p_ready.arrive((last + 1) & 1)

    o_address = group.tmem + cfg.tmem.o[0]
    store.scaled(cfg, group, work, 0, o_address, inverse, when_read=free)


def no_tiles() -> Int32:
    """How many key tiles there were before the first work tile."""
    return Int32(0)


@cute.jit
def correct_tiles(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    group: CorrectionGroup,
    work: Work,
    before: Int32,
) -> Int32:
    """Correct a work tile with key tiles; before: how many key tiles earlier work tiles had."""
    for n in cutlass.range(1, work.tiles.count, unroll=1):
        rescale(cfg, group.smem, group.tmem, group.events, before + n, group.row)
    tiles = before + work.tiles.count
    finish(cfg, group, work, tiles - 1)
    return tiles
