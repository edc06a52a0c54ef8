"""Which warp of a CTA does what, and with how many registers.

warps   role        registers   work
0-3     softmax     240         S -> P
4-7     correction  160         rescales O when a row maximum moved, then stores it
8       mma         104         one thread issues every tcgen05.mma
9       load        104         claims blocks, one thread issues every TMA load
10, 11  dequantize  104         RoPE columns of 8 bits -> 16: a thread owns two keys of a tile
"""

from dataclasses import dataclass

from ...blueprint.chip import WARP_SIZE
from ..warp_roles import WideWarpRoles


@dataclass(frozen=True)
class RopeWarpRoles(WideWarpRoles):
    """The roles of mhawide; the idle warps dequantize."""

    dequantize: range = range(10, 12)
    idle: range = range(12, 12)

    @property
    def registers(self) -> int:
        """Registers all warps hold together.

        >>> RopeWarpRoles().registers, RopeWarpRoles().threads
        (64512, 384)
        """
        return super().registers + WARP_SIZE * len(self.dequantize) * self.other_registers

    def role_of(self, warp: int) -> str:
        """Name of the role of a warp, as it appears in messages.

        >>> [RopeWarpRoles().role_of(w) for w in (0, 8, 10, 11)]
        ['softmax 0', 'mma', 'dequantize', 'dequantize']
        """
        return "dequantize" if warp in self.dequantize else super().role_of(warp)
