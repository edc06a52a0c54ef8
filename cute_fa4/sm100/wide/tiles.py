"""WideTiles: a query tile of 128 rows, key tiles of 128 keys, K and V in units of 64 columns.

    K tile    unit 0 | unit 1 | unit 2 | unit 3        each 128 keys x 64 columns, 16 KiB, in its own slot
    V tile    unit 0 | unit 1 | unit 2 | unit 3

S accumulates over the units of K; a unit of V produces 64 columns of O. So a tile need not be contiguous, and the ring
has as many slots as fit, whatever the depths are.
"""

from dataclasses import dataclass

from ..blueprint.chip import SWIZZLE_BYTES, align_up
from ..blueprint.problem import Problem
from ..blueprint.tiles import KEYS_PER_TILE, Tiles


@dataclass(frozen=True)
class WideTiles(Tiles):
    """Tiles where a ring slot holds a unit."""

    @classmethod
    def of(cls, problem: Problem, cta_group: int = 1) -> "WideTiles":
        return cls(
            problem,
            num_q=1,
            cta_group=cta_group,
            BN=KEYS_PER_TILE,
            qk_stages=1,
        )

    @property
    def unit_columns(self) -> int:
        """Columns of a unit of K or V. With two CTAs, each has half of the rows of K and half of the columns of V."""
        return self.swizzle_granule * self.cta_group

    @property
    def k_units(self) -> int:
        return -(-self.problem.qk_depth // self.unit_columns)

    @property
    def v_units(self) -> int:
        return -(-self.problem.ov_depth // self.unit_columns)

    @property
    def slot_qk_depth(self) -> int:
        """All of K lies in slots."""
        return self.padded_qk_depth

    @property
    def BK0(self) -> int:
        """Columns of K in one copy: those of a unit."""
        return self.unit_columns

    @property
    def k_copy_columns(self) -> int:
        """The same; if the last columns of K are in a separate tensor, a swizzle span, because a unit may have both."""
        return self.swizzle_granule if self.problem.rope_depth else self.unit_columns

    @property
    def v_cols_per_cta(self) -> int:
        """Columns of V in one copy: a CTA's share of a unit."""
        return self.swizzle_granule

    @property
    def kv_slot_bytes(self) -> int:
        return self.BN * SWIZZLE_BYTES

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
        """Columns of O that a unit of V produces: N of its product."""
        left = align_up(self.problem.ov_depth, 16 * self.cta_group) - unit * self.unit_columns
        return min(self.unit_columns, left)

    def k_columns(self, unit: int) -> int:
        """Columns that a unit of K contracts."""
        left = align_up(self.problem.qk_depth, self.MMA_K) - unit * self.unit_columns
        return min(self.unit_columns, left)
