"""Correction warpgroup: rescale O_i when a row's maximum moved, off the path of softmax.

    tile 0          nothing to rescale yet: arrive on p_ready[i] at once, and let the first factor pass
    tile n > 0      wait row_scale[i] -> does any row of the warp have a factor below 1? -> O_i *= factor -> p_ready[i]

The wait for row_scale[i] of tile n is also the wait for O_i: softmax raised it after it saw s_ready[i] of tile n, and
that commit covers P_i V of tile n - 1, issued before.

Because the maximum is kept while it moves less than 2^8, most tiles skip the rescale.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from . import tmem_instructions
from .kernel_args import Events, Smem, Work

COLUMNS = 16  # columns of O in registers at a time


def rescale(cfg, o_address, factor):
    """O_i *= factor, for this thread's row."""
    _, width, _ = cfg.pv_mma_shape
    for column, values in tmem_instructions.load_batches(o_address, width, COLUMNS):
        scaled = []
        for pair in range(0, len(values), 2):
            scaled += cute.arch.mul_packed_f32x2((values[pair], values[pair + 1]), (factor, factor))
        tmem_instructions.store(o_address + column, scaled)
    tmem_instructions.wait_store()


@cute.jit
def run(cfg: cutlass.Constexpr, smem: Smem, tmem: Int32, events: Events, work: Work):
    """`tmem`: tensor-memory address of column 0 for this warp's lanes."""
    thread, _, _ = cute.arch.thread_idx()
    row = thread % cfg.rows_per_q_tile
    if work.tiles.count > 0:
        for i in cutlass.range_constexpr(cfg.num_q):
            events.p_ready.arrive(i)
        for i in cutlass.range_constexpr(cfg.num_q):
            events.row_scale.wait(i, 0)
        for n in cutlass.range(1, work.tiles.count, unroll=1):
            for i in cutlass.range_constexpr(cfg.num_q):
                events.row_scale.wait(i, n & 1)
                factor = smem.row_scale[row + i * cfg.rows_per_q_tile]
                if cutlass.const_expr(cfg.p_apart):
                    events.pv_done.wait(i, (n - 1) & 1)
                if cute.arch.vote_any_sync(factor < 1.0):
                    tmem_instructions.fence_after()
                    rescale(cfg, tmem + cfg.tmem_o[i], factor)
                    tmem_instructions.fence_before()
                events.p_ready.arrive(i)
