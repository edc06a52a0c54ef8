"""The MMA warp where dV is all that a CTA sums (Owner.only): wide head dims.

    turn n       dV += P[n] dO    S[n+1]
    waits for    P[n], dO[n]      Q[n+1]

S[n+1] overwrites P[n] after the product that reads it. L of the queries has come with Q, and P needs it: Q is free
after that product, too. The loop over tiles is multiply of one_place.py.
"""

from ..instructions import tensor_memory
from .operands import ring_index
from .products import add


def turn(owner, cta, tmem, slots: tuple, n):
    """The products of turn n before S[n+1]."""
    cta.other_full.wait(ring_index(owner, slots, 1), slots[1].phase)
    cta.s_read.wait(0, n & 1)
    tensor_memory.fence_after()
    add(owner, cta, tmem, slots, 1, n)
    cta.other_empty.commit(ring_index(owner, slots, 0))
