"""A tensor map (TMA descriptor): 128 bytes that describe a tensor in global memory and a box of it.

The map consists of little-endian 32-bit words; words from 16 on are ignored. Bit 0 of w2 is 0; im2col.py has the
differences of maps for convolutions. (CuTe's host code sets bit 1 of w2 in all maps.)

    w0 w1       global address                       w3..w6   stride of dimension 1..4, bytes / 16
    w2  [4:7)   rank - 1                             w7       bits 36.. of the strides, 4 bits each
        [7:11)  dtype                                w8..w12  size of dimension 0..4, minus 1
        [11:13) interleave: none, 16 B, 32 B         w13      element stride of dimension 0..4, minus 1,
        [13:15) swizzle: none, 32, 64, 128 B                  3 bits each; [24:32) box of dimension 0, minus 1
        15      fill: zeros, NaN                     w14      box of dimension 1..4, minus 1, 8 bits each
        16      tf32   [17:19) L2 promotion
        21      range of a load: 0: its address, 1: the 128 KiB after it

The format is undocumented; it was determined from cuTensorMapEncodeTiled, varying one field at a time. The limits
are those of cuTensorMapEncodeTiled (CUDA Driver API, "Tensor Map Object Management").

A copy moves the box whose first element has the given signed coordinates. In global memory it is a strided block,
clipped to the tensor. In shared memory it is dense, dimension 0 fastest, with the swizzle applied to the absolute
address:

    tensor, sizes (6, 4)              box (4, 2) at (-1, 2)          shared, without swizzle
    row 0  a b c d e f                                               0 m n o   0 s t u
    row 1  g h i j k l                  . [ m n o                      box row 0 | box row 1
    row 2  m n o p q r                  . [ s t u                      (outside the tensor: 0)
    row 3  s t u v w x

Addresses wrap modulo 2^64, so the strides of two dimensions may add up to a negative step.

A load may access memory even where its box has no element: an H200 accesses the map's address, and Blackwell, with
bit 21 of w2 (bit 85 of the map) set, the 128 KiB after it. Host code sets the bit for tensors of at least that
size; bug reports call it OOB_ADDR_GEN_MODE_BASE_128kB (flashinfer #3427, and the known issues of driver 595.71). So
this memory and all elements of the box must be in one allocation. A store accesses only what it writes.
"""

import math
import struct
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from cute_fa4.emulator.machine import im2col
from cute_fa4.emulator.ptx.errors import IllegalAccess, TensorMapError

TENSOR_MAP_BYTES = 128
CHUNK = 16
WIDE_REACH = 128 * 1024
ADDRESS_MASK = (1 << 64) - 1
# Code in w2 [7:11) -> (name, bytes of an element, the NumPy type that adds and compares it)
DTYPES = {
    0: ("u8", 1, np.uint8),
    1: ("u16", 2, np.uint16),
    2: ("u32", 4, np.uint32),
    3: ("s32", 4, np.int32),
    4: ("u64", 8, np.uint64),
    5: ("s64", 8, np.int64),
    6: ("f16", 2, np.float16),
    7: ("f32", 4, np.float32),
    8: ("f32_ftz", 4, np.float32),
    9: ("f64", 8, np.float64),
    10: ("bf16", 2, np.uint16),
    # Pairs of 4-bit elements as bytes; sizes, boxes and coordinates of dimension 0 count elements in the map.
    11: ("u4", 1, np.uint8),
}
PACKED = ("u4",)
FLOATS = ("f16", "f32", "f32_ftz", "f64", "bf16", "tf32", "tf32_ftz")
SWIZZLE_SPANS = {0: 16, 1: 32, 2: 64, 3: 128}


