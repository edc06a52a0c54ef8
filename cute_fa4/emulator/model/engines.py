"""Engines outside the warps: mbarriers, named barriers, the tensor core's queue, the copy engine.

    mbarrier     arrivals and bytes of a phase at zero -> next phase; waiters of a parity wake
    tensor core  MMAs in order, complete II + tail later; a commit arrives after them
    copies       in order, at the rate of an SM's path to L2 or of reductions there, complete a latency later

Times are cycles. Every engine is deterministic: what is submitted first is served first.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Barrier:
    """An mbarrier: the phase counts up, as in the emulator (machine/mbarrier.py there)."""

    count: int
    pending: int = field(init=False)
    bytes: int = 0
    phase: int = 0
    waiters: list = field(default_factory=list)

    def __post_init__(self):
        self.pending = self.count

    def passed(self, parity: int) -> bool:
        """Whether a wait for this parity returns immediately."""
        return (self.phase - 1) & 1 == parity

    def apply(self, operation: str, amount: int) -> list:
        """arrive, expect_tx or complete_tx; returns the waiters that can continue."""
        if operation == "arrive":
            self.pending -= amount
        elif operation == "expect_tx":
            self.bytes += amount
        else:
            self.bytes -= amount
        if self.pending < 0:
            raise ValueError(f"{-self.pending} more arrivals than the {self.count} of a phase")
        if self.pending or self.bytes:
            return []
        self.phase += 1
        self.pending = self.count
        awake = [waiter for waiter in self.waiters if self.passed(waiter[0])]
        self.waiters = [waiter for waiter in self.waiters if not self.passed(waiter[0])]
        return awake


@dataclass
class NamedBarrier:
    """bar.sync and bar.arrive: opens when `arrived` threads reach the number expected."""

    arrived: int = 0
    waiters: list = field(default_factory=list)

    def arrive(self, threads: int, expected: int, waiter=None) -> list | None:
        """Threads arrive; returns the waiters when the barrier opens, None before."""
        self.arrived += threads
        if waiter is not None:
            self.waiters.append(waiter)
        if self.arrived < expected:
            return None
        awake, self.waiters, self.arrived = self.waiters, [], self.arrived - expected
        return awake


@dataclass
class TensorQueue:
    """The tensor core of a CTA, or of a pair: MMAs in submission order.

    An MMA reads its operands from shared memory during its interval. Concurrent accesses there (copies, with the
    constant `contention` also bulk stores and warps) use the gaps; further ones prolong the MMA.

    debt  outstanding cycles of shared-memory bandwidth of other accesses
    busy  [(start, interval)] of every MMA, for utilisation and the picture
    """

    free: float = 0.0
    complete: float = 0.0
    debt: float = 0.0
    busy: list = field(default_factory=list)

    def interfere(self, cycles: float) -> None:
        """Other accesses need shared memory for this many cycles."""
        self.debt += cycles

    def submit(self, now: float, interval: float, operands: float, tail: float) -> None:
        """An MMA issued now. operands: cycles of its interval that shared memory is busy with it.

        The next one may start `interval` after its start, later where shared memory is contended:
        the debt takes turns with the operands, so an MMA waits at most as long as it reads.
        """
        start = max(now, self.free)
        self.debt = max(0.0, self.debt - (start - self.free))
        gaps = max(0.0, interval - operands)
        in_gaps = min(self.debt, gaps)
        longer = min(self.debt - in_gaps, operands)
        self.debt -= in_gaps + longer
        self.free = start + interval + longer
        self.complete = max(self.complete, self.free + tail)
        self.busy.append((start, interval + longer))

    def commit(self, now: float, latency: float) -> float:
        """When a commit issued now arrives on its mbarrier."""
        return max(now, self.complete) + latency


@dataclass
class CopyEngine:
    """The TMA unit of an SM: copies in submission order, pipelined."""

    rate: float
    latency: float
    free: float = 0.0
    busy: list = field(default_factory=list)

    def submit(self, now: float, nbytes: float, rate: float | None = None) -> float:
        """When a copy issued now is complete. rate: its own, where that is not the engine's."""
        start, cycles = max(now, self.free), nbytes / (rate or self.rate)
        self.free = start + cycles
        self.busy.append((start, cycles))
        return self.free + self.latency
