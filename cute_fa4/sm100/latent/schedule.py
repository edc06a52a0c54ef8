"""LatentTile: one tile of 8 to 64 query rows a CTA over a latent cache (multi-head latent attention, absorbed).

    FA4Config(qk_depth=576, ov_depth=512, latent=True, group=16, pack_gqa=True, schedule=LatentTile(rows=16))

    tensor memory, 128 lanes                                      shared memory, 227 KiB
    0      n       2 n      3 n      4 n      5 n       6 n       Q | slabs | rope | P | maxima | row values
    | S0   |  S1   |   O0   |   O1   |   O2   |   O3    |         | work queue | mbarriers
      lanes: keys    lanes: columns 0-127, 128-255, ... of V

n: rows, at least 16. Sixty-four rows take 384 columns: docs/decisions/0011.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from cute_fa4.dtypes import UNQUANTIZED

from ..blueprint.barriers import BarrierTable
from ..blueprint.memory_maps import TmemMap
from ..blueprint.problem import Problem
from ..few_rows.barriers import S_BUFFERS
from ..few_rows.schedule import SwappedTile
from ..few_rows.warp_roles import GATHER_WARPS, SwappedWarpRoles
from . import barriers
from .smem_map import LatentSmem, slots_that_fit, smem_map
from .tiles import LATENT_DEPTH, ROPE_DEPTH, LatentTiles


@dataclass(frozen=True)
class LatentTile(SwappedTile):
    """The schedule of SM100MLADecode; its options are those of SwappedTile."""

    family: ClassVar[str] = "mla_decode"
    clusters: ClassVar[bool] = False

    def tiles(self, problem: Problem) -> LatentTiles:
        return LatentTiles.of(problem, self.rows)

    def tmem(self, problem: Problem) -> TmemMap:
        tiles = self.tiles(problem)
        width = tiles.q_box_rows
        s = tuple(i * width for i in range(S_BUFFERS))
        o = tuple((S_BUFFERS + i) * width for i in range(tiles.slabs))
        return TmemMap(s, (), o, o[-1] + width, p_apart=False)

    def warps_of(self, problem: Problem) -> SwappedWarpRoles:
        """The warp roles: gathered rows keep three warps busy (gathers.py)."""
        gathers_rows = self.tiles(problem).gathers_rows
        return self.warps.with_values(GATHER_WARPS) if gathers_rows else self.warps

    def barriers(self, problem: Problem) -> BarrierTable:
        return layout(self.warps_of(problem), self.tiles(problem))[0]

    def smem(self, problem: Problem) -> LatentSmem:
        return layout(self.warps_of(problem), self.tiles(problem))[1]

    def refusals(self, problem: Problem) -> list[str]:
        why = self.problem_not_built(problem)
        if self.cluster_parts > 1:
            why.append(
                f"cluster_parts={self.cluster_parts} is not supported for a latent cache: use 1, or split_keys"
            )
        return why

    def problem_not_built(self, problem: Problem) -> list[str]:
        return not_built(problem)


def not_built(problem: Problem) -> list[str]:
    """Reasons why this family does not support a problem."""
    why = []
    if problem.kv_dtype is not None:
        why.append(f"kv_dtype={problem.kv_dtype!r} is not supported for a latent cache: use None")
    outputs = ("f32",) if problem.split_keys else (problem.qkv_dtype,)
    if problem.is_quantized and not problem.split_keys:
        outputs = UNQUANTIZED
    if problem.o_dtype not in outputs:
        why.append(
            f"o_dtype={problem.o_dtype!r} is not supported for qkv_dtype={problem.qkv_dtype!r}: use "
            f"{' or '.join(map(repr, outputs))}"
        )
    why += depths_not_built(problem)
    for name in ("rope_dtype", "scale_dtype"):
        if getattr(problem, name) is not None:
            why.append(f"{name}={getattr(problem, name)!r} is not supported: use None")
    return why


DEPTHS = LATENT_DEPTH + ROPE_DEPTH, LATENT_DEPTH
WITHOUT_ROPE = LATENT_DEPTH, LATENT_DEPTH


def depths_not_built(problem: Problem, only: tuple[int, int] = DEPTHS) -> list[str]:
    """Reject everything except a latent cache with `only` so many columns of K and of V.

    Where K is multiplied as it is stored, it may also have no rotary columns apart from those of V.
    """
    depths = (problem.qk_depth, problem.ov_depth)
    accepted = [only] + [WITHOUT_ROPE] * (only == DEPTHS and problem.kv_dtype is None)
    if problem.latent and depths in accepted:
        return []
    columns = " or ".join(f"qk_depth={qk}, ov_depth={ov}" for qk, ov in accepted)
    return [
        f"latent={problem.latent}, qk_depth={depths[0]}, ov_depth={depths[1]}: this kernel reads V from K: use "
        f"latent=True, {columns}"
    ]


@lru_cache(maxsize=256)
def layout(warps: SwappedWarpRoles, tiles: LatentTiles) -> tuple[BarrierTable, LatentSmem]:
    """Barrier table and shared memory map depend on each other: the rings fill what a kernel without slots leaves."""
    slots = slots_that_fit(tiles, smem_map(tiles, warps, barriers.table(warps, 0, 0)))
    table = barriers.table(warps, *slots)
    return table, smem_map(tiles, warps, table)
