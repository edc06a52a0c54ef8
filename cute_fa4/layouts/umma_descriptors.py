"""The two descriptors of tcgen05.mma: the layout of an operand in shared memory, and the operation.

Shared-memory descriptor, 64 bits. The right column is the K tile of bf16, depth 128, at byte 0:

    bits     field                                                   0x4000404000010000
    [0:14)   start address / 16                                      0
    [16:30)  leading byte offset (LBO) / 16                          1
    [32:46)  stride byte offset (SBO) / 16                           64
    [46:49)  version: 1 on sm_100                                    1
    [49:52)  matrix base offset: 0 for a tile at its swizzle period  0
    [52:53)  LBO mode: 0, it is an offset in bytes                   0
    [61:64)  swizzle: 0 none, 2 128 B, 4 64 B, 6 32 B                2

Instruction descriptor, 32 bits. The right column is Q K^T, bf16, 128 x 128:

    bits     field                                                  0x8200490
    [0:3)    sparsity: 0, operands are dense                        0
    [3:4)    saturate: 0, for integer kinds only                    0
    [4:6)    D format: 0 fp16, 1 fp32                               1
    [7:10)   A format: 0 fp16, 1 bf16; kind f8f6f4: 0 e4m3, 1 e5m2  1
    [10:13)  B format, likewise                                     1
    [13:14)  negate A                                               0
    [14:15)  negate B                                               0
    [15:16)  A is MN-major                                          0
    [16:17)  B is MN-major                                          0
    [17:23)  N / 8                                                  16
    [24:29)  M / 16                                                 8
    [30:32)  shift of B: 0, for .ws only                            0

Where the descriptor finds element (row, k), row along M or N (W = span, e = element bytes, P = W / e):

    swizzled    K-major    row/8 * SBO + row%8 * W + k * e
                MN-major   row/P * LBO + k/8 * SBO + k%8 * W + row%P * e
    none        K-major    row/8 * SBO + row%8 * 16 + k*e/16 * LBO + k*e%16
                MN-major   row/P * SBO + k/8 * LBO + k%8 * 16 + row%P * e

To this the start address is added, and the sum is swizzled. One MMA covers 32 bytes of k; a swizzled K-major
operand extends no further from its start, so LBO has no meaning there.

Source: PTX ISA, "Tensor Core 5th Generation": instruction descriptor, shared memory descriptor, canonical
layouts, matrix shape.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from cute_fa4.dtypes import DTYPES, OPERANDS
from cute_fa4.layouts.swizzle import (
    CHUNK_BYTES,
    ROWS_PER_PERIOD,
    SWIZZLE_128B,
    Swizzle,
    swizzle_of_umma_code,
)

VERSION = 1  # of the shared-memory descriptor on sm_100
MMA_K_BYTES = (
    32  # bytes of the contraction that one MMA covers, for 16-bit and 8-bit elements alike
)


class Field(NamedTuple):
    """`width` bits from bit `low` on. `means` is for the picture."""

    name: str
    low: int
    width: int
    means: str

    def get(self, bits: int) -> int:
        return bits >> self.low & (1 << self.width) - 1


SMEM_FIELDS = (
    Field("start", 0, 14, "start address / 16"),
    Field("leading", 16, 14, "leading byte offset (LBO) / 16"),
    Field("stride", 32, 14, "stride byte offset (SBO) / 16"),
    Field("version", 46, 3, "version: 1 on sm_100"),
    Field("base", 49, 3, "matrix base offset: 0 for a tile at its swizzle period"),
    Field("mode", 52, 1, "LBO mode: 0, it is an offset in bytes"),
    Field("swizzle", 61, 3, "swizzle: 0 none, 2 128 B, 4 64 B, 6 32 B"),
)
INSTRUCTION_FIELDS = (
    Field("sparse", 0, 3, "sparsity: 0, operands are dense"),
    Field("saturate", 3, 1, "saturate: 0, for integer kinds only"),
    Field("d", 4, 2, "D format: 0 fp16, 1 fp32"),
    Field("a", 7, 3, "A format: 0 fp16, 1 bf16; kind f8f6f4: 0 e4m3, 1 e5m2"),
    Field("b", 10, 3, "B format, likewise"),
    Field("negate_a", 13, 1, "negate A"),
    Field("negate_b", 14, 1, "negate B"),
    Field("a_mn", 15, 1, "A is MN-major"),
    Field("b_mn", 16, 1, "B is MN-major"),
    Field("n", 17, 6, "N / 8"),
    Field("m", 24, 5, "M / 16"),
    Field("shift", 30, 2, "shift of B: 0, for .ws only"),
)


def _pack(fields, **values) -> int:
    bits = 0
    for field in fields:
        value = values.pop(field.name, 0)
        assert value >> field.width == 0, (
            f"{field.name} = {value} needs more than {field.width} bits"
        )
        bits |= value << field.low
    assert not values, f"no such field: {values}"
    return bits


def _unpack(fields, bits: int, width: int) -> dict[str, int]:
    """Field values by name. Raises ValueError if a bit outside every field is set."""
    if bits < 0 or bits >> width:
        raise ValueError(f"descriptor {bits:#x}: not a {width}-bit number; pass the unsigned value")
    values = {field.name: field.get(bits) for field in fields}
    stray = bits & ~_pack(fields, **values)
    if stray:
        raise ValueError(f"descriptor {bits:#x}: reserved bits {stray:#x} are set; they must be 0")
    return values


def _require_zero(values, names, bits):
    for name in names:
        if values[name]:
            raise ValueError(f"descriptor {bits:#x}: field '{name}' is {values[name]}; accepted: 0")


@dataclass(frozen=True)
class SmemDescriptor:
    """The location of an operand of tcgen05.mma in shared memory; all members in bytes.

    start_bytes     shared-memory address of the operand's first element, below 256 KiB
    leading_bytes   LBO: from one swizzle span to the next along M or N (MN-major); see the module for none
    stride_bytes    SBO: from eight rows to the next eight (K-major), eight k to the next eight (MN-major)
    swizzle         Swizzle; the tile it was written with

    Raises ValueError for a value that is not a multiple of 16 or does not fit its 14 bits.
    """

    start_bytes: int
    leading_bytes: int
    stride_bytes: int
    swizzle: Swizzle = SWIZZLE_128B

    def __post_init__(self):
        for name in ("start_bytes", "leading_bytes", "stride_bytes"):
            value = getattr(self, name)
            if value % CHUNK_BYTES:
                raise ValueError(
                    f"{name} = {value}: a descriptor counts in units of {CHUNK_BYTES} bytes; align it"
                )
            if not 0 <= value < CHUNK_BYTES << 14:
                raise ValueError(
                    f"{name} = {value}: 14 bits of 16-byte units hold 0 to {(CHUNK_BYTES << 14) - 16}; "
                    "pass a shared-memory (not a generic) address, and split the tile if it is an offset"
                )

    def encode(self) -> int:
        """-> the 64-bit operand.

        >>> hex(SmemDescriptor(0, 16, 1024).encode() >> 32)
        '0x40004040'
        """
        return _pack(
            SMEM_FIELDS,
            start=self.start_bytes // CHUNK_BYTES,
            leading=self.leading_bytes // CHUNK_BYTES,
            stride=self.stride_bytes // CHUNK_BYTES,
            version=VERSION,
            swizzle=self.swizzle.umma_code,
        )

    @staticmethod
    def decode(bits: int) -> "SmemDescriptor":
        """The inverse of encode(). Raises ValueError naming a field with a value that encode() never writes."""
        values = _unpack(SMEM_FIELDS, bits, 64)
        if values["version"] != VERSION:
            raise ValueError(
                f"descriptor {bits:#x}: version {values['version']} in bits [46:49); sm_100 takes "
                f"{VERSION} (sm_90's descriptors have 0 there: build it with SmemDescriptor)"
            )
        _require_zero(values, ("base", "mode"), bits)
        return SmemDescriptor(
            values["start"] * CHUNK_BYTES,
            values["leading"] * CHUNK_BYTES,
            values["stride"] * CHUNK_BYTES,
            swizzle_of_umma_code(values["swizzle"]),
        )

    @property
    def low(self) -> int:
        """Bits [0:32): start and LBO. Adding a multiple of 16 bytes / 16 here moves the operand."""
        return self.encode() & 0xFFFFFFFF

    @property
    def high(self) -> int:
        """Bits [32:64): SBO, version, swizzle. Constant over a kernel's ring."""
        return self.encode() >> 32

    def advance(self, nbytes: int) -> "SmemDescriptor":
        """The same operand `nbytes` later."""
        return replace(self, start_bytes=self.start_bytes + nbytes)

    def element_address(self, row, k, bits: int, mn_major: bool):
        """Shared-memory address of operand element (row, k), swizzle included; ints or integer arrays.

        row          along M (operand A) or N (operand B)
        k            along the contraction, from the descriptor's start
        bits         of an element
        """
        span, unswizzled = self.swizzle.span_bytes, self.swizzle.mask == 0
        lead, stride = self.leading_bytes, self.stride_bytes
        if mn_major:
            per_span = span * 8 // bits
            if unswizzled:
                lead, stride = stride, lead
            offset = row // per_span * lead + k // ROWS_PER_PERIOD * stride
            offset += k % ROWS_PER_PERIOD * span + row % per_span * bits // 8
        else:
            k_bytes = k * bits // 8
            if unswizzled:
                k_bytes = k_bytes // CHUNK_BYTES * lead + k_bytes % CHUNK_BYTES
            offset = row // ROWS_PER_PERIOD * stride + row % ROWS_PER_PERIOD * span + k_bytes
        return self.swizzle(self.start_bytes + offset)


