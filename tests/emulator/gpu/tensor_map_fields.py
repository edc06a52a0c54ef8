"""The fields of a tensor map, encoded by hand into 128 bytes and, to compare, as cuTensorMapEncodeTiled wants them.

The hand encoding follows the field table of cute_fa4/emulator/machine/tensor_map.py from the other side; it
shares no code with the decoder there.
"""

import struct
from dataclasses import dataclass

import numpy as np

# name -> (code in the descriptor, CUtensorMapDataType, bytes, tf32 flag)
DTYPES = {
    "u8": (0, 0, 1, 0), "u16": (1, 1, 2, 0), "u32": (2, 2, 4, 0), "s32": (3, 3, 4, 0),
    "u64": (4, 4, 8, 0), "s64": (5, 5, 8, 0), "f16": (6, 6, 2, 0), "f32": (7, 7, 4, 0),
    "f64": (9, 8, 8, 0), "bf16": (10, 9, 2, 0), "f32_ftz": (8, 10, 4, 0),
    "tf32": (7, 11, 4, 1), "tf32_ftz": (8, 12, 4, 1),
}  # fmt: skip
SPANS = (16, 32, 64, 128)


@dataclass(frozen=True)
class TensorMapFields:
    """Tuples run from dimension 0 (contiguous); strides, in bytes, from dimension 1.

    buffer  number of the case's buffer, and shift: bytes from its start to element 0; may be negative
    span    swizzle span in bytes, 16 for none
    steps   element strides; None: all 1
    l2      L2 promotion: 0 none, 1 64 B, 2 128 B, 3 256 B
    """

    dtype: str
    sizes: tuple
    strides: tuple
    box: tuple
    span: int = 16
    steps: tuple = None
    nan: int = 0
    l2: int = 2
    buffer: int = 1
    shift: int = 0

    @property
    def itemsize(self):
        return DTYPES[self.dtype][2]

    @property
    def rank(self):
        return len(self.sizes)

    @property
    def element_strides(self):
        return self.steps or (1,) * self.rank

    @property
    def shared_box(self):
        """Elements that land in shared memory, by dimension; the stride of dimension 0 is ignored (CUDA Driver
        API, cuTensorMapEncodeTiled, elementStrides, no interleave)."""
        steps = (1, *self.element_strides[1:])
        return tuple(-(-b // s) for b, s in zip(self.box, steps, strict=True))

    @property
    def box_bytes(self):
        return int(np.prod(self.shared_box)) * self.itemsize

    def encode(self, address):
        """The 128 bytes for a buffer at an address."""
        code, _, _, tf32 = DTYPES[self.dtype]
        address += self.shift
        w = [0] * 32
        w[0], w[1] = address & 0xFFFFFFFF, address >> 32
        w[2] = (self.rank - 1) << 4 | code << 7 | SPANS.index(self.span) << 13
        w[2] |= self.nan << 15 | tf32 << 16 | self.l2 << 17
        for i, stride in enumerate(self.strides):
            w[3 + i] = stride >> 4 & 0xFFFFFFFF
            w[7] |= stride >> 36 << 4 * i
        for i, size in enumerate(self.sizes):
            w[8 + i] = size - 1
        for i, step in enumerate(self.element_strides):
            w[13] |= (step - 1) << 3 * i
        w[13] |= (self.box[0] - 1) << 24
        for i, extent in enumerate(self.box[1:]):
            w[14] |= (extent - 1) << 8 * i
        return struct.pack("<32I", *w)

    def elements(self, coordinates, offset):
        """Yield (byte of shared memory, byte of the buffer or None) of every element of the box.

        offset  where the box starts in shared memory, from a multiple of 1024
        PTX ISA, "Tensors": bounding box, traversal stride, out-of-boundary access, swizzling modes. Addresses count
        modulo 2^64.
        """
        steps = (1, *self.element_strides[1:])
        strides = (self.itemsize, *self.strides)
        mask = self.span // 16 - 1
        for number, index in enumerate(np.ndindex(*self.shared_box[::-1])):
            position = offset + number * self.itemsize
            position ^= (position >> 7 & mask) << 4
            place = self.shift
            for i, first, step, size, stride in zip(
                index[::-1], coordinates, steps, self.sizes, strides, strict=True
            ):
                at = first + i * step
                place = place + at * stride if place is not None and 0 <= at < size else None
            yield position, None if place is None else place % (1 << 64)


def random_fields(rng):
    """Fields that cuTensorMapEncodeTiled accepts, each drawn over its range: for comparing descriptors."""
    dtype = str(rng.choice(sorted(DTYPES)))
    itemsize, rank = DTYPES[dtype][2], int(rng.integers(1, 6))
    span = int(rng.choice(SPANS))
    inner = span if span > 16 else 16 * int(rng.integers(1, 1 + min(16, 256 * itemsize // 16)))
    sizes = [int(rng.integers(1, 1 << int(rng.integers(2, 33)))) for _ in range(rank)]
    strides = tuple(
        16 * int(rng.integers(1, 1 << int(rng.integers(8, 36)))) for _ in range(rank - 1)
    )
    outer = [int(rng.integers(1, 9)) for _ in range(rank - 1)]
    steps = (1, *(int(rng.integers(1, 9)) for _ in range(rank - 1)))
    floating = dtype not in ("u8", "u16", "u32", "s32", "u64", "s64")
    return TensorMapFields(
        dtype, tuple(sizes), strides, (inner // itemsize, *outer), span, steps,
        nan=int(floating and rng.integers(2)), l2=int(rng.integers(4)), buffer=0,
        shift=16 * int(rng.integers(0, 1 << 20)),
    )  # fmt: skip
