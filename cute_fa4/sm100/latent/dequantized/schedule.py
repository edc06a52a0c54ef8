"""LatentRows: one tile of 8 to 32 query rows of 16 bits a CTA over a latent cache of 8 bits (formats.py).

    FA4Config(kv_dtype="e4m3", rope_dtype="bf16", scale_dtype="f32", qk_depth=576, ov_depth=512, latent=True, group=16,
              pack_gqa=True, kv_layout="paged", page_size=64, seqused_k=True, schedule=LatentRows(rows=16))

    tensor memory, 128 lanes                                               shared memory, 227 KiB
    0      n       2 n      3 n      4 n      5 n      6 n    6 n + 64     Q | ring of slabs | wide slabs | rope | P
    | S0   |  S1   |   O0   |   O1   |   O2   |   O3   |  K0  |  K1  |     | scales | maxima | row values | work queue
      lanes: keys    lanes: columns of V                 lanes: keys       | mbarriers

Without rope_dtype and scale_dtype rows have 576 bytes. n: rows, at least 16. docs/decisions/0021.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from ...blueprint.barriers import BarrierTable
from ...blueprint.memory_maps import TmemMap
from ...blueprint.problem import Problem
from ...few_rows.barriers import S_BUFFERS
from ..schedule import LatentTile, depths_not_built
from . import barriers
from .formats import STORED, STORED_IN_PAGES, format_of
from .smem_map import RowsSmem, rope_slots, slots_that_fit, smem_map
from .tiles import RowsTiles
from .warp_roles import RowsWarpRoles

HIGHEST = 32  # rows of a tile: 64 leave no room for stored slabs
__all__ = ["STORED", "STORED_IN_PAGES", "LatentRows", "not_built"]


@dataclass(frozen=True)
class LatentRows(LatentTile):
    """The schedule of SM100MLAWiden; its options are those of SwappedTile."""

    family: ClassVar[str] = "mla_widen"
    warps: ClassVar[RowsWarpRoles] = RowsWarpRoles()
    latent_rows: ClassVar[int] = HIGHEST  # rows of the heads that share a tile

    def warps_of(self, problem: Problem) -> RowsWarpRoles:
        return self.warps  # one load warp

    def tiles(self, problem: Problem) -> RowsTiles:
        return RowsTiles.of(problem, self.rows)

    def tmem(self, problem: Problem) -> TmemMap:
        tiles = self.tiles(problem)
        width = tiles.q_box_rows
        s = tuple(i * width for i in range(S_BUFFERS))
        o = tuple((S_BUFFERS + i) * width for i in range(tiles.slabs))
        return TmemMap(s, (), o, self.k_columns(problem)[-1] + tiles.k_columns, p_apart=False)

    def k_columns(self, problem: Problem) -> tuple[int, ...]:
        """First columns of the K buffers, which slabs use in turn."""
        tiles = self.tiles(problem)
        first = (S_BUFFERS + tiles.slabs) * tiles.q_box_rows
        return tuple(first + i * tiles.k_columns for i in range(barriers.K_BUFFERS))

    def barriers(self, problem: Problem) -> BarrierTable:
        return layout(self.warps, self.tiles(problem))[0]

    def smem(self, problem: Problem) -> RowsSmem:
        return layout(self.warps, self.tiles(problem))[1]

    def contradictions(self, problem: Problem) -> list[str]:
        why = super().contradictions(problem)
        if not why and self.rows > HIGHEST:
            why.append(
                f"rows={self.rows} is not the height of a tile that dequantizes its keys: use 8, 16, 32"
            )
        return why

    def problem_not_built(self, problem: Problem) -> list[str]:
        return not_built(problem)


def not_built(problem: Problem) -> list[str]:
    """Reasons why this family does not support a problem."""
    row = format_of(problem)
    rows = f"rows of {row.bytes_with_scales} bytes"
    why = []
    for name, accepted in row.fields:
        if getattr(problem, name) not in accepted:
            why.append(
                f"{name}={getattr(problem, name)!r} over {rows}: use {' or '.join(map(repr, accepted))}, or "
                "schedule=LatentTile()"
            )
    if problem.kv_layout != "paged":
        why.append(f"kv_layout={problem.kv_layout!r} is not supported for {rows}: use 'paged'")
    if problem.descales and row.has_scales:
        why.append(f"descales={problem.descales!r}: {rows} have their scales with them: use ''")
    if problem.page_heads_first:
        why.append("page_heads_first=True: a latent cache has one head: use False")
    output = "f32" if problem.split_keys else problem.qkv_dtype
    if problem.o_dtype != output:
        why.append(
            f"o_dtype={problem.o_dtype!r} is not supported for qkv_dtype={problem.qkv_dtype!r}: use {output!r}"
        )
    return why + depths_not_built(problem, row.depths)


@lru_cache(maxsize=256)
def layout(warps: RowsWarpRoles, tiles: RowsTiles) -> tuple[BarrierTable, RowsSmem]:
    """Barrier table and shared memory map depend on each other: the ring fills what a kernel without slots leaves."""
    of_rope = rope_slots(tiles.row), tiles.row.dequantizes_rope
    slots = slots_that_fit(tiles, smem_map(tiles, warps, barriers.table(warps, 0, *of_rope)))
    table = barriers.table(warps, slots, *of_rope)
    return table, smem_map(tiles, warps, table)
