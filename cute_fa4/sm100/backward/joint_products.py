"""MMA warp of the kernel of all gradients (joint.py): CTA 0 issues the five products of both CTAs.

    turn n       dV += P[n] dO   S[n+1]        dK += dS[n] Q   dP[n+1]   dQ[n] = dS[n] K
    waits for    P[n]            dQ[n-1] is    dS[n]                     S[n+1] is read,
                                 read                                    dS[n] in both CTAs

The compute warps make dS[n] during dQ[n-1], dV and S, and P[n+1] during dK, dP and dQ. S[n+1] is in registers before
dQ[n] is written over it. MMAs run in order, so S[n+1] comes after the product that reads P[n], in the same columns, and
dP[n+1] after that which reads dS[n].

In CTA 1 this warp only says that its half of dS is in shared memory.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...layouts.umma_descriptors import InstructionDescriptor
from ..instructions import mbarriers, tensor_core, tensor_memory
from ..operands.kv_buffer import mma_tile
from .joint import DEPTH, K_COLUMNS
from .operands import first_slots, next_slots
from .owner import ROWS
from .products import add, await_summed, make
from .work import Work


def make_dq(owner, cta, tmem):
    """dQ of a tile, 64 queries in each CTA: dS of all keys of the pair by half of the columns of K in each CTA."""
    a, b = owner.ds_tile, owner.columns_of_keys
    a_start, a_high, a_steps = mma_tile(a, cta.base + owner.smem.ds.offset, a.num_steps)
    b_start, b_high, b_steps = mma_tile(b, cta.base + owner.own_offset(K_COLUMNS), b.num_steps)
    computes = InstructionDescriptor(
        ROWS,
        DEPTH,
        owner.dtype,
        owner.dtype,
        a_mn_major=True,
        b_mn_major=True,
        cta_group=owner.ctas,
    )
    pairs = list(zip(a_steps, b_steps, strict=True))
    to = tmem + owner.dq_column
    tensor_core.mma_ss(to, a_start, b_start, pairs, computes, a_high, b_high, accumulate=False)
    cta.dq_ready.commit(0)


@cute.jit
def await_sent(owner: cutlass.Constexpr, cta, n: Int32):
    """Until this CTA's half of dS is in its shared memory. Own warps fence their part, this warp the other CTA's."""
    cta.ds_sent.arrive_and_expect(0, owner.ds_tile.nbytes // owner.ctas)
    mbarriers.wait_for_cluster(cta.ds_sent.mbarriers, n & 1)
    mbarriers.acquire_shared()
    cute.arch.fence_proxy("async.shared", space="cluster")


@cute.jit
def say_sent(owner: cutlass.Constexpr, cta, work: Work):
    """CTA 1, for every turn."""
    for n in cutlass.range(work.count, unroll=1):
        await_sent(owner, cta, n)
        cta.ds_there.arrive(0)


@cute.jit
def run(owner: cutlass.Constexpr, cta, tmem: Int32, work: Work):
    """Every product of a pair."""
    slots, count = first_slots(owner, 0), work.count
    if count > 0:
        make(owner, cta, tmem, slots, 0, Int32(0))
        make(owner, cta, tmem, slots, 1, Int32(0))
        cta.s_read.wait(0, 0)
        for n in cutlass.range(count, unroll=1):
            following = next_slots(owner, slots)
            await_summed(owner, cta, slots, 1)
            cta.p_ready.wait(0, n & 1)
            tensor_memory.fence_after()
            add(owner, cta, tmem, slots, 1, n)
            if n > 0:
                cta.dq_read.wait(0, (n & 1) ^ 1)
                tensor_memory.fence_after()
            if n + 1 < count:
                make(owner, cta, tmem, following, 0, n + 1)
            await_summed(owner, cta, slots, 0)
            cta.ds_ready.wait(0, n & 1)
            tensor_memory.fence_after()
            add(owner, cta, tmem, slots, 0, n)
            if n + 1 < count:
                make(owner, cta, tmem, following, 1, n + 1)
            if n == 0:
                cta.own_full.wait(K_COLUMNS, 0)
            if n + 1 < count:
                cta.s_read.wait(0, (n & 1) ^ 1)
                tensor_memory.fence_after()
            await_sent(owner, cta, n)
            cta.ds_there.wait(0, n & 1)
            make_dq(owner, cta, tmem)
            slots = following
        cta.done.commit(0)
        cta.dq_read.wait(0, (count - 1) & 1)  # CTA 0 outlives the arrivals of CTA 1
