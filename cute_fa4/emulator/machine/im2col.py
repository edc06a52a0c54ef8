"""The im2col part of a tensor map: consecutive pixels of a convolution, each with some of its channels.

A tensor N (D (H)) W C is traversed from a first pixel, W fastest, inside a bounding box. Each step is one row of
shared memory. It is read at the pixel plus the filter's offset, or filled outside the tensor:

    W = 6, H = 4, lower corner (-1, -1), upper corner (-1, -1), strides 1, first pixel (w 3, h -1), offset (1, 1)

      w  -1  0  1  2  3  4  5                      pixel (w, h)   is read at
    h -1  . [.  .  .  1  2] .      [ ]: box,        1  (3, -1)     (4, 0)
       0 [3  4  5  6  7  8] .      w -1 to 4,       2  (4, -1)     (5, 0)
       1 [9  ...          ]        h -1 to 2        3  (-1, 0)     (0, 1)
       2 [ then the next n ]                        4  (0, 0)      (1, 1)

    box in dimension i     lower corner  to  size - 1 + upper corner
    next pixel             w + stride; past the box: its lower corner, and h + stride; and so on; finally n + 1

32-bit words of the map (determined from maps of CuTe's compiled host code, varying one field at a time):

    w2  0        1: im2col                         w13  [24:32)  channels, minus 1; traversal strides as of tiles
    w14 [0:16)   lower corner of W, H, D           w14  [16:32)  upper corner of W, H, D
                 signed, 16, 8, 5 bits each for rank 3, 4, 5
    w15          pixels, minus 1

PTX ISA, "im2col mode"; CUDA Driver API, cuTensorMapEncodeIm2col (limits). The modes im2col::w and ::w::128 use
different maps. The parameters of cuTensorMapEncodeIm2colWide are public, but its bits are not, and no public
library encodes them without the driver. The PTX ISA shows the halos of ::w::128 only in a picture. Both modes are
refused.
"""

from dataclasses import dataclass

from cute_fa4.emulator.ptx.errors import TensorMapError

IM2COL = 1
MAX_PIXELS = 1024


@dataclass(frozen=True)
class Im2col:
    """lower, upper: corners of W and, if present, H, D; steps: traversal strides; pixels: rows of a copy."""

    lower: tuple
    upper: tuple
    steps: tuple
    pixels: int

    @property
    def offset_bits(self):
        """Bits of each offset of an instruction: 16, 8 or 5."""
        return 16 // len(self.lower)

    def places(self, tensor_map, coordinates, offsets):
        """Coordinates (c, w, h, d, n) of every row, from signed first ones. Raises TensorMapError."""
        channel, *pixel, n = coordinates
        last = [size - 1 + up for size, up in zip(tensor_map.sizes[1:-1], self.upper, strict=True)]
        for name, at, low, high in zip("whd", pixel, self.lower, last, strict=False):
            if not low <= at <= high:
                raise TensorMapError(
                    f"im2col copy of a {tensor_map} from {name} {at} on; accepted: {low} to {high}, its bounding box"
                )
        out = []
        for _ in range(self.pixels):
            out.append((channel, *(p + o for p, o in zip(pixel, offsets, strict=True)), n))
            for i, step in enumerate(self.steps):
                pixel[i] += step
                if pixel[i] <= last[i]:
                    break
                pixel[i] = self.lower[i]
            else:
                n += 1
        return out


def decode(w, rank, sizes, steps):
    """The Im2col of the words of a map. Raises TensorMapError: the field, its value, what is accepted."""

    def accept(ok, name, value, accepted):
        if not ok:
            raise TensorMapError(f"tensor map: {name} is {value}; accepted: {accepted}")

    accept(3 <= rank <= 5, "rank of an im2col map", rank, "3 to 5")
    bits = 16 // (rank - 2)

    def corner(low):
        values = [w[14] >> low + bits * i & (1 << bits) - 1 for i in range(rank - 2)]
        return tuple(v - (v >> bits - 1 << bits) for v in values)

    lower, upper = corner(0), corner(16)
    pixels = w[15] + 1
    accept(pixels <= MAX_PIXELS, "pixels of an im2col map", pixels, f"1 to {MAX_PIXELS}")
    for name, size, low, up in zip("WHD", sizes[1:-1], lower, upper, strict=False):
        accept(low <= size - 1 + up, f"the bounding box in {name}", f"{low} to {size - 1 + up}",
               "one with an element")  # fmt: skip
    return Im2col(lower, upper, steps[1:-1], pixels)
