"""JointOwner: one kernel for all gradients, by five products: pairs of CTAs own 256 keys, and add dQ in a fixed order.

    S^T = K Q^T    dP^T = V dO^T    dV += P^T dO    dK += dS^T Q    dQ = dS K, added to float32 in global memory

Both CTAs share every MMA (cta_group::2). A tile has 128 queries; CTA r copies its rows 64 r.. for S and dP, and its
columns 64 r.. for dV and dK. Columns of tensor memory:

    0 ... 127       S^T; over it P^T (0 to 31, 96 to 127), and in the middle dQ of 64 queries (32 to 95)
    128 ... 255     dP^T; over it dS^T (128 to 159, 192 to 223)
    256 ... 511     dV, dK

A warpgroup writes P^T and dS^T over scores that it has read itself. Lanes 0 to 63 of dQ have the first half of the
depth of 64 queries, the other lanes the second half.

dS is operand A of dK in tensor memory. For dQ it is in shared memory, 64 queries x 256 keys in each CTA. A warpgroup
has 64 queries of 128 keys, so one in each CTA sends its part to the other CTA (joint_compute.py).

Steps of an MMA read the same addresses in both CTAs, so columns of K, Q and dO never share memory with their rows. Rows
and columns of Q and dO are parts of the ring, as in other pairs (Owner.parts), each with one place and one barrier.
"""

from dataclasses import dataclass

from ...layouts.operand_tiles import MNMajorTile
from ..blueprint.barriers import (
    CTA,
    Arrivals,
    Barrier,
    BarrierTable,
    announced_bytes,
    commit_by,
)
from ..blueprint.chip import (
    MBARRIER_BYTES,
    SMEM_CAPACITY_BYTES,
    SWIZZLE_BYTES,
    TMEM_ADDRESS_BYTES,
    TMEM_COLUMNS,
    WARP_SIZE,
    align_up,
)
from ..blueprint.memory_maps import Region, SmemMap
from ..pair.barriers import CTAS
from .barriers import RING, WARPGROUP, Warps
from .owner import GRANULE, ROWS, Owner, Part

DEPTH = 2 * GRANULE  # padded head dim of q, k and v
KEYS = ROWS * CTAS  # of a pair
OWN = "own_tile"
DQ_WARP = "dq_warp"
K_COLUMNS = 2  # number of an own tile, after the rows of K and V
COUNTERS = 8  # of a tile of queries: warps of both CTAs that add dQ
PIECE = 32  # columns of dQ in a box of the sum
PIECES = DEPTH // 2 // PIECE  # of a warp
BOX_BYTES = WARP_SIZE * SWIZZLE_BYTES


@dataclass(frozen=True)
class JointWarps(Warps):
    """Two warpgroups of compute warps, one that adds dQ, then the MMA warp, the load warp, and two that do nothing.

    Registers are of a thread; setmaxnreg takes them for whole warpgroups.
    """

    groups: int = 2
    compute_registers: int = 184
    dq_registers: int = 104
    other_registers: int = 40

    @property
    def dq(self) -> range:
        return range(self.compute.stop, self.compute.stop + WARPGROUP)

    @property
    def mma(self) -> int:
        return self.dq.stop

    @property
    def threads(self) -> int:
        return WARP_SIZE * (self.dq.stop + WARPGROUP)


@dataclass(frozen=True)
class JointSmem(SmemMap):
    """own: rows of K and V, columns of K; ring: one place for each part; results overwrite both at the end.

    ds: 64 queries x 256 keys; staging: dQ of each warp in float32; stats: L and delta of a tile of queries
    """

    own: Region
    ring: Region
    ds: Region
    staging: Region
    stats: Region
    ones: Region
    distances: Region
    mbarriers: Region
    ticket: Region
    tmem_address: Region


