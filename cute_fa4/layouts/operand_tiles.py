"""Shared-memory operand tiles: Q and K (K-major) and V (MN-major), as TMA writes and tcgen05.mma reads them.

Storage: a tile of rows x columns is divided into chunks, each one swizzle span of columns wide. A chunk is one TMA
box and contiguous, row after row. 128 x 128 of 16-bit elements, 128-byte span:

          bytes  rows   columns  written by
        0-16383  0-127  0-63     TMA box 0: 64 x 128 elements
    16384-32767  0-127  64-127   TMA box 1: 64 x 128 elements

Within a chunk every eight rows of 128 bytes are one block of 1024 bytes, swizzled as swizzle.py draws.

Q K^T contracts the columns (the depth), so Q and K are K-major: a step of the MMA is 32 bytes of every row.
P V contracts the rows (the keys), so V is MN-major: a step is 16 whole rows of every chunk.

    step  K-major: depth    from byte  MN-major: keys       from byte
       0  0-15                      0  0-15                         0
       1  16-31                    32  16-31                     2048
       2  32-47                    64  32-47                     4096
       3  48-63                    96  48-63                     6144
       4  64-79                 16384  64-79                     8192
       5  80-95                 16416  80-95                    10240
       6  96-111                16448  96-111                   12288
       7  112-127               16480  112-127                  14336
          LBO 16, SBO 1024             LBO 16384, SBO 1024

V needs no transposed copy. The MMA takes operands in blocks of eight lines of one span, and the descriptor's major
bit selects which of the two coordinates runs along the line. The same block:

    line  K-major (Q, K)          MN-major (V)
    0     n 0             k 0-63  n 0-63        k 0
    1     n 1             k 0-63  n 0-63        k 1
    2     n 2             k 0-63  n 0-63        k 2
    3     n 3             k 0-63  n 0-63        k 3
    4     n 4             k 0-63  n 0-63        k 4
    5     n 5             k 0-63  n 0-63        k 5
    6     n 6             k 0-63  n 0-63        k 6
    7     n 7             k 0-63  n 0-63        k 7

A K-major operand has n down the lines and k along them, like a row-major (row = n) K tile. An MN-major operand has
k down the lines and n along them, like a row-major (row = key = k) V tile. TMA writes both from row-major global
memory.

Source: PTX ISA, "Tensor Core 5th Generation: canonical layouts"; CUDA driver API, cuTensorMapEncodeTiled.
"""

from dataclasses import dataclass
from typing import ClassVar

from cute_fa4.dtypes import OPERAND_OF_BITS, OPERANDS
from cute_fa4.layouts.swizzle import CHUNK_BYTES, ROWS_PER_PERIOD, SWIZZLE_128B, Swizzle
from cute_fa4.layouts.umma_descriptors import MMA_K_BYTES, SmemDescriptor

MAX_BOX_ROWS = 256  # boxDim of a tensor map is at most 256 in every dimension


