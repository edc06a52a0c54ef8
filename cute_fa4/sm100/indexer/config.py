"""IndexerConfig: the compile-time choices of the kernel that scores keys for sparse attention, and its maps.

S^T = K Q^T: 128 keys are the rows, the heads of the queries of a tile the columns

field of shared memory   bytes                  what
q                        columns * 128          the heads of the tile's queries, one row each
keys                     SLOTS * 128 * 128      ring of key tiles
weights                  4 columns              weights of the heads, float32
mbarriers, tmem_address
"""

from dataclasses import dataclass
from functools import cached_property

from ...layouts.operand_tiles import KMajorTile
from ..blueprint.barriers import BarrierTable
from ..blueprint.chip import (
    ARCHES,
    F32_BYTES,
    MBARRIER_BYTES,
    TMEM_ADDRESS_BYTES,
    WARP_SIZE,
)
from ..blueprint.memory_maps import Region, SmemMap, TmemMap
from ..blueprint.problem import plain_integers
from .barriers import S_BUFFERS, table

DEPTH = 128  # of queries and keys
KEYS = 128  # of a tile: one for each lane of tensor memory
SLOTS = 4  # of the ring of key tiles
LEAST_PAGE = 8  # keys: the swizzle repeats every eight rows
MOST_HEADS = 128
OF_HEADS = 8  # heads are a multiple of it
OF_COLUMNS = 16  # columns of an MMA of 128 rows are a multiple of it
WIDE_TILE = 128  # columns that a tile of many queries has, or fewer


@dataclass(frozen=True)
class IndexerSmem(SmemMap):
    q: Region
    keys: Region
    weights: Region
    mbarriers: Region
    tmem_address: Region


@dataclass(frozen=True)
class IndexerConfig:
    """Every compile-time choice of the indexer kernel; sizes and strides are bound at each call.

    heads      of a query: a multiple of 8 up to 128
    queries    of a tile; queries * heads is a multiple of 16 up to 256
    page_size  0: keys are contiguous. Otherwise keys of a page: a divisor of 128 from 8, or a multiple of 128
    ends       "rows": each query has its own last key. "lengths": each sequence has its number of keys, and the last
               query sees all of them, the query before it one less
    clean      keys that a query does not see get -inf; False: their places stay as they are
    arch       "sm_100a" or "sm_103a"
    """

    heads: int
    queries: int = 1
    page_size: int = 0
    ends: str = "rows"
    clean: bool = True
    arch: str = "sm_100a"

    def __post_init__(self):
        plain_integers(self, "heads", "queries", "page_size")

    def refusals(self) -> list[str]:
        """Reasons why no such kernel exists, each with value and remedy."""
        why = self.refusals_of_call()
        if self.columns % OF_COLUMNS or not 0 < self.columns <= 2 * MOST_HEADS:
            why.append(
                f"queries={self.queries} with heads={self.heads}; accepted: queries * heads a multiple of "
                f"{OF_COLUMNS} up to {2 * MOST_HEADS}; use queries_of_tile({self.heads})"
            )
        if self.ends not in ("rows", "lengths"):
            why.append(f"ends={self.ends!r}; accepted: 'rows' or 'lengths'")
        return why

    def refusals_of_call(self) -> list[str]:
        """Those that do not depend on what a call chooses: queries of a tile, and how ends are given."""
        why = []
        if self.heads % OF_HEADS or not 0 < self.heads <= MOST_HEADS:
            why.append(
                f"heads={self.heads}; accepted: multiples of {OF_HEADS} up to {MOST_HEADS}; pad heads with weights of 0"
            )
        if not is_page_size(self.page_size):
            why.append(
                f"page_size={self.page_size}; accepted: 8, 16, 32, 64, or multiples of {KEYS}; 0 without pages"
            )
        if self.arch not in ARCHES:
            why.append(f"arch={self.arch!r}; accepted: {' or '.join(map(repr, ARCHES))}")
        return why

    @property
    def columns(self) -> int:
        """Columns of S^T: the heads of all queries of a tile."""
        return self.heads * self.queries

    @property
    def batch(self) -> int:
        """Columns that a thread reads from tensor memory at once; a power of two that divides the heads.

        >>> [IndexerConfig(heads, 2).batch for heads in (8, 48, 64)]
        [8, 16, 32]
        """
        return min(32, self.heads & -self.heads)

    @property
    def box(self) -> int:
        """Keys of one copy: those of a page, or of a tile."""
        return min(self.page_size, KEYS) or KEYS

    @property
    def q_tile(self) -> KMajorTile:
        return KMajorTile(self.columns, DEPTH, 8)

    @property
    def key_tile(self) -> KMajorTile:
        return KMajorTile(KEYS, DEPTH, 8)

    @property
    def barriers(self) -> BarrierTable:
        return table(SLOTS)

    @cached_property
    def tmem(self) -> TmemMap:
        used = S_BUFFERS * self.columns
        return TmemMap(s=tuple(range(0, used, self.columns)), p=(), o=(), used=used, p_apart=False)

    @cached_property
    def smem(self) -> IndexerSmem:
        return IndexerSmem.of_sizes(
            q=self.q_tile.nbytes,
            keys=SLOTS * self.key_tile.nbytes,
            weights=(self.columns,),
            mbarriers=MBARRIER_BYTES * self.barriers.total,
            tmem_address=TMEM_ADDRESS_BYTES,
        )

    @property
    def name(self) -> str:
        """
        >>> IndexerConfig(64, 2, page_size=64, ends="lengths").name
        'indexer_h64_q2_page64_lengths_sm_100a'
        """
        keys = f"page{self.page_size}" if self.page_size else "dense"
        parts = ["indexer", f"h{self.heads}", f"q{self.queries}", keys, self.ends]
        return "_".join(parts + ["unclean"] * (not self.clean) + [self.arch])


