"""Owner: one of the kernels of the backward pass: its warps, its tiles, and where they are.

P and dS in tensor memory are operand A of the sums; no tile is transposed or staged. Own tiles move to tensor
memory where it has room (own_tile.py). If columns are left, dS has some of its own where it is alone, and P where both
are written. Otherwise dS is written over dP, and P beside it:

    columns 0 ... 511          | S | dP | dS, 64 | dQ, 64 | Q, 32 | dO, 32           |
    dK, dV of 64 columns       | S | dP | P, 64 | dK, 64 | dV, 64 | K, 32 | V, 32    |

Beyond 128 columns of both head dims together, tiles of the other side have 64 rows, so S and dP take half of the
columns, and own tiles have room:

    dQ of 128 columns          | S, 64 | dP, 64 | dS, 32 | dQ, 128 | Q, 64 | dO, 64   |
    dK, dV of 128 columns      | S, 64 | dP, 64 | dK, 128 | dV, 128 | K, 64 | V, 64   |
    dQ of 192, dO of 128       | S, 64 | dP, 64 | dS, 32 | dQ, 192 | Q, 96 | dO, 64   |
    dK of 192 and dV of 128    | S, 64 | dP, 64 | dK, 192 | dV, 128 | V, 64           |

Larger head dims are wide: dK and dV would take all tensor memory, so they have a kernel each. Where dV is alone, P is
written over S:

    dQ or dK of 256            | S, 64 | dP, 64 | dQ or dK, 256 | Q or K, 128 |
    dV of 256                  | S, 64 | next S, 64 | dV, 256 | K, 128        |

In a pair of CTAs (pair.py) each has columns for its own rows, and half of what the MMAs read of the other side: half of
the rows for S and dP, half of the columns for sums. dQ and dK of wide pairs have tiles of 128 rows of the other side:
own tiles stay in shared memory, where a product then reads 48 of 64 cycles instead of 40 of 32.

    dQ or dK of 256, pairs     | S, 128 | dP, 128 | dQ or dK, 256 |
"""

from dataclasses import dataclass

from ...dtypes import BF16, elements_in
from ...layouts.operand_tiles import KMajorTile, MNMajorTile
from ..blueprint.barriers import BarrierTable
from ..blueprint.chip import (
    F32_BYTES,
    MBARRIER_BYTES,
    SMEM_CAPACITY_BYTES,
    SWIZZLE_BYTES,
    TMEM_ADDRESS_BYTES,
    TMEM_COLUMNS,
    align_up,
)
from ..blueprint.memory_maps import Region, SmemMap
from ..pair.barriers import CTAS
from . import barriers, subtracted_sizes
from .barriers import Warps

ROWS = 128  # of a tile, queries or keys: the lanes of tensor memory
STATS = 2 * ROWS  # float32 of a tile of queries: log-sum-exps in units of log2, then deltas
# Head dims of q and k, and of v, up to which tensor memory has room for dK and dV.
NARROW = 192, 128
# Slots of each part of the ring, the most first. Tile 0 is read from S to the sum of dS, tile 1 for a shorter time.
RINGS = (4, 4), (4, 3), (3, 3), (3, 2), (3, 1), (2, 2), (2, 1), (1, 1)
RINGS_OF_PAIRS = (8, 8), (6, 6), (6, 4), *RINGS  # own tiles that move may take four slots
# Those of rows of tile 0, its columns, rows of tile 1: an own tile that moves may take two slots of the first.
RINGS_OF_HALVES = (8, 8, 8), (3, 2, 2), (2, 2, 2), (2, 1, 1), (1, 1, 1)
LANES = 32  # rows of a warp
COLUMNS = 32  # of a tile, those of a compute thread: more warps hide the latencies of few
GRANULE = BF16.elements_in(SWIZZLE_BYTES)  # columns of a depth chunk


@dataclass(frozen=True)
class BackwardSmem(SmemMap):
    """own: tiles that stay; ring: slots of each part; results overwrite both at the end; stats: of tiles of queries.

    ones: constant operand of the MMAs that subtract L and delta (subtracted.py)
    distances: sums of the warps over equal distances, two buffers
    """

    own: Region
    ring: Region
    stats: Region
    ones: Region
    distances: Region
    mbarriers: Region
    tmem_address: Region


