"""Descriptors of tcgen05.mma: the operation, and the layout of an operand in shared memory.

K is always 32 bytes. Address of an element in shared memory, before the swizzle (W = swizzle span in bytes, 16
without swizzle; e = bytes of an element; row = index along M or N):

                 W = 32, 64, 128                                    W = 16 (no swizzle)
    K-major      row/8 * SBO + row%8 * W + k*e                      row/8 * SBO + row%8 * 16 + k*e/16 * LBO + k*e%16
    MN-major     row/P * LBO + k/8 * SBO + k%8 * W + row%P * e      row/P * SBO + k/8 * LBO + k%8 * 16 + row%P * e
                 with P = W/e rows in a span

The start address is added; then bits [4:7) of the absolute address are XORed with bits [7:10), masked to 7, 3 or 1
for W = 128, 64 or 32. Everything moves in aligned 16-byte chunks, so operands are gathered in chunks of 16 bytes.
Elements of 4 and 6 bits (kind::f8f6f4) count as a byte (e = 1): the 16 of a chunk are packed into its first 8 or 12
bytes, and the rest is padding.

PTX ISA, "Tensor Core 5th Generation": instruction descriptor, shared memory descriptor, canonical layouts.
"""

from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np

from cute_fa4.emulator.machine.element_formats import CHUNK, KINDS, Format
from cute_fa4.emulator.ptx.errors import EmulatorError

K_BYTES = 32
# Swizzle field of the shared-memory descriptor -> span W in bytes.
SWIZZLE_SPANS = {0: 16, 2: 128, 4: 64, 6: 32}


