"""Cycles of one CTA -> time of a launch: waves, causal imbalance, persistence, clock.

    cute_fa4, FROST        a CTA claims a further work tile after loading the last one
    flash-attn-4 full      as many clusters as fit; cluster c does work tiles c, c + clusters, ...
    flash-attn-4 otherwise one work tile per CTA

schedules.py has the order of work tiles. A CTA fills an SM (by its shared memory), so the next one starts after it
has exited. Hardware assigns CTAs in order, each to the SM that is free first. A CTA of cute_fa4 that continues
takes the next block in the same way: single() for the first block with rows on an SM, added() for the others, and
the cost of skipping for a block without rows. The order has no other effect here: every copy hits L2.

    time = launch_us + max(SMs, memory)
    memory   start + bytes / hbm_tbs: the bytes alone, as for decode
    SMs      the makespan after the start, or after the fitted fixed cost, which is larger: fitted to published rows
    start    kernel_start_us + cold_start_us

The fixed cost delays the SMs, not the memory: published launches bound by memory do not have it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from benchmarks.cycle_model import schedules
from benchmarks.cycle_model.problems import Problem
from cute_fa4.emulator.model.constants import Constant


@dataclass(frozen=True)
class Curve:
    """Cycles against key tiles: the simulated points, linear between and beyond them. state: as in Modelled."""

    points: tuple[tuple[int, float], ...]
    state: str = field(default="", kw_only=True)

    def __call__(self, tiles: float) -> float:
        xs = [x for x, _ in self.points]
        at = min(max(bisect_right(xs, tiles), 1), len(xs) - 1)
        (x0, y0), (x1, y1) = self.points[at - 1], self.points[at]
        return y0 + (y1 - y0) * (tiles - x0) / (x1 - x0)

    @property
    def per_tile(self) -> float:
        """Cycles of one more key tile in the steady state."""
        (x0, y0), (x1, y1) = self.points[-2:]
        return (y1 - y0) / (x1 - x0)


@dataclass(frozen=True)
class CTACycles:
    """single: a CTA with one work tile. added: what a persistent CTA's further work tiles add."""

    single: Curve
    added: Curve | None = None


def makespan(ctas: Iterable[float], slots: int) -> float:
    """When the last CTA ends: each begins where a slot is free first. ctas: their cycles, in order.

    >>> makespan([3.0, 1.0, 1.0, 4.0], 2)
    6.0
    """
    ends = [0.0] * slots
    for cycles in ctas:
        heapq.heapreplace(ends, ends[0] + cycles)
    return max(ends)


def makespan_in_turns(
    ctas: Iterable[tuple[int, int]], slots: int, cycles: float, besides: float, apart: float
) -> float:
    """makespan() of CTAs that add to the same tiles in their order, each beginning with the same one.

    ctas     (head, tiles) in order: one waits for the one before it of its head
    cycles   of a tile; besides: of start and stores of a CTA
    apart    from a tile of a CTA to the same tile of the next one, at least

    >>> makespan_in_turns([(0, 2), (0, 2)], 2, 1.0, 0.0, 1.5), makespan_in_turns([(0, 2), (1, 2)], 2, 1.0, 0.0, 1.5)
    (3.5, 2.0)
    """
    ends = [0.0] * slots
    before: dict[int, list[float]] = {}
    for head, tiles in ctas:
        at, passed = ends[0], []
        for turn in range(tiles):
            at += cycles
            if head in before:
                at = max(at, before[head][turn] + apart)
            passed.append(at)
        before[head] = passed
        heapq.heapreplace(ends, at + besides)
    return max(ends)


@dataclass(frozen=True)
class LaunchTime:
    """us: time of the launch. busy: share of SM cycles in which a CTA was at work.

    key_tiles: of all work tiles. slot_cycles: cycles of the launch x clusters that fit.
    busy_us: of the SMs alone. memory_us: of the bytes alone, at the sustained rate of HBM.
    bound_by_memory: the bytes take longer than the SMs.
    """

    us: float
    busy: float
    ctas: int
    key_tiles: int
    slot_cycles: float
    busy_us: float
    memory_us: float
    bound_by_memory: bool

    def tflops(self, problem: Problem) -> float:
        return problem.flops / self.us * 1e-6


def launch_time(
    variant,
    problem: Problem,
    cycles: CTACycles,
    constants: dict[str, Constant],
    clock_factor: float = 1.0,
    order: list[int] | None = None,
) -> LaunchTime:
    """The modelled time of one launch of a kernels.Variant at constants' clock times clock_factor.

    order: key tiles of the work tiles instead of those of schedules.work_tiles; below 0 where `cycles` says so
    """
    value = {name: constant.value for name, constant in constants.items()}
    tiles = schedules.work_tiles(variant, problem) if order is None else order
    slots = int(value["sms"]) // (2 if variant.pair else 1)
    single = {n: cycles.single(n) for n in set(tiles)}
    added = {n: cycles.added(n) if n and cycles.added else single[n] for n in set(tiles)}
    if variant.claims:
        makespan, work = _dispatched(tiles, slots, single, added)
    elif variant.persistent:
        makespan, work = _persistent(tiles, slots, single, added)
    else:
        lengths = {n: length + value["cta_gap"] for n, length in single.items()}
        makespan, work = _dispatched(tiles, slots, lengths, lengths)
    clock = value["clock_ghz"] * 1e3 * clock_factor
    busy_us = makespan / clock
    memory_us = problem.bytes / value["hbm_tbs"] * 1e-6
    start_us = value["kernel_start_us"] + value["cold_start_us"]
    of_sms = max(start_us, value["cold_memory"] * memory_us) + busy_us
    of_memory = start_us + memory_us
    return LaunchTime(
        us=value["launch_us"] + max(of_sms, of_memory),
        busy=work / (makespan * slots),
        ctas=len(tiles) * (2 if variant.pair else 1),
        key_tiles=sum(map(abs, tiles)),
        slot_cycles=makespan * slots,
        busy_us=busy_us,
        memory_us=memory_us,
        bound_by_memory=of_memory > of_sms,
    )


def _dispatched(tiles: list[int], slots: int, first: dict, further: dict) -> tuple[float, float]:
    """(makespan, work) of work tiles handed out in order, each to the SM that is free first.

    first, further: cycles of the first work tile with keys on an SM and of the others, by key tiles.
    """
    free = [(0.0, sm, False) for sm in range(slots)]
    work = 0.0
    for n in tiles:
        when, sm, begun = free[0]
        length = further[n] if begun else first[n]
        work += length
        heapq.heapreplace(free, (when + length, sm, begun or n != 0))
    return max(free)[0], work


def _persistent(tiles: list[int], slots: int, first: dict, further: dict) -> tuple[float, float]:
    """(makespan, work): cluster c does tiles c, c + slots, ... one after the other."""
    ends = []
    for cluster in range(min(slots, len(tiles))):
        mine = tiles[cluster::slots]
        ends.append(first[mine[0]] + sum(further[n] for n in mine[1:]))
    return max(ends), sum(ends)
