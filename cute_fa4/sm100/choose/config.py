"""FA4Config: the whole compile key of an attention kernel: what a call asks, and the schedule that runs it.

    FA4Config(qk_depth=128, mask=masks.Causal())                the schedule is chosen: TwoTiles
    FA4Config(schedule=TwoTiles(claims=False))                  or given

Every derived number is computed in one place, by its owner, and read from there by the roles, the memory maps and the
host; a second copy of one of these formulas is the classic cause of a kernel that hangs:

    config.tiles      rows, keys, depths and bytes of tiles      tiles.py
    config.tmem       columns of tensor memory                   the family's order
    config.smem       bytes of shared memory                     the family's smem_map.py
    config.barriers   every mbarrier                             the family's barriers.py
"""

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from hashlib import sha256
from math import floor

from ..blueprint.barriers import BarrierTable
from ..blueprint.chip import P_LOG2
from ..blueprint.latent_rows import MOST_LATENT_ROWS
from ..blueprint.memory_maps import SmemMap, TmemMap
from ..blueprint.naming import kernel_name, text, text_for_name
from ..blueprint.problem import LARGEST_SCORE_LOG2, Problem
from ..blueprint.schedule import Schedule
from ..blueprint.tiles import Tiles
from ..few_rows.dequantized.schedule import DequantizedTile
from ..few_rows.schedule import SwappedTile
from ..latent.dequantized.schedule import LatentRows
from ..latent.pair.schedule import LatentPair
from ..latent.pair_dequantized.schedule import LatentRowsPair
from ..latent.schedule import LatentTile
from ..one_tile.schedule import OneTile
from ..two_tiles.block_scaled.schedule import BlockScaled
from ..two_tiles.dequantized.schedule import SlotTwoTiles
from ..two_tiles.pair.schedule import Pair
from ..two_tiles.schedule import TwoTiles
from ..wide.dequantized.schedule import SlotWideTile
from ..wide.dequantized_rope.schedule import RopeTile
from ..wide.pair.schedule import WidePair
from ..wide.schedule import WideTile

SCHEDULES = {
    cls.__name__: cls
    for cls in (
        TwoTiles,
        BlockScaled,
        Pair,
        OneTile,
        SwappedTile,
        DequantizedTile,
        SlotTwoTiles,
        WideTile,
        WidePair,
        RopeTile,
        SlotWideTile,
        LatentTile,
        LatentPair,
        LatentRows,
        LatentRowsPair,
    )
}


