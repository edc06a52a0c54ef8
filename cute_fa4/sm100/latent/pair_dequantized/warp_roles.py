"""The role and the register count of each warp of a CTA.

    warps    role       registers   work
    0-7      softmax    152         S -> P, four threads a row; rescales O, stores it at the end
    8        mma         64         in CTA 0 one thread issues every tcgen05.mma of both
    9        load        64         one thread issues every TMA load of this CTA
    10, 11   idle        64         the four warps of a warpgroup must execute the same `setmaxnreg`
    12-19    dequantize  56         dequantizes 8-bit units to bf16; two warpgroups take them in turn

640 threads begin with 96 registers each: each quarter of an SM has 16,384 registers and runs five of the warps.
"""

from dataclasses import dataclass

from ..dequantized.warp_roles import RowsWarpRoles

DEQUANTIZE_GROUPS = 2


@dataclass(frozen=True)
class RowsPairWarpRoles(RowsWarpRoles):
    """Warp ranges and the register budget of each warpgroup.

    >>> [RowsPairWarpRoles().role_of(w) for w in (7, 8, 9, 10, 12, 19)], RowsPairWarpRoles().threads
    (['softmax', 'mma', 'load', 'idle', 'dequantize', 'dequantize'], 640)
    >>> RowsPairWarpRoles().registers, 640 * 96
    (61440, 61440)
    """

    softmax: range = range(0, 8)
    mma: range = range(8, 9)
    load: range = range(9, 10)
    idle: range = range(10, 12)
    dequantize: range = range(12, 20)
    softmax_registers: int = 152
    other_registers: int = 64
    dequantize_registers: int = 56
