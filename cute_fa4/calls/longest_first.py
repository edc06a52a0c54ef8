"""Calls with lists of key blocks: a kernel sorts the work tiles, so that those with the longest lists begin first.

The host reads no list. It decides from sizes alone whether the order matters: where SMs have few work tiles each,
nothing is sorted. A work tile has the same bits wherever it is in the order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from cute_fa4.block_sparsity import COUNTS
from cute_fa4.calls.grid import ctas_of
from cute_fa4.calls.launch import function_for
from cute_fa4.calls.plan import Plan
from cute_fa4.calls.request import Options, Where
from cute_fa4.calls.split_keys.split import num_sms
from cute_fa4.operands import CallTensors
from cute_fa4.sm100.blueprint import tuning
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.choose.launches import may_sort
from cute_fa4.sm100.work.lists.config import BlockListsConfig, windows_of
from cute_fa4.system.devices import Target


@dataclass(frozen=True)
class LongestFirst:
    """The order of the work tiles of a launch.

    function  the kernel that sorts them
    tiles     work tiles
    sizes     of LongestKernel.__call__
    """

    function: Callable
    tiles: int
    sizes: tuple[int, int, int, int]

    def order(self, tensors: CallTensors) -> Tensor:
        """int32 (work tiles,), on the device of the lists of a call. Launches the kernel."""
        partial, full = (getattr(tensors, name) for name in COUNTS)
        first = tensors.cu_total_m_blocks
        counts = partial, partial if full is None else full
        flags = 1 + (full is not None), int(first is not None)
        if first is None:  # the kernel does not read it: another tensor stands for it
            first = partial[0, 0]
        else:
            counts = tuple(x[None] for x in counts)
        order = partial.new_empty(self.tiles)
        self.function(counts, first, flags, self.sizes, order)
        return order


def longest_first_of(
    q: Tensor, where: Where, options: Options, config: FA4Config, target: Target
) -> LongestFirst | None:
    """The order of a checked call; None: its launch takes work tiles in the order of its grid.

    config: for the call without an order
    """
    if options.blocks is None or not may_sort(config):
        return None
    queries, heads, batch = where.seqlen_q(q), q.shape[-2], where.batch(q)
    tiles = ctas_of(config, q.shape[0], queries, heads, batch)
    if tiles <= tuning.choose("longest_first") * num_sms(q.device):
        return None
    rows = config.tiles.positions_per_block
    sizes = -(-queries // rows), heads, config.q_block // rows, windows_of(tiles)
    function = function_for(BlockListsConfig("longest", target.arch), target)
    return LongestFirst(function, tiles, sizes)


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
