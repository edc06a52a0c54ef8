"""MMA warp: one thread issues S and dP of every tile, then the sums.

    turn n       S[n+1]          dV += P[n] dO    dK += dS[n] Q    dP[n+1]    queries are owned: no dV, dQ += dS[n] K
    waits for    Q[n+1], S[n]    P[n]             dS[n]            dO[n+1]
                 is read

While the compute warps read dP[n] and write P[n] and dS[n] over it, the tensor core makes S[n+1]; while they make
P[n+1], which stays in registers, it adds both sums and makes dP[n+1]. That overwrites P[n] and dS[n] after the products
that read them: MMAs run in order.

Where dS has columns of its own (Owner.apart), dP[n+1] is made before the sum that reads dS[n]. So it is there when
the compute warps have made P[n+1].

Own tiles are operand A of S and dP, in tensor memory where there is room (Owner.moved; own_tile.py).
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...layouts.umma_descriptors import InstructionDescriptor
from ..instructions import tensor_core, tensor_memory
from ..operands.kv_buffer import mma_tile
from . import operands, subtracted
from .operands import (
    OwnerArgs,
    first_slots,
    next_slots,
    place_of_s,
    ring_address,
    ring_index,
)
from .owner import ROWS
from .work import Work

STEP_COLUMNS = 8  # of P or dS in tensor memory, for one MMA step, of 16 values


def instruction(owner, columns: int, b_mn_major: bool = False) -> InstructionDescriptor:
    """An MMA step of all own rows, in a pair those of both CTAs."""
    rows, dtypes = ROWS * owner.ctas, (owner.dtype, owner.dtype)
    return InstructionDescriptor(
        rows, columns, *dtypes, b_mn_major=b_mn_major, cta_group=owner.ctas
    )


def multiply(owner, cta, tmem, slots: tuple, i: int, to):
    """S (i = 0) or dP (i = 1) of own tile i and tile i of the ring, into columns from `to` on; both are ready."""
    tile, of_ring = owner.own_tiles[i], owner.tiles[i]
    own, high, steps = mma_tile(tile, cta.base + owner.own_offset(i), tile.num_steps)
    ring = ring_address(owner, cta, slots, owner.made_part(i))
    other, other_high, other_steps = mma_tile(of_ring, ring, of_ring.num_steps)
    computes = instruction(owner, owner.other_rows)
    if i in owner.moved:
        columns = range(0, STEP_COLUMNS * tile.num_steps, STEP_COLUMNS)
        pairs = list(zip(columns, other_steps, strict=True))
        own = tmem + owner.own_column(i)
        tensor_core.mma_ts(to, own, other, pairs, computes, other_high, accumulate=False)
    else:
        pairs = list(zip(steps, other_steps, strict=True))
        tensor_core.mma_ss(to, own, other, pairs, computes, high, other_high, accumulate=False)
    if owner.subtracts:
        numbers = operands.stats_address(owner, cta, slots, i)
        subtracted.subtract(owner, to, cta.ones_address, numbers, of_dp=i == 1)


def add(owner, cta, tmem, slots: tuple, result: int, n):
    """A sum of turn n: dQ or dK (result 0) of dS and tile 0 of the ring, or dV (1) of P and tile 1. Frees the tile."""
    tile = owner.summed_tile(result)
    ring = ring_address(owner, cta, slots, owner.summed_part(result))
    start, high, offsets = mma_tile(tile, ring, tile.num_steps)
    first, apart = owner.p_place if result else owner.ds_place
    if result:
        first = first + place_of_s(owner, n).index * owner.other_rows
    columns = columns_of_steps(owner.warps.groups, owner.p_columns, apart)
    steps = list(zip(columns, offsets, strict=True))
    computes = instruction(owner, tile.cols * owner.ctas, b_mn_major=True)
    column = tmem + owner.result_column(result)
    tensor_core.mma_ts(column, tmem + first, start, steps, computes, high, accumulate=n > 0)
    cta.other_empty.commit(ring_index(owner, slots, owner.summed_part(result)))


def await_summed(owner, cta, slots: tuple, result: int):
    """Until the operand of a sum has come; what S or dP reads, too, has come before."""
    part = owner.summed_part(result)
    if not owner.parts[part].made:
        await_part(owner, cta, slots, part)


def await_part(owner, cta, slots: tuple, part: int):
    cta.other_full.wait(ring_index(owner, slots, part), slots[part].phase)


def columns_of_steps(groups: int, columns: int, apart: int) -> list[int]:
    """Where the values of each MMA step begin: each warpgroup writes its own over those that it has read.

    columns: that a warpgroup writes; apart: from those of one to those of the other

    >>> columns_of_steps(2, 32, 64)
    [0, 8, 16, 24, 64, 72, 80, 88]
    """
    return [group * apart + at for group in range(groups) for at in range(0, columns, STEP_COLUMNS)]


@cute.jit
def make(owner: cutlass.Constexpr, cta, tmem: Int32, slots: tuple, i: cutlass.Constexpr, n: Int32):
    """S or dP of turn n, as soon as its tiles are ready. Frees the tile that no sum reads, except where dV is alone."""
    if n == 0:
        if cutlass.const_expr(i in owner.moved):
            moved = cta.own_moved if owner.ctas == 1 else cta.own_there
            moved.wait(owner.moved.index(i), 0)
            tensor_memory.fence_after()
        else:
            cta.own_full.wait(i, 0)
    part = owner.made_part(i)
    await_part(owner, cta, slots, part)
    if cutlass.const_expr(i == 1):
        multiply(owner, cta, tmem, slots, i, tmem + owner.dp_column)
        cta.dp_ready.commit(0)
    else:
        place = place_of_s(owner, n).index
        multiply(owner, cta, tmem, slots, i, tmem + (owner.s_column + place * owner.other_rows))
        if cutlass.const_expr(owner.results):
            cta.s_ready.commit(place)
    if cutlass.const_expr(not owner.parts[part].summed and owner.has_dp):
        cta.other_empty.commit(ring_index(owner, slots, part))


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    owner: cutlass.Constexpr,
    args: OwnerArgs,
    cta,
    tmem: Int32,
    work: Work,
):
    """Every product of a CTA."""
    slots, count = first_slots(owner, 0), work.count
    if count > 0:
        make(owner, cta, tmem, slots, 0, Int32(0))
        make(owner, cta, tmem, slots, 1, Int32(0))
        for n in cutlass.range(count, unroll=1):
            following = next_slots(owner, slots)
            cta.s_read.wait(0, n & 1)
            tensor_memory.fence_after()
            if n + 1 < count:
                make(owner, cta, tmem, following, 0, n + 1)
            if cutlass.const_expr(1 in owner.results):
                cta.p_ready.wait(0, n & 1)
                tensor_memory.fence_after()
                add(owner, cta, tmem, slots, 1, n)
            if cutlass.const_expr(owner.apart == "dS"):
                cta.dp_read.wait(0, n & 1)
                tensor_memory.fence_after()
                if n + 1 < count:
                    make(owner, cta, tmem, following, 1, n + 1)
            await_summed(owner, cta, slots, 0)
            cta.ds_ready.wait(0, n & 1)
            tensor_memory.fence_after()
            add(owner, cta, tmem, slots, 0, n)
            if cutlass.const_expr(owner.apart != "dS"):
                if n + 1 < count:
                    make(owner, cta, tmem, following, 1, n + 1)
            slots = following
        cta.done.commit(0)
