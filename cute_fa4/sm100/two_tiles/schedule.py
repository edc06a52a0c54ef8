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
from ..blueprint import skipping, tuning
from ..blueprint.bands import mask_fact
from ..blueprint.barriers import BarrierTable
from ..blueprint.memory_maps import TmemMap, slots_that_fit
from ..blueprint.problem import Problem
from ..blueprint.reach import Extra
from ..blueprint.row_schedule import RowSchedule, emulated_pairs
from ..blueprint.tiles import Tiles
from ..blueprint.warp_roles import ONE_SOFTMAX_GROUP, WarpRoles
from . import barriers
from .orders import (
    ORDERS,
    PBesideS,
    POverS,
    best_order,
    may_add_up,
    preference,
)
from .smem_map import TwoTilesSmem, ones_bytes, smem_map

ORDERS_OF_SINGLE_TILES = ("p_over_s", "p_beside_s")
ORDERS_OF_UNEVEN_TILES = (
    "p_over_s",
    "p_beside_s",
)  # crossed, P of either query tile waits for S of the other
MAXIMA = ("exact", "lagged")
EXPONENTIALS = ("exact", "half")
ROW_SUMS = ("exact", "rounded")
CROSSED, SUMMED = "p_crossed", "p_crossed_summed"
REFERENCES = ("quarter", "tile")
COLUMNS_BY_WARP = 128  # of a key tile whose quarters each have a word of visibility bits
MOST_IN_HALVES = 56  # the remaining pairs propagate NaN


