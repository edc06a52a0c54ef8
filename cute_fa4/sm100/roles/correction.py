"""Correction warpgroup: rescale O_i when a row's maximum moved, and store O_i at the end, off the critical path.

    O_i is free      its content is no longer needed: arrive on p_ready[i], the first P_i V of a work tile may begin
    key tile n > 0   wait row_scale[i] -> does any row of the warp have a factor below 1? -> O_i *= factor -> p_ready[i]
    after the last   wait row_scale[i] (the row sums), o_ready[i] -> O_i / sum to global memory (store.py), O_i is free

P over S: the wait for row_scale[i] of tile n is also the wait for O_i. Softmax raised it after it saw s_ready[i] of
tile n, and that commit covers P_i V of tile n - 1, issued earlier. P next to S: wait for pv_done[i] instead.

Because the maximum is kept while it moves less than 2^8, most tiles skip the rescale.

The loop over work tiles (run) is the same for every order; hooks of the order define the work in a work tile:

    nothing_corrected  state kept from work tile to work tile          here the number of key tiles, and a parity of O
    correct_tiles    a work tile with key tiles                        the timeline above, for each softmax warpgroup
    correct_empty    a work tile without                               zeros
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..instructions import tensor_memory
from ..steps import row_math, store
from ..steps.products import column_of
from ..steps.warpgroup import CorrectionGroup
from ..sync.kernel_args import Events, KernelArgs, Smem
from ..work import scales
from ..work.queue import NO_MORE, WorkQueue
from ..work.tile import Work

COLUMNS = 16  # columns of O in registers at a time


@dataclass(frozen=True)
class Corrected:
    """The number of key tiles so far, and the parity of the next O; Int32."""

    tiles: Int32
    o_phase: Int32

    @staticmethod
    def none() -> "Corrected":
        return Corrected(Int32(0), Int32(0))


def store_o(cfg, group: CorrectionGroup, work: Work, i, q_tile, inverse):
    """O_i, scaled, to global memory; O_i is free for the next work tile once all of it is in registers."""
    o_address = group.tmem + column_of(cfg.tmem.o, i)

    def free():
        tensor_memory.fence_before()
        group.events.p_ready.arrive(i)

    store.scaled(cfg, group, work, q_tile, o_address, inverse, when_read=free)


@cute.jit
def rescale_tile(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    group: CorrectionGroup,
    i,
    phase: Int32,
):
    """Rescale O_i, where a row of the warp needs it, before the P V of a key tile that is not the first.

    i: a softmax warpgroup, a Python int or an Int32 of the kernel
    """
    smem, tmem, events, row = group.smem, group.tmem, group.events, group.row
    events.row_scale.wait(i, phase)
    factor = smem.row_scale[row + i * cfg.tiles.rows_per_q_tile]
    order.o_complete(events, i, phase)
    if cute.arch.vote_any_sync(factor < 1.0):
        tensor_memory.fence_after()
        store.rescale(cfg, tmem + column_of(cfg.tmem.o, i), factor, order.sum_address(cfg, tmem, i))
        tensor_memory.fence_before()
    events.p_ready.arrive(i)


@cute.jit
def key_tiles(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    group: CorrectionGroup,
    count: Int32,
    tiles_before: Int32,
):
    """Rescale O_0 and O_1 before the products of key tiles 1 to count - 1."""
    for n in cutlass.range(1, count, unroll=1):
        phase = (tiles_before + n - 1) & 1
        for i in cutlass.range_constexpr(cfg.tiles.num_q):
            rescale_tile(cfg, order, group, i, phase)


@cute.jit
def finish_tile(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    group: CorrectionGroup,
    work: Work,
    i,
    q_tile: cutlass.Constexpr,
    last: Int32,
    o_phase: Int32,
):
    """Store O_i, the output of a query tile, to global memory.

    last: parity of its last key tile; i: as in rescale_tile
    """
    smem, tmem, events, row = group.smem, group.tmem, group.events, group.row
    factor = scales.of_output(cfg, group.args, work)
    events.row_scale.wait(i, last)
    row_sum = smem.row_scale[row + i * cfg.tiles.rows_per_q_tile]
    sum_at = order.sum_address(cfg, tmem, i)
    if cutlass.const_expr(sum_at is None):
        inverse = scales.times(row_math.inverse(row_sum), factor)
    events.o_ready.wait(i, o_phase)
    tensor_memory.fence_after()
    if cutlass.const_expr(sum_at is not None):
        row_sum = row_sum + store.row_sum(sum_at)
        inverse = scales.times(row_math.inverse(row_sum), factor)
    order.store_o(cfg, group, work, i, q_tile, inverse)


@cute.jit
def correct_tiles(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    group: CorrectionGroup,
    work: Work,
    before: Corrected,
) -> Corrected:
    """A work tile whose query tiles see the same key tiles."""
    count = work.tiles.count
    key_tiles(cfg, order, group, count, before.tiles)
    tiles = before.tiles + count
    for i in cutlass.range_constexpr(cfg.tiles.num_q):
        place = work, i, i, (tiles - 1) & 1, before.o_phase
        finish_tile(cfg, order, group, *place)
    return Corrected(tiles, before.o_phase ^ 1)


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    tmem: Int32,
    events: Events,
    queue: WorkQueue,
):
    """`tmem`: tensor-memory address of column 0 for this warp's lanes."""
    thread, _, _ = cute.arch.thread_idx()
    row = thread % cfg.tiles.rows_per_q_tile
    group = CorrectionGroup(args, smem, tmem, events, row)
    for i in cutlass.range_constexpr(cfg.warps.softmax_groups):
        events.p_ready.arrive(i)
    number, before = Int32(0), order.nothing_corrected()
    work = queue.next(cfg, args, number)
    while work.tiles.count != NO_MORE:
        store.wait_for_first(work, row)
        if work.tiles.count > 0:
            before = order.correct_tiles(cfg, order, group, work, before)
        else:
            order.correct_empty(cfg, args, smem, work, row)
        number = number + 1
        work = queue.next(cfg, args, number)
    store.wait(row)
