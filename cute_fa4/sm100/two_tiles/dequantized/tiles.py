"""SlotTiles: tiles of two query tiles, whose keys arrive as rows of 8 bits in the slot where they become 16.

    slot of the ring         first 16 KiB            last 16 KiB
    from memory              -                       128 keys x 128 bytes
    as the MMA takes it      columns 0..63           columns 64..127, 128 keys x 128 bytes each

Where K or V has up to 64 columns, its tile is the first 16 KiB, and its rows arrive there. A key's row of 8 bits and
its last 64 columns of 16 have the same line of 128 bytes: a thread that owns the key touches no line of another.
"""

from dataclasses import dataclass

from cute_fa4.layouts.operand_tiles import KMajorTile

from ...blueprint.problem import Problem
from ...blueprint.tiles import Tiles

RAW_COLUMNS = 128  # of a row as it arrives, a byte each: a span of the swizzle; TMA fills what is not there with zeros


@dataclass(frozen=True)
class SlotTiles(Tiles):
    """What Tiles has: sizes of slots and products are those of 16 bits."""

    @staticmethod
    def of(problem: Problem, **choices) -> "SlotTiles":
        """choices: as Tiles.cut takes them."""
        return SlotTiles(**vars(Tiles.cut(problem, **choices)))

    @property
    def slot_dtype(self) -> str:
        """As the MMA warp finds them."""
        return self.problem.qkv_dtype

    @property
    def pages_come_whole(self) -> bool:
        """A row has one chunk as it arrives: there is nothing to fold."""
        return False

    @property
    def raw_tile(self) -> KMajorTile:
        """Where TMA puts a byte of a key."""
        return KMajorTile(self.BN, RAW_COLUMNS, bits=8)

    @property
    def raw_bytes(self) -> int:
        return self.BN * RAW_COLUMNS

    def wide_tile(self, is_v: bool) -> KMajorTile:
        """Where the numbers of 16 bits of a key go; bytes of V lie as those of K."""
        return KMajorTile(self.BN, self.padded_ov_depth if is_v else self.padded_qk_depth)

    def raw_offset(self, is_v: bool) -> int:
        """Of the row of 8 bits: where the last chunk of 64 columns goes."""
        return self.wide_tile(is_v).nbytes - self.raw_bytes
