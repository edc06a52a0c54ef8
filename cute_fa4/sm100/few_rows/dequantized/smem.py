"""WidenedShared: where the tiles and the values that threads exchange are in shared memory."""

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Float32, Int32

from ..smem import SwappedShared
from .barriers import BUFFERS
from .smem_map import WidenedSmem


@dataclass(frozen=True)
class WidenedShared(SwappedShared):
    """Addresses and tensors of a CTA's shared memory, as the roles need them."""

    v_address: Int32  # shared address of the first V in fp16
    q_scales: cute.Tensor  # f32, (row, work tile with keys & 1)

    @classmethod
    def of(cls, places: WidenedSmem, base: cute.Pointer, warps: int) -> "WidenedShared":
        """base: the CTA's dynamic shared memory; warps: of the softmax."""
        swapped = SwappedShared.of(places, base, warps)
        pointer = cute.recast_ptr(base + places.q_scales.offset, dtype=Float32)
        rows = places.q_scales.nbytes // (4 * BUFFERS)
        return cls(
            **vars(swapped),
            v_address=base.toint() + places.v.offset,
            q_scales=cute.make_tensor(pointer, cute.make_layout((rows, BUFFERS))),
        )
