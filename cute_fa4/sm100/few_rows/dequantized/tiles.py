"""DequantizedTiles: tiles of few query rows of 16 bits, whose keys arrive as 8-bit rows and are multiplied as fp16.

                  in the ring, from memory          as the MMA takes it
    K             128 keys x 32 to 128 bytes        fp16 in tensor memory: a key is a lane, two columns of K a column
    V             128 keys x 32 to 128 bytes        fp16 in tensor memory: a column is a lane, two keys a column
    Q             rows x 2 * depth bytes            fp16 in the same place, K-major

A row of the ring is one swizzle span at any depth, the least that holds a key: 64 bytes of four bits at depth 128,
where a byte is two columns. TMA fills columns beyond the depth with zeros.
"""

from dataclasses import dataclass

from cute_fa4.dtypes import E4M3, row_of
from cute_fa4.layouts.operand_tiles import KMajorTile
from cute_fa4.layouts.swizzle import Swizzle

from ...blueprint.cache_blocks import SCALES_OF_WORD, words_of
from ...blueprint.chip import WARP_SIZE
from ...blueprint.problem import Problem
from ...blueprint.tiles import KEYS_PER_TILE, MMA_LANES
from ..tiles import SwappedTiles

WIDE_DTYPE = E4M3.dequantized_to
COLUMNS_OF_COLUMN = 2  # fp16 in 32 bits of tensor memory
COLUMNS_OF_WARP = 32  # of V: lanes of tensor memory that a warp accesses


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
    def tiles_of_look_up(self) -> int:
        """As many as a warp has lanes for: memory answers once for several key tiles, which take less time than it."""
        if self.problem.kv_layout != "paged" or self.gathers_rows:
            return 1
        return WARP_SIZE // (self.BN // self.v_box_rows)

    @property
    def kv_span_bytes(self) -> int:
        """Bytes of a row of the ring: those of the padded columns of K or V, which are 64 or 128."""
        return max(self.padded_qk_depth, self.padded_ov_depth) // self.problem.in_element

    @property
    def slot_qk_depth(self) -> int:
        return self.kv_span_bytes

    @property
    def rest_qk_depth(self) -> int:
        return 0

    @property
    def v_cols_per_cta(self) -> int:
        return self.kv_span_bytes

    @property
    def kv_slot_bytes(self) -> int:
        return self.BN * self.kv_span_bytes

    @property
    def k_stage_bytes(self) -> int:
        return self.kv_slot_bytes

    @property
    def v_bytes(self) -> int:
        return self.kv_slot_bytes

    @property
    def pages_come_whole(self) -> bool:
        """A row is one chunk; what counts is that copies of pages have three coordinates, clipped copies five."""
        stored = self.problem.stored_depth, self.problem.stored_ov_depth
        return self.folds_pages and all(depth == self.kv_span_bytes for depth in stored)

    @property
    def ring_tile(self) -> KMajorTile:
        """A slot: where TMA put a byte of a key."""
        return KMajorTile(self.BN, self.kv_span_bytes, 8, Swizzle(self.kv_span_bytes))

    @property
    def scale_bytes(self) -> tuple[int, int]:
        """Bytes of the scales of blocks of a K tile, and of a V tile, of blocks of the padded depth; or 0, 0."""
        of_k, of_v = words_of(self.problem)
        blocks = self.padded_ov_depth // row_of(self.problem.kv_dtype).block if of_v else 0
        return SCALES_OF_WORD * self.BN * of_k, self.BN * blocks

    # ---- as they are multiplied

    @property
    def k_columns(self) -> int:
        """Columns of tensor memory of a K tile."""
        return self.padded_qk_depth // COLUMNS_OF_COLUMN

    @property
    def v_columns(self) -> int:
        """Columns of tensor memory of a V tile, whose lanes are the depth."""
        return self.BN // COLUMNS_OF_COLUMN

    @property
    def pv_mma_shape(self) -> tuple[int, int, int]:
        """(M, N, K) of O^T += V^T P^T: always 128 lanes; those beyond the depth are zeros (transposed.py)."""
        return (MMA_LANES, self.q_box_rows, self.BN)

    @property
    def warps_of_depth(self) -> int:
        """How many of four warps, with 32 lanes each, have columns of V."""
        return self.padded_ov_depth // COLUMNS_OF_WARP

    @property
    def lanes_beyond_depth(self) -> bool:
        """Whether there are lanes of O^T beyond the padded depth."""
        return self.padded_ov_depth < MMA_LANES

    def depth_of_lane(self, lane):
        """The column of V that a lane of O^T is."""
        if self.problem.in_element == 1:
            return lane
        return (
            lane // COLUMNS_OF_WARP * COLUMNS_OF_WARP + lane % 8 * 4 + lane % COLUMNS_OF_WARP // 8
        )

    @property
    def q_tile(self) -> KMajorTile:
        return KMajorTile(self.q_box_rows, self.padded_qk_depth)

    @property
    def rows_have_scales(self) -> bool:
        """A row of bf16 is multiplied by a power of two to fit fp16, and its scores are divided by it."""
        return self.problem.qkv_dtype != WIDE_DTYPE