@dataclass(frozen=True)
class Part:
    """A form in which a ring holds tiles of the other side, for one product or for two.

    tile    0 or 1
    made    S or dP reads it: all columns, in a pair half of the rows
    summed  a sum reads it: all rows, in a pair half of the columns
    late    it is loaded a turn later, when the tensor core has freed its place
    """

    tile: int
    made: bool
    summed: bool
    late: bool = False


@dataclass(frozen=True)
class Owner:
    """One of the kernels.

    name    "queries" or "keys": what a CTA owns; "scores": it owns queries, and its scores are summed for aux tensors
    depths  of the two tiles of an owner or of a slot, padded to whole chunks: Q and K, dO and V
    tables  how many sums over distances it has (sums.py)
    only    the one result that it has, where each has a kernel of its own; None: all
    plain   whether no score_mod is between S and P
    pairs   whether two CTAs share the MMAs, where they can (`ctas`)
    """

    name: str
    dtype: str
    depths: tuple[int, int]
    tables: int = 0
    only: int | None = None
    plain: bool = True
    pairs: bool = False

    @property
    def ctas(self) -> int:
        """CTAs that share an MMA: two where they are asked for and half of the one result is whole chunks of columns.

        dK and dV in one kernel, without dQ, wait for S, P, dV and the next S in turn: signals between CTAs take longer
        than is saved.
        """
        halves = [self.depths[i] % (CTAS * GRANULE) == 0 for i in self.results]
        return CTAS if self.pairs and halves == [True] else 1

    @property
    def takes_turns(self) -> bool:
        """Whether CTAs add to sums of others, in a fixed order (joint.py)."""
        return False

    @property
    def owns_keys(self) -> bool:
        return self.name == "keys"

    @property
    def is_wide(self) -> bool:
        return any(depth > most for depth, most in zip(self.depths, NARROW, strict=True))

    @property
    def other_rows(self) -> int:
        """Of a tile of the other side: 64 where tensor memory has no room for S and dP of 128 and own tiles.

        In wide pairs that make dP own tiles stay in shared memory, and tiles of 128 rows read less of it.
        """
        if self.is_wide and self.ctas > 1 and self.has_dp:
            return ROWS
        return ROWS // 2 if self.is_wide or self.results and sum(self.depths) > ROWS else ROWS

    @property
    def warps(self) -> Warps:
        """A compute thread has 32 columns of a tile; where scores are summed, half of them."""
        return Warps(self.other_rows // COLUMNS if self.results else 2)

    @property
    def columns(self) -> int:
        """Of the scores of a tile, those of one warpgroup."""
        return self.other_rows // self.warps.groups

    @property
    def p_columns(self) -> int:
        """Tensor-memory columns of the values of P or dS that a warpgroup writes."""
        return self.columns // 2

    @property
    def distances(self) -> int:
        """How many distances the scores of a tile have, padded."""
        return ROWS + self.other_rows

    @property
    def span(self) -> int:
        """How many distances the scores of a warp have, padded."""
        return LANES + self.columns

    @property
    def own_tiles(self) -> tuple[KMajorTile, ...]:
        """Operands of S and, if there is one, dP: the depth is contracted."""
        return tuple(KMajorTile(ROWS, depth) for depth in self.depths[: 1 + self.has_dp])

    @property
    def tiles(self) -> tuple[KMajorTile, KMajorTile]:
        """Their other operands, of the ring; in a pair those of one CTA."""
        return tuple(KMajorTile(self.other_rows // self.ctas, depth) for depth in self.depths)

    def summed_tile(self, i: int) -> MNMajorTile:
        """The bytes of tile i as operand of a sum: the rows are contracted. In a pair they are other bytes."""
        return MNMajorTile(self.other_rows, self.depths[i] // self.ctas)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Forms of tiles in the ring, in the order in which a turn loads them.

        >>> [(x.tile, x.made, x.summed) for x in Owner("queries", "bf16", (256, 256)).parts]
        [(0, True, True), (1, True, False)]
        >>> [(x.tile, x.made, x.summed) for x in Owner("queries", "bf16", (256, 256), pairs=True).parts]
        [(0, True, False), (0, False, True), (1, True, False)]
        """
        out: list[Part] = []
        for i in range(len(self.depths)):
            made, summed = i < len(self.own_tiles), i in self.results
            if self.ctas > 1 and made and summed:
                out += [Part(i, True, False), Part(i, False, True, late=True)]
            else:
                out.append(Part(i, made, summed))
        return tuple(out)

    def made_part(self, i: int) -> int:
        """Number of the part that S (0) or dP (1) reads."""
        return next(j for j, part in enumerate(self.parts) if part.tile == i and part.made)

    def summed_part(self, i: int) -> int:
        """Number of the part that the sum of tile i reads."""
        return next(j for j, part in enumerate(self.parts) if part.tile == i and part.summed)

    @property
    def last_of_tile_0(self) -> int:
        """Number of the part of tile 0 that is read last."""
        return max(j for j, part in enumerate(self.parts) if part.tile == 0)

    def first_slot(self, part: int) -> int:
        """Number of the first slot of a part among all."""
        return sum(self.slots[:part])

    def slot_bytes(self, part: int) -> int:
        """Of a slot of a part."""
        of = self.parts[part]
        return (self.tiles[of.tile] if of.made else self.summed_tile(of.tile)).nbytes

    @property
    def results(self) -> tuple[int, ...]:
        """Which of `depths` each result has: dK, dV, or dQ alone, or none."""
        every = {"keys": (0, 1), "queries": (0,), "scores": ()}[self.name]
        return every if self.only is None else (self.only,)

    @property
    def has_dp(self) -> bool:
        """Whether it makes dP: dV alone needs P alone."""
        return self.results != (1,)

    @property
    def result_columns(self) -> int:
        """Tensor-memory columns of all results."""
        return sum(self.depths[i] for i in self.results)

    @property
    def s_column(self) -> int:
        return 0

    @property
    def s_buffers(self) -> int:
        """Places of S: where dV is alone, the next one is made before P takes the place of this one."""
        return 1 if self.has_dp else 2

    @property
    def subtracts(self) -> bool:
        """Whether MMAs make S - L / c and dP - delta (subtracted.py): score_mod needs S itself."""
        return self.owns_keys and self.plain

    @property
    def stats(self) -> int:
        """Numbers that come with tile 0 of queries: L, and where dS is made also delta, of 128, or parts of both."""
        if self.subtracts:
            return self.tiles[0].rows * subtracted_sizes.NUMBERS_A_ROW
        return STATS if self.has_dp else ROWS

    def stats_of(self, part: int) -> int:
        """Numbers that come with a part. In a pair, parts of L come with what S reads, of delta with what dP reads."""
        of = self.parts[part]
        if self.ctas > 1:
            return (
                of.made
                * self.owns_keys
                * self.tiles[of.tile].rows
                * subtracted_sizes.NUMBERS_OF_PART
            )
        return self.stats * self.owns_keys * (of.tile == 0)

    def stats_offset(self, part: int) -> int:
        """Where the numbers of a part begin, in bytes."""
        return self._stats_bytes(self.slots[:part])

    def _stats_bytes(self, slots: tuple[int, ...]) -> int:
        """Of so many slots of the first parts."""
        return sum(number * self.stats_of(j) for j, number in enumerate(slots)) * F32_BYTES

    @property
    def apart(self) -> str | None:
        """Which of P and dS has columns of its own, where there are some left.

        "dS" where one sum reads it: the next dP is then made before that sum. "P" where both are written: dV then
        does not wait for dP, over which P is written otherwise.
        """
        of_own = sum(map(self.own_columns, self.moved))
        room = TMEM_COLUMNS - self._columns - of_own
        if not self.results or not self.has_dp or self.other_rows // 2 > room:
            return None
        return "P" if 1 in self.results else "dS"

    @property
    def p_over_dp(self) -> bool:
        """Whether P waits in registers until dP has been read."""
        return self.results == (0, 1) and self.apart != "P"

    def own_columns(self, i: int) -> int:
        """Tensor-memory columns that own tile i takes there."""
        return self.depths[i] // elements_in(self.dtype, 4)

    @property
    def moved(self) -> tuple[int, ...]:
        """The own tiles that move to tensor memory, as operand A of S or dP: MMAs read less of shared memory."""
        out: list[int] = []
        room = TMEM_COLUMNS - self._columns
        for i in range(len(self.own_tiles)):
            if self.results and self.own_columns(i) <= room:
                out.append(i)
                room -= self.own_columns(i)
        return tuple(out)

    def own_column(self, i: int) -> int:
        """First tensor-memory column of own tile i, which moves there; of 2: of none."""
        before = sum(self.own_columns(j) for j in self.moved if j < i)
        return self._columns + self._apart_columns + before

    def own_offset(self, i: int) -> int:
        """Where own tile i is in shared memory: one that moves takes the last slots of its ring until it has moved."""
        sizes = [tile.nbytes for tile in self.own_tiles]
        if i not in self.moved:
            return self.smem.own.offset + sum(sizes[j] for j in range(i) if j not in self.moved)
        return self.smem.ring.offset + self.ring_offset(self.made_part(i) + 1) - sizes[i]

    def ring_offset(self, part: int) -> int:
        """Where the slots of a part begin in the ring."""
        return sum(self.slots[j] * self.slot_bytes(j) for j in range(part))

    def first_over_own(self, i: int) -> int:
        """The first turn whose tile i is loaded over own tile i, which has moved.

        >>> keys = Owner("keys", "bf16", (192, 128))
        >>> keys.slots, keys.moved, keys.first_over_own(1)
        ((4, 4), (1,), 2)
        """
        part = self.made_part(i)
        return self.slots[part] - self.own_tiles[i].nbytes // self.slot_bytes(part)

    @property
    def p_place(self) -> tuple[int, int]:
        """First tensor-memory column of P, and how far those of a warpgroup are from those of the one before."""
        if self.apart == "P":
            return 2 * self.other_rows, self.p_columns
        return self.dp_column if self.has_dp else self.s_column, self.columns

    @property
    def dp_column(self) -> int:
        return self.other_rows

    @property
    def ds_place(self) -> tuple[int, int]:
        """As p_place, of dS."""
        if self.apart == "dS":
            return 2 * self.other_rows, self.p_columns
        return self.dp_column + self.p_columns * self.p_over_dp, self.columns

    def result_column(self, result: int) -> int:
        """First tensor-memory column of result 0 (dQ or dK) or 1 (dV)."""
        of_scores = 2 * self.other_rows + self._apart_columns
        return of_scores + sum(self.depths[i] for i in self.results if i < result)

    @property
    def _columns(self) -> int:
        """Tensor-memory columns of S, dP and the results."""
        return 2 * self.other_rows + self.result_columns

    @property
    def _apart_columns(self) -> int:
        """Those that P or dS has of its own."""
        return self.other_rows // 2 * (self.apart is not None)

    @property
    def tmem_columns(self) -> int:
        used = self.own_column(len(self.depths))
        return 1 << (used - 1).bit_length()

    @property
    def barriers(self) -> BarrierTable:
        return self._barriers(self.slots)

    def _barriers(self, slots: tuple[int, ...]) -> BarrierTable:
        counts = len(self.own_tiles), sum(slots), self.s_buffers
        moves = len(self.moved), self.apart
        table = barriers.table(self.warps, 1 in self.results, *counts, moves)
        return barriers.of_pair(table) if self.ctas > 1 else table

    @property
    def slots(self) -> tuple[int, ...]:
        """Slots of each part of the ring: as many as shared memory has room for."""
        of_two = RINGS if self.ctas == 1 else RINGS_OF_PAIRS
        rings = RINGS_OF_HALVES if len(self.parts) > len(self.depths) else of_two
        fitting = (x for x in rings if self.smem_of(x).nbytes <= SMEM_CAPACITY_BYTES)
        return next(fitting, rings[-1])

    @property
    def smem(self) -> BackwardSmem:
        return self.smem_of(self.slots)

    @property
    def ones_bytes(self) -> int:
        """The constant operand, where MMAs subtract."""
        alone, of_pair = subtracted_sizes.ONES_BYTES, subtracted_sizes.ONES_BYTES_OF_PAIR
        return of_pair if self.ctas > 1 else alone

    def smem_of(self, slots: tuple[int, ...]) -> BackwardSmem:
        """Shared memory with so many slots."""
        table = self._barriers(slots)
        ring = sum(number * self.slot_bytes(i) for i, number in enumerate(slots))
        stay = (tile.nbytes for i, tile in enumerate(self.own_tiles) if i not in self.moved)
        return BackwardSmem.of_sizes(
            own=sum(stay),
            ring=ring,
            stats=self._stats_bytes(slots),
            ones=self.ones_bytes * self.subtracts,
            distances=2 * self.tables * len(self.warps.compute) * self.span * F32_BYTES,
            mbarriers=align_up(table.total * MBARRIER_BYTES, 16),
            tmem_address=TMEM_ADDRESS_BYTES,
        )
