"""SlotTwoTiles: TwoTiles over keys of 8 or 4 bits, which two warps dequantize in their slots of the ring.

    FA4Config(kv_dtype="e4m3", schedule=SlotTwoTiles())    bf16
    FA4Config(kv_dtype="e2m1", schedule=SlotTwoTiles())    bf16 over NVFP4

Q and K are multiplied in the dtype of q, P and V in fp16: a number of 8 or 4 bits is exact in all of them, and so is
its product with the scale of its block (docs/decisions/0018, 0065).
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar

from cute_fa4.dtypes import CACHED

from ...blueprint.barriers import BarrierTable
from ...blueprint.memory_maps import slots_that_fit
from ...blueprint.problem import Problem
from ...blueprint.reach import DEPTHS_OF_FP8, QK_DEPTHS, QK_DEPTHS_OF_FP8, Extra
from ...blueprint.warp_roles import WarpRoles
from ..orders import ORDERS
from ..schedule import TwoTiles
from ..smem_map import TwoTilesSmem, smem_map
from . import barriers
from .tiles import SlotTiles
from .warp_roles import SlotWarpRoles

SLOT_ORDERS = ("p_over_s", "p_beside_s")
DEPTHS_WITH_REST = tuple(depth for depth in QK_DEPTHS_OF_FP8 if depth <= QK_DEPTHS[-1])


@dataclass(frozen=True)
class SlotTwoTiles(TwoTiles):
    """The schedule of SM100MHAWiden2Q; its choices are those of TwoTiles, with exact maxima: P is fp16."""

    family: ClassVar[str] = "mhawiden2q"
    extras: ClassVar[Extra] = Extra.DEQUANTIZED_KEYS | Extra.CACHE_BLOCKS
    qk_depths: ClassVar[tuple] = DEPTHS_WITH_REST
    ov_depths: ClassVar[tuple] = DEPTHS_OF_FP8
    values_apart: ClassVar[bool] = False  # the warp that would copy them dequantizes

    warps: WarpRoles = field(default_factory=SlotWarpRoles)

    def resolved(self, problem: Problem) -> "SlotTwoTiles":
        maximum = "exact" if self.maximum is None else self.maximum
        schedule = replace(self, maximum=maximum)
        if not self.stages_o(problem):
            schedule = replace(schedule, lone_tiles=bool(self.lone_tiles))
        return super(SlotTwoTiles, schedule).resolved(problem)

    def stages_o(self, problem: Problem) -> bool:
        """Whether O goes through shared memory. A second rest of K takes that place, and threads store O."""
        return not self.tiles(problem).rest_qk_depth

    def tiles(self, problem: Problem) -> SlotTiles:
        return SlotTiles.of(problem, num_q=self.query_tiles)

    def load_apart(self, problem: Problem) -> bool:
        """Also with scales of blocks, where ptxas spilled the common address."""
        return super().load_apart(problem) or problem.cache_blocks

    def barriers(self, problem: Problem) -> BarrierTable:
        return layout(self, self.tiles(problem))[0]

    def smem(self, problem: Problem) -> TwoTilesSmem:
        return layout(self, self.tiles(problem))[1]

    def _not_built(self, problem: Problem) -> list[str]:
        if problem.kv_dtype not in CACHED:
            return [
                f"kv_dtype={problem.kv_dtype!r}: these kernels dequantize keys: use one of {', '.join(CACHED)}, or "
                "schedule=TwoTiles()"
            ]
        why = super()._not_built(problem)
        if self.order not in SLOT_ORDERS:
            why.append(
                f"order={self.order!r} is not supported where keys are dequantized: use {' or '.join(SLOT_ORDERS)}"
            )
        if self.lone_tiles and not self.stages_o(problem):
            why.append(
                f"lone_tiles=True with qk_depth={problem.qk_depth}: the parts of O are merged in shared memory, where "
                "K has its rest: use lone_tiles=False"
            )
        return why


@lru_cache(maxsize=1024)
def layout(schedule: SlotTwoTiles, tiles: SlotTiles) -> tuple[BarrierTable, TwoTilesSmem]:
    """Barriers and shared memory fix each other's size: the ring gets the space that a kernel without slots leaves."""
    warps, of_the_order = schedule.warps, ORDERS[schedule.order].barriers(schedule.warps)
    empty = barriers.table(tiles, warps, 0, of_the_order)
    sizes = dict(stages_o=schedule.stages_o(tiles.problem))
    slots = slots_that_fit(tiles, smem_map(tiles, warps, empty, **sizes), empty)
    table = barriers.table(tiles, warps, slots, of_the_order)
    return table, smem_map(tiles, warps, table, **sizes)