@dataclass(frozen=True)
class FA4Config(Problem):
    """Every compile-time choice of a forward kernel: the fields of Problem, and the schedule.

    schedule   one of SCHEDULES; what it leaves open (None) is decided here, so that equal kernels have equal keys

    repr gives a call that makes an equal configuration, unless it holds functions of the user's own:

    >>> from cute_fa4.sm100.choose.config import FA4Config, TwoTiles
    >>> from cute_fa4.masks import *
    >>> from cute_fa4.score_mods import *
    >>> FA4Config(mask=Causal(), score_mod=soft_cap(30.0), schedule=TwoTiles(claims=False))
    FA4Config(qkv_dtype='bf16', qk_depth=128, mask=Causal(), score_mod=soft_cap(30.0), schedule=TwoTiles(claims=False))
    """

    schedule: Schedule = field(default_factory=TwoTiles)

    def __post_init__(self):
        super().__post_init__()
        if not self.contradictions():
            object.__setattr__(self, "schedule", self.schedule.resolved(self))

    @cached_property
    def tiles(self) -> Tiles:
        return self.schedule.tiles(self)

    @cached_property
    def tmem(self) -> TmemMap:
        return self.schedule.tmem(self)

    @cached_property
    def smem(self) -> SmemMap:
        return self.schedule.smem(self)

    @cached_property
    def barriers(self) -> BarrierTable:
        return self.schedule.barriers(self)

    @property
    def latent_rows(self) -> int:
        """Rows of a tile over a latent cache."""
        return getattr(self.schedule, "latent_rows", MOST_LATENT_ROWS)

    @property
    def uneven(self) -> bool:
        """Whether the query tiles of a CTA skip key tiles that only the other one sees (work/kv_range.py)."""
        asked = getattr(self.schedule, "uneven", None)
        return asked is not None and asked(self)

    @property
    def begins_late(self) -> bool:
        """Whether the second query tile skips key tiles at the beginning."""
        return self.uneven and self.mask.has_lower_bound

    @property
    def warps(self):
        """Which warp of a CTA does what; some schedules have more of them for some problems."""
        asked = getattr(self.schedule, "warps_of", None)
        return self.schedule.warps if asked is None else asked(self)

    @property
    def load_apart(self) -> bool:
        """Whether the load warp has its own value of the address of shared memory (another_base in kernel.py)."""
        asked = getattr(self.schedule, "load_apart", None)
        return asked is not None and asked(self)

    @property
    def row_again(self) -> bool:
        """Whether softmax computes what it knows of a row again after its loop over whole tiles (computed_again)."""
        asked = getattr(self.schedule, "row_again", None)
        return asked is not None and asked(self)

    @property
    def cluster_parts(self) -> int:
        """CTAs of a cluster that share the keys of a block; 1: a CTA has a block to itself, or a part of its keys."""
        return getattr(self.schedule, "cluster_parts", 1)

    @property
    def own_parts(self) -> bool:
        """Whether a CTA takes the parts of its rows' keys one after the other and merges them (work/own_parts.py)."""
        return getattr(self.schedule, "own_parts", False)

    @property
    def merges_parts(self) -> bool:
        """Whether long calls of the problem have the parts of their rows' keys merged without memory."""
        asked = getattr(self.schedule, "merges_parts", None)
        return asked is not None and asked(self)

    @property
    def in_runs(self) -> bool:
        """Whether a CTA takes several parts of its rows' keys and stores a partial result of each (work/runs.py)."""
        asked = getattr(self.schedule, "in_runs", None)
        return asked is not None and asked(self)

    @property
    def in_parts(self) -> bool:
        """Whether a work tile has one of several parts of the keys that its rows see."""
        return self.split_keys or self.own_parts or self.cut_lists

    def refusals(self) -> list[str]:
        """Why this variant cannot run: every reason, each with value, limit and remedy. Empty: it runs."""
        why = [*self.contradictions(), *self.schedule.contradictions(self)]
        # The derived numbers are defined only for values that make sense.
        return why or self.schedule.refusals(self)

    @property
    def lists_blocks(self) -> bool:
        """Lists say which key blocks a block of queries takes (work/block_lists.py)."""
        return self.q_block > 0

    @property
    def reads_by_quarter(self) -> bool:
        """Softmax begins P with the first quarter of a tile's scores in registers, where the running maximum is known.

        Only with P over S; the other orders release S after the whole tile has been read.
        """
        return self.schedule.lags and self.schedule.order == "p_over_s" and not self.has_functions

    @property
    def refers_to_quarter(self) -> bool:
        """The running maximum of a row whose first key tile is whole is that of its first quarter of scores.

        A function of scores may hide these, and a mask with a lower bound has a masked tile before the whole ones.
        """
        plain = not (self.has_functions or self.mask.has_lower_bound)
        asked = getattr(self.schedule, "first_reference", None)
        return self.schedule.lags and plain and asked == "quarter"

    @property
    def sees_by_warp(self) -> bool:
        """Softmax checks, warp by warp, which keys of a masked tile its rows see (steps/seen.py)."""
        asked = getattr(self.schedule, "sees_by_warp", None)
        return asked is not None and asked(self)

    @property
    def p_first_part(self) -> int:
        """Keys of P that are handed over first: half of them where they are made from the first quarter on."""
        return self.tiles.BN // 2 if self.reads_by_quarter else self.tiles.p_first_part

    @property
    def p_lift_log2(self) -> float:
        """P of eight bits is lifted by this power of two; the maximum may lag by rescale_log2 on top of it.

        Whole, so that the largest P of a row is a power of two and loses nothing, where the maximum does not lag.
        """
        return float(floor(P_LOG2 - self.schedule.rescale_log2)) if self.is_quantized else 0.0

    @property
    def score_limit_log2(self) -> float:
        """Bound on a row's largest score in units of log2, above 0 and below it: row_math.closed."""
        return 2.0 ** LARGEST_SCORE_LOG2[self.p_dtype]

    @property
    def name(self) -> str:
        """Name of the kernel in profilers and exported files: every choice that differs, and a hash of all of them.

        >>> from cute_fa4 import masks
        >>> FA4Config(mask=masks.Causal()).name.startswith("mha2q_bf16_d128_g1_causal_sm_100a_")
        True
        """
        return f"{kernel_name(self)}_{sha256(text_for_name(self).encode()).hexdigest()[:8]}"

    def __repr__(self) -> str:
        return text(self)

    def with_(self, **changes) -> "FA4Config":
        """A copy with some choices changed, of the problem or of its schedule.

        The unit that sums P is chosen again where the changed problem rules out the old one; a schedule or an order
        that is named in `changes` stays, and refusals() says what contradicts it.

        >>> from cute_fa4 import masks
        >>> FA4Config().with_(mask=masks.Causal(), claims=False).schedule.claims
        False
        >>> sums = FA4Config(qkv_dtype="e4m3")
        >>> sums.schedule.order, sums.with_(write_lse=True).schedule.order
        ('p_crossed_summed', 'p_crossed')
        """
        own = {f.name for f in fields(self)}
        of_schedule = {name: changes.pop(name) for name in tuple(changes) if name not in own}
        schedule = changes.pop("schedule", None)
        changed = replace(
            self, schedule=replace(schedule or self.schedule, **of_schedule), **changes
        )
        if schedule is not None or "order" in of_schedule:
            return changed
        fitting = getattr(changed.schedule, "fitting", None)
        if fitting is None or fitting(changed) is changed.schedule:
            return changed
        return replace(changed, schedule=replace(fitting(changed), **of_schedule))
