"""Pair: two CTAs of a cluster share every MMA; each has two query tiles of 128 rows, half of K and half of V.

    FA4Config(qk_depth=128, schedule=Pair())    bf16

    block of 512 rows     CTA 0, which issues the MMAs          CTA 1
    query tiles, M = 256  rows 0..127 of Q0, Q1                 rows 128..255 of Q0, Q1
    S = Q K^T             keys 0..63 of a K tile                keys 64..127
    O += P V              columns 0..63 of a V tile             columns 64..127
    tensor memory         S, P, O of its own rows, as in TwoTiles

An MMA of M = 256 reads B from both CTAs. So a CTA loads half of the bytes of a key tile, keeps twice as many tiles in
its ring, and sends half as much of K and V to the tensor core from shared memory, the bottleneck of the two-tile
kernel. Half of the rows of K leave a slot room for 256 columns: k_rest is empty. The warps process rows as in TwoTiles:
softmax and correction do not depend on the other CTA.

Pairs run only what the rules choose them for: 16 bits, full or causal, P over S. The other cases were slower in the
model (docs/decisions/0014, 0027) and were removed.
"""

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import ClassVar

from cute_fa4.dtypes import is_quantized

from ...blueprint.bands import Causal, Full, Mask
from ...blueprint.barriers import BarrierTable
from ...blueprint.memory_maps import slots_that_fit
from ...blueprint.problem import Problem
from ...blueprint.reach import Extra
from ...blueprint.tiles import Tiles
from ...pair.entries import CHECKED_PAIR_BYTES
from ..schedule import TwoTiles
from ..smem_map import TwoTilesSmem, smem_map
from . import barriers

ORDER = "p_over_s"
PAIRED_MASKS = (Full, Causal)


def pairs_run(qkv_dtype: str, mask: Mask) -> bool:
    """Whether pairs of CTAs support the dtype and the mask."""
    return not is_quantized(qkv_dtype) and isinstance(mask, PAIRED_MASKS)


@dataclass(frozen=True)
class Pair(TwoTiles):
    """The schedule of SM100MHAPair; its choices are those of TwoTiles."""

    family: ClassVar[str] = "mhapair"
    ctas: ClassVar[int] = 2  # that share an MMA
    extras: ClassVar[Extra] = Extra.ROPE
    values_apart: ClassVar[bool] = False

    def resolved(self, problem: Problem) -> "Pair":
        open_here = {"order": ORDER, "lone_tiles": False}
        closed = {name: said for name, said in open_here.items() if getattr(self, name) is None}
        return super(Pair, replace(self, **closed)).resolved(problem)

    @property
    def alone(self) -> TwoTiles:
        """The same choices for CTAs that do not form pairs."""
        same = {f.name: getattr(self, f.name) for f in fields(TwoTiles)}
        chosen_again = dict.fromkeys(
            ("order", "lone_tiles", "maximum", "exp2_emulated", "first_reference", "row_sum")
        )
        return TwoTiles(**{**same, **chosen_again})

    def tiles(self, problem: Problem) -> Tiles:
        return Tiles.cut(problem, num_q=self.query_tiles, cta_group=self.ctas)

    def barriers(self, problem: Problem) -> BarrierTable:
        return layout(self, self.tiles(problem))[0]

    def smem(self, problem: Problem) -> TwoTilesSmem:
        return layout(self, self.tiles(problem))[1]

    def _not_built(self, problem: Problem) -> list[str]:
        why = super()._not_built(problem)
        if problem.split_keys:
            why.append(
                "split_keys=True is not supported for pairs of CTAs, which are for many queries: use TwoTiles()"
            )
        if self.lone_tiles:
            why.append(
                "lone_tiles=True is not supported for pairs of CTAs: use False, or TwoTiles()"
            )
        if self.order != ORDER:
            why.append(
                f"order={self.order!r} is not supported for pairs of CTAs: use {ORDER!r}, or TwoTiles()"
            )
        if not pairs_run(problem.qkv_dtype, problem.mask):
            why.append(
                f"qkv_dtype={problem.qkv_dtype!r}, mask={problem.mask!r}: pairs of CTAs are built for 16 bits, full or "
                "causal: use TwoTiles()"
            )
        return why


@lru_cache(maxsize=1024)
def layout(schedule: Pair, tiles: Tiles) -> tuple[BarrierTable, TwoTilesSmem]:
    """Barriers and shared memory fix each other's size: the ring gets the space that a kernel without slots leaves."""
    warps = schedule.warps
    empty = barriers.table(tiles, warps, 0, schedule.lags)
    slots = slots_that_fit(tiles, smem_map(tiles, warps, empty, CHECKED_PAIR_BYTES), empty)
    table = barriers.table(tiles, warps, slots, schedule.lags)
    return table, smem_map(tiles, warps, table, CHECKED_PAIR_BYTES)
