"""WideTiles: a query tile of 128 rows, key tiles of 128 keys, K and V in units of 64 columns.

    K tile    unit 0 | unit 1 | unit 2 | unit 3        each 128 keys x 64 columns, 16 KiB, with a slot of its own
    V tile    unit 0 | unit 1 | unit 2 | unit 3

S adds up over the units of K; a unit of V makes 64 columns of O. So no tile needs to lie in one piece, and the ring has
as many slots as fit, whatever the depths are.
"""

from dataclasses import dataclass

from ..chip import align_up
from ..problem import Problem
from ..tiles import Tiles

KEYS_PER_TILE = 128
SWIZZLE_BYTES = 128


@dataclass(frozen=True)
class WideTiles(Tiles):
    """What Tiles has, with a slot of the ring for a unit."""

    @staticmethod
    def of(problem: Problem) -> "WideTiles":
        return WideTiles(
            problem,
            num_q=1,
            cta_group=1,
            BN=KEYS_PER_TILE,
            qk_stages=1,
            swizzle_bytes=SWIZZLE_BYTES,
        )

    @property
    def k_units(self) -> int:
        return self.padded_qk_depth // self.swizzle_granule

    @property
    def v_units(self) -> int:
        return self.padded_ov_depth // self.swizzle_granule

    @property
    def slot_qk_depth(self) -> int:
        """All of K lies in slots."""
        return self.padded_qk_depth

    @property
    def BK0(self) -> int:
        """Columns of K in one copy: those of a unit."""
        return self.swizzle_granule

    @property
    def v_cols_per_cta(self) -> int:
        """Columns of V in one copy: those of a unit."""
        return self.swizzle_granule

    @property
    def kv_slot_bytes(self) -> int:
        return self.BN * self.swizzle_bytes

    @property
    def v_bytes(self) -> int:
        return self.kv_slot_bytes

    @property
    def pages_come_whole(self) -> bool:
        """A unit has one chunk of the depth: there is nothing to fold."""
        return False

    @property
    def o_buffers(self) -> int:
        return 1

    def v_columns(self, unit: int) -> int:
        """Columns of O that a unit of V makes: N of its product."""
        left = align_up(self.problem.ov_depth, 16) - unit * self.swizzle_granule
        return min(self.swizzle_granule, left)

    def k_columns(self, unit: int) -> int:
        """Columns that a unit of K contracts."""
        left = align_up(self.problem.qk_depth, self.MMA_K) - unit * self.swizzle_granule
        return min(self.swizzle_granule, left)
