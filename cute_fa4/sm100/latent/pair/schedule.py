"""LatentPair: 128 query rows over a latent cache by two CTAs of a cluster that share every MMA.

    FA4Config(qk_depth=576, ov_depth=512, latent=True, group=128, pack_gqa=True, kv_layout="paged", page_size=64,
              seqused_k=True, schedule=LatentPair())

    tensor memory, 128 lanes: rows 0-63 twice     shared memory, 227 KiB
    0     64    128        256        384         Q | ring of units | rope | P | exchanged | work queue | mbarriers
    | S0  | S1  |    O0     |    O1    |
      lanes 0-63: keys 0-63 of S, the first half of the columns of O; lanes 64-127: the rest

Separate CTAs of 64 rows would each read all of K and V; a pair splits the reads: docs/decisions/0017.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from cute_fa4.dtypes import UNQUANTIZED

from ...blueprint import claims
from ...blueprint.barriers import BarrierTable
from ...blueprint.memory_maps import TmemMap
from ...blueprint.problem import Problem
from ...blueprint.row_schedule import default_rescale_log2, lag_contradictions, starts_early
from ...blueprint.tiles import ROWS_PER_Q_TILE
from ...few_rows.warp_roles import GATHER_WARPS, SwappedWarpRoles
from ..schedule import DEPTHS, depths_not_built
from . import barriers
from .smem_map import LatentPairSmem, slots_that_fit, smem_map
from .tiles import CTAS, LatentPairTiles

WARPS = SwappedWarpRoles(softmax=range(0, 8), mma=range(8, 9), load=range(9, 10))
GATHERING = WARPS.with_values(GATHER_WARPS)
S_BUFFERS = 2  # S of the next key tile is computed during the softmax of this one; buffer: tile & 1


@dataclass(frozen=True)
class LatentPair:
    """The schedule of SM100MLAPair.

    rescale_log2   the running maximum is kept while it moves less than this (P stays below 2^rescale_log2);
                   None: 8, and 0 where P has eight bits (docs/numerics.md)
    claims         as in SwappedTile: CTA 0 claims for both (pair/sync.py)
    dependent_launch   as in SwappedTile
    """

    family: ClassVar[str] = "mla_pair"
    ctas: ClassVar[int] = CTAS  # that share an MMA
    latent_rows: ClassVar[int] = (
        ROWS_PER_Q_TILE  # of a tile, which holds the heads that share a cache
    )
    warps: ClassVar[SwappedWarpRoles] = WARPS  # four softmax threads a row

    rescale_log2: float | None = None
    claims: bool | None = None
    dependent_launch: bool | None = None

    def resolved(self, problem: Problem) -> "LatentPair":
        lag = self.rescale_log2
        if lag is None:
            lag = default_rescale_log2(problem)
        early = self.dependent_launch
        if early is None:
            early = starts_early(self.family, problem)
        claimed = claims.resolved(self.claims, problem)
        return replace(self, claims=claimed, rescale_log2=lag, dependent_launch=early)

    def warps_of(self, problem: Problem) -> SwappedWarpRoles:
        """The warp roles: gathered rows keep three warps busy (latent/gathers.py)."""
        return GATHERING if self.tiles(problem).gathers_rows else self.warps

    def tiles(self, problem: Problem) -> LatentPairTiles:
        return LatentPairTiles.of(problem)

    def tmem(self, problem: Problem) -> TmemMap:
        tiles = self.tiles(problem)
        s = tuple(i * tiles.s_columns for i in range(S_BUFFERS))
        first = S_BUFFERS * tiles.s_columns
        o = tuple(first + i * tiles.o_columns for i in range(tiles.outputs))
        return TmemMap(s, (), o, o[-1] + tiles.o_columns, p_apart=False)

    def barriers(self, problem: Problem) -> BarrierTable:
        return self._layout(problem)[0]

    def smem(self, problem: Problem) -> LatentPairSmem:
        return self._layout(problem)[1]

    def _layout(self, problem: Problem) -> tuple[BarrierTable, LatentPairSmem]:
        return layout(self.warps_of(problem), self.tiles(problem), bool(self.claims))

    def contradictions(self, problem: Problem) -> list[str]:
        return lag_contradictions(problem, self.rescale_log2)

    def refusals(self, problem: Problem) -> list[str]:
        why = not_built(problem)
        if problem.token_scales:
            why.append(
                f"descales={problem.descales!r}: scales of each key are not supported for pairs over a latent cache: "
                "use schedule=LatentTile(rows=64), or k and v, scales of each sequence"
            )
        return why


STORED = {
    "kv_dtype": None,
    "rope_dtype": None,
    "scale_dtype": None,
}  # a row of the cache has q's dtype


def not_built(
    problem: Problem, stored: dict = STORED, depths: tuple[int, int] = DEPTHS
) -> list[str]:
    """Reasons why pairs over a latent cache do not support a problem; they serve one call, without these options.

    stored: the required dtypes of a row of the cache; depths: its columns of K and of V
    """
    why = depths_not_built(problem, depths)
    if why:
        return why
    o_dtype = problem.operand.out
    if problem.is_quantized and problem.o_dtype in UNQUANTIZED:
        o_dtype = problem.o_dtype
    for name, only in {
        "o_dtype": "f32" if problem.split_keys else o_dtype,
        "q_layout": "dense",
        "kv_layout": "paged",
        "seqused_q": False,
        "page_heads_first": False,
        "cache_leftpad": False,
        "score_mod": None,
        "mask_mod": None,
        **stored,
    }.items():
        if getattr(problem, name) != only:
            why.append(
                f"{name}={getattr(problem, name)!r} is not supported for pairs of CTAs over a latent cache: use "
                f"{only!r}, or schedule=LatentTile(rows=64)"
            )
    return why


@lru_cache(maxsize=256)
def layout(
    warps: SwappedWarpRoles, tiles: LatentPairTiles, claims: bool
) -> tuple[BarrierTable, LatentPairSmem]:
    """Barrier table and shared memory map depend on each other: the rings fill what a kernel without slots leaves."""
    slots = slots_that_fit(tiles, smem_map(tiles, warps, barriers.table(warps, 0, 0, claims)))
    table = barriers.table(warps, *slots, claims)
    return table, smem_map(tiles, warps, table)
