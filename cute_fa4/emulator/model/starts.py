"""Start offsets: the rhythm of a steady state depends on its start, so several starts are averaged.

Warps that wait for each other settle into a rhythm that depends on the first few hundred cycles. On hardware each
start differs, because first copies come from memory and not from L2. So every kernel is simulated from several
starts:

    start 0        every copy takes the latency of L2
    start 1, 2 ..  the first copy onto each mbarrier takes up to the latency of memory longer, by different amounts

and the cycles of a work tile are their mean, less what a start costs a work tile of one key tile.
"""

from __future__ import annotations

import random

STARTS = 4  # that are averaged


class FirstCopies:
    """How much longer the first copy onto each mbarrier takes. The same numbers for the same start."""

    def __init__(self, start: int, most: float):
        self.most = most if start else 0.0
        self.random = random.Random(start)
        self.known: set = set()

    def late(self, effects) -> float:
        """Cycles by which a copy with these effects on mbarriers comes later."""
        barriers = {key for operation, key, _ in effects if operation == "complete_tx"}
        if not self.most or barriers <= self.known:
            return 0.0
        self.known |= barriers
        return self.random.uniform(0.0, self.most)


def mean_cycles(by_start: list[dict]) -> dict:
    """Cycles of every workload, averaged over starts, less what each start costs the shortest one.

    by_start: workload -> cycles of each start, the plain one first

    >>> mean_cycles([{1: 100, 9: 900}, {1: 150, 9: 990}])
    {1: 100.0, 9: 920.0}
    """
    plain = by_start[0]
    shortest = min(plain, key=plain.__getitem__)
    costs = [found[shortest] - plain[shortest] for found in by_start]
    total = len(by_start)
    return {
        work: sum(found[work] - cost for found, cost in zip(by_start, costs, strict=True)) / total
        for work in plain
    }