@dataclass(frozen=True)
class TensorMap:
    """A decoded tensor map. Tuples run from dimension 0 (contiguous) to rank - 1.

    address          of element (0, ..., 0), bytes
    sizes            elements
    strides          bytes between neighbours; strides[0] is the element size
    box              elements of the tensor that the box spans
    element_strides  step between copied elements (dimension 0: always 1)
    span             swizzle span in bytes, 16 for no swizzle
    fill_nan         elements outside the tensor are loaded as NaN, else as zero
    reach            bytes from address that a load may access for elements outside the tensor
    im2col           Im2col of a convolution's map, whose box is one row: some channels of a pixel; None: tiled
    """

    address: int
    dtype: str
    itemsize: int
    number: type
    sizes: tuple
    strides: tuple
    box: tuple
    element_strides: tuple
    span: int
    fill_nan: bool
    reach: int = 1
    im2col: object = None

    @property
    def rank(self):
        return len(self.sizes)

    @property
    def per_byte(self):
        """Elements of dimension 0 that are one here: 2 for packed 4-bit elements."""
        return 2 if self.dtype in PACKED else 1

    @cached_property
    def shared_box(self):
        """Elements of the box in shared memory, by dimension: ceil(box / element stride)."""
        return tuple(-(-b // e) for b, e in zip(self.box, self.element_strides, strict=True))

    @cached_property
    def box_bytes(self):
        """Bytes of the box in shared memory: what a load adds to its mbarrier, clipped or not."""
        return math.prod(self.shared_box) * self.itemsize

    def __str__(self):
        sizes, box = "x".join(map(str, self.sizes)), "x".join(map(str, self.box))
        pixels = f", {self.im2col.pixels} pixels" if self.im2col else ""
        return f"{self.dtype} tensor {sizes}, box {box}{pixels}"

    # --- global side -----------------------------------------------------------------------------

    def clip(self, coordinates, box=None):
        """Intersection of the box at signed coordinates with the tensor.

        Returns (slices of the dense box, first address, extents, strides), dimension rank-1 first, as
        NumPy likes it; None if it is empty.
        """
        slices, extents, strides, address = [], [], [], self.address
        for dimension, first in enumerate(coordinates):
            step = self.element_strides[dimension]
            low = -(first // step) if first < 0 else 0  # ceil(-first / step)
            high = min(
                (box or self.shared_box)[dimension], -(-(self.sizes[dimension] - first) // step)
            )
            if low >= high:
                return None
            slices.append(slice(low, high))
            extents.append(high - low)
            strides.append(self.strides[dimension] * step)
            address += (first + low * step) * self.strides[dimension]
        return tuple(slices[::-1]), address & ADDRESS_MASK, extents[::-1], strides[::-1]

    def _end(self, clipped):
        """Address after the last element of a clipped block."""
        _, address, extents, strides = clipped
        last = sum((n - 1) * s for n, s in zip(extents, strides, strict=True))
        return address + last + self.itemsize

    def global_view(self, memory, clipped, issuer=None, what="TMA access"):
        """The clipped block of the tensor as an array of element bits [dimension rank-1, ..., 0].

        A view of the allocation, to read or to write. Raises IllegalAccess if an element is outside
        every registered allocation.
        """
        _, address, extents, strides = clipped
        end = self._end(clipped)
        allocation = memory.find(address, end - address)
        if allocation is None:
            self._name_bad_row(memory, clipped, what)
            raise IllegalAccess(
                f"{what} of a {self} reaches from 0x{address:x} to 0x{end:x} over more than one allocation; "
                "a tensor must lie in one"
            )
        raw = allocation.views[1][address - allocation.start : end - allocation.start]
        # Strides are multiples of 16 bytes, but the byte count of the block need not be one of itemsize.
        block = np.lib.stride_tricks.as_strided(
            raw, (*extents, self.itemsize), (*strides, 1), writeable=True
        )
        return block.view(f"u{self.itemsize}")[..., 0]

    def _name_bad_row(self, memory, clipped, what):
        slices, address, extents, strides = clipped
        for index in np.ndindex(*extents[:-1]):
            row = address + sum(i * s for i, s in zip(index, strides, strict=False))
            nbytes = (extents[-1] - 1) * strides[-1] + self.itemsize
            if memory.find(row, nbytes) is None:
                raise IllegalAccess(
                    f"{what} of a {self}: {nbytes} bytes at {memory.describe(row)}; the tensor map says "
                    f"address 0x{self.address:x}, strides {self.strides} bytes, sizes {self.sizes}"
                )

    # --- shared side -----------------------------------------------------------------------------

    def swizzled(self, offset, data):
        """Bytes of a dense box (dimension 0 fastest) <-> bytes in their order at a shared offset; its own inverse."""
        if self.span == CHUNK:
            return data
        order = swizzle_order(offset // CHUNK % 64, len(data) // CHUNK, self.span)
        return np.ascontiguousarray(data).view(np.complex128).take(order).view(np.uint8)

    # --- copies ----------------------------------------------------------------------------------

    def load(self, memory, coordinates, offset, issuer=None, box=None):
        """Bytes of the box at coordinates, in their order at this shared offset: what a TMA load writes there.

        memory       GlobalMemory
        coordinates  signed, one per dimension, in elements
        box          a dense box other than shared_box (gather4: one row)
        """
        shape = (box or self.shared_box)[::-1]
        clipped = self.clip(coordinates, box)
        view = None
        if clipped is not None:
            view = self.global_view(memory, clipped, issuer, "TMA load")
        self._require_reach(memory, clipped)
        if clipped is not None and tuple(clipped[2]) == shape:
            dense = np.ascontiguousarray(view)
        else:
            dense = np.full(shape, self._fill, f"u{self.itemsize}")
            if clipped is not None:
                dense[clipped[0]] = view
        return self.swizzled(offset, dense.reshape(-1).view(np.uint8))

    def _require_reach(self, memory, clipped):
        """Check that memory accessed for elements outside the tensor is in the allocation of those inside.

        An H200 faults if no element of the box exists and the map's address is unmapped. It fills zeros if that
        address is mapped, or if any element exists. This check is stricter: on Blackwell a base outside the tensor,
        or a wide range, accesses adjacent memory, and faults if it is unmapped.
        """
        low, high = self.address, self.address + self.reach
        if clipped is not None:
            low, high = min(low, clipped[1]), max(high, self._end(clipped))
        if memory.find(low, high - low) is not None:
            return
        here = f"TMA load of a {self}: the tensor map's address 0x{self.address:x}"
        near = 1 if clipped is None else self._end(clipped) - low
        if memory.find(low, near) is None:
            raise IllegalAccess(
                f"{here} lies outside of the allocation that the box is in ({memory.describe(self.address)}); "
                "begin the map of a load at its tensor"
            )
        raise IllegalAccess(
            f"{here} has bit 85 set: where the box has no element, Blackwell may touch {self.reach} bytes from there "
            f"on, and they do not lie in one allocation ({memory.describe(self.address + self.reach - 1)}); give the "
            "map the exact extents of its tensor, or clear the bit"
        )

    def store(self, memory, coordinates, offset, data, issuer=None, box=None, reduce=None):
        """Write the box, with ``data`` in the order of this shared offset, to the tensor; clipped.

        reduce  None, or one of "add", "min", "max", "and", "or", "xor"; "inc", "dec" of u32: with the old values
        """
        clipped = self.clip(coordinates, box)
        if clipped is None:
            return
        shape = (box or self.shared_box)[::-1]
        dense = self.swizzled(offset, data).view(f"u{self.itemsize}").reshape(shape)[clipped[0]]
        view = self.global_view(memory, clipped, issuer, "TMA store")
        view[...] = dense if reduce is None else self._reduce(reduce, view, dense)

    @property
    def _fill(self):
        if not self.fill_nan:
            return 0
        # A quiet NaN with all payload bits set; which NaN the hardware writes is not documented.
        return {2: 0x7FFF, 4: 0x7FFFFFFF, 8: 0x7FFFFFFFFFFFFFFF}[self.itemsize]

    def _reduce(self, operation, old, new):
        operations = {
            "add": np.add, "min": np.minimum, "max": np.maximum,
            "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
            "inc": lambda old, new: np.where(old >= new, 0, old + 1).astype(old.dtype),
            "dec": lambda old, new: np.where((old == 0) | (old > new), new, old - 1),
        }  # fmt: skip
        if operation in ("and", "or", "xor"):
            return operations[operation](old, new)
        with np.errstate(all="ignore"):
            if self.dtype == "bf16":
                return _to_bf16(operations[operation](_from_bf16(old), _from_bf16(new)))
            old, new = np.ascontiguousarray(old), np.ascontiguousarray(new)
            result = operations[operation](old.view(self.number), new.view(self.number))
            return result.view(f"u{self.itemsize}")


def _from_bf16(bits):
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _to_bf16(values):
    """float32 -> bf16 bits, to nearest even; NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint32(0x7FFF), rounded).astype(np.uint16)


@lru_cache(maxsize=1024)
def swizzle_order(first_chunk, chunks, span):
    """The chunk of a dense box in each 16-byte chunk of shared memory.

    first_chunk  shared offset of the box / 16, modulo 64 (the longest pattern repeats after 1024 bytes)
    Returns int array order: the chunk at position i of shared memory is chunk order[i] of the box.
    """
    position = first_chunk + np.arange(chunks)
    order = (position ^ position >> 3 & span // CHUNK - 1) - first_chunk
    order.setflags(write=False)
    return order


# --- decoding ----------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def decode_tensor_map(data):
    """128 bytes -> TensorMap. Raises TensorMapError: the field, its value, what is accepted.

    data: bytes of length 128.
    """
    if len(data) != TENSOR_MAP_BYTES:
        raise TensorMapError(f"tensor map: {len(data)} bytes; accepted: {TENSOR_MAP_BYTES}")
    w = struct.unpack("<32I", data)

    def accept(ok, name, value, accepted):
        if not ok:
            raise TensorMapError(f"tensor map: {name} is {value}; accepted: {accepted}")

    def field(word, low, width):
        return w[word] >> low & (1 << width) - 1

    address = w[0] | w[1] << 32
    rank = field(2, 4, 3) + 1
    accept(rank <= 5, "rank", rank, "1 to 5")
    code = field(2, 7, 4)
    accept(code in DTYPES, "dtype", code, ", ".join(f"{c} ({d[0]})" for c, d in DTYPES.items()))
    dtype, itemsize, number = DTYPES[code]
    if field(2, 16, 1):
        accept(dtype in ("f32", "f32_ftz"), "tf32 flag with dtype", dtype, "f32, f32_ftz")
        dtype = dtype.replace("f32", "tf32")
    interleave = field(2, 11, 2)
    accept(interleave == 0, "interleave", ("none", "16 B", "32 B", 3)[interleave],
           "none (interleaved tensors have no meaning in the emulator)")  # fmt: skip
    span = SWIZZLE_SPANS[field(2, 13, 2)]
    fill_nan = bool(field(2, 15, 1))
    reach = WIDE_REACH if field(2, 21, 1) else 1
    accept(not fill_nan or dtype in FLOATS, "NaN fill with dtype", dtype, ", ".join(FLOATS))

    sizes = tuple(w[8 + i] + 1 for i in range(rank))
    high = [field(7, 4 * i, 4) for i in range(4)]
    outer = tuple((w[3 + i] | high[i] << 32) * 16 for i in range(rank - 1))
    box = (field(13, 24, 8) + 1, *(field(14, 8 * i, 8) + 1 for i in range(rank - 1)))
    steps = (1, *(field(13, 3 * i, 3) + 1 for i in range(1, rank)))
    pixels = None
    if field(2, 0, 1) == im2col.IM2COL:
        pixels = im2col.decode(w, rank, sizes, steps)
        box, steps = (box[0], *(1,) * (rank - 1)), (1,) * rank

    if dtype in PACKED:
        accept(sizes[0] % 2 == 0 and box[0] % 2 == 0, "size and box of dimension 0", f"{sizes[0]}, {box[0]}",
               "even numbers of 4-bit elements")  # fmt: skip
        sizes, box = (sizes[0] // 2, *sizes[1:]), (box[0] // 2, *box[1:])
    accept(
        address and address % 16 == 0, "global address", f"0x{address:x}", "multiples of 16, not 0"
    )
    inner = box[0] * itemsize
    accept(inner % 16 == 0, "inner box (dimension 0)", f"{box[0]} x {itemsize} = {inner} bytes",
           "multiples of 16 bytes")  # fmt: skip
    accept(span == CHUNK or inner <= span, "inner box (dimension 0)", f"{inner} bytes",
           f"at most the swizzle span of {span} bytes")  # fmt: skip
    # The layout of narrower boxes is not documented.
    accept(span == CHUNK or inner == span, "inner box (dimension 0)", f"{inner} bytes",
           f"exactly the swizzle span of {span} bytes (the emulator refuses narrower rows)")  # fmt: skip
    return TensorMap(
        address,
        dtype,
        itemsize,
        number,
        sizes,
        (itemsize, *outer),
        box,
        steps,
        span,
        fill_nan,
        reach,
        pixels,
    )
