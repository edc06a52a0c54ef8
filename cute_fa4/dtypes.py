"""The dtypes of tensors, one row each: bits, types of torch and of the compiler, MMA kind, what is quantized.

What depends on a dtype is read from its row: sizes in bytes (bytes_of), what calls accept, formats of MMA operands,
elements of TMA maps, names of options. A row names the types of torch and of the compiler and imports neither, because
configurations are made, and kernels are loaded, without the compiler.

    name  bits  torch             MMA             quantized: P is, dequantized to, out is, numbers of a block scale
    bf16   16   bfloat16          kind::f16       no
    e4m3    8   float8_e4m3fn     kind::f8f6f4    e4m3, fp16, bf16, 32
    e2m1    4   float4_e2m1fn_x2  no operand      -, fp16, -, 16
    mxe4m3  8   float8_e4m3fn     no operand      -, fp16, -, 32
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import floor, log2


@dataclass(frozen=True)
class Quantized:
    """Properties that only quantized dtypes have.

    p          dtype of P: probabilities lie between 0 and a power of two, so a mantissa bit beats range
    one        byte whose numbers are all 1
    dequantized_to   dtype that holds every number: K and V become it under queries of 16 bits
    out        dtype of O where a call names none
    block      consecutive numbers of a row that one block scale (MXFP8, NVFP4) multiplies
    scales     dtype of these scales where a cache always has them, in tensors of their own; None: it has none
    """

    p: str
    one: int
    dequantized_to: str
    out: str
    block: int
    scales: str | None = None


@dataclass(frozen=True)
class Dtype:
    """One row of the table.

    name       in configurations, kernel names, catalogues and manifests
    bits       of an element
    torch_name, cutlass_name   the same type in torch and in the compiler, which derives the element type of a TMA map
    ptx_name   in instructions
    mma_kind, mma_code         .kind of tcgen05.mma and the format in its descriptor; None: no operand of an MMA
    largest    the largest finite number, of floating-point types
    quantized  None: numbers need no scale
    numbers    the dtype of its numbers, where a row differs from it by scales of blocks; None: its own
    """

    name: str
    bits: int
    torch_name: str
    cutlass_name: str
    ptx_name: str
    mma_kind: str | None = None
    mma_code: int | None = None
    largest: float | None = None
    quantized: Quantized | None = None
    numbers: str | None = None

    @property
    def is_quantized(self) -> bool:
        return self.quantized is not None

    @property
    def block(self) -> int:
        """Consecutive numbers of a row that one block scale multiplies."""
        if self.quantized is None:
            raise ValueError(f"{self.name}: only quantized dtypes have block scales")
        return self.quantized.block

    @property
    def operand_kind(self) -> str:
        """mma_kind of a dtype that an MMA multiplies."""
        if self.mma_kind is None:
            raise ValueError(
                f"{self.name}: not an operand of an MMA; accepted: {', '.join(OPERANDS)}"
            )
        return self.mma_kind

    @property
    def in_byte(self) -> int:
        """Numbers that share a byte of memory: the element of a tensor, which has no parts."""
        return 8 // self.bits if 0 < self.bits < 8 else 1

    @property
    def element(self) -> str:
        """Name of the dtype of what memory holds: that of its numbers, or bytes where numbers share one."""
        return self.numbers or self.name if self.in_byte == 1 else "u8"

    @property
    def cache_scales(self) -> Dtype | None:
        """Dtype of the scales of blocks that a cache of this dtype has in tensors of its own; None: it has none."""
        name = self.quantized.scales if self.quantized else None
        return E8M0 if name == E8M0.name else DTYPES.get(name or "")

    @property
    def is_operand(self) -> bool:
        """Whether an MMA multiplies it: q, k, v and P may have it."""
        return self.mma_kind is not None

    @property
    def p(self) -> str:
        """Dtype of P where q, k and v have this one."""
        return self.quantized.p if self.quantized else self.name

    @property
    def out(self) -> str:
        """Dtype of O where q has this one and the call names none."""
        return self.quantized.out if self.quantized else self.name

    @property
    def dequantized_to(self) -> str:
        """What K and V of this dtype are where they are multiplied, under queries of 16 bits."""
        return self.quantized.dequantized_to if self.quantized else self.name

    @property
    def largest_log2(self) -> int:
        """Exponent of the largest power of two."""
        return floor(log2(self.largest))

    @cached_property
    def torch(self):
        import torch

        return getattr(torch, self.torch_name)

    @cached_property
    def cutlass(self):
        import cutlass

        return getattr(cutlass, self.cutlass_name)

    def bytes_of(self, elements: int) -> int:
        """Bytes of so many elements, which fill whole bytes.

        >>> E4M3.bytes_of(3), BF16.bytes_of(3)
        (3, 6)
        """
        nbytes, rest = divmod(elements * self.bits, 8)
        if rest:
            raise ValueError(
                f"elements: {elements} of {self.bits} bits; accepted: a number that fills whole bytes"
            )
        return nbytes

    def elements_in(self, nbytes: int) -> int:
        """Elements that so many bytes hold.

        >>> E4M3.elements_in(128), BF16.elements_in(128)
        (128, 64)
        """
        return nbytes * 8 // self.bits


BF16 = Dtype("bf16", 16, "bfloat16", "BFloat16", "bf16", "f16", 1, (2 - 2**-7) * 2.0**127)
FP16 = Dtype("fp16", 16, "float16", "Float16", "f16", "f16", 0, 65504.0)
E4M3 = Dtype(
    *("e4m3", 8, "float8_e4m3fn", "Float8E4M3FN", "e4m3", "f8f6f4", 0, 448.0),
    Quantized(p="e4m3", one=0x38, dequantized_to="fp16", out="bf16", block=32),
)
E5M2 = Dtype(
    *("e5m2", 8, "float8_e5m2", "Float8E5M2", "e5m2", "f8f6f4", 1, 57344.0),
    Quantized(p="e4m3", one=0x3C, dequantized_to="fp16", out="bf16", block=32),
)
E2M1 = Dtype(
    *("e2m1", 4, "float4_e2m1fn_x2", "Float4E2M1FN", "e2m1"),
    largest=6.0,
    quantized=Quantized(
        p="fp16", one=0x22, dequantized_to="fp16", out="bf16", block=16, scales="e4m3"
    ),
)
"""Of caches (NVFP4): two numbers a byte. Kernels read bytes; fp16 holds each number times an e4m3 scale exactly."""
MXE4M3 = Dtype(
    *("mxe4m3", 8, "float8_e4m3fn", "Float8E4M3FN", "e4m3"),
    largest=448.0,
    quantized=Quantized(
        p="fp16", one=0x38, dequantized_to="fp16", out="bf16", block=32, scales="e8m0"
    ),
    numbers="e4m3",
)
"""Of caches (MXFP8): e4m3 numbers whose blocks have e8m0 scales, which fp16 holds from 2^-24 to 2^7."""
F32 = Dtype("f32", 32, "float32", "Float32", "f32", largest=(2 - 2**-23) * 2.0**127)

DTYPES = {
    row.name: row
    for row in (
        *(BF16, FP16, E4M3, E5M2, E2M1, MXE4M3, F32),
        Dtype("i32", 32, "int32", "Int32", "s32"),
        Dtype("i64", 64, "int64", "Int64", "s64"),
        Dtype("u8", 8, "uint8", "Uint8", "u8"),
        Dtype("bool", 8, "bool", "Uint8", "u8"),
    )
}
E8M0 = Dtype("e8m0", 8, "float8_e8m0fnu", "Uint8", "ue8m0")
"""Of block scales (MXFP8): powers of two, which kernels read as bytes. No tensor of numbers has it."""

# Names of rows, in the order of the table.
FLOATS = tuple(name for name, row in DTYPES.items() if row.largest is not None)
OPERANDS = tuple(name for name, row in DTYPES.items() if row.is_operand)
QUANTIZED = tuple(name for name in OPERANDS if DTYPES[name].is_quantized)
CACHED = tuple(name for name, row in DTYPES.items() if row.is_quantized)
"""Of K and V under queries of 16 bits: also those that no MMA multiplies here, which are always dequantized."""
UNQUANTIZED = tuple(name for name in OPERANDS if not DTYPES[name].is_quantized)
OPERAND_OF_BITS = {DTYPES[name].bits: DTYPES[name] for name in reversed(OPERANDS)}
"""Bits of an element -> an operand of so many: in shared and tensor memory all of them lie alike."""
PLAIN = tuple(name for name, row in DTYPES.items() if not row.is_quantized)
PLAIN_FLOATS = tuple(name for name in FLOATS if not DTYPES[name].is_quantized)
NAME_OF_CUTLASS = {row.cutlass_name: name for name, row in reversed(DTYPES.items())}
_OF_TORCH = {row.torch_name: row for row in DTYPES.values() if row.numbers is None}


def row_of(name: str | None) -> Dtype:
    """The row of a name; a row without properties for other names, which contradictions of configurations refuse.

    >>> row_of("e5m2").p, row_of("fp16").p, row_of("float").p
    ('e4m3', 'fp16', 'float')
    """
    return DTYPES.get(name) or Dtype(name, 0, "", "", "")


def row_of_torch(dtype) -> Dtype:
    """The row of torch's dtype; a row without properties for those that the table lacks."""
    name = str(dtype).removeprefix("torch.")
    return _OF_TORCH.get(name) or Dtype(name, 0, name, "", "")


def bytes_of(name: str, elements: int) -> int:
    """Bytes of so many elements of a dtype.

    >>> bytes_of("fp16", 8), bytes_of("e5m2", 8)
    (16, 8)
    """
    return DTYPES[name].bytes_of(elements)


def elements_in(name: str, nbytes: int) -> int:
    """Elements of a dtype that so many bytes hold."""
    return DTYPES[name].elements_in(nbytes)


def is_quantized(name: str | None) -> bool:
    """Whether this is the name of a quantized dtype.

    >>> is_quantized("e5m2"), is_quantized("bf16"), is_quantized(None)
    (True, False, False)
    """
    return name in QUANTIZED


def torch_of(names: Iterable[str]) -> dict:
    """{name: torch's dtype}."""
    return {name: DTYPES[name].torch for name in names}


def names_of(names: Iterable[str]) -> dict:
    """{torch's dtype: name}, the inverse."""
    return {DTYPES[name].torch: name for name in names}
