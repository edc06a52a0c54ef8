"""RowsTiles: tiles of few query rows over a latent cache whose rows are dequantized (formats.py).

                  as loaded                          as the MMA reads it
    slab i        128 keys x 128 bytes, swizzled     16 bits, times scale i of its key if it has one: K in tensor
                                                     memory, where a key is a lane, and V in shared memory, MN-major,
                                                     a line for each key
    scales        128 keys x 32 bytes, of which 16   -
    slab 3 of     128 keys x 128 bytes of rotary     as the others; rotary columns are the same bytes
    584 bytes     columns, and x 64 bytes
    rotary        128 keys x 128 bytes, swizzled     the same bytes, K-major; of 8 bits, loaded as a slab: 16 bits there
    Q             rows x 1152 bytes                  the same bytes: K-major

The scales are loaded with the next 16 bytes, because four gathered rows must fill 128 bytes of shared memory (PTX ISA,
"cp.async.bulk.tensor": alignment of the destination).
"""

from dataclasses import dataclass

from cute_fa4.layouts.operand_tiles import KMajorTile

from ...blueprint.latent_rows import COLUMNS_OF_SCALE
from ...blueprint.problem import Problem
from ...blueprint.tiles import KEYS_PER_TILE
from ..tiles import LatentTiles
from .formats import RowFormat, format_of

WIDE_BYTES = 2  # of a dequantized value
COLUMNS_OF_COLUMN = 2  # 16-bit values in a 32-bit column of tensor memory


@dataclass(frozen=True)
class RowsTiles(LatentTiles):
    """LatentTiles with ring slots that hold stored slabs."""

    @staticmethod
    def of(problem: Problem, rows: int) -> "RowsTiles":
        return RowsTiles(
            problem,
            num_q=1,
            cta_group=1,
            BN=KEYS_PER_TILE,
            qk_stages=1,
            rows=rows,
        )

    @property
    def row(self) -> RowFormat:
        """The format of the rows of the cache."""
        return format_of(self.problem)

    # ---- the ring

    @property
    def stored_slabs(self) -> int:
        """Slots of the ring per key tile: slabs, and the rotary columns if they are dequantized."""
        return self.slabs + self.row.dequantizes_rope

    @property
    def kv_slot_bytes(self) -> int:
        return self.BN * COLUMNS_OF_SCALE

    @property
    def stored_tile(self) -> KMajorTile:
        """Layout of a slot: where TMA writes a byte of a key."""
        return KMajorTile(self.BN, COLUMNS_OF_SCALE, bits=8)

    @property
    def line_bytes(self) -> int:
        """Bytes of the lines of all keys of a tile (formats.py)."""
        return self.BN * self.row.line_bytes

    @property
    def bytes_of_stages(self) -> tuple[int, ...]:
        """Lines are loaded with a slab."""
        return (self.kv_slot_bytes + self.line_bytes,)

    @property
    def rope_slot_bytes(self) -> int:
        """Rotary columns that are values, too, are in a slab."""
        return 0 if self.row.rope_in_v else self.rope_tile.nbytes

    @property
    def pages_come_whole(self) -> bool:
        """A slab has one chunk, so there is nothing to fold."""
        return False

    @property
    def p_over_rope(self) -> bool:
        """With 32 rows P overwrites the rotary columns, which leaves room for a second slot of the ring."""
        return self.rows == 32 and not self.row.rope_in_v

    # ---- dequantized

    @property
    def wide_slab_bytes(self) -> int:
        return self.BN * self.slab_columns * WIDE_BYTES

    @property
    def k_columns(self) -> int:
        """Columns of tensor memory that a slab of K takes."""
        return self.slab_columns // COLUMNS_OF_COLUMN