D_FORMATS = {"fp16": 0, "fp32": 1}
# cta_group -> M -> step of N, for the dense kinds here (.ws, which is not used here, takes N of 64, 128, 256). The
# PTX ISA table "Various combinations of .kind and shapes" has steps of 8 and, for CTA pairs, 16. CUTLASS's atoms
# (cute/arch/mma_sm100_umma.hpp) require twice that at M = 128 and for pairs: in 3.8 always, in 4.5 if A is in
# tensor memory. This class accepts what both accept. The emulator follows the ISA if A is in shared memory.
STEPS_OF_N = {1: {64: 8, 128: 16}, 2: {128: 32, 256: 32}}


@dataclass(frozen=True)
class InstructionDescriptor:
    """The operation of one tcgen05.mma: D[m, n] (+)= A[m, k] B[n, k]^T, k = 32 bytes.

    m, n                   64 or 128 rows (cta_group 2: 128 or 256), n up to 256 in steps of 8 for 64 rows, 16 for
                           128, 32 for a pair; 16 for 64 rows with an 8-bit MN-major B
    a_format, b_format     dtypes of one kind that an MMA multiplies (cute_fa4/dtypes.py)
    d_format               "fp32", or "fp16" where A and B are not bf16
    a_mn_major, b_mn_major the operand is contiguous along M or N, not along the contraction
    cta_group              not encoded: the instruction's qualifier, here for its limits on m and n

    Raises ValueError naming the value, the limit and the remedy.
    """

    m: int
    n: int
    a_format: str
    b_format: str
    d_format: str = "fp32"
    a_mn_major: bool = False
    b_mn_major: bool = False
    negate_a: bool = False
    negate_b: bool = False
    cta_group: int = 1

    def __post_init__(self):
        for name in ("a_format", "b_format"):
            value = getattr(self, name)
            if value not in OPERANDS:
                raise ValueError(
                    f"{name} = {value!r}: accepted are {', '.join(OPERANDS)}; convert the operand"
                )
        if self.d_format not in D_FORMATS:
            raise ValueError(f"d_format = {self.d_format!r}: accepted are {', '.join(D_FORMATS)}")
        if DTYPES[self.a_format].mma_kind != DTYPES[self.b_format].mma_kind:
            raise ValueError(
                f"A is {self.a_format} and B is {self.b_format}: one MMA takes two 16-bit (kind::f16) or "
                "two 8-bit (kind::f8f6f4) operands; convert one"
            )
        if self.d_format == "fp16" and "bf16" in (self.a_format, self.b_format):
            raise ValueError("d_format = 'fp16' with a bf16 operand: bf16 accumulates in fp32 only")
        if self.cta_group not in STEPS_OF_N:
            raise ValueError(f"cta_group = {self.cta_group}: one MMA runs on 1 or 2 CTAs")
        steps = STEPS_OF_N[self.cta_group]
        if self.m not in steps:
            few, many = steps
            raise ValueError(
                f"m = {self.m}: cta_group::{self.cta_group} takes {few} or {many} rows; pad the tile"
            )
        step = steps[self.m]
        if self.b_mn_major and self.bits < 16:
            step = max(step, 16)  # an MN-major row of B is read in 16-byte chunks
        if not step <= self.n <= 256 or self.n % step:
            raise ValueError(
                f"n = {self.n}: cta_group::{self.cta_group} with m = {self.m} takes multiples of {step} from {step} to "
                f"256 for {self.b_format}{', MN-major' if self.b_mn_major else ''}; pad or split the tile"
            )

    @property
    def kind(self) -> str:
        """The .kind qualifier of the instruction: "f16" or "f8f6f4"."""
        return DTYPES[self.a_format].operand_kind

    @property
    def bits(self) -> int:
        """Of an element of A and B."""
        return DTYPES[self.a_format].bits

    @property
    def k(self) -> int:
        """Length of the contraction: 16 for 16-bit, 32 for 8-bit elements."""
        return MMA_K_BYTES * 8 // self.bits

    def encode(self) -> int:
        """-> the 32-bit operand.

        >>> hex(InstructionDescriptor(128, 128, "bf16", "bf16").encode())
        '0x8200490'
        """
        return _pack(
            INSTRUCTION_FIELDS,
            d=D_FORMATS[self.d_format],
            a=DTYPES[self.a_format].mma_code,
            b=DTYPES[self.b_format].mma_code,
            negate_a=int(self.negate_a),
            negate_b=int(self.negate_b),
            a_mn=int(self.a_mn_major),
            b_mn=int(self.b_mn_major),
            n=self.n // 8,
            m=self.m // 16,
        )

    @staticmethod
    def decode(bits: int, kind: str, cta_group: int = 1) -> "InstructionDescriptor":
        """The inverse of encode(); `kind` and `cta_group` are the instruction's qualifiers.

        Raises ValueError for reserved bits, sparsity, saturation, shifts, unknown formats and sizes.
        """
        values = _unpack(INSTRUCTION_FIELDS, bits, 32)
        _require_zero(values, ("sparse", "saturate", "shift"), bits)

        def name_of(field, names):
            if values[field] not in names:
                raise ValueError(
                    f"descriptor {bits:#x}, kind::{kind}: field '{field}' is {values[field]}; accepted: "
                    f"{', '.join(f'{code} {name}' for code, name in names.items()) or 'no such kind'}"
                )
            return names[values[field]]

        operands = {
            DTYPES[name].mma_code: name for name in OPERANDS if DTYPES[name].mma_kind == kind
        }
        return InstructionDescriptor(
            m=values["m"] * 16,
            n=values["n"] * 8,
            a_format=name_of("a", operands),
            b_format=name_of("b", operands),
            d_format=name_of("d", {code: name for name, code in D_FORMATS.items()}),
            a_mn_major=bool(values["a_mn"]),
            b_mn_major=bool(values["b_mn"]),
            negate_a=bool(values["negate_a"]),
            negate_b=bool(values["negate_b"]),
            cta_group=cta_group,
        )
