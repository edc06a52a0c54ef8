"""Which warp of a CTA does what, and with how many registers.

    warps    role        registers   work
    0-3      softmax     240         S -> P
    4-7      correction  160         rescales O when a row maximum moved, then stores it
    8        mma         104         one thread issues every tcgen05.mma
    9        load        104         claims blocks, one thread issues every TMA load
    10, 11   idle        104         `setmaxnreg` must be executed alike by the four warps of a warpgroup; or
             dequantize              8-bit columns -> 16: a thread owns two keys of a tile

384 threads begin with 168 registers each, the maximum in steps of 8; 240 + 160 + 104 is three times that.
"""

from dataclasses import dataclass

from ..blueprint.chip import WARP_SIZE
from ..blueprint.warp_roles import WarpRoles


@dataclass(frozen=True)
class WideWarpRoles(WarpRoles):
    """Warp ranges and the register budget of each warpgroup.

    >>> WideWarpRoles().registers, WideWarpRoles().threads
    (64512, 384)
    """

    softmax: range = range(0, 4)
    correction: range = range(4, 8)
    mma: range = range(8, 9)
    load: range = range(9, 10)
    scales: range = range(12, 12)  # keys have none of their own
    idle: range = range(10, 12)
    softmax_registers: int = 240
    correction_registers: int = 160
    other_registers: int = 104


@dataclass(frozen=True)
class DequantizingWarpRoles(WideWarpRoles):
    """The same; the idle warps dequantize."""

    dequantize: range = range(10, 12)
    idle: range = range(12, 12)

    @property
    def registers(self) -> int:
        """Registers all warps hold together.

        >>> DequantizingWarpRoles().registers, DequantizingWarpRoles().threads
        (64512, 384)
        """
        return super().registers + WARP_SIZE * len(self.dequantize) * self.other_registers

    def role_of(self, warp: int) -> str:
        """Name of the role of a warp, as it appears in messages.

        >>> [DequantizingWarpRoles().role_of(w) for w in (0, 8, 10, 11)]
        ['softmax 0', 'mma', 'dequantize', 'dequantize']
        """
        return "dequantize" if warp in self.dequantize else super().role_of(warp)
