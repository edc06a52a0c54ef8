"""The role and the register count of each warp of a CTA.

    warps   role        registers   work
    0-3     softmax     200         S^T -> P^T: a thread owns a key; rescales O^T, stores it at the end
    4       mma          88         one thread issues every tcgen05.mma
    5       load         88         claims blocks, one thread issues every TMA load
    6, 7    idle         88         the four warps of a warpgroup must execute the same `setmaxnreg`
    8-15    dequantize  112         dequantizes 8-bit slabs to bf16; a thread owns half of the values of a key

512 threads begin with 128 registers each. A warp accesses the tensor memory lanes of its number modulo 4.
"""

from dataclasses import dataclass

from ...few_rows.dequantized.warp_roles import DequantizedWarpRoles


@dataclass(frozen=True)
class RowsWarpRoles(DequantizedWarpRoles):
    """Warp ranges and the register budget of each warpgroup.

    >>> [RowsWarpRoles().role_of(w) for w in (3, 5, 6, 8, 15)], RowsWarpRoles().threads
    (['softmax', 'load', 'idle', 'dequantize', 'dequantize'], 512)
    >>> RowsWarpRoles().registers
    65536
    """

    values: range = range(0)
    scales: range = range(0)
    idle: range = range(6, 8)
    softmax_registers: int = 200
    other_registers: int = 88
    dequantize_registers: int = 112
