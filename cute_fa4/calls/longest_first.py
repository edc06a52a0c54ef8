"""Calls with lists of key blocks: a kernel sorts the work tiles, so that those with the longest lists begin first.

The host reads no list. It decides from sizes alone:

    few work tiles for each SM, of many keys    the longest lists are cut into parts, which a third launch merges
    many                                        work tiles are sorted: a work tile has the same bits wherever it is.
                                                With packed queries, if a CTA can sort as many as sequences of the
                                                longest length would have
    few, of few keys                            neither: the order of the grid

The parts of a list depend on all lists of the call. So batch-invariant calls are not cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from cute_fa4.block_sparsity import COUNTS
from cute_fa4.calls.block_lists import is_sorted
from cute_fa4.calls.grid import ctas_of
from cute_fa4.calls.launch import function_for
from cute_fa4.calls.plan import Plan, Results
from cute_fa4.calls.request import Options, Where
from cute_fa4.calls.split_keys import workspace
from cute_fa4.calls.split_keys.split import most_keys, num_sms
from cute_fa4.compiler import policy
from cute_fa4.operands import CallTensors
from cute_fa4.sm100.blueprint import tuning
from cute_fa4.sm100.blueprint.listed import CUT_WORDS, ORDER_WORDS
from cute_fa4.sm100.choose.choose_config import KEYS_PER_TILE, cut_configs, sorted_config
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.choose.launches import list_parts_shapes, may_cut, may_sort
from cute_fa4.sm100.work.lists.config import (
    MOST_CUT_TILES,
    BlockListsConfig,
    most_cut,
    most_slots,
    windows_of,
)
from cute_fa4.system.devices import Target


@dataclass(frozen=True)
class LongestFirst:
    """The order of the work tiles of a launch.

    function  the kernel that sorts them
    tiles     entries of the order: work tiles, of packed queries at least those with rows
    sizes     of LongestKernel.__call__
    """

    function: Callable
    tiles: int
    sizes: tuple[int, ...]

    def order(self, tensors: CallTensors) -> Tensor:
        """int32 (work tiles,), on the device of the lists of a call. Launches the kernel."""
        counts, first, flags = self.given(tensors)
        order = first.new_empty(self.tiles)
        offsets = first if tensors.query_offsets is None else tensors.query_offsets
        self.function(counts, first, offsets, flags, self.sizes, order)
        return order

    def given(self, tensors: CallTensors) -> tuple:
        """counts, first_blocks and flags of LongestKernel.__call__."""
        partial, full = (getattr(tensors, name) for name in COUNTS)
        first = tensors.cu_total_m_blocks
        counts = partial, partial if full is None else full
        flags = 1 + (full is not None), int(first is not None)
        if first is None:  # the kernel does not read it: another tensor stands for it
            first = partial[0, 0]
        else:
            counts = tuple(x[None] for x in counts)
        return counts, first, flags


@dataclass(frozen=True)
class CutLists(LongestFirst):
    """The same with long lists cut into parts. function and sizes: of CutKernel.

    shares  lists are cut that are longer than one of so many shares of all lists
    shapes  of a slot of the workspace
    merge   the kernel that merges the parts
    """

    shares: int
    shapes: tuple[tuple, tuple]
    merge: Callable

    def order_and_cut(self, tensors: CallTensors) -> tuple[Tensor, Tensor]:
        """order and cut of CutKernel.__call__. Launches the kernel."""
        given = self.given(tensors)
        new = given[1].new_empty
        order, cut = (
            new((self.tiles + self.shares, ORDER_WORDS)),
            new((most_cut(self.shares), CUT_WORDS)),
        )
        self.function(*given, self.sizes, order, cut)
        return order, cut

    def workspace(self, q: Tensor) -> list[Tensor]:
        """The workspace of sm100/work/list_parts.py."""
        return workspace.of_ctas(q, most_slots(self.shares), self.shapes)


def plan_in_order(
    q: Tensor,
    k: Tensor,
    where: Where,
    options: Options,
    config: FA4Config,
    target: Target,
    whole: Results,
    launched: tuple,
) -> Plan | None:
    """The plan of a checked call whose work tiles are sorted; None: its launch takes them in the order of its grid.

    config: for the call without an order; whole: results with a log-sum-exp; launched: arguments of Plan after the
    function
    """
    if options.blocks is None or not may_sort(config):
        return None
    queries, heads, batch = where.seqlen_q(q), q.shape[-2], where.batch(q)
    tiles = ctas_of(config, q.shape[0], queries, heads, batch)
    rows, sms = config.tiles.positions_per_block, num_sms(q.device)
    of_tiles = -(-queries // rows), heads, config.q_block // rows
    early = policy.dependent_launch()
    if _cuts(tiles, sms, most_keys(k, where), options, config):
        attention, combine = cut_configs(config, early)
        least = -(-tuning.choose("cut_least_tiles") * KEYS_PER_TILE // config.kv_block)
        cut = CutLists(
            function_for(BlockListsConfig("cut", target.arch), target),
            tiles,
            (*of_tiles, tiles, sms, least),
            sms,
            list_parts_shapes(attention),
            function_for(combine, target),
        )
        return CutListsPlan(function_for(attention, target), cut, whole, *launched)
    if not is_sorted(tiles, q.device):
        return None
    numbered, is_packed = batch * heads * of_tiles[0], config.q_layout == "packed"
    if is_packed and windows_of(numbered) > 1:
        return None
    sort = function_for(BlockListsConfig("longest", target.arch), target)
    sizes = *of_tiles, windows_of(numbered), numbered, rows * is_packed
    longest = LongestFirst(sort, tiles, sizes)
    function = function_for(sorted_config(config, dependent_launch=early), target)
    return LongestFirstPlan(function, longest, *launched)


def _cuts(tiles: int, sms: int, keys: int, options: Options, config: FA4Config) -> bool:
    """Whether lists of up to so many keys may be longer than a share by more than the launches cost."""
    if not may_cut(config) or policy.batch_invariant(options.batch_invariant):
        return False
    if tiles > min(tuning.choose("cut_lists") * sms, MOST_CUT_TILES):
        return False
    return keys >= tuning.choose("cut_least_keys")


class LongestFirstPlan(Plan):
    """Attention over lists whose work tiles are sorted first: two launches on one stream."""

    __slots__ = ("longest",)

    def __init__(self, function, longest: LongestFirst, *of_the_plan):
        """of_the_plan: the arguments of Plan after the function."""
        super().__init__(function, *of_the_plan)
        self.longest = longest

    @property
    def functions(self) -> tuple:
        return *super().functions, self.longest.function

    def lists(self, tensors: CallTensors) -> tuple:
        return *super().lists(tensors), self.longest.order(tensors)


class CutListsPlan(Plan):
    """Attention over lists of which the longest are cut: the order, attention, and the merge on one stream.

    whole: results with a log-sum-exp, which the kernels write in every call
    """

    __slots__ = ("cut", "whole")

    def __init__(self, function, cut: CutLists, whole: Results, *of_the_plan):
        """of_the_plan: the arguments of Plan after the function."""
        super().__init__(function, *of_the_plan)
        self.cut, self.whole = cut, whole

    @property
    def functions(self) -> tuple:
        return *super().functions, self.cut.function, self.cut.merge

    def __call__(self, tensors: CallTensors):
        parts = self.cut.workspace(tensors.q)  # before anything is written: it may be too small
        out, lse = self.whole.allocated(tensors.q, tensors.out)
        *operands, written = self.viewed(tensors, out)
        order, cut = self.cut.order_and_cut(tensors)
        lists = *self.lists(tensors), order
        self.launch(tensors, (*operands, written, lse), tuple(parts), lists)
        self.cut.merge(*parts, cut, written, lse, None, tensors.seqused_q, self.seqlen_q, None)
        return out if self.results.new_lse is None else (out, lse)
