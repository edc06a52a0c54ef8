"""SwappedShared: where the tiles and the values that softmax threads exchange are in shared memory."""

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Float32, Int32

from ..blueprint.chip import F32_BYTES
from ..sync.kernel_args import floats as floats_at
from .smem_map import SwappedSmem


@dataclass(frozen=True)
class SwappedShared:
    """Addresses and tensors of a CTA's shared memory, as the roles need them."""

    q_address: Int32  # shared address of Q
    kv_address: Int32  # shared address of slot 0
    p_address: Int32  # shared address of P
    exchanged: cute.Tensor  # f32, (row, warp, turn): columns.py
    row_values: cute.Tensor  # f32, (row, warp, bias, factor or scale)
    parts: cute.Tensor | None  # f32: what the CTAs of a cluster send: cluster.py

    @classmethod
    def of(cls, places: SwappedSmem, base: cute.Pointer, warps: int) -> "SwappedShared":
        """base: the CTA's dynamic shared memory; warps: of the softmax."""

        rows = places.exchanged.nbytes // (F32_BYTES * 2 * warps)

        def floats(region):
            pointer = cute.recast_ptr(base + region.offset, dtype=Float32)
            kinds = region.nbytes // (F32_BYTES * rows * warps)
            return cute.make_tensor(pointer, cute.make_layout((rows, warps, kinds)))

        parts = getattr(places, "parts", None)
        if parts is not None:
            parts = (
                floats_at(base + parts.offset, parts.nbytes // F32_BYTES) if parts.nbytes else None
            )
        return cls(
            q_address=base.toint(),
            kv_address=base.toint() + places.kv.offset,
            p_address=base.toint() + places.p.offset,
            exchanged=floats(places.exchanged),
            row_values=floats(places.row_values),
            parts=parts,
        )
