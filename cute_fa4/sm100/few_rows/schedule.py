"""SwappedTile: one tile of 8 to 64 query rows a CTA, whose products are computed transposed.

    FA4Config(schedule=SwappedTile(rows=16), pack_gqa=True, group=8)    two positions of eight heads

    tensor memory, 128 lanes                       shared memory, 227 KiB
    0      rows    2 rows   3 rows                 Q | ring of kv slots | P | maxima | row values
    | S0   |  S1   |   O    |                      | work queue | mbarriers
      lanes: keys    lanes: depth

Few rows leave most shared memory to the ring: six slots of 32 KiB at depth 128, all in flight when a CTA starts.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from ..blueprint import claims
from ..blueprint.barriers import BarrierTable
from ..blueprint.chip import SMEM_CAPACITY_BYTES
from ..blueprint.memory_maps import TmemMap
from ..blueprint.problem import Problem
from ..blueprint.reach import QK_DEPTHS_OF_FP8, Extra, problem_not_built
from ..blueprint.row_schedule import default_rescale_log2, lag_contradictions, starts_early
from . import barriers
from .smem_map import SwappedSmem, slots_that_fit, smem_map
from .tiles import ROWS, SwappedTiles, padded_heads
from .warp_roles import SwappedWarpRoles

CLUSTER_PARTS = (1, 2, 4, 8)  # not every GPU supports clusters of more than 8 CTAs


@dataclass(frozen=True)
class SwappedTile:
    """The schedule of SM100MHASwap.

    rows           query rows of a CTA: 8, 16, 32 or 64; with packed groups at least the group, which is padded to a
                   power of two
    rescale_log2   the running row maximum is kept while it moves less than this (P stays below 2^rescale_log2);
                   None: 8, and 0 where P has eight bits (docs/numerics.md)
    claims         a CTA that is done takes over a block of the grid that has not started (work/queue.py); False: it
                   ends; None: as claims_pay says of the problem
    dependent_launch  the CTAs may start while the grid before them in the stream ends; they wait for it before they
                   touch what it may have written (programmatic dependent launch); None: as the tuning table says
    cluster_parts  CTAs of a cluster that share the keys of a block and merge their results in shared memory
                   (cluster.py): 1, 2, 4 or 8; with more than one a CTA ends with its block
    """

    family: ClassVar[str] = "mhaswap"
    warps: ClassVar[SwappedWarpRoles] = SwappedWarpRoles()
    clusters: ClassVar[bool] = True  # whether CTAs of a cluster may share a block

    rows: int = 16
    rescale_log2: float | None = None
    claims: bool | None = None
    dependent_launch: bool | None = None
    cluster_parts: int = 1

    def resolved(self, problem: Problem) -> "SwappedTile":
        changes = {}
        if self.rescale_log2 is None:
            changes["rescale_log2"] = default_rescale_log2(problem)
        if self.dependent_launch is None:
            changes["dependent_launch"] = starts_early(self.family, problem)
        if self.cluster_parts > 1:
            changes["claims"] = False
        else:
            changes["claims"] = claims.resolved(self.claims, problem)
        return replace(self, **changes)

    def tiles(self, problem: Problem) -> SwappedTiles:
        return SwappedTiles.of(problem, self.rows)

    def tmem(self, problem: Problem) -> TmemMap:
        width = self.tiles(problem).q_box_rows
        s = tuple(i * width for i in range(barriers.S_BUFFERS))
        o = barriers.S_BUFFERS * width
        return TmemMap(s, (), (o,), o + width, p_apart=False)

    def warps_of(self, problem: Problem) -> SwappedWarpRoles:
        """The warp roles: gathered rows keep two load warps busy (roles/values.py)."""
        return self.warps.with_values() if self.tiles(problem).gathers_rows else self.warps

    def barriers(self, problem: Problem) -> BarrierTable:
        return self.layout(problem)[0]

    def smem(self, problem: Problem) -> SwappedSmem:
        return self.layout(problem)[1]

    def layout(self, problem: Problem) -> tuple[BarrierTable, SwappedSmem]:
        return layout(self.warps_of(problem), self.tiles(problem), self.cluster_parts > 1)

    def contradictions(self, problem: Problem) -> list[str]:
        why = []
        if self.rows not in ROWS:
            why.append(
                f"rows={self.rows} is not the height of a tile: use {', '.join(map(str, ROWS))}"
            )
        elif problem.pack_gqa and self.rows % padded_heads(problem.heads_per_tile):
            why.append(
                f"pack_gqa=True with group={problem.group}: a tile of {self.rows} rows holds whole groups: use rows of "
                f"at least {padded_heads(problem.heads_per_tile)}, or pack_gqa=False"
            )
        if self.cluster_parts not in CLUSTER_PARTS:
            why.append(
                f"cluster_parts={self.cluster_parts}: CTAs that share a block are a cluster of every GPU: use "
                f"{', '.join(map(str, CLUSTER_PARTS))}"
            )
        elif self.cluster_parts > 1 and problem.split_keys:
            why.append(
                f"cluster_parts={self.cluster_parts} with split_keys=True: keys are split once: use one of them"
            )
        return why + lag_contradictions(problem, self.rescale_log2)

    def refusals(self, problem: Problem) -> list[str]:
        why = problem_not_built(problem, Extra.KEY_SCALES, qk_depths_of_fp8=QK_DEPTHS_OF_FP8)
        return why or self._over_capacity(problem)

    def _over_capacity(self, problem: Problem) -> list[str]:
        why, tiles, smem = [], self.tiles(problem), self.smem(problem)
        slots = smem.kv.nbytes // tiles.kv_slot_bytes
        if slots < 3 or smem.nbytes > SMEM_CAPACITY_BYTES:
            why.append(
                f"the ring has {slots} slots of {tiles.kv_slot_bytes} bytes, at least 3 are needed because V of a "
                "tile is held while K of the next one arrives: lower the head dim"
            )
        return why


@lru_cache(maxsize=1024)
def layout(
    warps: SwappedWarpRoles, tiles: SwappedTiles, clusters: bool
) -> tuple[BarrierTable, SwappedSmem]:
    """Barriers and shared memory depend on each other: the ring gets the memory left by a kernel without slots."""
    without_ring = barriers.table(warps, 0, clusters=clusters)
    slots = slots_that_fit(tiles, smem_map(tiles, warps, without_ring))
    table = barriers.table(warps, slots, tiles.qk_stages, clusters)
    return table, smem_map(tiles, warps, table)
