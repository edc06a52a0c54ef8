"""Correction warpgroup where both softmax warpgroups share one query tile: rescale O0 and O1, and add them at the end.

A row has two states, for its even and its odd key tiles. With maxima m_i, sums l_i and m = max(m_0, m_1):

    w_i = 2^(c m_i - c m)        l = w_0 l_0 + w_1 l_1        O = (w_0 O_0 + w_1 O_1) / l

    key tile n > 1   wait row_scale[n % 2] -> O_i *= factor, where a row of the warp needs it -> p_ready[n % 2]
    after the last   wait row_scale of both and o_ready -> merge -> log-sum-exp and O to global memory
    one key tile     no odd tile: O_0 alone, O_1 is not read

A warpgroup of 128 threads does this, one row per thread; softmax is already at the next work tile.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ..instructions import tensor_memory
from ..steps import row_math, store, token_scales
from ..steps.row_math import RowState
from ..steps.scores import first_state, log2_scale, row_context, write_lse
from ..steps.warpgroup import CorrectionGroup
from ..sync.kernel_args import Events, KernelArgs, Smem
from ..work import rows, scales
from ..work.tile import Work
from .correction import rescale_tile


@dataclass(frozen=True)
class Turns:
    """The number of key tiles of the even and the odd warpgroup, and the number of O so far; Int32."""

    even: Int32
    odd: Int32
    o: Int32

    @staticmethod
    def none() -> "Turns":
        return Turns(Int32(0), Int32(0), Int32(0))

    @staticmethod
    def of(cfg, order, work: Work) -> "Turns":
        """For a work tile with at least one key tile."""
        return Turns(
            order.number_of_tiles(cfg, work, 0), order.number_of_tiles(cfg, work, 1), Int32(1)
        )

    def plus(self, other: "Turns") -> "Turns":
        return Turns(self.even + other.even, self.odd + other.odd, self.o + other.o)


@cute.jit
def key_tiles(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    group: CorrectionGroup,
    now: Turns,
    before: Turns,
):
    """Rescale O_0 and O_1 before the P V of their key tiles except the first, in the order of the MMAs."""
    for turn in cutlass.range(1, now.even, unroll=1):
        rescale_tile(cfg, order, group, 0, (before.even + turn - 1) & 1)
        if turn < now.odd:
            rescale_tile(cfg, order, group, 1, (before.odd + turn - 1) & 1)


def state_of(cfg, smem: Smem, events: Events, i: int, phase, row) -> RowState:
    """A row's state after the last key tile of warpgroup i."""
    events.row_scale.wait(i, phase)
    thread = row + i * cfg.tiles.rows_per_q_tile
    return RowState(smem.row_max[thread], smem.row_scale[thread])


@cute.jit
def unit_of_odd(cfg: cutlass.Constexpr, smem: Smem, turns: Int32, row: Int32):
    """The unit of a row's O_1, if the odd warpgroup has had a key tile; None: O_1 has no unit."""
    if cutlass.const_expr("v" not in cfg.token_scales):
        return None
    unit = Float32(0.0)
    if turns > 0:
        unit = token_scales.handed_unit(cfg, smem, row + cfg.tiles.rows_per_q_tile)
    return unit


@cute.jit
def finish(
    cfg: cutlass.Constexpr,
    group: CorrectionGroup,
    work: Work,
    now: Turns,
    before: Turns,
):
    """Merge the two states, and store the merged O to global memory."""
    args, smem, events, row = group.args, group.smem, group.events, group.row
    even = state_of(cfg, smem, events, 0, (before.even + now.even - 1) & 1, row)
    odd = RowState.empty()
    if now.odd > 0:
        odd = state_of(cfg, smem, events, 1, (before.odd + now.odd - 1) & 1, row)
    place = rows.row_of(cfg, work, 0, row)
    factor = scales.of_scores(cfg, args, work, place)
    state, even_weight, odd_weight = row_math.merged(even, odd, log2_scale(cfg, args, factor))
    if cutlass.const_expr(cfg.write_lse):
        write_lse(cfg, args, work, 0, state, factor)
    even_weight = scales.times(even_weight, token_scales.handed_unit(cfg, smem, row))
    odd_weight = scales.times(odd_weight, unit_of_odd(cfg, smem, now.odd, row))
    inverse = scales.times(row_math.inverse(state.row_sum), scales.of_output(cfg, args, work))
    events.o_ready.wait(0, before.o & 1)
    tensor_memory.fence_after()
    if now.odd > 0:
        store_both(cfg, group, work, even_weight * inverse, odd_weight * inverse)
    else:
        store_even(cfg, group, work, even_weight * inverse)


def store_even(cfg, group: CorrectionGroup, work: Work, scale):
    """O_0 * scale to global memory; O_0 is free for the next work tile once all of it is in registers."""

    def free():
        tensor_memory.fence_before()
        group.events.p_ready.arrive(0)

    o_address = group.tmem + cfg.tmem.o[0]
    store.scaled(cfg, group, work, 0, o_address, scale, when_read=free)


def store_both(cfg, group: CorrectionGroup, work: Work, even, odd):
    """O_0 * even + O_1 * odd, likewise."""

    def free():
        tensor_memory.fence_before()
        for i in range(2):
            group.events.p_ready.arrive(i)

    o = [group.tmem + column for column in cfg.tmem.o]
    store.merged(cfg, group, work, 0, o, (even, odd), when_read=free)


@cute.jit
def correct_tiles(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    group: CorrectionGroup,
    work: Work,
    before: Turns,
) -> Turns:
    """A work tile with at least one key tile."""
    now = Turns.of(cfg, order, work)
    key_tiles(cfg, order, group, now, before)
    finish(cfg, group, work, now, before)
    return before.plus(now)


@cute.jit
def write_empty(cfg: cutlass.Constexpr, args: KernelArgs, smem: Smem, work: Work, row: Int32):
    """A work tile with no visible key: zeros, and the log-sum-exp of no keys or of the sink."""
    if cutlass.const_expr(cfg.write_lse):
        context = row_context(cfg, args, work, 0, row)
        state = first_state(cfg, args, work, context)
        write_lse(cfg, args, work, 0, state, context.factor)
    store.zeros(cfg, args, smem, work, row)
