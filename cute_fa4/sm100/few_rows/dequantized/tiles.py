"""DequantizedTiles: tiles of few query rows of 16 bits, whose keys arrive as 8-bit rows and are multiplied as fp16.

                  in the ring, from memory          as the MMA takes it
    K             128 keys x 128 bytes              fp16 in tensor memory: a key is a lane, two columns of K a column
    V             128 keys x 128 bytes              fp16 in shared memory, MN-major: a line for each key
    Q             rows x 2 * depth bytes            fp16 in the same place, K-major

A row of the ring is one swizzle span at any depth: TMA fills columns beyond the depth with zeros. A byte is a column,
or two of four bits.
"""

from dataclasses import dataclass

from cute_fa4.dtypes import E4M3
from cute_fa4.layouts.operand_tiles import KMajorTile, MNMajorTile

from ...blueprint.chip import SWIZZLE_BYTES
from ...blueprint.problem import Problem
from ...blueprint.tiles import KEYS_PER_TILE
from ..tiles import SwappedTiles

WIDE_DTYPE = E4M3.dequantized_to
COLUMNS_OF_COLUMN = 2  # fp16 in 32 bits of tensor memory
RING_DEPTH = SWIZZLE_BYTES  # columns of a row of the ring, a byte each


@dataclass(frozen=True)
class DequantizedTiles(SwappedTiles):
    """The fields of SwappedTiles; sizes of K and V in the ring are those of 8-bit data."""

    @staticmethod
    def of(problem: Problem, rows: int) -> "DequantizedTiles":
        return DequantizedTiles(
            problem,
            num_q=1,
            cta_group=1,
            BN=KEYS_PER_TILE,
            qk_stages=1,
            rows=rows,
        )

    # ---- the ring

    @property
    def slot_qk_depth(self) -> int:
        return RING_DEPTH

    @property
    def rest_qk_depth(self) -> int:
        return 0

    @property
    def v_cols_per_cta(self) -> int:
        return RING_DEPTH

    @property
    def kv_slot_bytes(self) -> int:
        return self.BN * RING_DEPTH

    @property
    def k_stage_bytes(self) -> int:
        return self.kv_slot_bytes

    @property
    def v_bytes(self) -> int:
        return self.kv_slot_bytes

    @property
    def pages_come_whole(self) -> bool:
        """False: a row has one chunk, so there is nothing to fold."""
        return False

    @property
    def ring_tile(self) -> KMajorTile:
        """A slot: where TMA put a byte of a key."""
        return KMajorTile(self.BN, RING_DEPTH, bits=8)

    # ---- as they are multiplied

    @property
    def k_columns(self) -> int:
        """Columns of tensor memory of a K tile."""
        return self.padded_qk_depth // COLUMNS_OF_COLUMN

    @property
    def v_tile(self) -> MNMajorTile:
        return MNMajorTile(self.BN, self.padded_ov_depth)

    @property
    def q_tile(self) -> KMajorTile:
        return KMajorTile(self.q_box_rows, self.padded_qk_depth)

    @property
    def rows_have_scales(self) -> bool:
        """A row of bf16 is multiplied by a power of two to fit fp16, and its scores are divided by it."""
        return self.problem.qkv_dtype != WIDE_DTYPE
