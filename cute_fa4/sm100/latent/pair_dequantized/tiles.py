"""RowsPairTiles: a tile of 128 query rows over rows of 656 bytes, which two CTAs share; each widens what it multiplies.

Products, rows and units are those of latent/pair/tiles.py. What comes from memory is half of it:

    a unit                64 keys x 128 columns: of one scale a key
    as it is stored       64 x 128 bytes, swizzled, and 64 x 32 bytes, of which 16 are the four scales of a key
    as it is multiplied   64 x 128 numbers bf16, swizzled, times the scale of their key
    rotary columns        64 x 128 bytes, bf16 as they are
"""

from dataclasses import dataclass

from cute_fa4.layouts.operand_tiles import KMajorTile

from ..dequantized.tiles import SCALE_LINE_BYTES
from ..pair.tiles import UNIT_COLUMNS, UNIT_KEYS, LatentPairTiles


@dataclass(frozen=True)
class RowsPairTiles(LatentPairTiles):
    """What LatentPairTiles has, whose slots are units as they are multiplied; and units as they are stored."""

    @property
    def stored_tile(self) -> KMajorTile:
        """Where TMA put a byte of a unit."""
        return KMajorTile(UNIT_KEYS, UNIT_COLUMNS, bits=8)

    @property
    def scales_at(self) -> int:
        """Of a slot of the ring of stored units: byte of its first scale."""
        return self.stored_tile.nbytes

    @property
    def stored_bytes(self) -> int:
        """Of such a slot."""
        return self.scales_at + UNIT_KEYS * SCALE_LINE_BYTES
