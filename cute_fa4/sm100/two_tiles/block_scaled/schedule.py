"""BlockScaled: TwoTiles, whose Q and K have a power of two for each 32 numbers of a row, by which the MMA multiplies.

    FA4Config(qkv_dtype="e4m3", qk_depth=128, descales="xy", schedule=BlockScaled())

    scales    global memory        a byte for each 32 numbers, in the layout of q and k
              warp of scales       four bytes of a row to a word of shared memory (layouts/block_scales.py)
              mma warp             tcgen05.cp into tensor memory, then tcgen05.mma with S multiplied as it is made

Softmax and correction do not see the scales: S already includes them. V has one scale for each sequence and head.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from cute_fa4.layouts.block_scales import COPY_BYTES, words_of

from ...blueprint.barriers import SCALE_SLOTS, BarrierTable
from ...blueprint.memory_maps import TmemMap, slots_that_fit
from ...blueprint.problem import Problem
from ...blueprint.reach import QK_DEPTHS_OF_FP8, Extra
from ...blueprint.tiles import Tiles
from ..schedule import TwoTiles
from ..smem_map import TwoTilesSmem, smem_map
from . import barriers
from .orders import OF_K, CrossedMeeting

ORDER = "p_crossed"


def bytes_of(problem: Problem) -> int:
    """Bytes of the scales of Q0, of Q1 or of K in an entry of the ring, which has all three."""
    return words_of(problem.qk_depth) * COPY_BYTES


@dataclass(frozen=True)
class BlockScaled(TwoTiles):
    """The schedule of SM100MHAMX; its choices are those of TwoTiles."""

    family: ClassVar[str] = "mhamx"
    qk_depths_of_fp8: ClassVar[tuple] = QK_DEPTHS_OF_FP8
    extras: ClassVar[Extra] = Extra.ROPE | Extra.MIXED_ROPE | Extra.BLOCK_SCALES | Extra.BLOCK_LISTS
    tmem_remedy: ClassVar[str] = ""

    def resolved(self, problem: Problem) -> "BlockScaled":
        open_here = {"lone_tiles": False, "order": ORDER}
        closed = {name: said for name, said in open_here.items() if getattr(self, name) is None}
        return super(BlockScaled, replace(self, **closed)).resolved(problem)

    def tmem(self, problem: Problem) -> TmemMap:
        return CrossedMeeting().tmem(self.tiles(problem))

    def barriers(self, problem: Problem) -> BarrierTable:
        return layout(self, self.tiles(problem))[0]

    def smem(self, problem: Problem) -> TwoTilesSmem:
        return layout(self, self.tiles(problem))[1]

    def uneven(self, problem: Problem) -> bool:
        return False

    def _not_built(self, problem: Problem) -> list[str]:
        why = super()._not_built(problem)
        if not problem.block_scales:
            why.append(
                f"descales={problem.descales!r}: this family is for scales of blocks: use schedule=TwoTiles(), or "
                "letters xy"
            )
        if problem.token_scales:
            why.append(
                f"descales={problem.descales!r}: scales of each key of V are not supported beside scales of blocks: "
                "use v, one for each sequence and head"
            )
        if self.order != ORDER:
            why.append(
                f"order={self.order!r} is not supported with scales of blocks: use {ORDER!r}"
            )
        if self.lone_tiles:
            why.append(
                "lone_tiles=True is not supported with scales of blocks: use lone_tiles=False"
            )
        return why


@lru_cache(maxsize=1024)
def layout(schedule: BlockScaled, tiles: Tiles) -> tuple[BarrierTable, TwoTilesSmem]:
    """Barriers and shared memory fix each other's size: the ring gets the space that a kernel without slots leaves."""
    warps = schedule.warps_of(tiles.problem)
    of_the_order = CrossedMeeting().barriers(warps)
    ring = SCALE_SLOTS * (OF_K + 1) * bytes_of(tiles.problem)
    empty = barriers.table(tiles, warps, 0, of_the_order)
    slots = slots_that_fit(tiles, smem_map(tiles, warps, empty, scale_bytes=ring), empty)
    table = barriers.table(tiles, warps, slots, of_the_order)
    return table, smem_map(tiles, warps, table, scale_bytes=ring)
