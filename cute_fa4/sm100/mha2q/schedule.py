"""TwoTiles: two query tiles of 128 rows a CTA, each with a softmax warpgroup; S, P and O in tensor memory.

    FA4Config(qk_depth=128, mask=masks.Causal())    bf16

    tensor memory, 512 columns of 128 lanes            shared memory, 227 KiB
    0        BN       2 BN       2 BN + ov             Q0 | Q1 | ring of kv slots | two chunks of O | row scale
    | S0 P0  |  S1 P1  |   O0   |   O1   |             | row bias | work queue | mbarriers

Derivation: depth and dtype give the padded depth; tensor memory gives BN; what shared memory is left gives the ring.
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar

from ..chip import SMEM_CAPACITY_BYTES, SWIZZLE_BYTES, TMEM_COLUMNS
from ..memory_maps import TmemMap
from ..problem import Problem
from ..sync.barriers import BarrierTable
from ..tiles import ROWS_PER_Q_TILE, Tiles, is_page_size, page_sizes
from . import barriers
from .claims import claims_pay
from .orders import ORDERS, PBesideS, POverS, best_order
from .smem_map import TwoTilesSmem, slots_that_fit, smem_map
from .warp_roles import WarpRoles

DEPTHS = (64, 72, 80, 96, 128)
DTYPES = ("bf16", "fp16")
NUM_Q = 2


@dataclass(frozen=True)
class TwoTiles:
    """The schedule of SM100MHA2Q.

    order          of the products: "p_over_s" or "p_beside_s" (orders.py); None: beside where there is room
    bn_cap         upper limit for BN; 0: as wide as tensor memory allows
    swizzle_bytes  span of the shared-memory swizzle of Q, K, V, O
    num_qk_stages  depth chunks of a K tile, each with a barrier of its own, so that the first MMA starts early;
                   0: as many as the depth has common divisors with the swizzle granule and the MMA depth
    rescale_log2   the running row maximum is kept while it moves less than this (P stays below 2^rescale_log2)
    exp2_emulated  of 64 pairs of exponentials, how many the FMA units compute; None: what suits the arch
    claims         a CTA that is done takes over a block of the grid that has not started (work/queue.py); False: it
                   ends; None: as claims_pay says of the problem
    dependent_launch  the CTAs may start while the grid before them in the stream ends; they wait for it before they
                   touch what it may have written (programmatic dependent launch); None: where groups are packed
    prefetch_maps  the descriptors of TMA are fetched while the CTA sets up
    warps          roles and registers
    """

    family: ClassVar[str] = "mha2q"

    order: str | None = None
    bn_cap: int = 0
    swizzle_bytes: int = 128
    num_qk_stages: int = 1
    rescale_log2: float = 8.0
    exp2_emulated: int | None = None
    claims: bool | None = None
    dependent_launch: bool | None = None
    prefetch_maps: bool = False
    warps: WarpRoles = field(default_factory=WarpRoles)

    def resolved(self, problem: Problem) -> "TwoTiles":
        changes = {}
        if self.exp2_emulated is None:
            pairs = 18 if problem.qk_depth <= 64 else 16  # docs/decisions/0002
            changes["exp2_emulated"] = pairs if problem.arch == "sm_100a" else 0
        if self.claims is None:
            changes["claims"] = claims_pay(problem)
        if self.dependent_launch is None:
            changes["dependent_launch"] = problem.pack_gqa  # decode: docs/decisions/0007
        if self.order is None and not (self.contradictions(problem) + problem.contradictions()):
            changes["order"] = best_order(self.tiles(problem))
        return replace(self, **changes)

    def tiles(self, problem: Problem) -> Tiles:
        return Tiles.cut(
            problem,
            num_q=NUM_Q,
            bn_cap=self.bn_cap,
            qk_stages=self.num_qk_stages,
            swizzle_bytes=self.swizzle_bytes,
        )

    def tmem(self, problem: Problem) -> TmemMap:
        return self._order.tmem(self.tiles(problem))

    def barriers(self, problem: Problem) -> BarrierTable:
        return layout(self, self.tiles(problem))[0]

    def smem(self, problem: Problem) -> TwoTilesSmem:
        return layout(self, self.tiles(problem))[1]

    @property
    def _order(self) -> POverS | PBesideS:
        return ORDERS[self.order]

    def contradictions(self, problem: Problem) -> list[str]:
        why = []
        if self.order not in (None, *ORDERS):
            why.append(
                f"order={self.order!r} is no order of the products: use {' or '.join(ORDERS)}"
            )
        if self.swizzle_bytes not in SWIZZLE_BYTES:
            why.append(f"swizzle_bytes={self.swizzle_bytes} is no swizzle span: use 128, 64 or 32")
        for name in ("bn_cap", "num_qk_stages"):
            if getattr(self, name) < 0:
                why.append(
                    f"{name}={getattr(self, name)} must not be negative: 0 means that it is not set"
                )
        if problem.pack_gqa and (problem.group < 1 or ROWS_PER_Q_TILE % problem.group):
            why.append(
                f"pack_gqa=True with group={problem.group}: a tile of {ROWS_PER_Q_TILE} rows holds whole groups: use "
                f"a group that divides {ROWS_PER_Q_TILE}, or pack_gqa=False"
            )
        if self.exp2_emulated is not None and not 0 <= self.exp2_emulated <= 64:
            why.append(f"exp2_emulated={self.exp2_emulated} of 64 pairs: use 0 to 64")
        if not 0 <= self.rescale_log2 <= 15:
            why.append(
                f"rescale_log2={self.rescale_log2}: P grows to 2^rescale_log2 and must fit fp16: use 0 to 15"
            )
        return why

    def refusals(self, problem: Problem) -> list[str]:
        return self._over_capacity(problem) + self._not_built(problem)

    def _over_capacity(self, problem: Problem) -> list[str]:
        tiles = self.tiles(problem)
        if tiles.BN < 64:
            return [
                f"S has room for BN={tiles.BN} keys beside O of {tiles.o_columns_padded} columns, 64 are "
                f"needed: head dims up to {TMEM_COLUMNS // 2 - 64} fit, larger ones need a kernel of their own"
            ]
        why = []
        if tiles.padded_qk_depth % tiles.qk_stages or tiles.BK0 % tiles.swizzle_granule:
            why.append(
                f"num_qk_stages={self.num_qk_stages} cuts the padded depth {tiles.padded_qk_depth} inside a "
                f"swizzle span of {tiles.swizzle_granule} elements: use a divisor of "
                f"{tiles.padded_qk_depth // tiles.swizzle_granule}"
            )
        tmem = self.tmem(problem)
        if not tmem.fits:
            why.append(
                f"S, P and O need {tmem.used} tensor-memory columns, an SM has {TMEM_COLUMNS}: "
                f"lower bn_cap (BN is {tiles.BN}), or order='p_over_s'"
            )
        smem = self.smem(problem)
        slots = smem.kv.nbytes // tiles.kv_slot_bytes
        if slots < 3:
            why.append(
                f"the ring has {slots} slots of {tiles.kv_slot_bytes} bytes beside {tiles.q_bytes} bytes "
                f"of Q, at least 3 are needed because V of a tile is held while K of the next one arrives: "
                f"lower bn_cap (BN is {tiles.BN}) or the head dim"
            )
        if smem.nbytes > SMEM_CAPACITY_BYTES:
            why.append(
                f"shared memory of {smem.nbytes} bytes exceeds {SMEM_CAPACITY_BYTES}: lower bn_cap"
            )
        return why + self._page_refusals(problem, tiles)

    def _page_refusals(self, problem: Problem, tiles: Tiles) -> list[str]:
        why, page = [], problem.page_size
        if page and not is_page_size(page, tiles.BN):
            why.append(
                f"page_size={page} must be a multiple of 8 that divides BN={tiles.BN} or that BN divides: use "
                f"{page_sizes(tiles.BN)}"
            )
        if tiles.pages_come_whole and tiles.qk_stages > 1:
            why.append(
                f"num_qk_stages={tiles.qk_stages} with page_size={page}: a page comes with its whole depth: use "
                f"num_qk_stages=1 or fold_pages=False"
            )
        return why

    def _not_built(self, problem: Problem) -> list[str]:
        why, tiles = [], self.tiles(problem)
        if problem.qkv_dtype not in DTYPES:
            why.append(f"qkv_dtype={problem.qkv_dtype!r} is not built yet: use 'bf16' or 'fp16'")
        if problem.o_dtype != ("f32" if problem.split_keys else problem.qkv_dtype):
            why.append(
                f"o_dtype={problem.o_dtype!r} is not built yet for qkv_dtype={problem.qkv_dtype!r}: use the same dtype"
            )
        if problem.qk_depth not in DEPTHS:
            why.append(
                f"qk_depth={problem.qk_depth} is not built yet: use one of {', '.join(map(str, DEPTHS))}"
            )
        if problem.ov_depth != problem.qk_depth:
            why.append(
                f"ov_depth={problem.ov_depth} with qk_depth={problem.qk_depth} is not built yet: use equal depths"
            )
        if tiles.BN > 128:
            why.append(
                f"BN={tiles.BN} is not built yet: a softmax thread holds its BN scores in registers and has "
                f"{self.warps.softmax_registers}: use bn_cap=128"
            )
        if tiles.BN % 32:
            why.append(
                f"BN={tiles.BN} is not built yet: scores are read in batches of 32 columns: use bn_cap=128 or 64"
            )
        if self.swizzle_bytes != 128:
            why.append(
                f"swizzle_bytes={self.swizzle_bytes} is not built yet in this kernel: use 128"
            )
        for name in ("rope_dtype", "scale_dtype"):
            if getattr(problem, name) is not None:
                why.append(f"{name}={getattr(problem, name)!r} is not built yet: use None")
        return why


@lru_cache(maxsize=1024)
def layout(schedule: TwoTiles, tiles: Tiles) -> tuple[BarrierTable, TwoTilesSmem]:
    """Barriers and shared memory decide each other's size: the ring gets what a kernel without slots leaves."""
    warps, of_the_order = schedule.warps, ORDERS[schedule.order].barriers(tiles, schedule.warps)
    empty = barriers.table(tiles, warps, 0, of_the_order)
    slots = slots_that_fit(tiles, smem_map(tiles, warps, empty), empty)
    table = barriers.table(tiles, warps, slots, of_the_order)
    return table, smem_map(tiles, warps, table)
