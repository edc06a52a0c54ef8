"""RawRows: tiles whose keys arrive as rows of 8 or 4 bits in the slot of the ring where they become 16-bit.

A row of a slot is a line of 128 bytes: 128 columns of 8 bits as it arrives, 64 columns of 16 bits as the MMA reads it.
128 columns of 4 bits are its first half; whatever follows them in memory is the rest, which nothing reads.
"""

from cute_fa4.layouts.operand_tiles import KMajorTile

from .tiles import Tiles

RAW_COLUMNS = 128  # of an arriving row, a byte each: a span of the swizzle; TMA fills missing columns with zeros


class RawRows(Tiles):
    """For a class of Tiles: slots and products have the sizes for 16 bits."""

    @property
    def slot_dtype(self) -> str:
        """The dtype of K and V in a slot when the MMA warp reads it."""
        return self.problem.qkv_dtype

    @property
    def pages_come_whole(self) -> bool:
        """A row arrives as one chunk: there is nothing to fold."""
        return False

    @property
    def raw_tile(self) -> KMajorTile:
        """Where TMA puts a byte of a key."""
        return KMajorTile(self.BN, RAW_COLUMNS, bits=8)

    @property
    def raw_bytes(self) -> int:
        return self.BN * RAW_COLUMNS

    @property
    def row_in_rest(self) -> bool:
        """Whether all of a row of K arrives where the rest of its 16-bit columns goes: a line has room for it."""
        return self.rest_qk_depth > 0 and self.problem.stored_depth <= RAW_COLUMNS
