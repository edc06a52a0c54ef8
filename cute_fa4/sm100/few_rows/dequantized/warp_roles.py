"""The roles of the warps of a CTA.

    warps   role        work
    0-3     softmax     S^T -> P^T: a thread owns a key; rescales O^T, stores it at the end
    4       mma         one thread issues every tcgen05.mma
    5       load        claims blocks, one thread issues every TMA load
    6-9     dequantize  K and V of 8 bits -> fp16; Q of bf16 -> fp16; a thread owns a key

ptxas gives 320 threads 168 registers each, enough up to 32 rows, so none have to be moved between the roles.
"""

from dataclasses import dataclass

from ..warp_roles import SwappedWarpRoles


@dataclass(frozen=True)
class DequantizedWarpRoles(SwappedWarpRoles):
    """Warp ranges."""

    dequantize: range = range(6, 10)

    @property
    def threads(self) -> int:
        return self.threads_of("dequantize") + super().threads

    def role_of(self, warp: int) -> str:
        """Name of the role of a warp, as it appears in messages.

        >>> [DequantizedWarpRoles().role_of(w) for w in (3, 5, 6, 9)], DequantizedWarpRoles().threads
        (['softmax', 'load', 'dequantize', 'dequantize'], 320)
        """
        return "dequantize" if warp in self.dequantize else super().role_of(warp)
