"""LatentPairTiles: a tile of 128 query rows over a latent cache, shared by two CTAs; rows map to lanes here.

A pair's MMA with M = 128 has 64 rows in each CTA. Half of its columns are in lanes 0 to 63, the other half in lanes
64 to 127 (PTX ISA, "Tensor Core 5th Generation: data path layout B"), and each half comes from the B of one CTA:

                 N      from CTA 0             from CTA 1              lanes 0-63 | 64-127    columns
    S = Q K^T    128    keys 0-63 of a tile    keys 64-127             these | those          64
    O0 += P V    256    columns 0-127 of V     columns 128-255         these | those          128
    O1 += P V    256    columns 256-383        columns 384-511         these | those          128

A CTA therefore loads 64 keys with all 576 columns (K), and 128 keys with 256 columns (V). All loads are in units of
64 keys and 128 columns, one per slot of the ring; the rotary columns of K have their own ring:

    K of CTA r        columns 0-127 | 128-255 | 256-383 | 384-511 of keys 64 r to 64 r + 63
    V of CTA r, O_h   keys 0-63 | 64-127 of columns 256 h + 128 r to 256 h + 128 r + 127
"""

from dataclasses import dataclass
from math import gcd

from cute_fa4.layouts.operand_tiles import KMajorTile, MNMajorTile

from ...blueprint.chip import align_up
from ...blueprint.problem import Problem
from ...blueprint.tiles import KEYS_PER_TILE, ROWS_PER_Q_TILE, Tiles
from ...few_rows.tiles import padded_heads
from ..tiles import LATENT_DEPTH, ROPE_DEPTH

CTAS = 2
UNIT_KEYS, UNIT_COLUMNS = 64, 128


@dataclass(frozen=True)
class LatentPairTiles(Tiles):
    """Tiles of the pair as if it were one CTA, and the part of each of the two CTAs."""

    @classmethod
    def of(cls, problem: Problem) -> "LatentPairTiles":
        return cls(
            problem,
            num_q=1,
            cta_group=1,
            BN=KEYS_PER_TILE,
            qk_stages=1,
        )

    # ---- of the pair

    @property
    def rows_per_position(self) -> int:
        """Heads rounded up to a power of two, so that a tile holds whole positions for any group size."""
        return padded_heads(self.problem.heads_per_tile)

    @property
    def qk_mma_shape(self) -> tuple[int, int, int]:
        """(M, N, K) of S = Q K^T."""
        return (ROWS_PER_Q_TILE, self.BN, self.problem.qk_depth)

    @property
    def pv_mma_shape(self) -> tuple[int, int, int]:
        """(M, N, K) of O_h += P V."""
        return (ROWS_PER_Q_TILE, CTAS * UNIT_COLUMNS, self.BN)

    @property
    def outputs(self) -> int:
        """Products of P and V for a key tile."""
        return LATENT_DEPTH // self.pv_mma_shape[1]

    @property
    def pages_come_whole(self) -> bool:
        """False: a unit has only two of the nine chunks of a row, so there is little to fold."""
        return False

    # ---- of a CTA

    @property
    def q_box_rows(self) -> int:
        """Rows of Q of a CTA."""
        return ROWS_PER_Q_TILE // CTAS

    @property
    def q_tile_bytes(self) -> int:
        return self.bytes_of(self.q_box_rows * self.padded_qk_depth)

    @property
    def heads_of_box(self) -> int:
        """Rows of one position among the rows of a CTA."""
        return min(self.q_box_rows, self.rows_per_position)

    @property
    def k_box_rows(self) -> int:
        """Rows per copy of K or V: those of a unit, or their greatest common divisor with a page."""
        page = self.problem.page_size
        return gcd(UNIT_KEYS, page) if page else UNIT_KEYS

    @property
    def v_box_rows(self) -> int:
        return self.k_box_rows

    @property
    def k_units(self) -> int:
        """Units of K of a key tile, without the rotary columns."""
        return LATENT_DEPTH // UNIT_COLUMNS

    @property
    def key_parts(self) -> int:
        """Units of V that one product contracts, one after another."""
        return self.BN // UNIT_KEYS

    @property
    def units(self) -> int:
        """Slots of the ring that a key tile takes."""
        return self.k_units + self.outputs * self.key_parts

    @property
    def kv_slot_bytes(self) -> int:
        return self.bytes_of(UNIT_KEYS * UNIT_COLUMNS)

    @property
    def rope_slot_bytes(self) -> int:
        """0 for a cache of 512 columns, all of which are values."""
        return self.rope_tile.nbytes if self.problem.qk_depth > LATENT_DEPTH else 0

    @property
    def bytes_of_stages(self) -> tuple[int, ...]:
        return (self.kv_slot_bytes,)

    @property
    def v_bytes(self) -> int:
        return self.kv_slot_bytes

    @property
    def q_tile(self) -> KMajorTile:
        return KMajorTile(self.q_box_rows, self.padded_qk_depth, self.bits)

    @property
    def p_tile(self) -> KMajorTile:
        """P of a CTA's rows in shared memory: 64 keys for each half of the lanes."""
        return KMajorTile(self.q_box_rows, self.BN, self.bits)

    @property
    def k_tile(self) -> KMajorTile:
        return KMajorTile(UNIT_KEYS, UNIT_COLUMNS, self.bits)

    @property
    def rope_tile(self) -> KMajorTile:
        """Layout of the rotary columns; in 8 bits they fill half of a swizzle span, and the rest is zeros."""
        return KMajorTile(UNIT_KEYS, align_up(ROPE_DEPTH, self.swizzle_granule), self.bits)

    @property
    def v_tile(self) -> MNMajorTile:
        return MNMajorTile(UNIT_KEYS, UNIT_COLUMNS, self.bits)

    # ---- tensor memory

    @property
    def s_columns(self) -> int:
        """Columns of one S: the keys in either half of the lanes."""
        return self.BN // CTAS

    @property
    def keys_of_thread(self) -> int:
        """Scores per softmax thread and key tile; there are as many softmax warpgroups as outputs."""
        return self.s_columns // self.outputs

    @property
    def threads_of_row(self) -> int:
        """Softmax threads that share a row."""
        return self.BN // self.keys_of_thread

    @property
    def o_columns(self) -> int:
        """Columns of one output in tensor memory."""
        return self.pv_mma_shape[1] // CTAS
