"""The tensor cores of an sm_90 SM: wgmmas of its warpgroups, in the order in which they come.

A warpgroup's first warp stands for all four, and the four tensor cores for one queue, as fast as the MMAs arrive.
"""

from __future__ import annotations

from collections import defaultdict

from cute_fa4.emulator.model.constants import SUB_PARTITIONS
from cute_fa4.emulator.model.engines import TensorQueue


class WgmmaQueue:
    """The wgmmas of all CTAs: when each ends, and which of them are a warpgroup's."""

    def __init__(self, tensor: dict[int, TensorQueue], value: dict[str, float]):
        self.tensor, self.value = tensor, value
        self.ends: dict[int, list[float]] = defaultdict(list)
        self.numbers: dict[tuple[int, int], list[int]] = defaultdict(list)

    def submit(self, now: float, warp, n: int, last: bool) -> None:
        """A warp issues one of 64 rows and n columns; last: it ends a group, which a wait can name."""
        ends, mine = self.ends[warp.cta], self.numbers[_warpgroup(warp)]
        if warp.name[1] % SUB_PARTITIONS == 0:
            queue = self.tensor[warp.cta]
            flops = 2 * 64 * n * 16
            queue.submit(now, flops / self.value["rate_wgmma"], 0.0, 0.0)
            mine.append(len(ends))
            ends.append(queue.free)
        warp.wgmmas += 1
        if last:
            done = ends[mine[min(warp.wgmmas, len(mine)) - 1]] if mine else now
            warp.groups.append(done + self.value["wgmma_tail"])

    def room(self, warp) -> float:
        """When the warp may issue its next one: an SM has so many under way at most."""
        ends, mine = self.ends[warp.cta], self.numbers[_warpgroup(warp)]
        number = mine[warp.wgmmas] if warp.wgmmas < len(mine) else len(ends)
        before = number - int(self.value["wgmma_in_flight"])
        return ends[before] if before >= 0 else 0.0


def _warpgroup(warp) -> tuple[int, int]:
    return warp.cta, warp.name[1] // SUB_PARTITIONS
