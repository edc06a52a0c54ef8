"""Which warp of a CTA does what.

    warps   role       work
    0-3     softmax    S^T -> P^T: a thread owns a key; rescales O^T, stores it at the end
    4       mma        one thread issues every tcgen05.mma
    5       load       claims blocks, one thread issues every TMA load
    6-13    widen      a slab of 8 bits -> bf16, times scales; a thread owns half of a key's numbers

ptxas gives 448 threads 128 registers each. A warp reads and writes the lanes of tensor memory of its number modulo 4.
"""

from dataclasses import dataclass

from ..mhawiden.warp_roles import WidenedWarpRoles


@dataclass(frozen=True)
class RowsWarpRoles(WidenedWarpRoles):
    """Warp ranges.

    >>> [RowsWarpRoles().role_of(w) for w in (3, 5, 6, 13)], RowsWarpRoles().threads
    (['softmax', 'load', 'widen', 'widen'], 448)
    """

    widen: range = range(6, 14)
