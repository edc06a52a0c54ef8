"""Layouts of every element: shared-memory operand tiles, MMA descriptors, tensor-memory fragments.

    swizzle            byte address -> byte address, as TMA writes and tcgen05.mma reads
    operand_tiles      KMajorTile (Q, K) and MNMajorTile (V): one storage, two views
    umma_descriptors   the 64-bit shared-memory descriptor and the 32-bit instruction descriptor
    tmem_fragments     which thread and register hold which (lane, column) of tensor memory
    pictures           all of the above as text; the docstrings' pictures are its output

Pure Python and NumPy: only functions that return CuTe objects import CuTe.
"""

from cute_fa4.layouts.operand_tiles import KMajorTile, MNMajorTile
from cute_fa4.layouts.swizzle import (
    SWIZZLE_32B,
    SWIZZLE_64B,
    SWIZZLE_128B,
    SWIZZLE_NONE,
    SWIZZLES,
    Swizzle,
)
from cute_fa4.layouts.tmem_fragments import (
    Fragment32x32b,
    PackedOperand,
    decode_address,
    encode_address,
)
from cute_fa4.layouts.umma_descriptors import InstructionDescriptor, SmemDescriptor

__all__ = [
    "SWIZZLES",
    "SWIZZLE_128B",
    "SWIZZLE_32B",
    "SWIZZLE_64B",
    "SWIZZLE_NONE",
    "Fragment32x32b",
    "InstructionDescriptor",
    "KMajorTile",
    "MNMajorTile",
    "PackedOperand",
    "SmemDescriptor",
    "Swizzle",
    "decode_address",
    "encode_address",
]
