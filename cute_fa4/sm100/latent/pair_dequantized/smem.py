"""RowsPairShared: where the tiles are in shared memory."""

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32

from ..pair.smem import LatentPairShared
from .smem_map import RowsPairSmem


@dataclass(frozen=True)
class RowsPairShared(LatentPairShared):
    """As LatentPairShared; kv_address: of the first unit as it is multiplied."""

    stored_address: Int32  # shared address of the first unit as it is stored

    @classmethod
    def of(cls, places: RowsPairSmem, base: cute.Pointer) -> "RowsPairShared":
        return cls(
            **vars(LatentPairShared.of(places, base)),
            stored_address=base.toint() + places.stored.offset,
        )
