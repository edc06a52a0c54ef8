"""LatentTiles: tiles of few query rows over a latent cache, whose V is the first columns of K.

A key tile is 128 keys x 576 columns. Each part is copied once, and no MMA reads the whole tile:

    columns    0-127    128-255   256-383   384-511   512-575
               slab 0   slab 1    slab 2    slab 3    rope
    S^T        + K Q^T  + K Q^T   + K Q^T   + K Q^T   + K Q^T    keys are the lanes; one sum over all columns
    O^T        O0       O1        O2        O3        -          columns are the lanes; a slab is V^T of one output

A cache of 512 columns has no rotary columns apart (FlashMLA's MODEL1): the same tile without its last part.

Sizes of S, P and Q are those of few_rows/tiles.py.
"""

from dataclasses import dataclass

from cute_fa4.layouts.operand_tiles import KMajorTile, MNMajorTile, OperandTile
from cute_fa4.layouts.page_tiles import PageKMajorTile, PageMNMajorTile

from ..blueprint.chip import align_up
from ..blueprint.latent_rows import ROTARY_COLUMNS
from ..blueprint.problem import Problem
from ..blueprint.tiles import KEYS_PER_TILE, MMA_LANES
from ..few_rows.tiles import SwappedTiles

LATENT_DEPTH, ROPE_DEPTH = 512, ROTARY_COLUMNS  # columns of a cache row: V and K, and K alone


@dataclass(frozen=True)
class LatentTiles(SwappedTiles):
    """rows: query rows of the CTA; the rest is as in SwappedTiles."""

    @staticmethod
    def of(problem: Problem, rows: int) -> "LatentTiles":
        return LatentTiles(
            problem,
            num_q=1,
            cta_group=1,
            BN=KEYS_PER_TILE,
            qk_stages=1,
            rows=rows,
        )

    @property
    def slab_columns(self) -> int:
        """Columns of a slot of the ring: the lanes of one O^T."""
        return MMA_LANES

    @property
    def v_cols_per_cta(self) -> int:
        return self.slab_columns

    @property
    def slabs(self) -> int:
        """Ring slots per key tile; also the number of outputs of the CTA."""
        return LATENT_DEPTH // self.slab_columns

    @property
    def kv_slot_bytes(self) -> int:
        return self.bytes_of(self.BN * self.slab_columns)

    @property
    def rope_tile(self) -> KMajorTile:
        """The rotary columns of a key tile; in 8 bits they fill half of a swizzle span, and the rest is zeros."""
        return KMajorTile(self.BN, align_up(ROPE_DEPTH, self.swizzle_granule), self.bits)

    @property
    def rope_slot_bytes(self) -> int:
        """0 for a cache of 512 columns, all of which are values."""
        return self.rope_tile.nbytes if self.problem.qk_depth > LATENT_DEPTH else 0

    @property
    def rest_qk_depth(self) -> int:
        """Zero, because the rotary columns have their own ring."""
        return 0

    @property
    def bytes_of_stages(self) -> tuple[int, ...]:
        return (self.kv_slot_bytes,)

    @property
    def v_bytes(self) -> int:
        return self.kv_slot_bytes

    @property
    def p_over_rope(self) -> bool:
        """P overwrites the rotary columns of its key tile: with 64 rows there is no room for both."""
        return self.p_tile.nbytes == self.rope_slot_bytes

    @property
    def pages_come_whole(self) -> bool:
        """One copy loads a slab's columns of a page: two of the nine chunks of a row, side by side.

        In 8 bits a slab has one chunk.
        """
        return self.folds_pages and self.slab_columns > self.swizzle_granule

    def slab_tile(self, walks_keys: bool) -> OperandTile:
        """Layout of a slab as K, or as V (walks_keys)."""
        if self.pages_come_whole:
            kind = PageMNMajorTile if walks_keys else PageKMajorTile
        else:
            kind = MNMajorTile if walks_keys else KMajorTile
        return kind(self.BN, self.slab_columns, self.bits)

    @property
    def pv_mma_shape(self) -> tuple[int, int, int]:
        """(M, N, K) of O_i^T += V_i^T P^T: the columns of a slab, query rows, keys."""
        return (self.slab_columns, self.q_box_rows, self.BN)
