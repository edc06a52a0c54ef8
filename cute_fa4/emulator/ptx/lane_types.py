"""The representation of each PTX type in the registers of a warp: rows, C type, NumPy view.

A register is one row of 32 lanes x 4 bytes, or two rows seen as 32 lanes x 8 bytes. A predicate is one
32-bit word, bit l belongs to lane l.

    type            rows    in C          in NumPy            note
    pred            word    int 0 or 1    bool[32]
    u8 s8           1       low byte      uint8, int8[32]     as a source only the low byte is used
    u16 s16         1       low half      uint16, int16[32]   the upper half of the row is written as 0
    u32 s32 f32     1       itself        [32]
    u64 s64 f64     2       itself        [32]
    f16 bf16        1       f32 / bits    f32[32] / uint16    sources are decoded exactly, results are bits
    f16x2 bf16x2    1       f32 / bits    f32[64] / uint16    64 elements: element 2l is lane l's low half
    u16x2 s16x2     1       itself        [64]
    f32x2           2       itself        f32[64]             64 elements: element 2l is lane l's low half

The types b8, b16, b32, b64 and b16x2 are the unsigned ones.
"""

from dataclasses import dataclass

import numpy as np

LANES = 32


@dataclass(frozen=True)
class LaneType:
    """One row of the table above.

    rows      register rows; 0 for a predicate
    element   NumPy dtype of one stored element; a row of 16-bit registers stores 32-bit elements
    load      C expression that turns the stored element ``x`` into the value
    c         C type of the value as a source; results use ``c_result``
    """

    name: str
    rows: int
    element: np.dtype
    c: str
    c_result: str
    load: str = "x"
    store: str = "x"

    @property
    def count(self):
        """Elements of one operand: 32, or 64 for a packed pair."""
        return LANES * max(1, self.rows) * 4 // self.element.itemsize

    @property
    def register_bits(self):
        """Width of the PTX register that holds the type: 1 (predicate), 16, 32 or 64."""
        if self.rows == 2:
            return 64
        return (
            16 if self.name in ("u8", "s8", "u16", "s16", "f16", "bf16") else 32 if self.rows else 1
        )

    def decode(self, register):
        """Register bits (uint32[32] or uint64[32], bool[32] for pred) -> the array for the meaning."""
        if self.rows == 0:
            return register
        stored = register.view(self.element)
        if self.name in _NARROW:
            return stored.astype(_NARROW[self.name])
        if self.name.startswith("f16"):
            return stored.astype(np.uint16).view(np.float16).astype(np.float32)
        if self.name.startswith("bf16"):
            return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return stored

    def encode(self, value):
        """The result array of a meaning -> register bits (uint32[32] or uint64[32], bool[32] for pred)."""
        value = np.asarray(value)
        if self.rows == 0:
            return value.astype(bool)
        if self.name in _NARROW:
            value = value.astype(_NARROW[self.name])
            value = value.astype(np.int16).view(np.uint16) if value.dtype.kind == "i" else value
            value = value.astype(np.uint32)
        elif value.dtype != self.element:
            value = value.astype(self.element)
        register = np.uint64 if self.rows == 2 else np.uint32
        return np.ascontiguousarray(value).view(register)


# Value dtypes of the scalars below 32 bits. A signed one is stored sign-extended to the 16 bits of its register
# (PTX ISA, "Operand Size Exceeding Instruction-Type Size"); the upper half of the row is 0.
_NARROW = {"u8": np.uint8, "s8": np.int8, "u16": np.uint16, "s16": np.int16}


def _types():
    def row(name, rows, element, c, c_result=None, load="x", store="x"):
        return LaneType(name, rows, np.dtype(element), c, c_result or c, load, store)

    yield row("pred", 0, "u4", "int")
    yield row("u8", 1, "u4", "u8", load="(u8)x")
    yield row("s8", 1, "u4", "s8", load="(s8)x", store="(u16)x")
    yield row("u16", 1, "u4", "u16", load="(u16)x")
    yield row("s16", 1, "u4", "s16", load="(s16)x", store="(u16)x")
    for bits, rows in ((32, 1), (64, 2)):
        for letter, kind in (("u", "u"), ("s", "i"), ("f", "f")):
            yield row(f"{letter}{bits}", rows, f"{kind}{bits // 8}", f"{letter}{bits}")
    yield row("f16", 1, "u4", "f32", "u16", load="f32_of_f16((u16)x)")
    yield row("bf16", 1, "u4", "f32", "u16", load="f32_of_bf16((u16)x)")
    yield row("f16x2", 1, "u2", "f32", "u16", load="f32_of_f16(x)")
    yield row("bf16x2", 1, "u2", "f32", "u16", load="f32_of_bf16(x)")
    yield row("u16x2", 1, "u2", "u16")
    yield row("s16x2", 1, "i2", "s16")
    yield row("f32x2", 2, "f4", "f32")


TYPES = {lane_type.name: lane_type for lane_type in _types()}
for _bits in ("8", "16", "32", "64", "16x2"):
    TYPES["b" + _bits] = TYPES["u" + _bits]

# C type of one stored element, by NumPy dtype.
C_ELEMENT = {"uint16": "u16", "int16": "s16", "uint32": "u32", "int32": "s32", "float32": "f32"}
C_ELEMENT |= {"uint64": "u64", "int64": "s64", "float64": "f64"}
