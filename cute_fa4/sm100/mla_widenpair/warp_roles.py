"""Which warp of a CTA does what.

    warps   role       work
    0-7     softmax    S -> P, four threads a row; rescales O, stores it at the end
    8       mma        in CTA 0 one thread issues every tcgen05.mma of both
    9       load       one thread issues every TMA load of this CTA
    10-17   widen      units of 8 bits -> bf16, times scales; two warpgroups take them in turn

ptxas gives 576 threads 112 registers each.
"""

from dataclasses import dataclass

from ..mhawiden.warp_roles import WidenedWarpRoles

WIDEN_GROUPS = 2


@dataclass(frozen=True)
class RowsPairWarpRoles(WidenedWarpRoles):
    """Warp ranges.

    >>> [RowsPairWarpRoles().role_of(w) for w in (7, 8, 9, 10, 17)], RowsPairWarpRoles().threads
    (['softmax', 'mma', 'load', 'widen', 'widen'], 576)
    """

    softmax: range = range(0, 8)
    mma: range = range(8, 9)
    load: range = range(9, 10)
    widen: range = range(10, 18)
