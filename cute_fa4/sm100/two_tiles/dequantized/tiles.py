"""SlotTiles: tiles of two query tiles, whose keys arrive as narrow rows in the slot where they become 16-bit.

    slot of the ring         first 16 KiB            last 16 KiB
    from memory              -                       128 keys x 128 bytes, of 4 bits the first half of each
    as the MMA takes it      columns 0..63           columns 64..127, 128 keys x 128 bytes each

Where K or V has up to 64 columns, its tile is the first 16 KiB, and its rows arrive there. A key's row and its
last 64 columns of 16 bits share a line of 128 bytes: the thread that owns the key touches no line of another key.

Columns of K beyond 128 are the rest, which has two places outside the ring, for even and for odd key tiles:

    rest of K                16 KiB
    from memory              of 8 bits the columns from 128 on; of 4 bits all columns
    as the MMA takes it      columns 128..191

A rest is free half a key tile before the slot of its K is. There what arrives does not wait for the slot, whose copies
would take longer than the tensor core has work (docs/decisions/0076).
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
        """choices: as Tiles.cut takes them. K is handed over whole: a thread dequantizes all of a row."""
        return SlotTiles(**vars(Tiles.cut(problem, **choices)) | dict(qk_stages=1))

    @property
    def k_rests(self) -> int:
        return 2 if self.rest_qk_depth else 1

    @property
    def order_of_stages(self) -> tuple[int, ...]:
        """The rest first where it is dequantized first: it arrives before the slot is free."""
        return (1, 0) if self.rest_is_early else super().order_of_stages

    @property
    def rest_is_early(self) -> bool:
        """Whether the rest is dequantized, and handed over, before the other columns of K."""
        return self.rest_qk_depth > 0 and not self.row_in_rest

    def wide_tile(self, is_v: bool) -> KMajorTile:
        """Where the 16-bit numbers of a key go in the slot; bytes of V lie like those of K."""
        return KMajorTile(self.BN, self.padded_ov_depth if is_v else self.slot_qk_depth)

    def raw_offset(self, is_v: bool) -> int:
        """Offset of the arriving row: where the last chunk of 64 columns goes."""
        return self.wide_tile(is_v).nbytes - self.raw_bytes
