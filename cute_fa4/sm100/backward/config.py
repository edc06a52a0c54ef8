"""BackwardConfig: the compile-time choices of the kernels of the backward pass, and what follows from them.

    one tile of 128 x 128 scores             owner "queries"                owner "keys", transposed
    own tiles, held by a CTA                 Q, dO                          K, V
    other tiles, through a ring              K, V                           Q, dO
    two products of own and other            S = Q K^T,  dP = dO V^T        S = K Q^T,  dP = V dO^T
    sums in tensor memory                    dQ += dS K                     dV += P dO,  dK += dS Q

Both have the same roles, so one set of files serves both. P and dS in tensor memory are operand A of the second
products; no tile is ever transposed or staged. Own tiles move to tensor memory where it has room (own_tile.py), and
there dS gets columns of its own. Otherwise it is written over dP. Where keys are owned, P is written over S:

    columns 0 ... 511          | S | dP | dS, 64 | dQ, 64 | Q, 32 | dO, 32            |
    dK, dV of 64 columns       | S | dP | dS, 64 | dK, 64 | dV, 64 | K, 32 | V, 32    |

Beyond 128 columns of both head dims together, tiles of the other side have 64 rows, so S and dP take half of the
columns, and own tiles have room:

    dQ of 128 columns          | S, 64 | dP, 64 | dS, 32 | dQ, 128 | Q, 64 | dO, 64   |
    dK, dV of 128 columns      | S, 64 | dP, 64 | dK, 128 | dV, 128 | K, 64 | V, 64   |
    dQ of 192, dO of 128       | S, 64 | dP, 64 | dS, 32 | dQ, 192 | Q, 96 | dO, 64   |
    dK of 192 and dV of 128    | S, 64 | dP, 64 | dK, 192 | dV, 128 | V, 64           |

Larger head dims are wide: dK and dV would take all tensor memory, so they have a kernel each:

    dQ or dK of 256            | S, 64 | dP, 64 | dQ or dK, 256 | Q or K, 128 |
    dV of 256                  | S, 64 | next S, 64 | dV, 256 | K, 128        |
"""

from dataclasses import dataclass, replace
from hashlib import sha256

from ...dtypes import BF16, UNQUANTIZED, elements_in
from ...layouts.operand_tiles import KMajorTile, MNMajorTile
from ..blueprint import choices, naming, tuning
from ..blueprint.bands import Full, Mask
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
from ..blueprint.listed import TILE_BITS  # noqa: F401  (listed.py)
from ..blueprint.memory_maps import Region, SmemMap
from ..blueprint.score_mods import ScoreMod
from ..traced.shared import DISTANCES, sharing
from ..traced.trace import Element
from . import barriers, subtracted_sizes
from .barriers import COMPUTE

ROWS = 128  # of a tile, queries or keys: the lanes of tensor memory
STATS = 2 * ROWS  # float32 of a tile of queries: log-sum-exps in units of log2, then deltas
MOST_DEPTH = 256
# Head dims of q and k, and of v, up to which tensor memory has room for dK and dV.
NARROW = 192, 128
# Slots of tile 0 and of tile 1, the most first. Tile 0 is read from S to the sum of dS, tile 1 for a shorter time.
RINGS = (4, 4), (4, 3), (3, 3), (3, 2), (3, 1), (2, 2), (2, 1), (1, 1)
LANES = 32  # rows of a warp
GRANULE = BF16.elements_in(SWIZZLE_BYTES)  # columns of a depth chunk


