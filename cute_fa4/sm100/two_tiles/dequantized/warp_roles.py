"""Which warp of a CTA does what, and with how many registers.

warps   role        registers   work
0-3     softmax 0   192         S0 -> P0
4-7     softmax 1   192         S1 -> P1
8-11    correction   88         rescales O0 and O1 when a row maximum moved, then stores them
12      mma          40         one thread issues every tcgen05.mma
13      load         40         claims blocks, one thread issues every TMA load
14, 15  dequantize   40         K and V of 8 or 4 bits -> 16: a thread owns two keys of a tile
"""

from dataclasses import dataclass

from ...blueprint.chip import WARP_SIZE
from ...blueprint.warp_roles import WarpRoles


@dataclass(frozen=True)
class SlotWarpRoles(WarpRoles):
    """The warp roles of two query tiles, whose last two warps dequantize."""

    dequantize: range = range(14, 16)
    scales: range = range(16, 16)  # no scales of each key
    idle: range = range(16, 16)

    @property
    def registers(self) -> int:
        """Registers all warps hold together.

        >>> SlotWarpRoles().registers, SlotWarpRoles().threads
        (65536, 512)
        """
        return super().registers + WARP_SIZE * len(self.dequantize) * self.other_registers

    def role_of(self, warp: int) -> str:
        """Name of the role of a warp, as it appears in messages.

        >>> [SlotWarpRoles().role_of(w) for w in (0, 12, 14, 15)]
        ['softmax 0', 'mma', 'dequantize', 'dequantize']
        """
        return "dequantize" if warp in self.dequantize else super().role_of(warp)
