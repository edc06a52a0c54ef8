"""tcgen05.mma: D[M, N] += A[M, K] * B[N, K]^T, with D in tensor memory and operands gathered by descriptor.

K is always 32 bytes. Where an element lies in shared memory, before the swizzle (W = swizzle span in
bytes, 16 without swizzle; e = bytes of an element; row = index along M or N):

                 W = 32, 64, 128                                    W = 16 (no swizzle)
    K-major      row/8 * SBO + row%8 * W + k*e                      row/8 * SBO + row%8 * 16 + k*e/16 * LBO + k*e%16
    MN-major     row/P * LBO + k/8 * SBO + k%8 * W + row%P * e      row/P * SBO + k/8 * LBO + k%8 * 16 + row%P * e
                 with P = W/e rows in a span

plus the start address; then bits [4:7) of the absolute address are XORed with bits [7:10), masked to
7, 3 or 1 for W = 128, 64 or 32. Everything 16-byte aligned moves together, so operands are gathered in
chunks of 16 bytes. Elements of 4 and 6 bits (kind::f8f6f4) count as a byte (e = 1): the 16 of a chunk lie in its first
8 or 12 bytes, without gaps, and the rest is padding.

Where D (and A, when it is in tensor memory) lies; "left" and "right" are the two halves of the columns:

    cta_group 1, M 128    row r -> lane r
    cta_group 1, M  64    row r -> lane r/16 * 32 + r%16
    cta_group 2, M 256    row r -> CTA r/128, lane r%128
    cta_group 2, M 128    row r -> CTA r/64,  lane r%64 (left half of N), lane 64 + r%64 (right half, from
                          the same first column)
    B of a pair: rows n < N/2 from the even CTA, the rest from the odd one, at the same offsets.
    .ws, M 128, 64, 32: weight_stationary.py

Arithmetic model. Products are exact; the products of one instruction are summed in float64, the
accumulator is added in float64, and the result is rounded to float32 once (to nearest), or to float16, which lies in
the low half of a word (CUTLASS's allocation of accumulators; tcgen05.ld.pack::16b joins two). The hardware
does not document its order of summation and keeps fewer bits, so results agree to about float32
precision, not bit for bit. Integers are exact.

PTX ISA, "Tensor Core 5th Generation": instruction descriptor, shared memory descriptor, canonical layouts, packing
formats of elements of 4 and 6 bits in shared and in tensor memory.
"""

import ctypes
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np

from cute_fa4.emulator.errors import EmulatorError, UninitializedRead
from cute_fa4.emulator.machine.fast_paths import FORMATS, Operand, fast
from cute_fa4.emulator.machine.tensor_memory import COLUMNS, split_address

K_BYTES = 32
CHUNK = 16
# Swizzle field of the shared-memory descriptor -> span W in bytes.
SWIZZLE_SPANS = {0: 16, 2: 128, 4: 64, 6: 32}