@dataclass(frozen=True)
class BackwardSmem(SmemMap):
    """own: tiles that stay; ring: slots of tile 0, of tile 1; results overwrite both at the end; stats: of tile 0.

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
class Owner:
    """One of the kernels.

    name    "queries" or "keys": what a CTA owns; "scores": it owns queries, and its scores are summed for aux tensors
    depths  of the two tiles of an owner or of a slot, padded to whole chunks: Q and K, dO and V
    tables  how many sums over distances it has (sums.py)
    only    the one result that it has, where each has a kernel of its own; None: all
    plain   whether no score_mod is between S and P
    """

    name: str
    dtype: str
    depths: tuple[int, int]
    tables: int = 0
    only: int | None = None
    plain: bool = True

    @property
    def owns_keys(self) -> bool:
        return self.name == "keys"

    @property
    def is_wide(self) -> bool:
        return any(depth > most for depth, most in zip(self.depths, NARROW, strict=True))

    @property
    def other_rows(self) -> int:
        """Of a tile of the other side: 64 where tensor memory has no room for S and dP of 128 and own tiles."""
        return ROWS // 2 if self.is_wide or self.results and sum(self.depths) > ROWS else ROWS

    @property
    def columns(self) -> int:
        """Of the scores of a tile, those of one warpgroup."""
        return self.other_rows // 2

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
        """Their other operands, of the ring."""
        return tuple(KMajorTile(self.other_rows, depth) for depth in self.depths)

    @property
    def summed_tiles(self) -> tuple[MNMajorTile, MNMajorTile]:
        """The same bytes as operands of the sums: the rows are contracted."""
        return tuple(MNMajorTile(self.other_rows, depth) for depth in self.depths)

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
        """Numbers that come with a tile of queries: L, and where dS is made also delta, of 128, or parts of both."""
        if self.subtracts:
            return self.other_rows * subtracted_sizes.NUMBERS_A_ROW
        return STATS if self.has_dp else ROWS

    @property
    def ds_apart(self) -> bool:
        """Whether dS has columns of its own: the next dP is then made before the sum that reads dS."""
        of_own = sum(map(self.own_columns, self.moved))
        room = TMEM_COLUMNS - self._columns - of_own
        return bool(self.results) and self.has_dp and 2 * self.p_columns <= room

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
        return self._columns + self._ds_columns + before

    def own_offset(self, i: int) -> int:
        """Where own tile i is in shared memory: one that moves takes the last slots of its ring until it has moved."""
        sizes = [tile.nbytes for tile in self.own_tiles]
        if i not in self.moved:
            return self.smem.own.offset + sum(sizes[j] for j in range(i) if j not in self.moved)
        ring = sum(self.slots[j] * self.tiles[j].nbytes for j in range(i + 1))
        return self.smem.ring.offset + ring - sizes[i]

    def first_over_own(self, i: int) -> int:
        """The first turn whose tile i is loaded over own tile i, which has moved.

        >>> keys = BackwardConfig("bf16", 192, 128).owner("keys")
        >>> keys.slots, keys.moved, keys.first_over_own(1)
        ((4, 4), (1,), 2)
        """
        return self.slots[i] - ROWS // self.other_rows

    @property
    def p_place(self) -> tuple[int, int]:
        """First tensor-memory column of P, and how far those of the second warpgroup are from those of the first."""
        return self.s_column, self.columns

    @property
    def dp_column(self) -> int:
        return self.other_rows

    @property
    def ds_place(self) -> tuple[int, int]:
        """As p_place, of dS."""
        if self.ds_apart:
            return 2 * self.other_rows, self.p_columns
        return self.dp_column, self.columns

    def result_column(self, result: int) -> int:
        """First tensor-memory column of result 0 (dQ or dK) or 1 (dV)."""
        of_scores = 2 * self.other_rows + self._ds_columns
        return of_scores + sum(self.depths[i] for i in self.results if i < result)

    @property
    def _columns(self) -> int:
        """Tensor-memory columns of S, dP and the results."""
        return 2 * self.other_rows + self.result_columns

    @property
    def _ds_columns(self) -> int:
        """Those that dS has of its own."""
        return 2 * self.p_columns * self.ds_apart

    @property
    def tmem_columns(self) -> int:
        used = self.own_column(len(self.depths))
        return 1 << (used - 1).bit_length()

    @property
    def barriers(self) -> BarrierTable:
        return self._barriers(self.slots)

    def _barriers(self, slots: tuple[int, int]) -> BarrierTable:
        counts = len(self.own_tiles), sum(slots), self.s_buffers
        return barriers.table(1 in self.results, *counts, (len(self.moved), self.ds_apart))

    @property
    def slots(self) -> tuple[int, int]:
        """Slots of the ring for tile 0 and tile 1: as many as shared memory has room for."""
        fitting = (x for x in RINGS if self.smem_of(x).nbytes <= SMEM_CAPACITY_BYTES)
        return next(fitting, RINGS[-1])

    @property
    def smem(self) -> BackwardSmem:
        return self.smem_of(self.slots)

    def smem_of(self, slots: tuple[int, int]) -> BackwardSmem:
        """Shared memory with so many slots."""
        table = self._barriers(slots)
        ring = sum(number * tile.nbytes for number, tile in zip(slots, self.tiles, strict=True))
        stay = (tile.nbytes for i, tile in enumerate(self.own_tiles) if i not in self.moved)
        return BackwardSmem.of_sizes(
            own=sum(stay),
            ring=ring,
            stats=slots[0] * self.stats * F32_BYTES * self.owns_keys,
            ones=subtracted_sizes.ONES_BYTES * self.subtracts,
            distances=2 * self.tables * len(COMPUTE) * self.span * F32_BYTES,
            mbarriers=align_up(table.total * MBARRIER_BYTES, 16),
            tmem_address=TMEM_ADDRESS_BYTES,
        )


@dataclass(frozen=True)
class BackwardConfig:
    """Every compile-time choice of the backward pass; sizes, strides and the scale are bound at each call.

    dtype      "bf16" or "fp16", of q, k, v, o and do
    depth      head dim of q and k, a multiple of 8 up to 256
    depth_v    head dim of v and o, a multiple of 8 up to 256
    packed     tensors are (total, heads, depth) with offsets, not (batch, seqlen, heads, depth)
    used       packed sequences have lengths of their own, up to where the next one begins, and a limit of keys
    mask       a kind of mask, whose sizes are bound at each call
    score_mod  the function of a score that the forward pass had, which has a derivative
    mask_mod   the function that hid keys there
    aux        (dtype, rank) of the tensors that both read
    dlse       the log-sum-exp has a gradient, too
    accumulate dQ, dK and dV are added to float32 tensors; otherwise they are stored with the dtype
    listed     the forward pass had lists of key blocks: each CTA has a list of tiles of the other side (listed.py)
    wanted     numbers of the aux tensors whose gradients are computed; not empty: they instead of dQ, dK and dV
    arch       "sm_100a" or "sm_103a"
    exp2_emulated  of 64 pairs of exponentials, so many on the FMA units; None: as the tuning table says
    """

    dtype: str
    depth: int
    depth_v: int
    packed: bool = False
    used: bool = False
    mask: Mask = Full()
    score_mod: ScoreMod | None = None
    mask_mod: ScoreMod | None = None
    aux: tuple[tuple[str, int], ...] = ()
    dlse: bool = False
    accumulate: bool = False
    listed: bool = False
    wanted: tuple[int, ...] = ()
    arch: str = "sm_100a"
    exp2_emulated: int | None = None

    def __post_init__(self):
        if self.exp2_emulated is None:
            facts = {"arch": self.arch, "head_dim": self.depth, "maximum": "exact"}
            pairs = tuning.choose("exp2_emulated", family=choices.BACKWARD, **facts)
            # fp16 rounds P less than the FMA units do.
            object.__setattr__(self, "exp2_emulated", pairs * (self.dtype == BF16.name))

    def refusals(self) -> list[str]:
        """Reasons why no such kernel exists, each with value and remedy."""
        why = []
        if self.dtype not in UNQUANTIZED:
            why.append(f"dtype={self.dtype!r}: use {' or '.join(map(repr, UNQUANTIZED))}")
        for name in ("depth", "depth_v"):
            value = getattr(self, name)
            if not 0 < value <= MOST_DEPTH or value % 8:
                why.append(f"{name}={value}: use a multiple of 8 from 8 to {MOST_DEPTH}")
        if self.used and not self.packed:
            why.append("used=True with packed=False: use packed=True")
        if self.listed and self.mask != Full():
            why.append(
                f"listed=True with mask={self.mask!r}: lists take the place of a mask: use Full()"
            )
        scores = self.owner("scores")
        if self.wanted and scores.smem.nbytes > SMEM_CAPACITY_BYTES:
            why.append(
                f"wanted={self.wanted}: score_mod reads {scores.tables} elements of them by distance, whose sums take "
                f"{scores.smem.distances.nbytes} bytes of the {SMEM_CAPACITY_BYTES} of shared memory, beside "
                f"{scores.smem.own.nbytes + scores.smem.ring.nbytes} for the tiles of head dims {self.depth} and "
                f"{self.depth_v}: ask for fewer of them at a time"
            )
        if self.score_mod is not None and self.score_mod.without_slope:
            why.append(
                f"score_mod={self.score_mod.without_slope}: it handles values of the compiler (cutlass), which have no "
                "derivative: write it with operators and functions of torch, or give ScoreMod.of its backward="
            )
        elif self.wanted and not self.summed:
            why.append(
                f"wanted={self.wanted}: score_mod depends on no element of them: leave them out, their gradients are 0"
            )
        return why

    @property
    def summed(self) -> list[tuple[int, Element, str]]:
        """(place in score_mod.elements, element, which scores share it), of the wanted tensors."""
        found = () if self.score_mod is None else self.score_mod.elements
        return [
            (at, element, sharing(element.indices))
            for at, element in enumerate(found)
            if element.tensor % len(self.aux) in self.wanted
        ]

    @property
    def has_functions(self) -> bool:
        return self.score_mod is not None or self.mask_mod is not None

    @property
    def owners_of_keys(self) -> tuple[Owner, ...]:
        """The kernels of dK and dV: one, or where they are wide one for each."""
        both = self.owner("keys")
        return tuple(replace(both, only=i) for i in both.results) if both.is_wide else (both,)

    def owner(self, name: str) -> Owner:
        """
        >>> BackwardConfig("bf16", 128, 128).owner("keys").smem.nbytes
        145620
        """
        depths = align_up(self.depth, GRANULE), align_up(self.depth_v, GRANULE)
        tables = sum(shared == DISTANCES for *_, shared in self.summed)
        return Owner(name, self.dtype, depths, tables, plain=self.score_mod is None)

    @property
    def numbers_of_tile(self) -> int:
        """Float32 of 128 queries of a head in memory: L, delta and, where the owner of keys wants them, their parts."""
        with_parts = self.owner("keys").subtracts and not self.wanted
        return STATS + subtracted_sizes.NUMBERS * with_parts

    @property
    def grad_dtype(self) -> str:
        return "f32" if self.accumulate else self.dtype

    @property
    def stored_columns(self) -> int:
        """Columns of a result that fill a row of a chunk."""
        return elements_in(self.grad_dtype, SWIZZLE_BYTES)

    @property
    def elements(self) -> int:
        """Elements of one access of 16 bytes."""
        return elements_in(self.dtype, 16)

    @property
    def name(self) -> str:
        """
        >>> from cute_fa4.masks import Causal
        >>> BackwardConfig("bf16", 128, 128, mask=Causal()).name.rpartition("_")[0]
        'backward_bf16_d128_dv128_dense_causal_sm_100a'
        """
        said = [
            (True, "backward"),
            (True, self.dtype),
            (True, f"d{self.depth}"),
            (True, f"dv{self.depth_v}"),
            (True, "packed" if self.packed else "dense"),
            (self.used, "used"),
            (self.mask != Full(), naming.mask_words(self.mask)),
            *naming.of_functions(self),
            (self.dlse, "dlse"),
            (self.accumulate, "accumulate"),
            (self.listed, "listed"),
            (self.wanted, "of_aux_" + "_".join(map(str, self.wanted))),
            (True, self.arch),
        ]
        words = naming.in_one(naming.wanted(said))
        return f"{words}_{sha256(repr(self).encode()).hexdigest()[:8]}"
