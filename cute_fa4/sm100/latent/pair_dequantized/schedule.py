"""LatentRowsPair: 128 query rows over a latent cache of 8 bits by two CTAs that share MMAs; each dequantizes.

    FA4Config(kv_dtype="e4m3", rope_dtype="bf16", scale_dtype="f32", qk_depth=576, ov_depth=512, latent=True, group=128,
              pack_gqa=True, kv_layout="paged", page_size=64, seqused_k=True, schedule=LatentRowsPair())

Tensor memory is that of latent/pair/schedule.py; shared memory has a ring of stored units in addition to the
ring of dequantized units: docs/decisions/0029. Without rope_dtype and scale_dtype rows have 576 bytes.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from ...blueprint.barriers import BarrierTable
from ...blueprint.problem import Problem
from ..dequantized.formats import format_of
from ..dequantized.schedule import not_built as rows_not_built
from ..dequantized.smem_map import rope_slots
from ..pair import schedule as pair
from ..pair.schedule import LatentPair
from . import barriers
from .smem_map import KV_SLOTS, STORED_SLOTS, RowsPairSmem, smem_map
from .tiles import RowsPairTiles
from .warp_roles import RowsPairWarpRoles


@dataclass(frozen=True)
class LatentRowsPair(LatentPair):
    """The schedule of SM100MLAWidenPair; its options are those of LatentPair."""

    family: ClassVar[str] = "mla_widenpair"
    warps: ClassVar[RowsPairWarpRoles] = RowsPairWarpRoles()

    def warps_of(self, problem: Problem) -> RowsPairWarpRoles:
        return self.warps  # one load warp

    def tiles(self, problem: Problem) -> RowsPairTiles:
        return RowsPairTiles.of(problem)

    def _layout(self, problem: Problem) -> tuple[BarrierTable, RowsPairSmem]:
        return layout(self.warps, self.tiles(problem), bool(self.claims))

    def refusals(self, problem: Problem) -> list[str]:
        why = rows_not_built(problem)
        if problem.token_scales:
            why.append(
                f"descales={problem.descales!r}: scales of each key are not supported for pairs over a latent cache: "
                "use schedule=LatentRows(rows=32), or k and v, scales of each sequence"
            )
        why += [
            reason
            for reason in pair.not_built(problem, {}, format_of(problem).depths)
            if reason not in why
        ]
        return why


@lru_cache(maxsize=256)
def layout(
    warps: RowsPairWarpRoles, tiles: RowsPairTiles, claims: bool
) -> tuple[BarrierTable, RowsPairSmem]:
    """The barrier table, and the shared memory map with room for it."""
    of_rope = rope_slots(tiles.row), tiles.row.dequantizes_rope
    table = barriers.table(warps, KV_SLOTS, STORED_SLOTS, of_rope, claims)
    return table, smem_map(tiles, warps, table)
