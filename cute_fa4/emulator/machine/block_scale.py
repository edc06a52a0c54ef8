"""Block-scaled tcgen05.mma: products whose operands carry a scale for every 16 or 32 elements of K.

    kind                    elements    K    scale every   scale formats   scale bytes of a row in one MMA
    mxf8f6f4 (1X, block32)  8, 6, 4 bit 32   32            ue8m0           1: byte sf_id
    mxf4     (2X, block32)  e2m1        64   32            ue8m0           2: bytes sf_id, sf_id + 1 (0 or 2)
    mxf4nvf4 (2X, block32)  e2m1        64   32            ue8m0           2
    mxf4nvf4 (4X, block16)  e2m1        64   16            ue4m3, ue8m0    4

A byte holds two e2m1, the first in its low half. Scales are in tensor memory, written by tcgen05.cp.32x128b.warpx4:
row r of A (column r of B) in lane r % 32 of each quarter, column r / 32, four bytes per column. In a pair (M 256)
each CTA has the scales of its own 128 rows of A, and those of all columns of B.

PTX ISA, "tcgen05.mma: block scaling", "Instruction descriptor" of these kinds, "Scale factor layout"; fields as in
CUTLASS's InstrDescriptorBlockScaled. Verified with CUTLASS's block-scaled GEMMs, which compare with a reference.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cute_fa4.emulator.machine.element_formats import E2M1, E4M3, KINDS, Format
from cute_fa4.emulator.machine.matrix_descriptors import K_BYTES, Fields, InstructionDescriptor
from cute_fa4.emulator.machine.operands import read_shared_operand
from cute_fa4.emulator.machine.tensor_core import MatrixMultiply
from cute_fa4.emulator.machine.tensor_memory import COLUMNS, split_address
from cute_fa4.emulator.ptx.errors import EmulatorError


def _decode_pairs(raw):
    """Bytes [row, n] -> e2m1 [row, 2 n]."""
    return E2M1[np.stack((raw & 15, raw >> 4), axis=-1)].reshape(raw.shape[0], -1)


_BYTES = Format("e2m1", np.uint8, lambda raw: raw)
# kind -> elements a byte, scale vector -> elements of a scale; accepted scale formats by scale vector
_KINDS = {
    "mxf8f6f4": (1, {"1X": 32, "block32": 32}, {32: (1,)}),
    "mxf4": (2, {"2X": 32, "block32": 32}, {32: (1,)}),
    "mxf4nvf4": (2, {"2X": 32, "block32": 32, "4X": 16, "block16": 16}, {32: (1,), 16: (0, 1)}),
}


@dataclass(frozen=True)
class ScaledDescriptor(InstructionDescriptor):
    """InstructionDescriptor with the fields for scales.

    block  elements of K that share a scale     packed  two elements a byte     ue8m0  the scale format, else ue4m3
    a_byte, b_byte  the first byte of the scales of an MMA in their column
    """

    block: int = 32
    packed: bool = False
    ue8m0: bool = True
    a_byte: int = 0
    b_byte: int = 0

    @property
    def scales_of_a_row(self):
        return self.k // self.block


@lru_cache(maxsize=1024)
def decode_scaled_instruction(bits, kind, vector, cta_group):
    """Instruction descriptor -> ScaledDescriptor. Raises EmulatorError naming the field it refuses."""

    fields = Fields(bits, f"kind::{kind}.{vector}")
    field, accept = fields.field, fields.accept
    packed, vectors, scale_formats = _KINDS[kind]
    default = {"mxf8f6f4": "1X", "mxf4": "2X"}.get(kind)
    block = vectors[accept("the scale vector size", vector or default, tuple(vectors))]
    accept("sparsity (bits 0 to 2)", field(0, 3), (0,))
    accept("K size (bit 31)", field(31, 1), (0,))
    for bit in (3, 6):
        accept(f"reserved bit {bit}", field(bit, 1), (0,))
    formats = {1: _BYTES} if packed == 2 else KINDS["f8f6f4"][0]
    a = formats[accept("A format (bits 7 to 9)", field(7, 3), tuple(formats))]
    b = formats[accept("B format (bits 10 to 12)", field(10, 3), tuple(formats))]
    ue8m0 = accept("scale format (bit 23)", field(23, 1), scale_formats[block])
    m, n, k = field(24, 5) * 16, field(17, 6) * 8, K_BYTES * packed
    accept("M (bits 24 to 28, times 16)", m, (128 * cta_group,))
    step = 8 * cta_group
    accept("N (bits 17 to 22, times 8)", n, range(step, 257, step))
    if packed == 2:
        accept("majors (bits 15 and 16) of 4-bit elements", field(15, 2), (0,))
    places = range(0, 5 - k // block, k // block)
    return ScaledDescriptor(
        kind, cta_group, m, n, k, a, b, bool(field(13, 1)), bool(field(14, 1)), bool(field(15, 1)),
        bool(field(16, 1)), False, block, packed == 2, bool(ue8m0),
        accept("scale id of A (bits 29 and 30)", field(29, 2), places),
        accept("scale id of B (bits 4 and 5)", field(4, 2), places),
    )  # fmt: skip


@dataclass(frozen=True)
class ScaledMultiply(MatrixMultiply):
    """One block-scaled tcgen05.mma; scale_a, scale_b: tensor-memory addresses of the scales."""

    scale_a: int = 0
    scale_b: int = 0

    def check(self):
        """Raise errors that do not depend on the data: called at issue."""
        if self.a_in_tensor_memory:
            raise EmulatorError(
                f"{self.descriptor} with scales: A in tensor memory has no meaning here"
            )
        super().check()
        for name, first, columns in self.scales:
            if split_address(first)[0] or split_address(first)[1] + columns > COLUMNS:
                raise EmulatorError(
                    f"{self.descriptor}: the scales of {name} at lane {split_address(first)[0]}, columns "
                    f"{split_address(first)[1]} to {split_address(first)[1] + columns - 1}; accepted: lane 0, up to "
                    f"column {COLUMNS - 1}"
                )

    @property
    def tensor_blocks(self):
        return self.scales

    @property
    def scales(self):
        """(operand, address without its top bits, columns) of the scales."""
        shape = self.descriptor
        return (
            ("A", self.scale_a & 0x3FFFFFFF, self._rows // 32),
            ("B", self.scale_b & 0x3FFFFFFF, -(-shape.n // 32)),
        )

    def execute(self):
        """Read the operands and scales, multiply, and write D. All reads come before the write."""
        shape, pair = self.descriptor, len(self.ctas)
        b = np.concatenate([self._b_elements(cta, shape.n // pair) for cta in self.ctas])
        results = []
        with np.errstate(all="ignore"):
            for cta in self.ctas:
                a = self._a_elements(cta)
                a = a * self._factors(cta, self.scales[0], shape.a_byte, self._rows)
                product = (b * self._factors(cta, self.scales[1], shape.b_byte, shape.n)) @ a.T
                if shape.negate_a != shape.negate_b:
                    np.negative(product, out=product)
                results.append(self._add(cta, product))
        for cta, result in zip(self.ctas, results, strict=True):
            self._write(cta, result)

    def _a_elements(self, cta):
        """[rows, K] as float64, without scales."""
        shape = self.descriptor
        return self._unpacked(
            read_shared_operand(cta, self.a, shape.a, shape.a_mn_major, self._rows)
        )

    def _b_elements(self, cta, rows):
        shape = self.descriptor
        return self._unpacked(
            read_shared_operand(cta, self.b, shape.b, shape.b_mn_major, rows, self.b_k_bytes)
        )

    def _unpacked(self, values):
        return _decode_pairs(np.ascontiguousarray(values)) if self.descriptor.packed else values

    def _factors(self, cta, scale, first, rows):
        """[rows, K]: the scale of every element."""
        shape = self.descriptor
        name, address, columns = scale
        column = split_address(address)[1]
        # All quarters hold the same values; the first one is read.
        words = cta.tmem.read(0, column, 32, columns, f"scales of {name}")
        codes = np.ascontiguousarray(words).view(np.uint8).reshape(columns * 32, 4)[:rows]
        codes = codes[:, first : first + shape.scales_of_a_row]
        with np.errstate(all="ignore"):
            factors = (
                np.where(codes == 0xFF, np.nan, 2.0 ** (codes.astype(np.float64) - 127))
                if shape.ue8m0
                else E4M3[codes & 0x7F]
            )
        return np.repeat(factors, shape.block, axis=1)