def swizzle(address, span):
    """Byte address(es) with the swizzle of a span of 16 (none), 32, 64 or 128 bytes applied.

    XORs bits [4:7) with bits [7:10) of the absolute address, masked to span/16 - 1. Its own inverse.
    """
    return address ^ (address >> 7 & span // 16 - 1) << 4


# --- element formats -------------------------------------------------------------------------------


def _decode_bf16(raw):
    return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def _decode_tf32(raw):
    # The low 13 bits of the 32 are not part of a tf32 value.
    return (raw & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


def _float8_table(exponent_bits, mantissa_bits, bias, has_infinity):
    """The 256 values of an 8-bit float format, as float64 (OCP 8-bit Floating Point Specification)."""
    code = np.arange(256)
    exponent = code >> mantissa_bits & (1 << exponent_bits) - 1
    mantissa = code & (1 << mantissa_bits) - 1
    fraction = mantissa / (1 << mantissa_bits)
    value = np.where(
        exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - bias)
    )
    top = exponent == (1 << exponent_bits) - 1
    if has_infinity:
        value = np.where(top, np.where(mantissa == 0, np.inf, np.nan), value)
    else:  # e4m3: only the all-ones code is a NaN, there is no infinity
        value = np.where(top & (mantissa == (1 << mantissa_bits) - 1), np.nan, value)
    return np.where(code & 0x80, -value, value)


_E4M3 = _float8_table(4, 3, bias=7, has_infinity=False)
_E5M2 = _float8_table(5, 2, bias=15, has_infinity=True)


def _small_float_table(exponent_bits, mantissa_bits, bias):
    """The values of a 4- or 6-bit format, which has no NaN and no infinity (OCP Microscaling Formats 1.0)."""
    code = np.arange(2 << exponent_bits + mantissa_bits)
    exponent = code >> mantissa_bits & (1 << exponent_bits) - 1
    units = (code & (1 << mantissa_bits) - 1) + (1 << mantissa_bits) * (exponent > 0)
    value = units * 2.0 ** (np.maximum(exponent, 1) - bias - mantissa_bits)
    return np.where(code >> exponent_bits + mantissa_bits, -value, value)


E2M1 = _small_float_table(2, 1, bias=1)
_E2M3 = _small_float_table(2, 3, bias=1)
_E3M2 = _small_float_table(3, 2, bias=3)


def unpacked(raw, bits):
    """Codes of the 16 elements of 4 or 6 bits that each 16 bytes of shared memory begin with (the rest is padding)."""
    groups = np.ascontiguousarray(raw).reshape(-1, CHUNK)[:, : 2 * bits]
    each = np.unpackbits(groups, axis=1, bitorder="little").reshape(len(groups), CHUNK, bits)
    return (each << np.arange(bits, dtype=np.uint8)).sum(axis=2, dtype=np.uint8).reshape(raw.shape)


@dataclass(frozen=True)
class Format:
    """An operand element format: its name, the unsigned type of its bits, bits -> float64.

    in_tensor_memory  bits -> float64 there, where it is another function
    """

    name: str
    raw: type
    decode: object
    in_tensor_memory: object = None

    @cached_property
    def itemsize(self):
        return np.dtype(self.raw).itemsize


_F16 = Format("f16", np.uint16, lambda raw: raw.view(np.float16).astype(np.float64))
_BF16 = Format("bf16", np.uint16, _decode_bf16)
_TF32 = Format("tf32", np.uint32, _decode_tf32)
_F8 = {
    0: Format("e4m3", np.uint8, lambda raw: _E4M3[raw]),
    1: Format("e5m2", np.uint8, lambda raw: _E5M2[raw]),
}
# In tensor memory an element of 6 bits lies in the low bits of its byte, one of 4 bits in bits 2 to 5.
_F6F4 = {
    3: Format("e2m3", np.uint8, lambda raw: _E2M3[unpacked(raw, 6)], lambda raw: _E2M3[raw & 63]),
    4: Format("e3m2", np.uint8, lambda raw: _E3M2[unpacked(raw, 6)], lambda raw: _E3M2[raw & 63]),
    5: Format(
        "e2m1", np.uint8, lambda raw: E2M1[unpacked(raw, 4)], lambda raw: E2M1[raw >> 2 & 15]
    ),
}
_I8 = {
    0: Format("u8", np.uint8, lambda raw: raw.astype(np.float64)),
    1: Format("s8", np.uint8, lambda raw: raw.view(np.int8).astype(np.float64)),
}
# kind -> (operand formats by code, accumulator formats by code)
KINDS = {
    "f16": ({0: _F16, 1: _BF16}, {0: "f16", 1: "f32"}),
    "tf32": ({2: _TF32}, {1: "f32"}),
    "f8f6f4": ({**_F8, **_F6F4}, {0: "f16", 1: "f32"}),
    "i8": (_I8, {2: "s32"}),
}


_ACCUMULATORS = {
    "f32": lambda words: words.view(np.float32),
    "s32": lambda words: words.view(np.int32),
    "f16": lambda words: words.astype(np.uint16).view(np.float16).astype(np.float64),
}
_NOTHING = np.uint32(0x7FFF0000)
"""The upper half of a word of D in f16: a NaN, for a kernel that takes it for a number."""


# --- descriptors -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class InstructionDescriptor:
    """What the 32-bit instruction descriptor of tcgen05.mma says. m, n, k: shape of the whole MMA."""

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

    def __str__(self):
        return self._text

    @cached_property
    def _text(self):
        return f"MMA {self.m}x{self.n}x{self.k} {self.a.name} x {self.b.name}"

    @cached_property
    def accesses(self):
        """What reports call its accesses: of the operands, of D."""
        return f"an {self} (reads its operands)", f"an {self} (writes D)"


def step_of_few(m, cta_group):
    """The step of N that CUTLASS's atoms ask for where A is in tensor memory, and the emulator for kind::i8."""
    return (8 if m == 64 else 16) if cta_group == 1 else 32


@lru_cache(maxsize=1024)
def decode_instruction(bits, kind, cta_group, weight_stationary=False):
    """Instruction descriptor -> InstructionDescriptor. Raises EmulatorError naming the field it refuses.

    bits      the 32-bit operand of tcgen05.mma
    kind      "f16", "tf32", "f8f6f4" or "i8"
    weight_stationary  of tcgen05.mma.ws, which has other shapes
    Limits of M and N: those of PTX ISA, "Various combinations of .kind and shapes": N in steps of 8, of a pair 16.
    FlashInfer's decode relies on N = 8 with M = 128. layouts/umma_descriptors.py, for kernels here, takes fewer.
    """

    def field(low, width):
        return bits >> low & (1 << width) - 1

    def accept(name, value, accepted, note=""):
        if value not in accepted:
            values = ", ".join(map(str, accepted))
            raise EmulatorError(
                f"tcgen05.mma instruction descriptor 0x{bits:08x}, kind::{kind}, cta_group::{cta_group}: "
                f"{name} is {value}; accepted: {values}{note}"
            )
        return value

    formats, accumulators = KINDS[kind]
    accept("sparsity (bits 0 to 2)", field(0, 3), (0,), " (dense)")
    accept("saturate (bit 3)", field(3, 1), (0, 1) if kind == "i8" else (0,))
    d_format = accept("D format (bits 4 and 5)", field(4, 2), tuple(accumulators))
    a_format = accept("A format (bits 7 to 9)", field(7, 3), tuple(formats))
    b_format = accept("B format (bits 10 to 12)", field(10, 3), tuple(formats))
    for bit in (6, 23, 29):
        accept(f"reserved bit {bit}", field(bit, 1), (0,))
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
    )  # fmt: skip