def swizzle(address, span):
    """Byte address(es) with the swizzle of a span of 16 (none), 32, 64 or 128 bytes applied.

    XORs bits [4:7) with bits [7:10) of the absolute address, masked to span/16 - 1. Its own inverse.
    """
    return address ^ (address >> 7 & span // 16 - 1) << 4


@dataclass(frozen=True)
class InstructionDescriptor:
    """The decoded 32-bit instruction descriptor of tcgen05.mma. m, n, k: shape of the whole MMA."""

    kind: str
    cta_group: int
    m: int
    n: int
    k: int
    a: Format
    b: Format
    negate_a: bool
    negate_b: bool
    a_mn_major: bool
    b_mn_major: bool
    saturate: bool
    d: str = field(default="f32", kw_only=True)  # or "f16", "s32"
    reserved: bool = field(default=False, kw_only=True)  # bit 29 is set, which kind::f16 ignores

    def __str__(self):
        return self._text

    @cached_property
    def _text(self):
        return f"MMA {self.m}x{self.n}x{self.k} {self.a.name} x {self.b.name}"

    @cached_property
    def accesses(self):
        """Names of its accesses in reports: of the operands, of D."""
        return f"an {self} (reads its operands)", f"an {self} (writes D)"


def step_of_few(m, cta_group):
    """The step of N that CUTLASS's atoms require if A is in tensor memory, and the emulator for kind::i8."""
    return (8 if m == 64 else 16) if cta_group == 1 else 32


@dataclass(frozen=True)
class Fields:
    """The bits of an instruction descriptor; of: what it belongs to, in errors."""

    bits: int
    of: str

    def field(self, low, width):
        return self.bits >> low & (1 << width) - 1

    def accept(self, name, value, accepted, note=""):
        """The value; EmulatorError if it is not accepted."""
        if value not in accepted:
            values = ", ".join(map(str, accepted))
            raise EmulatorError(
                f"tcgen05.mma instruction descriptor 0x{self.bits:08x}, {self.of}: "
                f"{name} is {value}; accepted: {values}{note}"
            )
        return value


@lru_cache(maxsize=1024)
def decode_instruction(bits, kind, cta_group, weight_stationary=False):
    """Instruction descriptor -> InstructionDescriptor. Raises EmulatorError naming the field it refuses.

    bits      the 32-bit operand of tcgen05.mma
    kind      "f16", "tf32", "f8f6f4" or "i8"
    weight_stationary  of tcgen05.mma.ws, which has other shapes
    Limits of M and N: those of PTX ISA, "Various combinations of .kind and shapes": N in steps of 8, of a pair 16.
    FlashInfer's decode relies on N = 8 with M = 128. layouts/umma_descriptors.py, for kernels here, takes fewer.
    Bit 29 is reserved. The CuTe DSL calls it k_dim, for block scales. cudnn-frontend 1.32 sets it in its 16-bit kernel
    for head dim 256, published right and fast on GB200, and writes that 8-bit products on Blackwell are wrong with it.
    """

    fields = Fields(bits, f"kind::{kind}, cta_group::{cta_group}")
    field, accept = fields.field, fields.accept
    formats, accumulators = KINDS[kind]
    accept("sparsity (bits 0 to 2)", field(0, 3), (0,), " (dense)")
    accept("saturate (bit 3)", field(3, 1), (0, 1) if kind == "i8" else (0,))
    d_format = accept("D format (bits 4 and 5)", field(4, 2), tuple(accumulators))
    a_format = accept("A format (bits 7 to 9)", field(7, 3), tuple(formats))
    b_format = accept("B format (bits 10 to 12)", field(10, 3), tuple(formats))
    for bit in (6, 23):
        accept(f"reserved bit {bit}", field(bit, 1), (0,))
    accept("reserved bit 29", field(29, 1), (0, 1) if kind == "f16" else (0,))
    note = " (no B that is reused with a shift)" if weight_stationary else " (only .ws shifts)"
    accept("maximum shift (bits 30 and 31)", field(30, 2), (0,), note)
    if kind == "f16" and accumulators[d_format] == "f16":
        for name, of in (("A", a_format), ("B", b_format)):
            accept(f"{name} format with D of f16", of, (0,))
    if kind == "i8":
        accept("negate (bits 13 and 14)", field(13, 2), (0,))
    a, b = formats[a_format], formats[b_format]
    m, n = field(24, 5) * 16, field(17, 6) * 8
    if weight_stationary:
        accept("M (bits 24 to 28, times 16)", m, (32, 64, 128))
        accept("N (bits 17 to 22, times 8)", n, (64, 128, 256))
    else:
        accept("M (bits 24 to 28, times 16)", m, (64, 128) if cta_group == 1 else (128, 256))
        n_step = 8 * cta_group
        if kind == "i8":
            n_step = step_of_few(m, cta_group)
        smallest = f" (multiples of {n_step} for M = {m})"
        accept("N (bits 17 to 22, times 8)", n, range(n_step, 257, n_step), smallest)
    for name, bit, operand, rows in (("A", 15, a, m), ("B", 16, b, n // cta_group)):
        if field(bit, 1) and operand.itemsize == 4:
            accept(f"{name} MN-major (bit {bit}) with 32-bit elements", 1, (0,))
        if field(bit, 1) and rows * operand.itemsize % CHUNK:
            accept(
                f"bytes of a MN-major row of {name}", rows * operand.itemsize, ("multiples of 16",)
            )
    return InstructionDescriptor(
        kind, cta_group, m, n, K_BYTES // a.itemsize, a, b, bool(field(13, 1)), bool(field(14, 1)),
        bool(field(15, 1)), bool(field(16, 1)), bool(field(3, 1)), d=accumulators[d_format],
        reserved=bool(field(29, 1)),
    )  # fmt: skip


@dataclass(frozen=True)
class MatrixDescriptor:
    """The decoded 64-bit shared-memory descriptor of an operand; offsets and span in bytes."""

    start: int
    leading_offset: int
    stride_offset: int
    span: int


@lru_cache(maxsize=8192)
def decode_matrix(bits, mn_major, k_bytes=K_BYTES):
    """Shared-memory descriptor -> MatrixDescriptor. Raises EmulatorError naming the field it refuses.

    k_bytes  bytes of K that one instruction reads: twice as many for B if A is sparse
    PTX ISA, "Tensor Core 5th Generation: shared memory descriptor".
    """

    def refuse(name, value, accepted):
        raise EmulatorError(
            f"tcgen05 shared-memory descriptor 0x{bits:016x}: {name} is {value}; accepted: {accepted}"
        )

    def field(low, width):
        return bits >> low & (1 << width) - 1

    for low, width in ((14, 2), (30, 2), (53, 8)):
        if field(low, width):
            refuse(f"field of reserved bits {low} to {low + width - 1}", field(low, width), "0")
    if field(46, 3) != 1:
        refuse("version (bits 46 to 48)", field(46, 3), "1 (the constant 0b001 of sm_100)")
    if field(49, 3):
        refuse(
            "matrix base offset (bits 49 to 51)",
            field(49, 3),
            "0 (swizzle pattern at its alignment)",
        )
    if field(52, 1):
        refuse("leading dimension mode (bit 52)", 1, "0 (byte offset)")
    mode = field(61, 3)
    if mode == 1:
        refuse("swizzle mode (bits 61 to 63)", "1 (128 B with 32 B atoms)", "0, 2, 4, 6")
    if mode not in SWIZZLE_SPANS:
        refuse("swizzle mode (bits 61 to 63)", mode, "0 (none), 2 (128 B), 4 (64 B), 6 (32 B)")
    span = SWIZZLE_SPANS[mode]
    start = field(0, 14) << 4
    inside = start % span
    if span > CHUNK and mn_major and inside:
        refuse(
            "start address", f"0x{start:x}", f"multiples of the {span} B swizzle span (MN-major)"
        )
    if span > CHUNK and not mn_major and inside + k_bytes > span:
        accepted = f"{k_bytes} bytes of K within one {span} B swizzle span"
        refuse("start address", f"0x{start:x}", accepted)
    return MatrixDescriptor(start, field(16, 14) << 4, field(32, 14) << 4, span)


def element_address(matrix, row, k, itemsize, mn_major):
    """Shared offset of element (row, k) of an operand: the formula of the module docstring.

    row, k: integers or integer arrays; row counts along M or N.
    """
    span = matrix.span
    if not mn_major:
        k_byte = k * itemsize
        offset = row // 8 * matrix.stride_offset + row % 8 * span
        if span == CHUNK:
            offset = offset + k_byte // CHUNK * matrix.leading_offset + k_byte % CHUNK
        else:
            offset = offset + k_byte
    else:
        per_span = span // itemsize
        across, along = matrix.leading_offset, matrix.stride_offset
        if span == CHUNK:
            across, along = along, across
        offset = (
            row // per_span * across + k // 8 * along + k % 8 * span + row % per_span * itemsize
        )
    return swizzle(matrix.start + offset, span)


@lru_cache(maxsize=8192)
def chunk_numbers(bits, mn_major, itemsize, rows, k_bytes=K_BYTES):
    """Numbers of the 16-byte chunks that hold an operand: [row, 2] K-major, [k, chunk of rows] MN-major."""
    matrix = decode_matrix(bits, mn_major, k_bytes)
    per_chunk = CHUNK // itemsize
    k = k_bytes // itemsize
    if mn_major:
        address = element_address(
            matrix, np.arange(0, rows, per_chunk), np.arange(k)[:, None], itemsize, True
        )
    else:
        address = element_address(
            matrix, np.arange(rows)[:, None], np.arange(0, k, per_chunk), itemsize, False
        )
    numbers = address // CHUNK
    numbers.setflags(write=False)
    return numbers, int(address.max()) + CHUNK
