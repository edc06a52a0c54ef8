"""Bits of an element -> its value: the operand and accumulator formats of tcgen05.mma.

    kind      A and B                              D          bytes of an element in shared memory
    f16       f16, bf16                            f16, f32   2
    tf32      tf32                                 f32        4
    f8f6f4    e4m3, e5m2, e2m3, e3m2, e2m1         f16, f32   1 (those of 4 and 6 bits: 16 in 8 or 12 of 16 bytes)
    i8        u8, s8                               s32        1

OCP 8-bit Floating Point Specification; OCP Microscaling Formats 1.0; PTX ISA, "Tensor Core 5th Generation": packing
formats of elements of 4 and 6 bits in shared and in tensor memory.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

CHUNK = 16  # bytes that move together in shared memory


def _decode_bf16(raw):
    return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def _decode_tf32(raw):
    # The low 13 of the 32 bits are not part of a tf32 value.
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


E4M3 = _float8_table(4, 3, bias=7, has_infinity=False)
E5M2 = _float8_table(5, 2, bias=15, has_infinity=True)


def _small_float_table(exponent_bits, mantissa_bits, bias):
    """The values of a 4- or 6-bit format, without NaN and infinity (OCP Microscaling Formats 1.0)."""
    code = np.arange(2 << exponent_bits + mantissa_bits)
    exponent = code >> mantissa_bits & (1 << exponent_bits) - 1
    units = (code & (1 << mantissa_bits) - 1) + (1 << mantissa_bits) * (exponent > 0)
    value = units * 2.0 ** (np.maximum(exponent, 1) - bias - mantissa_bits)
    return np.where(code >> exponent_bits + mantissa_bits, -value, value)


E2M1 = _small_float_table(2, 1, bias=1)
_E2M3 = _small_float_table(2, 3, bias=1)
_E3M2 = _small_float_table(3, 2, bias=3)


def unpacked(raw, bits):
    """Codes of the 16 elements of 4 or 6 bits at the start of each 16 bytes of shared memory (the rest is padding)."""
    groups = np.ascontiguousarray(raw).reshape(-1, CHUNK)[:, : 2 * bits]
    each = np.unpackbits(groups, axis=1, bitorder="little").reshape(len(groups), CHUNK, bits)
    return (each << np.arange(bits, dtype=np.uint8)).sum(axis=2, dtype=np.uint8).reshape(raw.shape)


@dataclass(frozen=True)
class Format:
    """An operand element format: its name, the unsigned type of its bits, bits -> float64.

    in_tensor_memory  bits -> float64 there, if different
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
    0: Format("e4m3", np.uint8, lambda raw: E4M3[raw]),
    1: Format("e5m2", np.uint8, lambda raw: E5M2[raw]),
}
# In tensor memory a 6-bit element is in the low bits of its byte, a 4-bit element in bits 2 to 5.
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


ACCUMULATORS = {
    "f32": lambda words: words.view(np.float32),
    "s32": lambda words: words.view(np.int32),
    "f16": lambda words: words.astype(np.uint16).view(np.float16).astype(np.float64),
}
NOTHING = np.uint32(0x7FFF0000)
"""The upper half of a word of D in f16: a NaN, to reveal kernels that use it as a number."""
