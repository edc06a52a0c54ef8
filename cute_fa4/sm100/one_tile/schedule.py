"""OneTile: one query tile of 128 rows per CTA; softmax warpgroup 0 takes even key tiles, warpgroup 1 odd ones.

    FA4Config(qk_depth=128, schedule=OneTile())    bf16

    tensor memory, 512 columns of 128 lanes            shared memory, 227 KiB
    0        BN       2 BN       2 BN + ov             Q | ring of kv slots | two chunks of O | row scale | row max
    | S0 P0  |  S1 P1  |   O0   |   O1   |             | work queue | mbarriers

The bytes of the second query tile become another slot of the ring (two at depth 64): five tiles of 32 KiB at depth 128,
about three of them in flight while one is read. HBM needs 64 KiB in flight per SM.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from ..blueprint.barriers import BarrierTable
from ..blueprint.memory_maps import TmemMap, slots_that_fit
from ..blueprint.problem import Problem
from ..blueprint.reach import Extra
from ..blueprint.row_schedule import RowSchedule
from ..blueprint.tiles import Tiles
from ..blueprint.warp_roles import WarpRoles
from . import barriers
from .smem_map import OneTileSmem, smem_map


@dataclass(frozen=True)
class OneTile(RowSchedule):
    """The schedule of SM100MHA1Q; its choices are those of RowSchedule.

    warps   correction needs fewer registers here than with two tiles; warps that address either chain need more
    """

    family: ClassVar[str] = "mha1q"
    query_tiles: ClassVar[int] = 1
    extras: ClassVar[Extra] = Extra.ROPE | Extra.MIXED_ROPE | Extra.KEY_SCALES | Extra.BLOCK_LISTS
    values_apart: ClassVar[bool] = True

    warps: WarpRoles = WarpRoles(correction_registers=80, other_registers=48)

    def warps_of(self, problem: Problem) -> WarpRoles:
        """With scales of keys, softmax gets registers from correction, which merges two outputs at the end.

        In a stream-K split the load warp gets some instead, except up to 64 columns.
        """
        warps = super().warps_of(problem)
        if self.warps != OneTile.warps:
            return warps
        if problem.share_keys:
            narrow = max(problem.qk_depth, problem.ov_depth or 0) <= 64
            correction, other = (88, 40) if narrow or problem.token_scales else (72, 56)
            return replace(warps, correction_registers=correction, other_registers=other)
        if problem.token_scales:
            return replace(warps, softmax_registers=200, correction_registers=64)
        return warps

    def load_apart(self, problem: Problem) -> bool:
        return problem.share_keys or super().load_apart(problem)

    def tmem(self, problem: Problem) -> TmemMap:
        tiles = self.tiles(problem)
        s = (0, tiles.BN)
        o = (2 * tiles.BN, 2 * tiles.BN + tiles.padded_ov_depth)
        return TmemMap(s, s, o, o[1] + tiles.padded_ov_depth, p_apart=False)

    def barriers(self, problem: Problem) -> BarrierTable:
        return layout(self, self.tiles(problem))[0]

    def smem(self, problem: Problem) -> OneTileSmem:
        return layout(self, self.tiles(problem))[1]


@lru_cache(maxsize=1024)
def layout(schedule: OneTile, tiles: Tiles) -> tuple[BarrierTable, OneTileSmem]:
    """Barriers and shared memory depend on each other: the ring gets the memory left by a kernel without slots."""
    warps = schedule.warps_of(tiles.problem)
    empty = barriers.table(tiles, warps, 0)
    slots = slots_that_fit(tiles, smem_map(tiles, warps, empty), empty)
    table = barriers.table(tiles, warps, slots)
    return table, smem_map(tiles, warps, table)