@dataclass(frozen=True)
class OperandTile:
    """Storage common to both majors: `rows` x `cols` elements, cols contiguous within a chunk.

    rows         rows of Q or K, or keys of V; a multiple of 8, at most 256
    cols         depth; a row is a multiple of the swizzle span (pad the depth: TMA fills zeros)
    bits         of an element, of a dtype that an MMA multiplies
    swizzle      of TMA and of the descriptor

    Offsets are bytes from the tile's start, which is a multiple of `alignment_bytes` in shared memory.
    Raises ValueError naming the value, the limit and the remedy.
    """

    rows: int
    cols: int
    bits: int = 16
    swizzle: Swizzle = SWIZZLE_128B

    def __post_init__(self):
        if self.bits not in OPERAND_OF_BITS:
            raise ValueError(
                f"elements of {self.bits} bits: operand tiles hold {' or '.join(map(str, OPERAND_OF_BITS))}, those of "
                f"{', '.join(OPERANDS)}"
            )
        if self.rows % ROWS_PER_PERIOD or not 0 < self.rows <= MAX_BOX_ROWS:
            raise ValueError(
                f"{self.rows} rows: a tile is one TMA box high, a multiple of {ROWS_PER_PERIOD} rows up to "
                f"{MAX_BOX_ROWS}; pad, or use two tiles"
            )
        row_bytes = self.cols * self.bits // 8
        if row_bytes <= 0 or row_bytes % max(self.swizzle.span_bytes, MMA_K_BYTES):
            raise ValueError(
                f"{self.cols} columns of {self.bits} bits: a row is a positive multiple of the "
                f"swizzle span, {self.swizzle.span_bytes} bytes, and of an MMA step, {MMA_K_BYTES}; pad the "
                "columns or take a smaller span"
            )

    # --- storage ---------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        return self.rows * self.cols * self.bits // 8

    @property
    def alignment_bytes(self) -> int:
        """The tile's address is a multiple of this: the swizzle's period, and never less than TMA's 128."""
        return self.swizzle.period_bytes

    @property
    def span_elements(self) -> int:
        """Columns of one chunk."""
        return self.swizzle.span_bytes * 8 // self.bits

    @property
    def num_chunks(self) -> int:
        return self.cols // self.span_elements

    @property
    def chunk_bytes(self) -> int:
        """Chunk stride: one span of every row."""
        return self.rows * self.swizzle.span_bytes

    def offset(self, row, col):
        """Byte offset of element (row, col), swizzle included; ints or integer arrays.

        >>> KMajorTile(128, 128).offset(1, 0), KMajorTile(128, 128).offset(0, 64)
        (144, 16384)
        """
        chunk, inside = col // self.span_elements, col % self.span_elements
        linear = chunk * self.chunk_bytes + row * self.swizzle.span_bytes + inside * self.bits // 8
        return self.swizzle(linear)

    def element(self, offset):
        """-> (row, col) of the element stored at byte `offset`; the inverse of offset()."""
        linear = self.swizzle.inverse(offset)
        chunk, inside = linear // self.chunk_bytes, linear % self.chunk_bytes
        row, byte = inside // self.swizzle.span_bytes, inside % self.swizzle.span_bytes
        return row, chunk * self.span_elements + byte * 8 // self.bits

    # --- how TMA writes it -----------------------------------------------------------------------

    @property
    def tma_box(self) -> tuple[int, int]:
        """Box of the tensor map in elements, contiguous dimension first: (columns of a span, rows)."""
        return self.span_elements, self.rows

    @property
    def num_boxes(self) -> int:
        return self.num_chunks

    def box_offset(self, box: int) -> int:
        """Byte offset at which box `box` is written; its first column is box * span_elements."""
        if not 0 <= box < self.num_boxes:
            raise ValueError(
                f"box {box}: the tile is {self.num_boxes} boxes of {self.tma_box} elements"
            )
        return box * self.chunk_bytes

    # --- how the MMA reads it --------------------------------------------------------------------

    mn_major: ClassVar[bool]  # set by the two subclasses, with the four members below

    @property
    def leading_bytes(self) -> int:
        """LBO of the descriptor."""
        raise NotImplementedError

    @property
    def stride_bytes(self) -> int:
        """SBO of the descriptor."""
        raise NotImplementedError

    @property
    def contraction(self) -> int:
        """Elements along K."""
        raise NotImplementedError

    def step_offset(self, step: int) -> int:
        """Bytes from the tile's start to the descriptor's start address for MMA step `step`."""
        raise NotImplementedError

    @property
    def step_elements(self) -> int:
        """Elements of the contraction that one MMA covers: 16 of 16 bits, 32 of 8."""
        return MMA_K_BYTES * 8 // self.bits

    @property
    def num_steps(self) -> int:
        return self.contraction // self.step_elements

    def _require_step(self, step):
        if not 0 <= step < self.num_steps:
            raise ValueError(
                f"step {step}: {self.contraction} elements of K are {self.num_steps} steps"
            )

    def descriptor(self, start_bytes: int = 0, step: int = 0) -> SmemDescriptor:
        """Descriptor of the tile at shared-memory address `start_bytes`, for MMA step `step`."""
        if start_bytes % self.alignment_bytes:
            raise ValueError(
                f"tile at address {start_bytes}: the swizzle pattern starts at multiples of "
                f"{self.alignment_bytes}; align the tile"
            )
        first = SmemDescriptor(start_bytes, self.leading_bytes, self.stride_bytes, self.swizzle)
        return first.advance(self.step_offset(step))

    def _cute_atom(self):
        from cutlass.cute.nvgpu import tcgen05

        kind = tcgen05.SmemLayoutAtomKind[self.swizzle.atom_kind(self.mn_major)]
        return tcgen05.make_smem_layout_atom(kind, OPERAND_OF_BITS[self.bits].cutlass)

    def cute_layout(self):
        """CuTe's layout of the tile (ComposedLayout); call inside a CuTe trace (@cute.jit).

        `outer` maps coordinates to elements before the swizzle, `inner` is the swizzle of *byte* addresses,
        which CuTe moves into the pointer. Coordinates: (row, col) if K-major, (col, row) if MN-major,
        that is (M or N, K) in both.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class KMajorTile(OperandTile):
    """Q and K: M or N = rows, contraction = cols = depth.

    >>> q = KMajorTile(128, 128)
    >>> q.leading_bytes, q.stride_bytes, [q.step_offset(step) for step in range(q.num_steps)]
    (16, 1024, [0, 32, 64, 96, 16384, 16416, 16448, 16480])
    """

    mn_major = False

    @property
    def leading_bytes(self) -> int:
        # Without swizzle a step is two chunks of 16 bytes. With one, a step stays inside the span and the
        # hardware ignores LBO; one unit is what CUTLASS writes there.
        return self.chunk_bytes if self.swizzle.mask == 0 else CHUNK_BYTES

    @property
    def stride_bytes(self) -> int:
        return ROWS_PER_PERIOD * self.swizzle.span_bytes

    @property
    def contraction(self) -> int:
        return self.cols

    def step_offset(self, step: int) -> int:
        """32 bytes further in the span; the next chunk when the span is used up."""
        self._require_step(step)
        chunk, inside = divmod(step * MMA_K_BYTES, self.swizzle.span_bytes)
        return chunk * self.chunk_bytes + inside

    def cute_layout(self):
        import cutlass.cute as cute

        return cute.tile_to_shape(self._cute_atom(), (self.rows, self.cols), order=(0, 1))


@dataclass(frozen=True)
class MNMajorTile(OperandTile):
    """V: N = cols = depth, contraction = rows = keys (a multiple of the 16 or 32 of one MMA step).

    >>> v = MNMajorTile(128, 128)
    >>> v.leading_bytes, v.stride_bytes, [v.step_offset(step) for step in range(v.num_steps)]
    (16384, 1024, [0, 2048, 4096, 6144, 8192, 10240, 12288, 14336])
    """

    mn_major = True

    def __post_init__(self):
        super().__post_init__()
        if self.rows % self.step_elements:
            raise ValueError(
                f"{self.rows} rows: the contraction runs over rows, {self.step_elements} of "
                f"{self.bits} bits a step; pad to a multiple"
            )

    # Along N the next span of columns is in the next chunk. Along K the next eight rows follow directly. The two
    # fields hold these two distances, and swap them without a swizzle.

    @property
    def leading_bytes(self) -> int:
        if self.swizzle.mask == 0:
            return self._eight_rows
        return self.chunk_bytes if self.num_chunks > 1 else 0  # never used; CuTe writes 0

    @property
    def stride_bytes(self) -> int:
        return self.chunk_bytes if self.swizzle.mask == 0 else self._eight_rows

    @property
    def _eight_rows(self) -> int:
        return ROWS_PER_PERIOD * self.swizzle.span_bytes

    @property
    def contraction(self) -> int:
        return self.rows

    def step_offset(self, step: int) -> int:
        """16 (8-bit elements: 32) rows of one span further."""
        self._require_step(step)
        return step * self.step_elements * self.swizzle.span_bytes

    def cute_layout(self):
        import cutlass.cute as cute

        return cute.tile_to_shape(self._cute_atom(), (self.cols, self.rows), order=(1, 0))
