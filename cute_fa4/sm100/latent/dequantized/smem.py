"""RowsShared: where the tiles are in shared memory."""

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32

from ..smem import LatentShared
from .smem_map import RowsSmem


@dataclass(frozen=True)
class RowsShared(LatentShared):
    """As LatentShared; kv_address: of the first slab as it is stored."""

    v_address: Int32  # shared address of the first slab in bf16
    scales_address: Int32  # shared address of the scales of key 0

    @classmethod
    def of(cls, places: RowsSmem, base: cute.Pointer, warps: int) -> "RowsShared":
        return cls(
            **vars(LatentShared.of(places, base, warps)),
            v_address=base.toint() + places.v.offset,
            scales_address=base.toint() + places.scales.offset,
        )
