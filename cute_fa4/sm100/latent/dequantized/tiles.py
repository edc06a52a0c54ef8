"""RowsTiles: tiles of few query rows over a latent cache with rows of 656 bytes.

    a row of the cache    512 e4m3 values  | 4 float32 scales | 64 rotary values, bf16
    bytes                 0-511            | 512-527          | 528-655

                  as loaded                          as the MMA reads it
    slab i        128 keys x 128 bytes, swizzled     bf16, times scale i of its key: K in tensor memory, where a key is
                                                     a lane, and V in shared memory, MN-major, a line for each key
    scales        128 keys x 32 bytes, of which 16   -
    rotary        128 keys x 128 bytes, swizzled     the same bytes: K-major
    Q             rows x 1152 bytes                  the same bytes: K-major

The scales are loaded with the next 16 bytes, because four gathered rows must fill 128 bytes of shared memory (PTX ISA,
"cp.async.bulk.tensor": alignment of the destination).
"""

from dataclasses import dataclass

from cute_fa4.layouts.operand_tiles import KMajorTile

from ...blueprint.problem import COLUMNS_OF_SCALE, Problem
from ...blueprint.tiles import KEYS_PER_TILE
from ..tiles import LATENT_DEPTH, ROPE_DEPTH, LatentTiles

SCALES = LATENT_DEPTH // COLUMNS_OF_SCALE
SCALES_AT = LATENT_DEPTH  # byte of a row
ROPE_AT = SCALES_AT + 4 * SCALES
ROW_BYTES = ROPE_AT + 2 * ROPE_DEPTH  # 656
SCALE_LINE_BYTES = 32  # of shared memory for the scales of a key
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

    # ---- the ring

    @property
    def kv_slot_bytes(self) -> int:
        return self.BN * COLUMNS_OF_SCALE

    @property
    def stored_tile(self) -> KMajorTile:
        """Layout of a slot: where TMA writes a byte of a key."""
        return KMajorTile(self.BN, COLUMNS_OF_SCALE, bits=8)

    @property
    def scale_bytes(self) -> int:
        """Bytes of the scales of all keys of a tile."""
        return self.BN * SCALE_LINE_BYTES

    @property
    def bytes_of_stages(self) -> tuple[int, ...]:
        """The scales are loaded with the first slab."""
        return (self.kv_slot_bytes + self.scale_bytes,)

    @property
    def pages_come_whole(self) -> bool:
        """A slab has one chunk, so there is nothing to fold."""
        return False

    @property
    def p_over_rope(self) -> bool:
        """With 32 rows P overwrites the rotary columns, which leaves room for a second slot of the ring."""
        return self.rows == 32

    # ---- dequantized

    @property
    def wide_slab_bytes(self) -> int:
        return self.BN * self.slab_columns * WIDE_BYTES

    @property
    def k_columns(self) -> int:
        """Columns of tensor memory that a slab of K takes."""
        return self.slab_columns // COLUMNS_OF_COLUMN
