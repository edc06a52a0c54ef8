"""TwoTiles: two query tiles of 128 rows a CTA, each with a softmax warpgroup; S, P and O in tensor memory.

    FA4Config(qk_depth=128, mask=masks.Causal())    bf16

    tensor memory, 512 columns of 128 lanes            shared memory, 227 KiB
    0        BN       2 BN       2 BN + ov             Q0 | Q1 | ring of kv slots | two chunks of O | row scale
    | S0 P0  |  S1 P1  |   O0   |   O1   |             | row bias | work queue | mbarriers

Derivation: depth and dtype give the padded depth; tensor memory gives BN; what shared memory is left gives the ring.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from ...scales import ROW
from ..blueprint.barriers import BarrierTable
from ..blueprint.memory_maps import TmemMap, slots_that_fit
from ..blueprint.problem import Problem
from ..blueprint.reach import Extra
from ..blueprint.row_schedule import RowSchedule
from ..blueprint.tiles import Tiles
from . import barriers
from .orders import (
    ORDERS,
    PBesideS,
    POverS,
    best_order,
    may_add_up,
)
from .smem_map import TwoTilesSmem, ones_bytes, smem_map

ORDERS_OF_LONE_TILES = ("p_over_s", "p_beside_s")
ORDERS_OF_UNEVEN_TILES = (
    "p_over_s",
    "p_beside_s",
)  # crossed, P of either query tile waits for S of the other
MAXIMA = ("exact", "lagged")
EXPONENTIALS = ("exact", "half")
CROSSED, SUMMED = "p_crossed", "p_crossed_summed"
EMULATED_IN_HALVES = 32  # of 64 pairs: docs/decisions/0019
EMULATED_WITHOUT_SUMS = 40  # where P V computes the row sums instead of softmax
COLUMNS_BY_WARP = 128  # of a key tile whose quarters each have a word of visibility bits
MOST_IN_HALVES = 56  # the remaining pairs propagate NaN


@dataclass(frozen=True)
class TwoTiles(RowSchedule):
    """The schedule of SM100MHA2Q; its other choices are those of RowSchedule.

    order          of the products: one of ORDERS (orders.py); None: p_beside_s where there is
                   room, otherwise p_crossed or p_over_s
    lone_tiles     both softmax warpgroups process the rows of a work tile whose rows fit in one query tile
                   (single_tile/hooks.py); None: on where the query lengths, and so the rows per work tile, vary
    maximum        the maximum subtracted in the exponentials of a row: its "exact" running maximum, or a "lagged" one,
                   from earlier key tiles (steps/lagged.py); None: as lag_pays decides for the problem
    exponential    how the FMA units compute their part of the exponentials: "exact", in float32, or "half", in f16, for
                   P of eight bits (steps/half_powers.py); None: half where P has eight bits, on sm_100a
    """

    family: ClassVar[str] = "mha2q"
    query_tiles: ClassVar[int] = 2
    extras: ClassVar[Extra] = Extra.ROPE | Extra.MIXED_ROPE | Extra.KEY_SCALES
    values_apart: ClassVar[bool] = True
    tmem_remedy: ClassVar[str] = "use order='p_over_s'"
    lagged_emulated: ClassVar[int] = (
        24  # of 64 pairs of exponentials, on sm_100a: docs/decisions/0012
    )

    order: str | None = None
    lone_tiles: bool | None = None
    maximum: str | None = None
    exponential: str | None = None

    def resolved(self, problem: Problem) -> "TwoTiles":
        lags = self.maximum == "lagged" or (self.maximum is None and lag_pays(problem))
        schedule = self
        if self.exp2_emulated is None and lags and problem.arch == "sm_100a":
            schedule = replace(schedule, exp2_emulated=self.lagged_emulated)
        if schedule.exponential is None:
            half = problem.is_quantized and problem.arch == "sm_100a" and problem.descales.v != ROW
            schedule = replace(schedule, exponential="half" if half else "exact")
        if self.order is None and schedule.adds_up(problem):
            schedule = replace(schedule, order=SUMMED)
        if schedule.exp2_emulated is None and schedule.exponential == "half":
            summed = schedule.order == SUMMED
            schedule = replace(
                schedule, exp2_emulated=EMULATED_WITHOUT_SUMS if summed else EMULATED_IN_HALVES
            )
        schedule = super(TwoTiles, schedule).resolved(problem)
        if self.lone_tiles is None and problem.token_scales:
            schedule = replace(schedule, lone_tiles=False)
        open_order = schedule.order is None
        if open_order and not (self.contradictions(problem) + problem.contradictions()):
            schedule = replace(schedule, order=best_order(self.tiles(problem), schedule.lone_tiles))
        if schedule.lone_tiles is None:
            takes_them = schedule.order in ORDERS_OF_LONE_TILES
            schedule = replace(schedule, lone_tiles=problem.clips_queries and takes_them)
        if self.maximum is None:
            schedule = replace(schedule, maximum="lagged" if lags else "exact")
        return schedule

    def adds_up(self, problem: Problem) -> bool:
        """Whether P V also sums P by default: with exponentials in f16 (docs/decisions/0019)."""
        lone = problem.clips_queries if self.lone_tiles is None else self.lone_tiles
        return may_add_up(problem) and self.exponential == "half" and not lone

    def fitting(self, problem: Problem) -> "TwoTiles":
        """The same choices for another problem. If P V may not sum P there, as with an LSE, softmax sums it."""
        return self if self._order_fits(problem) else replace(self, order=None, exp2_emulated=None)

    def _order_fits(self, problem: Problem) -> bool:
        if self.order == SUMMED:
            return may_add_up(problem)
        return self.order != CROSSED or problem.is_quantized

    def tmem(self, problem: Problem) -> TmemMap:
        return self._order.tmem(self.tiles(problem))

    def barriers(self, problem: Problem) -> BarrierTable:
        return layout(self, self.tiles(problem))[0]

    def smem(self, problem: Problem) -> TwoTilesSmem:
        return layout(self, self.tiles(problem))[1]

    def uneven(self, problem: Problem) -> bool:
        mask = problem.mask
        bounded = mask.is_band and (mask.has_upper_bound or mask.has_lower_bound)
        taken = not problem.split_keys and self.order in ORDERS_OF_UNEVEN_TILES
        # Both softmax warpgroups release the scales of every key tile (roles/token_scales.py).
        return bounded and taken and not problem.token_scales

    def sees_by_warp(self, problem: Problem) -> bool:
        """Whether softmax handles masked tiles warp by warp (steps/seen.py): where each query tile has at least one.

        With P over S, from head dim 72 on, the tensor core does not wait for this work (docs/decisions/0016).
        """
        plain = self.lags and self.order == "p_beside_s" and not problem.has_functions
        return plain and self.uneven(problem) and self.tiles(problem).BN == COLUMNS_BY_WARP

    @property
    def lags(self) -> bool:
        return self.maximum == "lagged"

    def quarter_pays(self, problem: Problem) -> bool:
        """Whether kernels are faster if the first maximum comes from a quarter of the scores (docs/decisions/0016)."""
        return True

    @property
    def _order(self) -> POverS | PBesideS:
        return ORDERS[self.order]

    def contradictions(self, problem: Problem) -> list[str]:
        why = super().contradictions(problem)
        if self.order not in (None, *ORDERS):
            why.insert(
                0, f"order={self.order!r} is no order of the products: use {' or '.join(ORDERS)}"
            )
        if not self._order_fits(problem) and not problem.is_quantized:
            why.append(
                f"order={self.order!r} with qkv_dtype={problem.qkv_dtype!r}: P of 16 bits is stored over or beside its "
                "own S: use p_over_s or p_beside_s"
            )
        elif not self._order_fits(problem):
            why.append(
                f"order={self.order!r} with depths {problem.qk_depth} and {problem.ov_depth}, "
                f"write_lse={problem.write_lse}: P V adds up P where V has 128 columns, without LSE or scales of "
                "tokens: use 'p_crossed'"
            )
        if self.maximum not in (None, *MAXIMA):
            why.append(
                f"maximum={self.maximum!r} is no reference of exponentials: use {' or '.join(MAXIMA)}"
            )
        if self.exponential not in (None, *EXPONENTIALS):
            why.append(
                f"exponential={self.exponential!r} is no way to compute P: use {' or '.join(EXPONENTIALS)}"
            )
        if self.exponential == "half" and not problem.is_quantized:
            why.append(
                f"exponential='half' with qkv_dtype={problem.qkv_dtype!r}: f16 is for P of eight bits: use 'exact'"
            )
        if self.exponential == "half" and (self.exp2_emulated or 0) > MOST_IN_HALVES:
            why.append(
                f"exp2_emulated={self.exp2_emulated} with exponential='half': NaN would be lost in f16: use up to "
                f"{MOST_IN_HALVES}"
            )
        if self.exponential == "half" and problem.descales.v == ROW:
            why.append(
                f"exponential='half' with descales={problem.descales!r}: P is multiplied by scales of keys in float32: "
                "use 'exact'"
            )
        if self.lone_tiles and problem.token_scales:
            why.append(
                f"lone_tiles=True with descales={problem.descales!r}: scales of each key are not built for it: use "
                "lone_tiles=False"
            )
        if self.lone_tiles and self.order not in (None, *ORDERS_OF_LONE_TILES):
            why.append(
                f"lone_tiles=True with order={self.order!r} is not built yet: use "
                f"{' or '.join(ORDERS_OF_LONE_TILES)}, or lone_tiles=False"
            )
        if self.lags and not may_lag(problem):
            why.append(
                f"maximum='lagged' with qkv_dtype={problem.qkv_dtype!r}: P may be 2^64, which bf16 holds: use 'exact'"
            )
        return why


def may_lag(problem: Problem) -> bool:
    """Whether P has the range of float32."""
    return problem.p_dtype == "bf16"


def lag_pays(problem: Problem) -> bool:
    """Whether a kernel for the problem uses the maximum of earlier key tiles, unless its schedule says otherwise.

    On sm_103a the load of the scores also returns their maximum (docs/decisions/0016).
    """
    return may_lag(problem) and keeps_references(problem) and problem.arch == "sm_100a"


def keeps_references(problem: Problem) -> bool:
    """Whether the maximum of the first key tile serves the later tiles, and softmax is late without it.

    Up to depth 128 P V waits for P (docs/decisions/0012). A mask without bands has no whole tiles, and a mask function
    may hide all of the first tile: its work tiles would be rerun.
    """
    return problem.mask.is_band and problem.mask_mod is None and problem.qk_depth <= 128


@lru_cache(maxsize=1024)
def layout(schedule: TwoTiles, tiles: Tiles) -> tuple[BarrierTable, TwoTilesSmem]:
    """Barriers and shared memory fix each other's size: the ring gets the space that a kernel without slots leaves."""
    warps = schedule.warps_of(tiles.problem)
    order = ORDERS[schedule.order]
    says = order.barriers(warps), "softmax" if schedule.lags else None
    ones = ones_bytes(tiles) if order.tmem(tiles).sums else 0
    empty = barriers.table(tiles, warps, 0, *says)
    slots = slots_that_fit(tiles, smem_map(tiles, warps, empty, ones_bytes=ones), empty)
    table = barriers.table(tiles, warps, slots, *says)
    return table, smem_map(tiles, warps, table, ones_bytes=ones)