@dataclass(frozen=True)
class MatrixDescriptor:
    """What the 64-bit shared-memory descriptor of an operand says; offsets and span in bytes."""

    start: int
    leading_offset: int
    stride_offset: int
    span: int


@lru_cache(maxsize=8192)
def decode_matrix(bits, mn_major, k_bytes=K_BYTES):
    """Shared-memory descriptor -> MatrixDescriptor. Raises EmulatorError naming the field it refuses.

    k_bytes  of K that one instruction reads: twice as many of B where A is sparse
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


def read_shared_operand(cta, bits, element, mn_major, rows, k_bytes=K_BYTES):
    """Operand [rows, K] as float64, from the shared memory of one CTA by its descriptor.

    Raises UninitializedRead or IllegalAccess (from shared memory), EmulatorError (descriptor).
    """
    numbers, end = chunk_numbers(bits, mn_major, element.itemsize, rows, k_bytes)
    memory = cta.shared.bytes
    if end > memory.size:
        cta.shared.read(end - CHUNK, CHUNK)  # raises: out of bounds
    whole = memory.size // CHUNK * CHUNK
    # 16 bytes move as one complex128, whose bits NumPy copies unchanged.
    written = cta.shared.written[:whole].view(np.complex128).take(numbers).view(np.uint8)
    if not written.min():
        bad = numbers.ravel()[int(np.argmin(written.reshape(-1, CHUNK).min(axis=1)))] * CHUNK
        cta.shared.read(int(bad), CHUNK)  # raises: never written
        raise UninitializedRead(f"MMA operand at shared offset 0x{bad:x} was never written")
    raw = memory[:whole].view(np.complex128).take(numbers).view(element.raw)
    values = element.decode(raw)
    return values.T if mn_major else values


def read_tensor_operand(cta, address, element, rows, what):
    """A [rows, K] as float64 from tensor memory: row r in lane r, elements packed from the low bits up."""
    lane, column = split_address(address)
    words = cta.tmem.read(lane, column, rows, K_BYTES // 4, what)  # [column, lane]
    raw = np.ascontiguousarray(words.T).view(element.raw)
    return (element.in_tensor_memory or element.decode)(raw)


# --- operands of products in C ------------------------------------------------------------------------


def shared_operand(shared, bits, element, mn_major, rows):
    """Address of the fast_paths.Operand of a descriptor; None where shared memory ends before it does."""
    key = (bits, element.name, mn_major, rows)
    known = shared.operands.get(key)
    if known is None:
        numbers, end = chunk_numbers(bits, mn_major, element.itemsize, rows)
        if end > shared.bytes.size:
            return None
        known = _operand(element, mn_major, rows, 0, shared.bytes, shared.written, numbers)
        shared.operands[key] = known
    return known[0]


@lru_cache(maxsize=1024)
def _tensor_operand(column, element):
    return _operand(element, False, 128, column)


def tensor_operand(address, element):
    """The same of A in tensor memory."""
    return _tensor_operand(split_address(address)[1], element)[0]


def _operand(element, mn_major, rows, column, *arrays):
    """(address, what must live as long as it is used)."""
    table = {"e4m3": _E4M3, "e5m2": _E5M2}.get(element.name)
    objects = [*map(id, arrays), *[None] * (3 - len(arrays)), None if table is None else id(table)]
    operand = Operand(*objects, FORMATS[element.name], element.itemsize, mn_major, rows, column)
    return ctypes.addressof(operand), operand, arrays


# --- the instruction -------------------------------------------------------------------------------


@dataclass(frozen=True)
class MatrixMultiply:
    """One tcgen05.mma, ready to execute.

    ctas        the CTA, or the even and the odd CTA of the pair
    d           tensor-memory address of D (lane 0), the same in both CTAs
    a, b        shared-memory descriptors; a is a tensor-memory address when a_in_tensor_memory
    accumulate  D = A*B + D * 2**-scale_log2, else D = A*B
    lanes       bool[128], False for lanes whose output is disabled; None: all enabled
    """

    descriptor: InstructionDescriptor
    ctas: tuple
    d: int
    a: int
    b: int
    a_in_tensor_memory: bool
    accumulate: bool
    scale_log2: int = 0
    lanes: object = None

    b_k_bytes = K_BYTES  # of K that is read of B
    tensor_blocks = ()  # (what, tensor-memory address, columns) of what is read there besides A and D

    def check(self):
        """Raise for what is wrong whatever the data is: called when the instruction is issued."""
        shape = self.descriptor
        lane, column = split_address(self.d)
        if lane:
            raise EmulatorError(f"{shape}: D at lane {lane}; accepted: 0")
        if column + self._d_columns > COLUMNS:
            raise EmulatorError(
                f"{shape}: D at columns {column} to {column + self._d_columns - 1}; "
                f"tensor memory ends at column {COLUMNS - 1}"
            )
        if self.a_in_tensor_memory:
            self._check_rows_of_a()
            step = step_of_few(shape.m, len(self.ctas))
            if shape.n % step:
                raise EmulatorError(
                    f"{shape} with A in tensor memory: accepted are N in steps of {step} (as CUTLASS's atoms)"
                )
            if shape.a_mn_major:
                raise EmulatorError(f"{shape}: A in tensor memory is K-major; clear bit 15")
            if split_address(self.a)[0]:
                raise EmulatorError(f"{shape}: A at lane {split_address(self.a)[0]}; accepted: 0")
        else:
            decode_matrix(self.a, shape.a_mn_major)
        decode_matrix(self.b, shape.b_mn_major, self.b_k_bytes)

    def execute(self):
        """Read the operands, multiply, and write D. All reads come before the first write."""
        if not self._in_c():
            self._in_python()

    def _in_c(self):
        """The whole product by fast_paths.c, for floats of 8 bits and more and 128 rows of A in one CTA."""
        shape = self.descriptor
        if (
            type(self) is not MatrixMultiply
            or self._rows != 128
            or self.lanes is not None
            or shape.d != "f32"
        ):
            return False
        if not (shape.a.name in FORMATS and shape.b.name in FORMATS) or len(self.ctas) > 1:
            return False
        (cta,) = self.ctas
        tmem = cta.tmem
        if self.a_in_tensor_memory:
            a = tensor_operand(self.a, shape.a)
        else:
            a = shared_operand(cta.shared, self.a, shape.a, shape.a_mn_major, 128)
        b = shared_operand(cta.shared, self.b, shape.b, shape.b_mn_major, shape.n)
        return (
            a is not None
            and b is not None
            and fast.multiply(
                a, b, 1, tmem.words, tmem.written, tmem.allocated, split_address(self.d)[1], shape.n,
                self.accumulate, 2.0**-self.scale_log2, shape.negate_a != shape.negate_b,
            )
        )  # fmt: skip

    def _in_python(self):
        shape, pair = self.descriptor, len(self.ctas)
        b = [self._read_b(cta) for cta in self.ctas]
        b = b[0] if pair == 1 else np.concatenate(b)
        results = []
        with np.errstate(all="ignore"):
            for cta in self.ctas:
                a = self._read_a(cta)
                product = b @ a.T  # [n, row]: transposed like the words of tensor memory
                if shape.negate_a != shape.negate_b:
                    np.negative(product, out=product)
                results.append(self._add(cta, self._place(product)))
        for cta, result in zip(self.ctas, results, strict=True):
            self._write(cta, result)

    def _check_rows_of_a(self):
        if self._rows != 128:
            raise EmulatorError(
                f"{self.descriptor}: A in tensor memory with {self._rows} rows a CTA; accepted: 128 rows a CTA "
                "(the placement of fewer rows is not established)"
            )

    @property
    def _rows(self):
        return self.descriptor.m // len(self.ctas)

    @property
    def _d_columns(self):
        halves = len(self.ctas) == 2 and self._rows == 64
        return self.descriptor.n // 2 if halves else self.descriptor.n

    def _read_b(self, cta):
        shape = self.descriptor
        rows = shape.n // len(self.ctas)
        return read_shared_operand(cta, self.b, shape.b, shape.b_mn_major, rows, self.b_k_bytes)

    def _read_a(self, cta):
        shape = self.descriptor
        if self.a_in_tensor_memory:
            return read_tensor_operand(cta, self.a, shape.a, self._rows, f"A of {shape}")
        return read_shared_operand(cta, self.a, shape.a, shape.a_mn_major, self._rows)

    def _place(self, product):
        """product[n, row] -> [column of D, position in self._lane_numbers]."""
        if len(self.ctas) == 2 and self._rows == 64:
            return np.hstack(np.split(product, 2))
        return product

    @property
    def _lane_numbers(self):
        if len(self.ctas) == 1 and self._rows == 64:
            row = np.arange(64)
            return row // 16 * 32 + row % 16
        return np.arange(128)

    def _add(self, cta, product):
        """float64 product + accumulator -> bits to write, uint32 of the same shape."""
        shape = self.descriptor
        if self.accumulate:
            column = split_address(self.d)[1]
            what = f"D of {shape}"
            if product.shape[1] == 128:
                old = cta.tmem.read(0, column, 128, self._d_columns, what)
            else:
                old = cta.tmem.gather(*self._d_index(), what)
            old = _ACCUMULATORS[shape.d](old)
            product += old * 2.0**-self.scale_log2 if self.scale_log2 else old
        if shape.d == "s32":
            if shape.saturate:
                product = np.clip(product, -(2.0**31), 2.0**31 - 1)
            return product.astype(np.int64).astype(np.uint32)
        if shape.d == "f16":
            return product.astype(np.float16).view(np.uint16) | _NOTHING
        return product.astype(np.float32).view(np.uint32)

    def _write(self, cta, result):
        column = split_address(self.d)[1]
        what = f"D of {self.descriptor}"
        if result.shape[1] == 128 and self.lanes is None:
            cta.tmem.write(0, column, result, what)
            return
        lanes, columns = self._d_index()
        if self.lanes is not None:
            enabled = self.lanes[self._lane_numbers]
            lanes, columns, result = lanes[:, enabled], columns[:, enabled], result[:, enabled]
        if lanes.size:
            cta.tmem.scatter(lanes, columns, result, what)

    def _d_index(self):
        columns = split_address(self.d)[1] + np.arange(self._d_columns)
        columns, lanes = np.meshgrid(columns, self._lane_numbers, indexing="ij")
        return lanes, columns
