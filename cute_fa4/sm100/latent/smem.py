"""LatentShared: where the tiles are in shared memory."""

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32

from ..few_rows.smem import SwappedShared
from .smem_map import LatentSmem


@dataclass(frozen=True)
class LatentShared(SwappedShared):
    """As SwappedShared; kv_address: of the first slab."""

    rope_address: Int32  # shared address of the first slot of rotary columns

    @classmethod
    def of(cls, places: LatentSmem, base: cute.Pointer, warps: int) -> "LatentShared":
        swapped = SwappedShared.of(places, base, warps)
        return cls(**vars(swapped), rope_address=base.toint() + places.rope.offset)
