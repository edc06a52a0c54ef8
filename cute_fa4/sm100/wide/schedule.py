"""WideTile: one query tile of 128 rows a CTA, head dims up to 512 of Q and K, 256 of V; one O, S in two buffers.

    FA4Config(qk_depth=256, schedule=WideTile())    bf16

    tensor memory, 512 columns of 128 lanes      shared memory, 227 KiB
    0       128      256                512      Q | ring of kv slots | a chunk of O | row scale | work queue
    | S0 P0 | S1 P1 |        O          |        | mbarriers

Two O of 256 columns would leave no columns for S. One softmax warpgroup is enough here: at depth 256 a key tile takes
2,048 cycles of the tensor core, and the exponentials of 128 rows take 1,024 cycles of the special function units. A
CTA with one query tile is limited by its loads: it loads 128 KiB per key tile for itself alone. Q of 512 columns takes
128 KiB and leaves five slots for the ring. The ring holds units, so it need not hold a whole tile.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar

from ..blueprint.barriers import BarrierTable
from ..blueprint.chip import SMEM_CAPACITY_BYTES, TMEM_COLUMNS
from ..blueprint.memory_maps import TmemMap, slots_that_fit
from ..blueprint.problem import Problem
from ..blueprint.reach import DEEP, WIDE_DEPTHS
from ..blueprint.row_schedule import RowSchedule
from ..blueprint.tiles import KEYS_PER_TILE
from ..blueprint.warp_roles import WarpRoles
from . import barriers
from .smem_map import WideSmem, smem_map
from .tiles import WideTiles
from .warp_roles import WideWarpRoles

LEAST_SLOTS = 4  # one unit in each running product, and two in flight


@dataclass(frozen=True)
class WideTile(RowSchedule):
    """The schedule of SM100MHAWide; its choices are those of RowSchedule, tiles and stages are given.

    warps   one softmax warpgroup, correction, mma and load: 384 threads
    """

    family: ClassVar[str] = "mhawide"
    query_tiles: ClassVar[int] = 1
    qk_depths: ClassVar[tuple] = WIDE_DEPTHS + DEEP
    ov_depths: ClassVar[tuple] = WIDE_DEPTHS

    barrier_table: ClassVar = staticmethod(barriers.table)  # (warps, number of slots) -> table

    warps: WarpRoles = field(default_factory=WideWarpRoles)

    def tiles(self, problem: Problem) -> WideTiles:
        return WideTiles.of(problem)

    def tmem(self, problem: Problem) -> TmemMap:
        s = tuple(i * KEYS_PER_TILE for i in range(barriers.S_BUFFERS))
        o = barriers.S_BUFFERS * KEYS_PER_TILE
        return TmemMap(s, s, (o,), o + self.tiles(problem).padded_ov_depth, p_apart=False)

    def barriers(self, problem: Problem) -> BarrierTable:
        return layout(self.warps, self.tiles(problem), self.barrier_table)[0]

    def smem(self, problem: Problem) -> WideSmem:
        return layout(self.warps, self.tiles(problem), self.barrier_table)[1]

    def refusals(self, problem: Problem) -> list[str]:
        if problem.is_quantized:
            return [
                f"qkv_dtype={problem.qkv_dtype!r} is not supported in units of 64 columns: use schedule=TwoTiles()"
            ]
        return super().refusals(problem)

    def _over_capacity(self, problem: Problem) -> list[str]:
        why, tiles, tmem = [], self.tiles(problem), self.tmem(problem)
        if not tmem.fits:
            why.append(
                f"S and O need {tmem.used} tensor-memory columns, an SM has {TMEM_COLUMNS}: lower the head dim of v"
            )
        smem = self.smem(problem)
        slots = smem.kv.nbytes // tiles.kv_slot_bytes
        if slots < LEAST_SLOTS or smem.nbytes > SMEM_CAPACITY_BYTES:
            why.append(
                f"the ring has {slots} slots of {tiles.kv_slot_bytes} bytes beside {tiles.q_bytes} bytes of Q, "
                f"{LEAST_SLOTS} are needed, so that copies stay ahead of products: lower the head dim of q and k"
            )
        return why + tiles.rope_refusals()


@lru_cache(maxsize=1024)
def layout(warps: WarpRoles, tiles: WideTiles, table_of: Callable) -> tuple[BarrierTable, WideSmem]:
    """Barriers and shared memory size each other: the ring gets the space left by a kernel without slots."""
    empty = table_of(warps, 0)
    slots = slots_that_fit(tiles, smem_map(tiles, empty), empty)
    table = table_of(warps, slots)
    return table, smem_map(tiles, table)
