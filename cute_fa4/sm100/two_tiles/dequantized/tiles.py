"""SlotTiles: tiles of two query tiles, whose keys arrive as narrow rows in the slot where they become 16-bit.

    slot of the ring         first 16 KiB            last 16 KiB
    from memory              -                       128 keys x 128 bytes, of 4 bits the first half of each
    as the MMA takes it      columns 0..63           columns 64..127, 128 keys x 128 bytes each

Where K or V has up to 64 columns, its tile is the first 16 KiB, and its rows arrive there. A key's row and its
last 64 columns of 16 bits share a line of 128 bytes: the thread that owns the key touches no line of another key.
"""

from dataclasses import dataclass

from cute_fa4.layouts.operand_tiles import KMajorTile

from ...blueprint.problem import Problem
from ...blueprint.raw_rows import RawRows
from ...blueprint.tiles import Tiles


@dataclass(frozen=True)
class SlotTiles(RawRows, Tiles):
    """Tiles whose slots and products have the sizes for 16 bits."""

    @staticmethod
    def of(problem: Problem, **choices) -> "SlotTiles":
        """choices: as Tiles.cut takes them."""
        return SlotTiles(**vars(Tiles.cut(problem, **choices)))

    def wide_tile(self, is_v: bool) -> KMajorTile:
        """Where the 16-bit numbers of a key go; bytes of V lie like those of K."""
        return KMajorTile(self.BN, self.padded_ov_depth if is_v else self.padded_qk_depth)

    def raw_offset(self, is_v: bool) -> int:
        """Offset of the arriving row: where the last chunk of 64 columns goes."""
        return self.wide_tile(is_v).nbytes - self.raw_bytes
