"""RowSchedule: the base of families whose softmax threads each own a query row, in tiles of 128 rows.

    family       schedule    query tiles of a CTA    who shares the two softmax warpgroups
    mha2q        TwoTiles    two                     a query tile each
    mhapair      Pair        two of 256, half in each CTA    a query tile each
    mhamx        BlockScaled  two                    a query tile each
    mhawiden2q   SlotTwoTiles  two                   a query tile each
    mha1q        OneTile     one                     every second key tile each
    mhawide      WideTile    one                     there is one, with every key tile
    mhawidepair  WidePair    one of 256, half in each CTA    the same
    mhawidewiden  SlotWideTile  one                  the same

It holds the choices, the defaults of open choices, and the reasons for a refusal: with value, limit and remedy.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar

from cute_fa4 import dtypes

from . import claims, listed, tuning
from .chip import SMEM_CAPACITY_BYTES, TMEM_COLUMNS
from .memory_maps import SmemMap, TmemMap
from .problem import Problem
from .reach import DEPTHS, QK_DEPTHS, QK_DEPTHS_OF_FP8, Extra, problem_not_built
from .tiles import KEYS_PER_TILE, ROWS_PER_Q_TILE, Tiles
from .warp_roles import WarpRoles

RESCALE_LOG2, RESCALE_LOG2_OF_QUANTIZED = 8.0, 0.0


def default_rescale_log2(problem: Problem) -> float:
    """How far the running maximum may lag where a schedule leaves it open."""
    return RESCALE_LOG2_OF_QUANTIZED if problem.is_quantized else RESCALE_LOG2


def starts_early(family: str, problem: Problem) -> bool:
    """Whether a kernel may start while the grid before it ends, where its schedule leaves that open."""
    facts = {name: getattr(problem, name) for name in ("pack_gqa", "split_keys", "longest_first")}
    return tuning.choose("dependent_launch", family=family, **facts)


def emulated_pairs(
    family: str,
    problem: Problem,
    maximum: str = "exact",
    exponential: str = "exact",
    summed: bool = False,
) -> int:
    """Pairs of exponentials on the FMA units, per 64 pairs, where a schedule leaves that open."""
    facts = {"maximum": maximum, "exponential": exponential, "summed": summed}
    of_problem = {"arch": problem.arch, "head_dim": problem.qk_depth}
    return tuning.choose("exp2_emulated", family=family, **of_problem, **facts)


def lag_contradictions(problem: Problem, rescale_log2: float | None) -> list[str]:
    """Why the running maximum cannot lag so far."""
    p = problem.operand.p if problem.is_quantized else dtypes.FP16.name
    highest = dtypes.DTYPES[p].largest_log2
    if rescale_log2 is None or 0 <= rescale_log2 <= highest:
        return []
    return [
        f"rescale_log2={rescale_log2}: P grows to 2^rescale_log2 and must fit {p}: use 0 to {highest}"
    ]


@dataclass(frozen=True)
class RowSchedule:
    """The choices that these families have in common.

    rescale_log2   the running row maximum is kept while it moves less than this (P stays below 2^rescale_log2);
                   None: 8, and 0 where P has eight bits (docs/numerics.md)
    exp2_emulated  how many of 64 pairs of exponentials the FMA units compute; None: as the tuning table says
    claims         a finished CTA takes over a block of the grid that has not started (work/queue.py); False: it
                   exits; None: as claims_pay decides for the problem
    dependent_launch  the CTAs may start while the grid before them in the stream ends; they wait for it before they
                   touch what it may have written (programmatic dependent launch); None: as the tuning
                   table says
    warps          roles and registers
    """

    family: ClassVar[str]
    query_tiles: ClassVar[int]  # of a CTA
    qk_depths: ClassVar[tuple] = QK_DEPTHS
    qk_depths_of_fp8: ClassVar[tuple] = QK_DEPTHS_OF_FP8
    ov_depths: ClassVar[tuple] = DEPTHS
    extras: ClassVar[Extra] = Extra.ROPE
    # The running maximum of a row comes from earlier key tiles (steps/lagged.py).
    lags: ClassVar[bool] = False
    # How exponentials are emulated on the FMA units: "exact", in float32; "half" in f16 (steps/half_powers.py).
    exponential: ClassVar[str] = "exact"
    # Where rows are gathered, a dedicated warp copies V (roles/values.py).
    values_apart: ClassVar[bool] = False
    tmem_remedy: ClassVar[str] = "lower the head dim of v"

    rescale_log2: float | None = None
    exp2_emulated: int | None = None
    claims: bool | None = None
    dependent_launch: bool | None = None
    warps: WarpRoles = field(default_factory=WarpRoles)

    def tmem(self, problem: Problem) -> TmemMap:
        """Columns of tensor memory."""
        raise NotImplementedError

    def smem(self, problem: Problem) -> SmemMap:
        """Bytes of shared memory."""
        raise NotImplementedError

    def resolved(self, problem: Problem) -> "RowSchedule":
        """The schedule with every open choice made."""
        changes = {}
        if self.exp2_emulated is None:
            changes["exp2_emulated"] = emulated_pairs(self.family, problem)
        if self.rescale_log2 is None:
            changes["rescale_log2"] = default_rescale_log2(problem)
        changes["claims"] = claims.resolved(self.claims, problem)
        if self.dependent_launch is None:
            changes["dependent_launch"] = starts_early(self.family, problem)
        return replace(self, **changes)

    def tiles(self, problem: Problem) -> Tiles:
        return Tiles.cut(problem, num_q=self.query_tiles)

    def budget(self, problem: Problem) -> str | None:
        """The name in REGISTERS of what the roles do; None: nothing that needs a budget of its own."""
        scales, paged = bool(problem.token_scales), problem.kv_layout == "paged"
        tiles = self.tiles(problem)
        chunks = max(problem.qk_depth, problem.ov_depth) > tiles.swizzle_granule
        on_sm_103a = problem.arch == "sm_103a" and problem.kv_dtype is None
        does = {
            "stream-K, scales of blocks": problem.share_keys and problem.cache_blocks and chunks,
            "scales of blocks": problem.cache_blocks and chunks,
            "scales of blocks, 64 columns": problem.cache_blocks,
            "stream-K, scales of keys": problem.share_keys and scales,
            "stream-K": problem.share_keys,
            "scales of keys": scales,
            "gathered rows": tiles.gathers_rows,
            "pages, sm_103a": paged and on_sm_103a,
            "pages": paged,
        }
        return next((name for name, is_done in does.items() if is_done), None)

    def warps_of(self, problem: Problem) -> WarpRoles:
        """The role of each warp, and its registers."""
        what, gathers = self.budget(problem), self.tiles(problem).gathers_rows
        warps = self.warps if what is None else self.warps.with_registers(what)
        return warps.with_values() if gathers and self.values_apart else warps

    def load_apart(self, problem: Problem) -> bool:
        """Whether the load warp has its own address: where ptxas spilled the common one (test_stacks.py).

        Elsewhere it spills the second address instead, for example with 192 columns and without a second tensor.
        """
        return problem.mixes_rope or problem.scales_rope

    def contradictions(self, problem: Problem) -> list[str]:
        """Meaningless values."""
        why = []
        if problem.pack_gqa and (problem.group < 1 or ROWS_PER_Q_TILE % problem.group):
            why.append(
                f"pack_gqa=True with group={problem.group}: a tile of {ROWS_PER_Q_TILE} rows holds whole groups: use "
                f"a group that divides {ROWS_PER_Q_TILE}, or pack_gqa=False"
            )
        if self.exp2_emulated is not None and not 0 <= self.exp2_emulated <= 64:
            why.append(f"exp2_emulated={self.exp2_emulated} of 64 pairs: use 0 to 64")
        return why + lag_contradictions(problem, self.rescale_log2)

    def refusals(self, problem: Problem) -> list[str]:
        """Why these families do not run the problem."""
        not_built = self._not_built(problem)
        if not_built and self.tiles(problem).BN < KEYS_PER_TILE:
            return not_built  # unsupported head dims have no meaningful tiles
        return self._over_capacity(problem) + not_built

    def _over_capacity(self, problem: Problem) -> list[str]:
        tiles, tmem = self.tiles(problem), self.tmem(problem)
        why = []
        if not tmem.fits:
            why.append(
                f"S, P and O need {tmem.used} tensor-memory columns, an SM has {TMEM_COLUMNS}: "
                f"{self.tmem_remedy}"
            )
        smem = self.smem(problem)
        slots = smem.kv.nbytes // tiles.kv_slot_bytes
        if slots < 3:
            why.append(
                f"the ring has {slots} slots of {tiles.kv_slot_bytes} bytes beside {tiles.q_bytes} bytes "
                f"of Q, at least 3 are needed because V of a tile is held while K of the next one arrives: "
                f"lower the head dim"
            )
        if smem.nbytes > SMEM_CAPACITY_BYTES:
            why.append(
                f"shared memory of {smem.nbytes} bytes exceeds {SMEM_CAPACITY_BYTES}: lower the head dim"
            )
        return why + tiles.rope_refusals()

    def _not_built(self, problem: Problem) -> list[str]:
        why = problem_not_built(
            problem, self.extras, self.qk_depths, self.ov_depths, self.qk_depths_of_fp8
        )
        return why + listed.refusals(problem, self.query_tiles * ROWS_PER_Q_TILE)
