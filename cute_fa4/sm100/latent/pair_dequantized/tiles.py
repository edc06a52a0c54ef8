"""RowsPairTiles: a tile of 128 query rows over a latent cache of 8 bits, shared by two CTAs that each dequantize.

Products, rows and units are those of latent/pair/tiles.py. Memory traffic is about half:

    a unit                64 keys x 128 columns, with one scale per key
    stored                64 x 128 bytes, swizzled, and 64 x 32 bytes, of which 16 are the four scales of a key
    dequantized           64 x 128 bf16 values, swizzled, times the scale of their key
    rotary columns        64 x 128 bytes, bf16, not converted

Rows of 576 bytes (dequantized/formats.py) have no scales, and their rotary columns are stored and dequantized as half
of a unit. Over rows of 584 bytes the rotary columns are the last half of the fourth column block, stored as a unit,
with 64 bytes of the values before them; the scales are not in shared memory.
"""

from dataclasses import dataclass

from cute_fa4.layouts.operand_tiles import KMajorTile

from ..dequantized.formats import RowFormat, format_of
from ..pair.tiles import CTAS, UNIT_COLUMNS, UNIT_KEYS, LatentPairTiles


@dataclass(frozen=True)
class RowsPairTiles(LatentPairTiles):
    """LatentPairTiles, whose slots hold dequantized units, and the layout of stored units."""

    @property
    def row(self) -> RowFormat:
        """The format of the rows of the cache."""
        return format_of(self.problem)

    @property
    def stored_tile(self) -> KMajorTile:
        """Layout of a stored unit: where TMA writes a byte."""
        return KMajorTile(UNIT_KEYS, UNIT_COLUMNS, bits=8)

    @property
    def lines_at(self) -> int:
        """Offset of the first line (dequantized/formats.py) in a slot of the ring of stored units."""
        return self.stored_tile.nbytes

    @property
    def stored_bytes(self) -> int:
        """Bytes of such a slot."""
        return self.lines_at + UNIT_KEYS * self.row.line_bytes

    def lines_with_k(self, block: int) -> bool:
        """Whether lines come with a column block of K: scales with that of each dequantize warpgroup."""
        lines = self.row.lines
        if lines is None:
            return False
        return block == lines.slab if self.row.rope_in_v else block // CTAS == lines.slab // CTAS

    def lines_with_v(self, output: int) -> bool:
        """Whether lines come with the column block of V that a CTA has of an output."""
        return self.row.lines is not None and output == self.row.lines.slab // CTAS

    @property
    def rope_slot_bytes(self) -> int:
        """Rotary columns that are values, too, are in a unit."""
        return 0 if self.row.rope_in_v else self.rope_tile.nbytes

    @property
    def stored_rope_bytes(self) -> int:
        """Bytes of the rotary columns of 64 keys as they are stored, where they are dequantized."""
        return self.stored_tile.nbytes if self.row.dequantizes_rope else 0
