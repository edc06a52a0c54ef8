"""DequantizedTile: one tile of 8 to 32 query rows of 16 bits per CTA, over 8-bit keys that the CTA converts to fp16.

    FA4Config(kv_dtype="e4m3", schedule=DequantizedTile(rows=8), pack_gqa=True, group=8)

    tensor memory, 128 lanes                                                   shared memory, 227 KiB
    0      n       2 n     3 n      3 n + 64   3 n + 128   3 n + 192            Q | ring of kv slots | P | maxima
    | S0   |  S1   |   O   |   K0   |   K1     |   V0      |   V1               | row values | scales of blocks, of rows
      lanes: keys   depth     lanes: keys         lanes: depth                  | work queue | mbarriers

n: rows, at least 16. P is fp16, so only the cache has 8-bit error: docs/decisions/0018.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from cute_fa4.dtypes import CACHED

from ...blueprint.barriers import BarrierTable
from ...blueprint.chip import SMEM_CAPACITY_BYTES
from ...blueprint.memory_maps import TmemMap
from ...blueprint.problem import Problem
from ...blueprint.reach import DEPTHS_OF_FP8, Extra, problem_not_built
from ..barriers import S_BUFFERS
from ..schedule import SwappedTile
from ..smem_map import slots_that_fit
from . import barriers
from .smem_map import DequantizedSmem, smem_map
from .tiles import DequantizedTiles
from .warp_roles import DequantizedWarpRoles

HIGHEST = 32  # rows of a tile: a softmax thread of 64 rows needs more than its registers
LEAST_SLOTS = 4  # K and V of a key tile while those of the previous one are dequantized


@dataclass(frozen=True)
class DequantizedTile(SwappedTile):
    """The schedule of SM100MHAWiden: the choices of SwappedTile."""

    family: ClassVar[str] = "mhawiden"
    warps: ClassVar[DequantizedWarpRoles] = DequantizedWarpRoles()

    def tiles(self, problem: Problem) -> DequantizedTiles:
        return DequantizedTiles.of(problem, self.rows)

    def tmem(self, problem: Problem) -> TmemMap:
        tiles = self.tiles(problem)
        width = tiles.q_box_rows
        s = tuple(i * width for i in range(S_BUFFERS))
        o = S_BUFFERS * width
        used = o + width + barriers.BUFFERS * (tiles.k_columns + tiles.v_columns)
        return TmemMap(s, (), (o,), used, p_apart=False)

    def k_columns(self, problem: Problem) -> tuple[int, ...]:
        """First columns of the K buffers, which key tiles use in turn."""
        tiles, first = self.tiles(problem), (S_BUFFERS + 1) * self.tiles(problem).q_box_rows
        return tuple(first + i * tiles.k_columns for i in range(barriers.BUFFERS))

    def v_columns(self, problem: Problem) -> tuple[int, ...]:
        """Those of the V buffers."""
        tiles, first = self.tiles(problem), self.tmem(problem).used
        first -= barriers.BUFFERS * tiles.v_columns
        return tuple(first + i * tiles.v_columns for i in range(barriers.BUFFERS))

    def warps_of(self, problem: Problem) -> DequantizedWarpRoles:
        return self.warps  # a single load warp

    def layout(self, problem: Problem) -> tuple[BarrierTable, DequantizedSmem]:
        return layout(self.warps, self.tiles(problem), self.cluster_parts > 1)

    def contradictions(self, problem: Problem) -> list[str]:
        why = super().contradictions(problem)
        if not why and self.rows > HIGHEST:
            why.append(
                f"rows={self.rows} is not the height of a tile that dequantizes its keys: use 8, 16, 32"
            )
        return why

    def refusals(self, problem: Problem) -> list[str]:
        extras = Extra.DEQUANTIZED_KEYS | Extra.KEY_SCALES | Extra.CACHE_BLOCKS
        why = problem_not_built(problem, extras, DEPTHS_OF_FP8, DEPTHS_OF_FP8)
        if problem.kv_dtype not in CACHED:
            why.append(
                f"kv_dtype={problem.kv_dtype!r}: these kernels widen keys: use one of {', '.join(CACHED)}, or "
                "schedule=SwappedTile()"
            )
        return why or self._over_capacity(problem)

    def _over_capacity(self, problem: Problem) -> list[str]:
        why, tiles, smem = [], self.tiles(problem), self.smem(problem)
        slots = smem.kv.nbytes // tiles.kv_slot_bytes
        if slots < LEAST_SLOTS or smem.nbytes > SMEM_CAPACITY_BYTES:
            why.append(
                f"the ring has {slots} slots of {tiles.kv_slot_bytes} bytes, {LEAST_SLOTS} are needed: lower rows"
            )
        return why


@lru_cache(maxsize=1024)
def layout(
    warps: DequantizedWarpRoles, tiles: DequantizedTiles, clusters: bool
) -> tuple[BarrierTable, DequantizedSmem]:
    """Barriers and shared memory depend on each other: the ring gets the memory left by a kernel without slots."""
    scales = tiles.problem.cache_blocks
    without_ring = barriers.table(warps, 0, clusters, scales)
    slots = slots_that_fit(tiles, smem_map(tiles, warps, without_ring))
    table = barriers.table(warps, slots, clusters, scales)
    return table, smem_map(tiles, warps, table)
