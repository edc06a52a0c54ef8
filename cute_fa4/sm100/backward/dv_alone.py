"""The MMA warp where dV is all that a CTA sums (Owner.only): wide head dims.

    turn n       S[n+1]    dV += P[n] dO
    waits for    Q[n+1]    P[n], dO[n]

S has two places: the tensor core makes S[n+1] while the compute warps make P[n]. It overwrites P[n-1] after the
product that reads it. L of the queries has come with Q, and P needs it: Q is free after the product of P. So Q has a
third slot, and L comes without delta to make room for it.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..instructions import tensor_memory
from .operands import first_slots, next_slots, place_of_s, ring_index
from .products import add, await_summed, make
from .work import Work


@cute.jit
def multiply(owner: cutlass.Constexpr, cta, tmem: Int32, work: Work):
    """Every product of a CTA."""
    slots, count = first_slots(owner, 0), work.count
    if count > 0:
        make(owner, cta, tmem, slots, 0, Int32(0))
        for n in cutlass.range(count, unroll=1):
            following = next_slots(owner, slots)
            if n + 1 < count:
                make(owner, cta, tmem, following, 0, n + 1)
            await_summed(owner, cta, slots, 1)
            place = place_of_s(owner, n)
            cta.p_ready.wait(place.index, place.phase)
            tensor_memory.fence_after()
            add(owner, cta, tmem, slots, 1, n)
            cta.other_empty.commit(ring_index(owner, slots, 0))
            slots = following
        cta.done.commit(0)
