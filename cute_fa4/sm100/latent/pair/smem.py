"""LatentPairShared: where the tiles and the values that softmax threads exchange are in shared memory."""

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Float32, Int32

from .smem_map import LatentPairSmem


@dataclass(frozen=True)
class LatentPairShared:
    """Addresses and tensors of a CTA's shared memory, as the roles need them."""

    q_address: Int32  # shared address of Q
    kv_address: Int32  # shared address of slot 0
    rope_address: Int32  # shared address of the first slot of rotary columns
    p_address: Int32  # shared address of P
    exchanged: cute.Tensor  # f32, (softmax thread, turn)

    @classmethod
    def of(cls, places: LatentPairSmem, base: cute.Pointer) -> "LatentPairShared":
        """base: the CTA's dynamic shared memory."""
        pointer = cute.recast_ptr(base + places.exchanged.offset, dtype=Float32)
        threads = places.exchanged.nbytes // (2 * 4)
        return cls(
            q_address=base.toint(),
            kv_address=base.toint() + places.kv.offset,
            rope_address=base.toint() + places.rope.offset,
            p_address=base.toint() + places.p.offset,
            exchanged=cute.make_tensor(pointer, cute.make_layout((threads, 2))),
        )
