"""Tensor-memory fragments: the thread and register that hold each (lane, column) after tcgen05.ld 32x32b.

An accumulator of 128 rows has row r in lane r and column n in column n, 32 bits each. Each thread owns a row,
each register is a column; warp w of a warpgroup accesses lanes 32 * (w % 4) on:

                      register 0  register 1  ...  register 31  address operand
    warp 0 thread 0   0,0         0,1         ...  0,31         0x00000000
    warp 0 thread 1   1,0         1,1         ...  1,31         0x00000000
    ...
    warp 0 thread 31  31,0        31,1        ...  31,31        0x00000000
    warp 1 thread 0   32,0        32,1        ...  32,31        0x00200000
    warp 1 thread 31  63,0        63,1        ...  63,31        0x00200000
    warp 2 thread 0   64,0        64,1        ...  64,31        0x00400000
    warp 2 thread 31  95,0        95,1        ...  95,31        0x00400000
    warp 3 thread 0   96,0        96,1        ...  96,31        0x00600000
    warp 3 thread 31  127,0       127,1       ...  127,31       0x00600000

P as operand A is 16 bits wide, so a column holds two consecutive elements of the contraction, the even one in the
low half, and P of 128 keys fills 64 columns:

    lane 0      column 0  column 1  column 2  ...  column 63
    bits 0-15   P[0, 0]   P[0, 2]   P[0, 4]   ...  P[0, 126]
    bits 16-31  P[0, 1]   P[0, 3]   P[0, 5]   ...  P[0, 127]

So a softmax thread keeps its row from S to P without a shuffle: it reads 128 columns of its lane, rounds, packs
pairs, and writes 64 columns of the same lane.

Source: PTX ISA, "Tensor Memory: addressing, access restrictions", "tcgen05: data movement shape .32x32b",
and "Tensor Core 5th Generation: matrix fragments" for A in tensor memory.
"""

from dataclasses import dataclass

import numpy as np

from cute_fa4.dtypes import OPERAND_OF_BITS
from cute_fa4.layouts.umma_descriptors import MMA_K_BYTES

LANES = 128
COLUMNS = 512
THREADS_PER_WARP = 32
WARPS_PER_WARPGROUP = LANES // THREADS_PER_WARP
WORD_BYTES = 4
REPETITIONS = (1, 2, 4, 8, 16, 32, 64, 128)  # the .xN of tcgen05.ld and .st with shape 32x32b


def _require_range(name, value, limit, remedy):
    low, high = np.min(value), np.max(value)
    if low < 0 or high >= limit:
        raise ValueError(
            f"{name} {low if low < 0 else high}: accepted are 0 to {limit - 1}; {remedy}"
        )


def encode_address(lane, column):
    """(lane, column) -> tensor-memory address: lane in bits [16:32), column in bits [0:16).

    >>> hex(encode_address(96, 256))
    '0x600100'

    Raises ValueError outside 128 lanes and 512 columns.
    """
    _require_range("lane", lane, LANES, "a CTA has 128 lanes of its own")
    _require_range("column", column, COLUMNS, "tensor memory has 512 columns: lower the tile sizes")
    return lane << 16 | column


def decode_address(address):
    """Tensor-memory address -> (lane, column); the inverse of encode_address, with the same checks."""
    lane, column = address >> 16, address & 0xFFFF
    encode_address(lane, column)
    return lane, column


@dataclass(frozen=True)
class Fragment32x32b:
    """The registers of tcgen05.ld/st.32x32b.x<registers> at a column: one row per thread.

    registers      N of .xN: registers of a thread, columns of the access
    first_column   the column in the address operand

    Arguments may be ints or integer arrays.

    >>> Fragment32x32b(32).element(warp=5, thread=3, register=7)      # warp 5 is the second of its group
    (35, 7)
    >>> Fragment32x32b(32).holder(lane=35, column=7)
    (1, 3, 7)
    """

    registers: int
    first_column: int = 0

    def __post_init__(self):
        if self.registers not in REPETITIONS:
            raise ValueError(
                f"{self.registers} registers: tcgen05.ld.32x32b comes as x1, x2, x4 ... x128; split the access"
            )
        _require_range("first column", self.first_column, COLUMNS, "move the tile")
        last = self.first_column + self.registers - 1
        _require_range("last column", last, COLUMNS, "read fewer columns")

    def element(self, warp, thread, register):
        """-> (lane, column) that register `register` of thread `thread` (0 to 31) of warp `warp` holds."""
        _require_range("thread", thread, THREADS_PER_WARP, "threads are counted within the warp")
        _require_range("register", register, self.registers, f"this fragment is x{self.registers}")
        lane = THREADS_PER_WARP * (warp % WARPS_PER_WARPGROUP) + thread
        return lane, self.first_column + register

    def holder(self, lane, column):
        """-> (warp % 4, thread, register) that holds (lane, column); the inverse of element()."""
        _require_range("lane", lane, LANES, "a CTA has 128 lanes of its own")
        register = column - self.first_column
        _require_range(
            f"column minus {self.first_column}", register, self.registers, "outside this fragment"
        )
        return lane // THREADS_PER_WARP, lane % THREADS_PER_WARP, register

    def address(self, warp: int) -> int:
        """Address operand for warp `warp`: a warp can access only lanes 32 * (warp % 4) to 32 * (warp % 4) + 31."""
        return encode_address(THREADS_PER_WARP * (warp % WARPS_PER_WARPGROUP), self.first_column)


