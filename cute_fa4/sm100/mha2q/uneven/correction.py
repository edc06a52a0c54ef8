"""Correction warpgroup where query tiles see different key tiles and warpgroups take turns in leading (hooks.py).

O and barriers are those of a warpgroup, rows are those of its query tile. The order of what is awaited is that in which
it happens: the factors of the leader, then of the other; at the end O of query tile 0, then of query tile 1.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ....layouts.scalars import choose
from ...instructions import tensor_memory
from ...kernel_args import Events, KernelArgs, Smem
from ...roles import merge
from ...roles.merge import Turns
from ...steps import row_math, store
from ...steps.products import column_of
from ...work import scales
from ...work.queue import NO_MORE, WorkQueue
from ...work.tile import Work
from ..lone.correction import finish_lone
from ..lone.tile import is_lone


@cute.jit
def rescale(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    smem: Smem,
    tmem: Int32,
    events: Events,
    warpgroup: Int32,
    phase: Int32,
    row: Int32,
):
    """O of a warpgroup, where a row of the warp needs it, before the product of a key tile that is not the first."""
    events.row_scale.wait(warpgroup, phase)
    factor = smem.row_scale[row + warpgroup * cfg.tiles.rows_per_q_tile]
    order.o_complete(events, warpgroup, phase)
    if cute.arch.vote_any_sync(factor < 1.0):
        tensor_memory.fence_after()
        store.rescale(cfg, tmem + column_of(cfg.tmem.o, warpgroup), factor)
        tensor_memory.fence_before()
    events.p_ready.arrive(warpgroup)


@cute.jit
def finish(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    tmem: Int32,
    events: Events,
    work: Work,
    q_tile: cutlass.Constexpr,
    warpgroup: Int32,
    last: Int32,
    o_phase: Int32,
    row: Int32,
):
    """O of a query tile to global memory. last: parity of its last key tile."""
    factor = scales.of_output(cfg, args, work)
    events.row_scale.wait(warpgroup, last)
    row_sum = smem.row_scale[row + warpgroup * cfg.tiles.rows_per_q_tile]
    inverse = scales.times(row_math.inverse(row_sum), factor)
    events.o_ready.wait(warpgroup, o_phase)
    tensor_memory.fence_after()
    o_address = tmem + column_of(cfg.tmem.o, warpgroup)

    def free():
        tensor_memory.fence_before()
        events.p_ready.arrive(warpgroup)

    store.scaled(cfg, args, smem, work, q_tile, row, o_address, inverse, when_read=free)


@dataclass(frozen=True)
class Count:
    """Of a query tile: its warpgroup, its key tiles, and those of the warpgroup before."""

    warpgroup: Int32
    tiles: Int32
    before: Int32

    @staticmethod
    def of(work: Work, before: Turns, q_tile: int) -> "Count":
        leader = work.tiles.leader
        warpgroup = leader if q_tile else 1 - leader
        had = choose(warpgroup == 0, before.even, before.odd)
        return Count(warpgroup, work.tiles.count_of(q_tile), had)

    def phase(self, n):
        """Parity of key tile n."""
        return (self.before + n) & 1


@cute.jit
def two_tiles(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    tmem: Int32,
    events: Events,
    work: Work,
    before: Turns,
    row: Int32,
):
    """A work tile of two query tiles, from the first factor to the last store. before: key tiles of each warpgroup."""
    first, second = Count.of(work, before, 0), Count.of(work, before, 1)
    for n in cutlass.range(1, second.tiles, unroll=1):
        rescale(cfg, order, smem, tmem, events, second.warpgroup, second.phase(n - 1), row)
        if n < first.tiles:
            rescale(cfg, order, smem, tmem, events, first.warpgroup, first.phase(n - 1), row)
    for q_tile in cutlass.range_constexpr(2):
        of = (first, second)[q_tile]
        last, o_phase = of.phase(of.tiles - 1), before.o & 1
        finish(cfg, args, smem, tmem, events, work, q_tile, of.warpgroup, last, o_phase, row)


@cute.jit
def lone_or_two(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    tmem: Int32,
    events: Events,
    work: Work,
    now: Turns,
    before: Turns,
    row: Int32,
):
    """A work tile of either kind."""
    if is_lone(cfg, work):
        merge.key_tiles(cfg, order, smem, tmem, events, now, before, row)
        finish_lone(cfg, args, smem, tmem, events, work, now, before, row)
    else:
        two_tiles(cfg, order, args, smem, tmem, events, work, before, row)


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
    for i in cutlass.range_constexpr(cfg.tiles.num_q):
        events.p_ready.arrive(i)
    number, before = Int32(0), Turns.none()
    work = queue.next(cfg, args, number)
    while work.tiles.count != NO_MORE:
        store.wait_for_first(work, row)
        if work.tiles.count > 0:
            now = Turns.of(cfg, order, work)
            if cutlass.const_expr(cfg.schedule.lone_tiles):
                lone_or_two(cfg, order, args, smem, tmem, events, work, now, before, row)
            else:
                two_tiles(cfg, order, args, smem, tmem, events, work, before, row)
            before = before.plus(now)
        else:
            store.zeros_of_rows(cfg, args, smem, work, row)
        number = number + 1
        work = queue.next(cfg, args, number)
    store.wait(row)