@dataclass(frozen=True)
class TwoTiles(RowSchedule):
    """The schedule of SM100MHA2Q; its other choices are those of RowSchedule.

    order          of the products: one of ORDERS (orders.py); None: p_beside_s where there is
                   room, otherwise p_crossed or p_over_s
    lone_tiles     both softmax warpgroups process the rows of a work tile whose rows fit in one query tile
                   (single_tile/hooks.py); None: on where the query lengths, and so the rows per work tile, vary
    own_parts      a CTA takes the parts of its rows' keys one after the other, and merges them as the merge kernel of
                   split keys would (own_parts/hooks.py)
    one_query_tile a CTA has one query tile, whose rows have the bits of a CTA with two (one_query_tile.py)
    maximum        the maximum subtracted in the exponentials of a row: its "exact" running maximum, or a "lagged" one,
                   from earlier key tiles (steps/lagged.py); None: as lag_pays decides for the problem
    first_reference  where a lagged maximum begins: with that of a "quarter" of the first key tile's scores, or of the
                   "tile"; None: as the tuning table says, where a quarter may serve
    exponential    how the FMA units compute their part of the exponentials: "exact", in float32, or "half", in f16, for
                   P of eight bits (steps/half_powers.py); None: as the tuning table says, where P has eight bits
    row_sum        "exact": softmax sums P before it is rounded; "rounded": P V sums P of eight bits, with order
                   p_crossed_summed; None: as the order does it
    """

    family: ClassVar[str] = "mha2q"
    query_tiles: ClassVar[int] = 2
    extras: ClassVar[Extra] = (
        Extra.ROPE | Extra.MIXED_ROPE | Extra.KEY_SCALES | Extra.BLOCK_LISTS | Extra.SKIPPED_TILES
    )
    values_apart: ClassVar[bool] = True
    tmem_remedy: ClassVar[str] = "use order='p_over_s'"

    order: str | None = None
    lone_tiles: bool | None = None
    own_parts: bool = False
    one_query_tile: bool = False
    maximum: str | None = None
    exponential: str | None = None
    first_reference: str | None = None
    row_sum: str | None = None

    def resolved(self, problem: Problem) -> "TwoTiles":
        maximum = self.maximum or ("lagged" if lag_pays(self.family, problem) else "exact")
        schedule = replace(self, first_reference=self._first_reference(problem, maximum))
        if schedule.exponential is None:
            half = problem.is_quantized and problem.descales.v != ROW
            facts = {"arch": problem.arch, "family": self.family}
            chosen = tuning.choose("exponential", **facts) if half else "exact"
            schedule = replace(schedule, exponential=chosen)
        if self.order is None and schedule.adds_up(problem):
            schedule = replace(schedule, order=SUMMED)
        if schedule.exp2_emulated is None:
            summed = schedule.order == SUMMED
            pairs = emulated_pairs(self.family, problem, maximum, schedule.exponential, summed)
            schedule = replace(schedule, exp2_emulated=pairs)
        schedule = super(TwoTiles, schedule).resolved(problem)
        if self.lone_tiles is None and (problem.token_scales or problem.skip_softmax):
            schedule = replace(schedule, lone_tiles=False)
        open_order = schedule.order is None
        if open_order and not (self.contradictions(problem) + problem.contradictions()):
            of_two = replace(self, one_query_tile=False).tiles(problem)
            order = best_order(self.family, of_two, schedule.lone_tiles)
            schedule = replace(schedule, order=order)
        if schedule.lone_tiles is None:
            takes_them = schedule.order in ORDERS_OF_SINGLE_TILES
            schedule = replace(schedule, lone_tiles=problem.clips_queries and takes_them)
        if self.maximum is None:
            schedule = replace(schedule, maximum=maximum)
        return replace(schedule, row_sum=self.row_sum or sum_of(schedule.order))

    def _first_reference(self, problem: Problem, maximum: str) -> str:
        """A function may hide a quarter's scores, and with a lower bound a masked tile comes first."""
        if maximum != "lagged" or problem.has_functions or problem.mask.has_lower_bound:
            return "tile"
        facts = {
            "arch": problem.arch,
            "head_dim": problem.qk_depth,
            "mask": mask_fact(problem.mask),
        }
        return self.first_reference or tuning.choose("first_reference", family=self.family, **facts)

    def adds_up(self, problem: Problem) -> bool:
        """Whether P V also sums P by default: with exponentials in f16 (docs/decisions/0019)."""
        single = problem.clips_queries if self.lone_tiles is None else self.lone_tiles
        if not self._may_add_up(problem) or self.exponential != "half" or single:
            return False
        if self.row_sum is not None:
            return self.row_sum == "rounded"
        orders = preference(self.family, problem)  # there is no room for P beside S
        return orders.index(SUMMED) < min(orders.index(CROSSED), orders.index("p_over_s"))

    def _may_add_up(self, problem: Problem) -> bool:
        """Parts are merged by their log-sum-exp, which needs the sum of P before rounding."""
        return may_add_up(problem) and not self.own_parts

    def fitting(self, problem: Problem) -> "TwoTiles":
        """The same choices for another problem. If P V may not sum P there, as with an LSE, softmax sums it."""
        if self._order_fits(problem):
            return self
        return replace(self, order=None, exp2_emulated=None, row_sum=None)

    def _order_fits(self, problem: Problem) -> bool:
        if self.order == SUMMED:
            return self._may_add_up(problem)
        return self.order != CROSSED or problem.is_quantized

    def tiles(self, problem: Problem) -> Tiles:
        return Tiles.cut(problem, num_q=1 if self.one_query_tile else self.query_tiles)

    def warps_of(self, problem: Problem) -> WarpRoles:
        schedule = replace(self, warps=ONE_SOFTMAX_GROUP) if self.one_query_tile else self
        return super(TwoTiles, schedule).warps_of(problem)

    def budget(self, problem: Problem) -> str | None:
        """With own_parts correction needs more registers than other roles have to spare."""
        said = super().budget(problem)
        if not self.own_parts:
            return said
        return "own parts" if said is None else "own parts, pages"

    def load_apart(self, problem: Problem) -> bool:
        """Also over pages on sm_103a: the load warp of packed queries had no register for the common address."""
        return super().load_apart(problem) or self.budget(problem) == "pages, sm_103a"

    def loads_v_late(self, problem: Problem) -> bool:
        """Whether V of a key tile is loaded after K of the next one (one_query_tile.py).

        That takes one load warp, and slots that hold whole tiles of K.
        """
        tiles = self.tiles(problem)
        return self.one_query_tile and not (tiles.gathers_rows or tiles.rest_qk_depth)

    def merges_parts(self, problem: Problem) -> bool:
        """Whether CTAs that fill the chip merge the parts of their rows (own_parts), except with gathered pages."""
        return type(self) is TwoTiles and not any(not_merged(problem).values())

    def in_runs(self, problem: Problem) -> bool:
        return problem.split_keys and not problem.share_keys and self.loads_v_late(problem)

    def row_again(self, problem: Problem) -> bool:
        """Whether softmax computes its row's place and bands anew after the loop over whole key tiles.

        With scales of keys and a score function, ptxas spilled them there, although 30 registers were free. Under a
        lower bound the loop before that one needs the bands too, and ptxas spills nothing.
        """
        scaled = problem.token_scales and problem.score_mod is not None
        return bool(scaled) and not problem.mask.has_lower_bound

    def tmem(self, problem: Problem) -> TmemMap:
        return self.columns_and_barriers.tmem(self.tiles(problem))

    def barriers(self, problem: Problem) -> BarrierTable:
        return layout(self, self.tiles(problem))[0]

    def smem(self, problem: Problem) -> TwoTilesSmem:
        return layout(self, self.tiles(problem))[1]

    def uneven(self, problem: Problem) -> bool:
        mask = problem.mask
        bounded = mask.is_band and (mask.has_upper_bound or mask.has_lower_bound)
        apart = problem.split_keys or self.own_parts or self.one_query_tile or problem.skip_softmax
        taken = not apart and self.order in ORDERS_OF_UNEVEN_TILES
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

    @property
    def columns_and_barriers(self) -> POverS | PBesideS:
        return PBesideS() if self.one_query_tile else ORDERS[self.order]

    def contradictions(self, problem: Problem) -> list[str]:
        why = super().contradictions(problem)
        if self.order not in (None, *ORDERS):
            why.insert(
                0,
                f"order={self.order!r} is not an order of the products: use {' or '.join(ORDERS)}",
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
                f"maximum={self.maximum!r} is not a kind of running maximum: use {' or '.join(MAXIMA)}"
            )
        if self.first_reference not in (None, *REFERENCES):
            why.append(
                f"first_reference={self.first_reference!r} is no first maximum: use {' or '.join(REFERENCES)}"
            )
        if self.exponential not in (None, *EXPONENTIALS):
            why.append(
                f"exponential={self.exponential!r} is not a way to compute P: use {' or '.join(EXPONENTIALS)}"
            )
        if self.row_sum not in (None, *ROW_SUMS):
            why.append(
                f"row_sum={self.row_sum!r} is not a way to sum P: use {' or '.join(ROW_SUMS)}"
            )
        elif self.order in ORDERS and self.row_sum not in (None, sum_of(self.order)):
            why.append(
                f"row_sum={self.row_sum!r} with order={self.order!r}: use {sum_of(self.order)!r}"
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
                f"lone_tiles=True with descales={problem.descales!r}: scales of each key are not supported for it: use "
                "lone_tiles=False"
            )
        if self.lone_tiles and self.order not in (None, *ORDERS_OF_SINGLE_TILES):
            why.append(
                f"lone_tiles=True with order={self.order!r} is not supported: use "
                f"{' or '.join(ORDERS_OF_SINGLE_TILES)}, or lone_tiles=False"
            )
        if self.lags and problem.q_block:
            why.append(
                f"maximum='lagged' with q_block={problem.q_block} is not supported: use 'exact'"
            )
        if self.lags and not may_lag(problem):
            why.append(
                f"maximum='lagged' with qkv_dtype={problem.qkv_dtype!r}: P may be 2^64, which bf16 holds: use 'exact'"
            )
        return (
            why
            + skipping.of_schedule(problem, self)
            + self._own_parts_contradictions(problem)
            + self._one_query_tile_contradictions(problem)
        )

    def _exact_alone(self, name: str, of_problem: dict, **choices) -> list[str]:
        """What a switch for exact maxima alone excludes. choices: further choices, each with its only value."""
        choices |= {"maximum": "exact", "lone_tiles": False}
        said = {choice: getattr(self, choice) for choice in choices}
        why = [
            f"{name}=True with {choice}={said[choice]!r} is not supported: use {value!r}"
            for choice, value in choices.items()
            if said[choice] not in (None, value)
        ]
        why += [
            f"{name}=True with {field}={value!r} is not supported: use {name}=False"
            for field, value in of_problem.items()
            if value
        ]
        if type(self) is not TwoTiles:
            why.append(f"{name}=True with schedule={type(self).__name__}(): use TwoTiles()")
        return why

    def _own_parts_contradictions(self, problem: Problem) -> list[str]:
        if not self.own_parts:
            return []
        of_problem = {
            "split_keys": problem.split_keys,
            "q_block": problem.q_block,
            "page_size": self.tiles(problem).gathers_rows and problem.page_size,
            **not_merged(problem),
        }
        return self._exact_alone("own_parts", of_problem, one_query_tile=False)

    def _one_query_tile_contradictions(self, problem: Problem) -> list[str]:
        """Its bits are those of two query tiles, which have to have the order, too."""
        if not self.one_query_tile:
            return []
        of_two = replace(self, one_query_tile=False).tiles(problem)
        runs = self.order != SUMMED and (
            self.order not in ORDERS or ORDERS[self.order].tmem(of_two).fits
        )
        of_problem = {"order": not runs and self.order, "q_block": problem.q_block}
        return self._exact_alone("one_query_tile", of_problem)


