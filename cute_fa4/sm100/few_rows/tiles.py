"""SwappedTiles: tiles of few query rows, where keys and depth take the place of the 128 rows of an MMA.

                     M (lanes)        N (columns)   K             A                    B
    S^T = K Q^T      128 keys         query rows    depth         K, K-major           Q, K-major
    O^T = V^T P^T    64 or 128 depth  query rows    128 keys      V, MN-major          P, MN-major

An MMA of 128 lanes takes N in steps of 16 (PTX ISA, "Tensor Core 5th Generation: matrix shape"), so eight rows are
loaded and multiplied as sixteen, while the softmax handles only eight. A line of P is at least a swizzle span of 32
bytes: for 8-bit P that is N = 32.
"""

from dataclasses import dataclass

from cute_fa4.layouts.operand_tiles import MNMajorTile
from cute_fa4.layouts.swizzle import Swizzle
from cute_fa4.scales import ROW

from ..blueprint.chip import SWIZZLE_BYTES, WARP_SIZE
from ..blueprint.problem import Problem
from ..blueprint.tiles import KEYS_PER_TILE, Tiles, slot_columns

LEAST_LINE_BYTES = 32  # of P: 16 columns of 16 bits, the least N of an MMA with 128 lanes
ROWS = (8, 16, 32, 64)  # query rows of a tile


def padded_heads(heads: int) -> int:
    """Rows of one query position with this many heads.

    >>> padded_heads(1), padded_heads(5), padded_heads(7), padded_heads(8)
    (1, 8, 8, 8)
    """
    return 1 << (heads - 1).bit_length()


@dataclass(frozen=True)
class SwappedTiles(Tiles):
    """The fields of Tiles, and rows: query rows of the CTA."""

    rows: int = 16

    @staticmethod
    def of(problem: Problem, rows: int) -> "SwappedTiles":
        has_rest = problem.qk_depth > slot_columns(
            problem, problem.operand.elements_in(SWIZZLE_BYTES)
        )
        return SwappedTiles(
            problem,
            num_q=1,
            cta_group=1,
            BN=KEYS_PER_TILE,
            qk_stages=1 + has_rest,
            rows=rows,
        )

    @property
    def rows_per_q_tile(self) -> int:
        return self.rows

    @property
    def rows_per_position(self) -> int:
        """The next power of two, so that whole positions fit a tile for every group size."""
        return padded_heads(self.problem.heads_per_tile)

    @property
    def q_box_rows(self) -> int:
        """Rows of Q in shared memory: N of both products."""
        return max(self.rows, self.problem.operand.elements_in(LEAST_LINE_BYTES))

    @property
    def rows_per_lane(self) -> int:
        """Rows whose running maxima a lane keeps: row r is kept by lane r % 32."""
        return -(-self.rows // WARP_SIZE)

    @property
    def row_values(self) -> int:
        """float32 values that softmax warps keep per row in shared memory: columns.py."""
        return 2 + self.rows_have_scales + ("v" in self.problem.token_scales)

    @property
    def rows_have_scales(self) -> bool:
        """Whether the scores of each row have their own scale."""
        return self.problem.descales.q == ROW

    @property
    def q_tile_bytes(self) -> int:
        return self.bytes_of(self.q_box_rows * self.padded_qk_depth)

    @property
    def qk_mma_shape(self) -> tuple[int, int, int]:
        """(M, N, K) of S^T = K Q^T: keys, query rows, depth."""
        _, _, depth = super().qk_mma_shape
        return (self.BN, self.q_box_rows, depth)

    @property
    def pv_mma_shape(self) -> tuple[int, int, int]:
        """(M, N, K) of O^T += V^T P^T: depth with its padding, query rows, keys."""
        return (self.padded_ov_depth, self.q_box_rows, self.BN)

    def depth_of_lane(self, lane):
        """The column of V that a lane of O^T is, of 128 lanes."""
        return lane

    @property
    def s_columns(self) -> int:
        return self.q_box_rows

    @property
    def o_columns(self) -> int:
        return self.q_box_rows

    @property
    def p_tile(self) -> MNMajorTile:
        """P in shared memory: a key's line holds its probabilities in all rows; the span is as wide as the line."""
        span = Swizzle(self.bytes_of(self.q_box_rows))
        return MNMajorTile(self.BN, self.q_box_rows, self.bits, span)
