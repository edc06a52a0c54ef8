"""Operand tiles for pages: eight rows of every chunk, then the next eight rows, so that pages are contiguous.

One copy loads a page with all its depth chunks, which the copy's box places next to each other. With the chunk
order of operand_tiles.py, a page smaller than the tile would leave gaps and need a copy per chunk. 128 x 128 of
16-bit elements, pages of 16 rows:

    operand_tiles.py                        here
    bytes      rows     columns             bytes      rows     columns   page
        0      0-127    0-63                    0      0-7      0-63      0
    16384      0-127    64-127               1024      0-7      64-127    0
                                             2048      8-15     0-63      0
                                             3072      8-15     64-127    0
                                             4096      16-23    0-63      1

The block of eight rows of one span, which the swizzle permutes, is the same. Only the distances between blocks
change, and descriptors have fields for them: from eight rows to the next eight, and from chunk to chunk.

Source: PTX ISA, "Tensor Core 5th Generation: canonical layouts".
"""

from dataclasses import dataclass

from cute_fa4.layouts.operand_tiles import KMajorTile, MNMajorTile, OperandTile
from cute_fa4.layouts.swizzle import ROWS_PER_PERIOD
from cute_fa4.layouts.umma_descriptors import MMA_K_BYTES


class _ChunksSideBySide(OperandTile):
    """Positions of blocks of eight rows, common to both majors."""

    @property
    def block_bytes(self) -> int:
        """Eight rows of one span."""
        return ROWS_PER_PERIOD * self.swizzle.span_bytes

    @property
    def group_bytes(self) -> int:
        """Eight rows of all chunks."""
        return self.num_chunks * self.block_bytes

    def offset(self, row, col):
        """Byte offset of element (row, col), swizzle included; ints or integer arrays.

        >>> PageKMajorTile(128, 128).offset(0, 64), PageKMajorTile(128, 128).offset(8, 0)
        (1024, 2048)
        """
        chunk, inside = col // self.span_elements, col % self.span_elements
        group, line = row // ROWS_PER_PERIOD, row % ROWS_PER_PERIOD
        linear = group * self.group_bytes + chunk * self.block_bytes
        linear += line * self.swizzle.span_bytes + inside * self.bits // 8
        return self.swizzle(linear)

    def element(self, offset):
        """-> (row, col) of the element stored at byte `offset`; the inverse of offset()."""
        linear = self.swizzle.inverse(offset)
        group, inside = linear // self.group_bytes, linear % self.group_bytes
        chunk, inside = inside // self.block_bytes, inside % self.block_bytes
        line, byte = inside // self.swizzle.span_bytes, inside % self.swizzle.span_bytes
        return group * ROWS_PER_PERIOD + line, chunk * self.span_elements + byte * 8 // self.bits


@dataclass(frozen=True)
class PageKMajorTile(_ChunksSideBySide, KMajorTile):
    """K: rows are keys, the contraction is the depth.

    >>> k = PageKMajorTile(128, 128)
    >>> k.stride_bytes, [k.step_offset(step) for step in range(k.num_steps)]
    (2048, [0, 32, 64, 96, 1024, 1056, 1088, 1120])
    """

    @property
    def stride_bytes(self) -> int:
        return self.group_bytes

    def step_offset(self, step: int) -> int:
        self._require_step(step)
        chunk, inside = divmod(step * MMA_K_BYTES, self.swizzle.span_bytes)
        return chunk * self.block_bytes + inside

    def cute_layout(self):
        import cutlass.cute as cute

        return cute.tile_to_shape(self._cute_atom(), (self.rows, self.cols), order=(1, 0))


@dataclass(frozen=True)
class PageMNMajorTile(_ChunksSideBySide, MNMajorTile):
    """V: rows are keys; the contraction runs over them.

    >>> v = PageMNMajorTile(128, 128)
    >>> v.leading_bytes, v.stride_bytes, [v.step_offset(step) for step in range(3)]
    (1024, 2048, [0, 4096, 8192])
    """

    @property
    def leading_bytes(self) -> int:
        return self.block_bytes

    @property
    def stride_bytes(self) -> int:
        return self.group_bytes

    def step_offset(self, step: int) -> int:
        self._require_step(step)
        return step * self.step_elements // ROWS_PER_PERIOD * self.group_bytes

    def cute_layout(self):
        import cutlass.cute as cute

        return cute.tile_to_shape(self._cute_atom(), (self.cols, self.rows), order=(0, 1))
