"""Cycles of CTAs against key tiles and memory latency -> time of a launch over the whole chip.

    set-up   prologue and first copies: cycles that do not grow with the keys, half before and half after them
    stream   key tiles, as fast as the latency of the moment allows

All CTAs that stream at a given moment share the memory. Its latency is then the one at which their requests match
its bandwidth (memory.py), so a CTA runs faster after others have ended, as in the tail of a ragged batch. CTAs are
assigned in order, each to the SM that becomes free first.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from benchmarks.cycle_model.decode.memory import Memory
from benchmarks.cycle_model.grid import Curve


@dataclass(frozen=True)
class Streaming:
    """Cycles of a CTA's blocks at several latencies of memory.

    latencies      in cycles, rising
    first, further one Curve over key tiles for each latency: of a CTA's first block, and of what another one adds
    within         the same of what another block or part in the queue of the CTA adds
    tile_bytes     of keys and values of a key tile
    state          as in modelled.Modelled
    """

    latencies: tuple[float, ...]
    first: tuple[Curve, ...]
    further: tuple[Curve, ...]
    within: tuple[Curve, ...]
    tile_bytes: float
    state: str = ""

    def per_tile(self, latency: float) -> float:
        """Cycles of one more key tile."""
        return self._between(latency, [curve.per_tile for curve in self.first])

    def set_up(self, tiles: float, latency: float, curves: tuple[Curve, ...]) -> float:
        """Cycles of a block beyond those of its key tiles in the steady state; curves: first, further or within."""
        at = [curve(tiles) - tiles * curve.per_tile for curve in curves]
        return max(0.0, self._between(latency, at))

    def _between(self, latency: float, values: list[float]) -> float:
        curve = Curve(tuple(zip(self.latencies, values, strict=True)))
        return curve(latency)


@dataclass
class Launch:
    """A simulated launch: cycles from the first CTA to the end of the last, and their breakdown.

    streaming   cycles times SMs in which a CTA streamed; set_up: in which one was in its set-up
    tail        cycles in which fewer than half of the busy SMs still had work
    """

    cycles: float = 0.0
    streaming: float = 0.0
    set_up: float = 0.0
    tail: float = 0.0
    bytes: float = 0.0
    peak_share: float = 0.0
    sms: int = field(default=0)


class Chip:
    """One kernel on a chip with so many SMs."""

    def __init__(self, memory: Memory, sms: int, kernel: Streaming):
        self.memory, self.sms, self.kernel = memory, sms, kernel
        self._at: dict[int, tuple[float, float]] = {}

    def shared_by(self, ctas: int) -> tuple[float, float]:
        """(share of the ceiling, latency) while so many CTAs stream."""
        if ctas not in self._at:
            kernel = self.kernel

            def demand(latency):
                return ctas * kernel.tile_bytes / kernel.per_tile(latency)

            share = self.memory.share(demand) if ctas else 0.0
            self._at[ctas] = (share, self.memory.loaded_latency(share))
        return self._at[ctas]

    def run(self, queues: list[list[float]], goes_on: bool) -> Launch:
        """CTAs, each with the key tiles of its blocks, one after the other.

        goes_on: a CTA that is done takes over the next one that has not started, without leaving its SM.
        """
        return _Run(self, queues, goes_on).run()


class _Run:
    def __init__(self, chip: Chip, queues: list[list[float]], goes_on: bool):
        self.chip, self.goes_on = chip, goes_on
        self.waiting = list(reversed(queues))
        self.now = self.done = 0.0  # cycles; key tiles that a CTA has streamed that never stopped
        self.fixed: list[tuple] = []  # (cycle, number, what, tiles, rest, later blocks)
        self.streams: list[tuple] = []  # (key tiles at its end, number, rest, later blocks)
        self.number = 0
        self.busy = min(chip.sms, len(queues))
        self.result = Launch(sms=self.busy)

    def run(self) -> Launch:
        for _ in range(self.busy):
            self.next_cta(further=False)
        while self.fixed or self.streams:
            self.step()
        self.result.cycles = self.now
        return self.result

    def next_cta(self, further: bool) -> None:
        """The next one that has not started, on an SM that is free. further: another one was there before."""
        if self.waiting:
            first, *after = self.waiting.pop()
            kernel = self.chip.kernel
            self.begin(first, kernel.further if further and self.goes_on else kernel.first, after)

    def begin(self, tiles: float, curves: tuple[Curve, ...], after: list[float]) -> None:
        rest = self.chip.kernel.set_up(tiles, self.chip.memory.latency, curves) / 2
        self.number += 1
        heapq.heappush(self.fixed, (self.now + rest, self.number, "stream", tiles, rest, after))

    def step(self) -> None:
        """Until the next CTA begins to stream, or ends to."""
        count = len(self.streams)
        share, latency = self.chip.shared_by(count)
        rate = 1 / self.chip.kernel.per_tile(latency) if count else 0.0
        stream_end = self.now + (self.streams[0][0] - self.done) / rate if count else float("inf")
        fixed_end = self.fixed[0][0] if self.fixed else float("inf")
        until = min(stream_end, fixed_end)
        self.account(until - self.now, count, share, rate)
        if stream_end <= fixed_end:
            self.done, _, rest, after = heapq.heappop(self.streams)
            self.number += 1
            heapq.heappush(self.fixed, (self.now + rest, self.number, "end", 0, rest, after))
            return
        _, number, what, tiles, rest, after = heapq.heappop(self.fixed)
        if what == "stream":
            heapq.heappush(self.streams, (self.done + tiles, number, rest, after))
        elif after:
            self.begin(after[0], self.chip.kernel.within, after[1:])
        else:
            self.next_cta(further=True)

    def account(self, cycles: float, count: int, share: float, rate: float) -> None:
        self.now += cycles
        self.done += cycles * rate
        result = self.result
        result.streaming += cycles * count
        result.set_up += cycles * len(self.fixed)
        result.bytes += cycles * count * rate * self.chip.kernel.tile_bytes
        result.peak_share = max(result.peak_share, share)
        if not self.waiting and count + len(self.fixed) < self.busy / 2:
            result.tail += cycles
