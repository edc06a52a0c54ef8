"""Softmax warpgroup i: its key tiles, in loops over the steps of key_tile.py; each thread owns one row.

The order (order.py) says which query tile and key tiles belong to it. After the last tile the row sum goes to
correction in place of the factor, and correction divides O by it; the log-sum-exp goes to global memory.

Whole tiles and masked tiles are separate loops over the same step: a tile that needs no mask carries no mask code.
Where references lag (steps/lagged.py) each is two loops: tiles with a maximum, then tiles without. With P over S, the
latter begin with the first quarter of the scores, while the loads of the rest are in flight. Between the loops over
whole tiles is a first tile with its reference from its first quarter; then only a rerun uses the loop with a maximum.
A sink is a key with the sink as its score and no value: it is the initial state of a row.
"""

from dataclasses import replace

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..steps import lagged, lost_weights, row_math, skipped, token_scales
from ..steps.row_math import RowState
from ..steps.scores import (
    computed_again,
    first_state,
    log2_scale,
    row_context,
    whole_tiles,
    write_lse,
)
from ..steps.warpgroup import RowContext, Share, Warpgroup
from ..sync.kernel_args import Events, KernelArgs, Smem
from ..work import block_lists
from ..work.kv_range import WholeTiles
from ..work.queue import NO_MORE, WorkQueue
from ..work.tile import Work
from .key_tile import first_step, lagged_step, step


@cute.jit
def tiles_in_range(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    group: Warpgroup,
    share: Share,
    whole: WholeTiles,
    stride: Int32,
    end: Int32,
    state: RowState,
) -> RowState:
    """The key tiles of a range up to `end`, every stride-th, in loops over whole ones and masked ones."""
    work, i = share.work, group.i
    if cutlass.const_expr(cfg.mask.has_lower_bound):
        begin = order.next_tile(cfg, work, work.tiles.begin_of(order.q_tile(cfg, work, i)), i)
        for n in cutlass.range(begin, whole.begin, stride, unroll=1):
            state = step(cfg, order, group, share, n, state, masked=True)
    if cutlass.const_expr(cfg.mask.is_band):
        begin = order.next_tile(cfg, work, whole.begin, i)
        exact_end = lagged.exact_end(cfg, work, begin, whole.end)
        for n in cutlass.range(begin, exact_end, stride, unroll=1):
            state = step(cfg, order, group, share, n, state, masked=False)
        if cutlass.const_expr(cfg.refers_to_quarter):
            if lagged.begins_here(work, begin, whole.end):
                state = first_step(cfg, order, group, share, begin, state)
        if cutlass.const_expr(cfg.schedule.lags):
            begin = lagged.begin(work, begin, stride, whole.end)
            for n in cutlass.range(begin, whole.end, stride, unroll=1):
                state = lagged_step(cfg, order, group, share, n, state, masked=False)
    begin = order.next_tile(cfg, work, whole.end, i)
    row = computed_again(cfg, group.args, work, order.q_tile(cfg, work, i), share.row)
    share = replace(share, row=row)
    if cutlass.const_expr(cfg.reads_by_quarter):
        whole_from = order.next_tile(cfg, work, whole.begin, i)
        exact_end = lagged.masked_exact_end(cfg, work, whole_from, whole.end, begin, end)
    else:
        exact_end = end
        state = lagged.checked(cfg, state)
    for n in cutlass.range(begin, exact_end, stride, unroll=1):
        state = step(cfg, order, group, share, n, state, masked=True)
    if cutlass.const_expr(cfg.reads_by_quarter):
        begin = lagged.masked_begin(begin, exact_end, stride, end)
        for n in cutlass.range(begin, end, stride, unroll=1):
            state = lagged_step(cfg, order, group, share, n, state, masked=True)
    return state