def table(warps: JointWarps) -> BarrierTable:
    """CTA 0 waits for warps of both CTAs ("at 0")."""
    compute = Arrivals("compute", CTAS * len(warps.compute), "at 0")
    dq = Arrivals("dq", CTAS * len(warps.dq), "at 0")
    load, mma, once = Arrivals("load", 1, "+ bytes of both"), commit_by("mma"), "once"
    sent = Arrivals("compute", ROWS), Arrivals("mma", 1, "+ bytes of the other CTA")
    rows = (
        Barrier("own_full", OWN, (load,), "mma", "an own tile is ready", once),
        Barrier("other_full", RING, (load,), "mma", "a part is ready", "other_empty"),
        Barrier("other_empty", RING, (mma,), "load", "a part's MMAs are done", "other_full"),
        Barrier("s_ready", CTA, (mma,), "compute", "S is ready", "s_read"),
        Barrier("s_read", CTA, (compute,), "mma", "S has been read", "s_ready"),
        Barrier("p_ready", CTA, (compute,), "mma", "P is written", "s_ready"),
        Barrier("dp_ready", CTA, (mma,), "compute", "dP is ready", "ds_ready"),
        Barrier("ds_ready", CTA, (compute,), "mma", "dS is in tensor memory", "dp_ready"),
        Barrier("ds_sent", CTA, sent, "mma", "dS is in shared memory", "dq_ready"),
        Barrier("ds_there", CTA, (Arrivals("mma", 1, "of 1, at 0"),), "mma", "so it is in CTA 1", "dq_ready"),
        Barrier("dq_ready", CTA, (mma,), "dq, compute", "dQ is ready, dS has been read", "dq_read"),
        Barrier("dq_read", CTA, (dq,), "mma", "dQ has been read", "dq_ready"),
        Barrier("sum_there", DQ_WARP, (announced_bytes("dq"),), "dq", "the sum so far is there", "dq_ready"),
        Barrier("done", CTA, (mma,), "compute", "the sums are complete", once),
    )  # fmt: skip
    return BarrierTable(rows, {OWN: 3, RING: 4, CTA: 1, DQ_WARP: len(warps.dq)})


@dataclass(frozen=True)
class JointOwner(Owner):
    """The kernel of all gradients: it owns keys, and both head dims are DEPTH."""

    name: str = "keys"
    dtype: str = ""
    depths: tuple[int, int] = (DEPTH, DEPTH)
    pairs: bool = True

    @property
    def ctas(self) -> int:
        return CTAS

    @property
    def takes_turns(self) -> bool:
        return True

    @property
    def other_rows(self) -> int:
        return ROWS

    @property
    def warps(self) -> JointWarps:
        return JointWarps()

    @property
    def moved(self) -> tuple[int, ...]:
        return ()

    @property
    def apart(self) -> None:
        return None

    @property
    def p_place(self) -> tuple[int, int]:
        return 0, ROWS - self.p_columns

    @property
    def dq_column(self) -> int:
        """After P of the first warpgroup."""
        return self.p_columns

    @property
    def ds_place(self) -> tuple[int, int]:
        return self.dp_column, self.columns

    def result_column(self, result: int) -> int:
        """dV before dK."""
        return (TMEM_COLUMNS - DEPTH, TMEM_COLUMNS - 2 * DEPTH)[result]

    @property
    def tmem_columns(self) -> int:
        return TMEM_COLUMNS

    @property
    def columns_of_keys(self) -> MNMajorTile:
        """Half of the columns of all keys of the pair: operand B of dQ."""
        return MNMajorTile(KEYS, DEPTH // CTAS)

    @property
    def ds_tile(self) -> MNMajorTile:
        """Half of the queries of a tile: operand A of dQ, stored key by key."""
        return MNMajorTile(KEYS, ROWS // CTAS)

    def own_offset(self, i: int) -> int:
        return self.smem.own.offset + i * self.own_tiles[0].nbytes

    @property
    def parts(self) -> tuple[Part, ...]:
        """In the order in which MMAs free them: dV, S, dK, dP."""
        q, q_of_sum, do, do_of_sum = super().parts
        return do_of_sum, q, q_of_sum, do

    @property
    def slots(self) -> tuple[int, ...]:
        return (1,) * len(self.parts)

    @property
    def barriers(self) -> BarrierTable:
        return table(self.warps)

    @property
    def smem(self) -> JointSmem:
        rows = sum(tile.nbytes for tile in self.own_tiles)
        return JointSmem.of_sizes(
            own=rows + self.columns_of_keys.nbytes,
            ring=self.ring_offset(len(self.parts)),
            ds=self.ds_tile.nbytes,
            staging=len(self.warps.dq) * PIECES * BOX_BYTES,
            stats=self.stats_offset(len(self.parts)),
            ones=self.ones_bytes,
            distances=0,
            mbarriers=align_up(self.barriers.total * MBARRIER_BYTES, 16),
            ticket=16,
            tmem_address=TMEM_ADDRESS_BYTES,
        )


assert JointOwner(dtype="bf16").smem.nbytes <= SMEM_CAPACITY_BYTES