def tiles_of(number, of_tile: int):
    """
    >>> tiles_of(129, 128)
    2
    """
    return (number + (of_tile - 1)) // of_tile


def is_page_size(page_size: int) -> bool:
    """
    >>> [size for size in range(300) if is_page_size(size)]
    [0, 8, 16, 32, 64, 128, 256]
    """
    whole_tiles = page_size >= 0 and page_size % KEYS == 0
    return whole_tiles or (page_size >= LEAST_PAGE and KEYS % page_size == 0)


def queries_of_tile(heads: int, queries: int | None = None) -> int:
    """Queries of a tile, for calls with so many queries of a sequence; None: with many.

    >>> [queries_of_tile(heads) for heads in (8, 24, 32, 64, 72, 128)]
    [16, 4, 4, 2, 2, 1]
    >>> [queries_of_tile(64, queries) for queries in (1, 2, 3)], queries_of_tile(8, 1)
    ([1, 2, 2], 2)
    """
    least = OF_COLUMNS // (heads & -heads) if heads % OF_COLUMNS else 1
    most = max(least, WIDE_TILE // heads // least * least)
    if queries is None:
        return most
    return min(most, max(1, -(-queries // least)) * least)


TOPK_THREADS = 1024
TOPK_WARPS = (
    TOPK_THREADS // WARP_SIZE
)  # a lane for each: their counts are summed in one scan of a warp
OF_THREAD = 8  # keys that a thread has in flight
OF_WARP = OF_THREAD * WARP_SIZE  # consecutive keys of a warp
STRETCH = OF_WARP * TOPK_WARPS  # keys of a CTA between two barriers
OF_BYTE = 8  # bits of a rank that a pass finds
BINS = 1 << OF_BYTE
PASSES = 32 // OF_BYTE
CTAS_OF_ROW = (1, 2, 4, 8)  # 8: the largest cluster that every launch may have


@dataclass(frozen=True)
class TopKSmem(SmemMap):
    """Shared memory of the kernel of the highest logits.

    counts  of each pass: of the values of a byte, among the keys of this CTA
    totals  of a pass: the same, among the keys of the row
    found   of each pass: the byte, and how many keys with it are wanted
    before  keys of earlier CTAs that are taken: of a higher rank than the lowest, and of the lowest
    sums    of each warp, twice
    """

    counts: Region
    totals: Region
    found: Region
    before: Region
    sums: Region

    @classmethod
    def of_topk(cls) -> "TopKSmem":
        return cls.of_sizes(
            counts=F32_BYTES * BINS * PASSES,
            totals=F32_BYTES * BINS,
            found=F32_BYTES * 2 * PASSES,
            before=F32_BYTES * 2,
            sums=F32_BYTES * 2 * TOPK_WARPS,
        )


@dataclass(frozen=True)
class TopKConfig:
    """Compile-time choices of the kernel of the highest logits; rows, keys and k are bound at each call.

    arch  "sm_100a" or "sm_103a"
    ctas  of a row, 1, 2, 4 or 8: a cluster whose CTAs have consecutive keys. No result depends on it
    """

    arch: str = "sm_100a"
    ctas: int = 1

    def __post_init__(self):
        plain_integers(self, "ctas")

    def refusals(self) -> list[str]:
        """Reasons why no such kernel exists, each with value and remedy."""
        why = []
        if self.ctas not in CTAS_OF_ROW:
            why.append(f"ctas={self.ctas}; accepted: {', '.join(map(str, CTAS_OF_ROW))}")
        if self.arch not in ARCHES:
            why.append(f"arch={self.arch!r}; accepted: {' or '.join(map(repr, ARCHES))}")
        return why

    @property
    def name(self) -> str:
        """
        >>> TopKConfig().name, TopKConfig(ctas=8).name
        ('topk_sm_100a', 'topk_ctas8_sm_100a')
        """
        return "_".join(["topk"] + [f"ctas{self.ctas}"] * (self.ctas > 1) + [self.arch])
