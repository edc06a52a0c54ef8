"""The MMA warp where dP takes the columns of S (Owner.shares): dK of more than 128 columns.

    turn n       dP[n]           dV += P[n] dO    dK += dS[n] Q    S[n+1]
    waits for    P[n], dO[n]                      dS[n]            Q[n+1]

dP[n] overwrites S[n], which has been read. S[n+1] overwrites dS[n] after the product that reads it. So the tensor core
adds dV while the compute warps make dS[n], and is idle while they make P.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..instructions import tensor_memory
from .operands import first_slots, next_slots
from .products import add, make
from .work import Work


def turn(owner, cta, tmem, slots: tuple, n):
    """The products of turn n before S[n+1]."""
    cta.s_read.wait(0, n & 1)
    tensor_memory.fence_after()
    make(owner, cta, tmem, slots, 1, n)
    add(owner, cta, tmem, slots, 1, n)
    cta.ds_ready.wait(0, n & 1)
    tensor_memory.fence_after()
    add(owner, cta, tmem, slots, 0, n)


@cute.jit
def multiply(owner: cutlass.Constexpr, cta, tmem: Int32, work: Work):
    """Every product of a CTA."""
    slots, count = first_slots(0), work.count
    if count > 0:
        make(owner, cta, tmem, slots, 0, Int32(0))
        for n in cutlass.range(count, unroll=1):
            turn(owner, cta, tmem, slots, n)
            slots = next_slots(owner, slots)
            if n + 1 < count:
                make(owner, cta, tmem, slots, 0, n + 1)
        cta.done.commit(0)