@cute.jit
def listed_tiles(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    group: Warpgroup,
    share: Share,
    state: RowState,
) -> RowState:
    """The key tiles that lists name, in their order; the next one is read ahead."""
    args, work, i = group.args, share.work, group.i
    stride = order.stride(cfg, work)
    begin = order.first_tile(cfg, work, i)
    ahead = block_lists.key_tile(cfg, args, work, begin)
    for n in cutlass.range(begin, block_lists.end_of(cfg, work), stride, unroll=1):
        listed = ahead
        ahead = block_lists.key_tile(cfg, args, work, n + stride)
        turn = replace(share, listed=listed)
        if cutlass.const_expr(block_lists.may_be_whole(cfg)):
            if block_lists.is_whole(cfg, work, n, listed):
                state = step(cfg, order, group, turn, n, state, masked=False)
            else:
                state = step(cfg, order, group, turn, n, state, masked=True)
        else:
            state = step(cfg, order, group, turn, n, state, masked=True)
    return state


@cute.jit
def work_tile(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    group: Warpgroup,
    work: Work,
    tiles_before: Int32,
) -> tuple[RowContext, RowState]:
    """All key tiles of a softmax warpgroup. tiles_before: the number in earlier work tiles."""
    args, i = group.args, group.i
    thread, _, _ = cute.arch.thread_idx()
    row = row_context(cfg, args, work, order.q_tile(cfg, work, i), thread)
    row = skipped.with_limit(cfg, args, work, order.q_tile(cfg, work, i), row)
    whole = whole_tiles(cfg, args, work, order.q_tile(cfg, work, i))
    stride = order.stride(cfg, work)
    end = work.tiles.end_of(order.q_tile(cfg, work, i))
    state = first_state(cfg, args, work, row, order.has_sink(cfg, work, i))
    state = skipped.begun(cfg, lost_weights.begun(order, cfg, group.tmem, state))
    share = Share(work, row, tiles_before)
    if cutlass.const_expr(cfg.lists_blocks):
        state = listed_tiles(cfg, order, group, share, state)
    else:
        state = tiles_in_range(cfg, order, group, share, whole, stride, end, state)
    state = lagged.checked(cfg, lost_weights.ended(cfg, state))
    row_sum = row_math.closed(cfg, state.row_max, state.row_sum, log2_scale(cfg, args, row.factor))
    return row, RowState(state.row_max, row_sum)


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    tmem: Int32,
    events: Events,
    queue: WorkQueue,
    i: Int32,
):
    """Softmax warpgroup i, every work tile. `tmem`: address of S_i for this warp's lanes."""
    thread, _, _ = cute.arch.thread_idx()
    group = Warpgroup(args, smem, tmem, events, i)
    number, tiles = Int32(0), Int32(0)
    token_scales.begin(cfg, smem, thread)
    work = queue.next(cfg, args, number)
    while work.tiles.count != NO_MORE:
        row, state = work_tile(cfg, order, group, work, tiles)
        turns = order.number_of_tiles(cfg, work, i)
        if turns > 0:
            tiles = tiles + turns
            # Correction has read the last factor, or the sum of the previous work tile.
            at, phase = order.buffer_and_parity(i, tiles - 1)
            events.p_ready.wait(at, phase)
            order.leave_lse(cfg, args, work, row, state)
            order.hand_over(cfg, smem, work, order.factor_word(cfg, thread, at), state)
            events.row_scale.arrive(at)
        writes = order.writes_lse(cfg, work)
        if cutlass.const_expr(cfg.write_lse and writes is not False):
            q_tile = order.q_tile(cfg, work, i)
            write_lse(cfg, args, work, q_tile, state, row.factor, writes)
        q_tile = order.q_tile(cfg, work, i)
        queue.report(number, lagged.failed(cfg, args, work, q_tile, state.row_sum))
        number = number + 1
        work = queue.next(cfg, args, number)
    at, _ = order.buffer_and_parity(i, tiles)
    order.close(events, at)