@dataclass(frozen=True)
class PackedOperand:
    """Operand A in tensor memory: row r in lane r, 32 / bits elements of the contraction per column.

    contraction    elements of a row (keys, for P); a multiple of the elements of one MMA step
    bits           of an element, of a dtype that an MMA multiplies
    first_column   where the operand starts
    """

    contraction: int
    bits: int = 16
    first_column: int = 0

    def __post_init__(self):
        if self.bits not in OPERAND_OF_BITS:
            raise ValueError(
                f"elements of {self.bits} bits: P has {' or '.join(map(str, OPERAND_OF_BITS))}"
            )
        if self.contraction <= 0 or self.contraction % self.step_elements:
            raise ValueError(
                f"contraction of {self.contraction} elements: an MMA step takes {self.step_elements} of "
                f"{self.bits} bits; pad to a multiple"
            )
        _require_range("first column", self.first_column, COLUMNS, "move the operand")
        _require_range("last column", self.first_column + self.columns - 1, COLUMNS, "split it")

    @property
    def per_column(self) -> int:
        """Elements in one 32-bit column."""
        return WORD_BYTES * 8 // self.bits

    @property
    def columns(self) -> int:
        """Columns of the whole operand: half as many as keys for 16-bit elements."""
        return self.contraction // self.per_column

    @property
    def step_elements(self) -> int:
        """Elements of the contraction of one MMA: 32 bytes."""
        return MMA_K_BYTES * 8 // self.bits

    @property
    def num_steps(self) -> int:
        return self.contraction // self.step_elements

    def step_column(self, step: int) -> int:
        """First column of A for MMA step `step`: eight columns a step, for both element sizes."""
        _require_range("step", step, self.num_steps, "the contraction ends there")
        return self.first_column + step * self.step_elements // self.per_column

    def location(self, row, k):
        """-> (lane, column, first bit of the element in that 32-bit word).

        >>> PackedOperand(128).location(row=5, k=7)
        (5, 3, 16)
        """
        _require_range("row", row, LANES, "operand A has 128 rows")
        _require_range("k", k, self.contraction, "the contraction ends there")
        column = self.first_column + k // self.per_column
        return row, column, k % self.per_column * self.bits

    def element(self, lane, column, bit):
        """-> (row, k) of the element that starts at `bit` of (lane, column); inverse of location()."""
        k = (column - self.first_column) * self.per_column + bit // self.bits
        _require_range("k", k, self.contraction, "outside this operand")
        return lane, k

    def pack(self, raw):
        """Rows of raw elements (..., contraction), uint16 or uint8 -> 32-bit words (..., columns)."""
        raw = np.asarray(raw)
        expected = np.dtype(f"u{self.bits // 8}")
        if raw.dtype != expected or raw.shape[-1] != self.contraction:
            raise ValueError(
                f"{raw.dtype} array of {raw.shape}: pack takes {expected} (..., {self.contraction}); "
                "view the bits of the elements as unsigned integers"
            )
        parts = raw.reshape(*raw.shape[:-1], self.columns, self.per_column).astype(np.uint32)
        shifts = np.arange(self.per_column, dtype=np.uint32) * np.uint32(self.bits)
        return np.bitwise_or.reduce(parts << shifts, axis=-1)

    def unpack(self, words):
        """32-bit words (..., columns) -> raw elements (..., contraction); the inverse of pack()."""
        words = np.asarray(words, np.uint32)
        shifts = np.arange(self.per_column, dtype=np.uint32) * np.uint32(self.bits)
        parts = (words[..., None] >> shifts).astype(f"u{self.bits // 8}")
        return parts.reshape(*words.shape[:-1], self.contraction)
