"""Signals between the two CTAs of a wide pair, where S and its barriers have two buffers; otherwise pair/sync.py.

Softmax waits for factor_read before a factor overwrites the one of two tiles before. It waits for the last two factors
before it hands over the row sums: correction answers these with the next phase.

    tile t of a work tile of four     0        1        2        3        sums
    waits for factor_read of tile     -        -        0        1        2 and 3
"""

from dataclasses import dataclass, replace

from ...pair.sync import PairEvents, SoftmaxSide
from ...sync.kernel_args import Events


@dataclass(frozen=True)
class TwoBuffersSide(SoftmaxSide):
    """p_ready as softmax sees it."""

    def wait_one(self, at, phase):
        """Until correction has read the factor of a tile. at, phase: its buffer and parity."""
        super().wait(at, phase)

    def wait(self, at, phase):
        """The same, and also for the tile before it, which has the other buffer."""
        super().wait(at ^ 1, phase ^ 1 ^ at)
        super().wait(at, phase)


class WidePairEvents(PairEvents):
    """The events of a wide pair."""

    def seen_by(self, role: str) -> Events:
        seen = super().seen_by(role)
        if role != "softmax":
            return seen
        sides = self.p_ready.mbarriers, self.factor_read.mbarriers
        return replace(seen, p_ready=TwoBuffersSide(*sides))
