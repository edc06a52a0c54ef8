"""Correction warpgroup with single-tile work tiles: O_0 and O_1 are two results, or two parts of one.

The barriers of each warpgroup have their own count of key tiles: Turns of roles/merge.py.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...instructions import tensor_memory
from ...roles import correction, merge
from ...roles.merge import Turns
from ...steps import row_math, store
from ...steps.scores import log2_scale, write_lse
from ...steps.warpgroup import CorrectionGroup
from ...sync.kernel_args import Events
from ...work import rows, scales
from ...work.tile import Work
from .tile import is_single


@cute.jit
def hand_back_q1(cfg: cutlass.Constexpr, events: Events, row: Int32):
    """Every row maximum has been read: the next Q1 may overwrite them, through the asynchronous proxy."""
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.barrier(barrier_id=store.NAMED_BARRIER, number_of_threads=cfg.tiles.rows_per_q_tile)
    if row == 0:
        events.q_free.arrive(1)


@cute.jit
def no_chunks(cfg: cutlass.Constexpr, row: Int32):
    """Commit a group without copies for each chunk of the absent query tile."""
    if row < 32:
        for _ in cutlass.range_constexpr(store.chunks(cfg)):
            cute.arch.cp_async_bulk_commit_group()


@cute.jit
def finish_single(
    cfg: cutlass.Constexpr,
    group: CorrectionGroup,
    work: Work,
    now: Turns,
    before: Turns,
):
    """Merge the two states of each row, and store O_0 and O_1 merged to global memory."""
    args, smem, events, row = group.args, group.smem, group.events, group.row
    even = merge.state_of(cfg, smem, events, 0, (before.even + now.even - 1) & 1, row)
    odd = merge.state_of(cfg, smem, events, 1, (before.odd + now.odd - 1) & 1, row)
    factor = scales.of_scores(cfg, args, work, rows.row_of(cfg, work, 0, row))
    state, even_weight, odd_weight = row_math.merged(even, odd, log2_scale(cfg, args, factor))
    if cutlass.const_expr(cfg.write_lse):
        write_lse(cfg, args, work, 0, state, factor)
    inverse = scales.times(row_math.inverse(state.row_sum), scales.of_output(cfg, args, work))
    for i in cutlass.range_constexpr(cfg.tiles.num_q):
        events.o_ready.wait(i, before.o & 1)
    hand_back_q1(cfg, events, row)
    tensor_memory.fence_after()
    merge.store_both(cfg, group, work, even_weight * inverse, odd_weight * inverse)
    no_chunks(cfg, row)


@cute.jit
def correct_tiles(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    group: CorrectionGroup,
    work: Work,
    before: Turns,
) -> Turns:
    """A work tile of either kind."""
    now = Turns.of(cfg, order, work)
    merge.key_tiles(cfg, order, group, now, before)
    if is_single(cfg, work):
        finish_single(cfg, group, work, now, before)
    else:
        last = (before.even + now.even - 1, before.odd + now.odd - 1)
        for i in cutlass.range_constexpr(cfg.tiles.num_q):
            place = work, i, i, last[i] & 1, before.o & 1
            correction.finish_tile(cfg, order, group, *place)
    return before.plus(now)
