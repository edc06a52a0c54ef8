"""The roles and the register count of each warp of a CTA.

    warps   role        registers   work
    0-3     softmax     152         S^T -> P^T: a thread owns a key; rescales O^T, stores it at the end
    4       mma         104         one thread issues every tcgen05.mma
    5       load        104         claims blocks, one thread issues the TMA loads of Q and K
    6       values      104         one thread issues those of V (roles/values.py)
    7       scales      104         scales of blocks, where the cache has them (block_scales.py)
    8-11    dequantize  128         even key tiles: K and V of 8 or 4 bits -> fp16; Q of bf16 -> fp16
    12-15   dequantize  128         odd key tiles: the same

512 threads begin with 128 registers each, which the `dequantize` warps keep. A warp accesses the tensor memory lanes of
its number modulo 4 and issues on the scheduler of that number.
"""

from dataclasses import dataclass

from ...blueprint.chip import WARP_SIZE
from ..warp_roles import SwappedWarpRoles


@dataclass(frozen=True)
class DequantizedWarpRoles(SwappedWarpRoles):
    """Warp ranges and the register budget of each warpgroup.

    >>> DequantizedWarpRoles().registers
    65536
    """

    values: range = range(6, 7)
    scales: range = range(7, 8)
    idle: range = range(0)
    dequantize: range = range(8, 16)
    softmax_registers: int = 152
    other_registers: int = 104
    dequantize_registers: int = 128

    @property
    def threads(self) -> int:
        return WARP_SIZE * self.dequantize.stop

    @property
    def dequantize_odd(self) -> range:
        """The half of the dequantizing warps that has odd key tiles, where they take turns.

        >>> DequantizedWarpRoles().dequantize_odd
        range(12, 16)
        """
        return range(self.dequantize.start + len(self.dequantize) // 2, self.dequantize.stop)

    @property
    def registers(self) -> int:
        """Registers all warps hold together after `setmaxnreg`."""
        return WARP_SIZE * (
            len(self.softmax) * self.softmax_registers
            + (self.dequantize.start - self.softmax.stop) * self.other_registers
            + len(self.dequantize) * self.dequantize_registers
        )

    def role_of(self, warp: int) -> str:
        """Name of the role of a warp, as it appears in messages.

        >>> [DequantizedWarpRoles().role_of(w) for w in (3, 5, 6, 7, 9)], DequantizedWarpRoles().threads
        (['softmax', 'load', 'values', 'scales', 'dequantize'], 512)
        """
        for name in ("scales", "idle", "dequantize"):
            if warp in getattr(self, name):
                return name
        return super().role_of(warp)