def not_merged(problem: Problem) -> dict:
    """Features with which a CTA cannot merge the parts of its rows, by name: values that are true."""
    return {
        "rope_depth": problem.rope_depth,
        "descales": problem.token_scales and problem.descales,
        "sink": problem.sink and problem.mask.has_lower_bound and problem.mask,
    }


def may_lag(problem: Problem) -> bool:
    """Whether P has the range of float32."""
    return problem.p_dtype == "bf16"


def sum_of(order: str) -> str:
    """The row sum that an order of the products makes, one of ROW_SUMS."""
    return "rounded" if order == SUMMED else "exact"


def lag_pays(family: str, problem: Problem) -> bool:
    """Whether a kernel for the problem uses the maximum of earlier key tiles, unless its schedule says otherwise."""
    if not (may_lag(problem) and keeps_references(problem)):
        return False
    facts = {"arch": problem.arch, "head_dim": problem.qk_depth, "mask": mask_fact(problem.mask)}
    return tuning.choose("maximum", family=family, **facts) == "lagged"


def keeps_references(problem: Problem) -> bool:
    """Whether the maximum of the first key tile serves the later tiles, and softmax is late without it.

    Up to depth 128 P V waits for P (docs/decisions/0012). A mask without bands has no whole tiles, and a mask function
    may hide all of the first tile: its work tiles would be rerun. Listed tiles take turns with and without a mask.
    Skipped tiles are compared with exact maxima.
    """
    hides = problem.mask_mod is not None or problem.q_block or problem.skip_softmax
    return problem.mask.is_band and not hides and problem.qk_depth <= 128


@lru_cache(maxsize=1024)
def layout(schedule: TwoTiles, tiles: Tiles) -> tuple[BarrierTable, TwoTilesSmem]:
    """Barriers and shared memory fix each other's size: the ring gets the space that a kernel without slots leaves."""
    warps = schedule.warps_of(tiles.problem)
    order = schedule.columns_and_barriers
    says = order.barriers(warps), "softmax" if schedule.lags else None
    ones = ones_bytes(tiles) if order.tmem(tiles).sums else 0
    empty = barriers.table(tiles, warps, 0, *says)
    sizes = dict(ones_bytes=ones, stages_o=not schedule.one_query_tile)
    slots = slots_that_fit(tiles, smem_map(tiles, warps, empty, **sizes), empty)
    table = barriers.table(tiles, warps, slots, *says)
    return table, smem_map(tiles, warps, table, **sizes)
