"""Kernel + constants -> cycles of its CTAs, the bound of the steady state, and launch times."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path

from benchmarks.cycle_model import cache, followed
from benchmarks.cycle_model.grid import CTACycles, Curve
from benchmarks.cycle_model.kernels import Kernel, Variant, load
from benchmarks.cycle_model.workloads import EMPTY_BLOCKS, PERSISTENT_WORK_TILES, Workload
from cute_fa4.compiler import toolkit
from cute_fa4.emulator.model import align, program, uncounted
from cute_fa4.emulator.model.constants import SUB_PARTITIONS, Constant
from cute_fa4.emulator.model.machine import Machine, Result
from cute_fa4.emulator.model.starts import mean_cycles

# A resource that is busy for less than this share of the steady state is not its bound: the remaining time is
# waiting for each other.
BOUND_FROM = 0.90


@dataclass
class AlignedKernel:
    """A kernel whose warps' paths are known: what can be simulated with any constants.

    ptxas  the version that made its machine code
    """

    variant: Variant
    codes: dict
    runs: dict[Workload, tuple]
    ptxas: str | None

    @classmethod
    def of(cls, kernel: Kernel) -> AlignedKernel:
        """Align all traces. AlignmentError where one does not fit the machine code."""
        works = list(kernel.traces)
        traces = [kernel.traces[work] for work in works]
        found = followed.paths(str(kernel.variant), kernel.code.function, kernel.ptx, traces)
        runs = dict(zip(works, zip(found, traces, strict=True), strict=True))
        return cls(kernel.variant, kernel.code.codes, runs, toolkit.ptxas_of(kernel.cubin))

    @classmethod
    def load(cls, variant: Variant) -> AlignedKernel:
        """The kernel of kernels.load, aligned now or earlier."""
        kernel = load(variant)
        traces = list(kernel.traces.values())
        sources = [Path(module.__file__) for module in (align, followed, program, uncounted)]
        events = pickle.dumps(traces)
        found = cache.stored(
            f"{variant} paths",
            cache.key(kernel.cubin, events, *sources),
            lambda: align.packed(
                followed.paths(str(variant), kernel.code.function, kernel.ptx, traces), traces
            ),
        )
        paths = align.unpacked(found, kernel.code.function, traces)
        runs = dict(zip(kernel.traces, zip(paths, traces, strict=True), strict=True))
        return cls(variant, kernel.code.codes, runs, toolkit.ptxas_of(kernel.cubin))

    def simulate(self, constants: dict[str, Constant], starts: int = 1) -> dict[Workload, Result]:
        """Every workload from the plain start; their cycles are means over so many starts (starts.py)."""
        machine = Machine(constants)
        found = [
            {
                work: machine.run(path, self.codes, trace, n)
                for work, (path, trace) in self.runs.items()
            }
            for n in range(starts)
        ]
        means = mean_cycles([{work: one.cycles for work, one in runs.items()} for runs in found])
        return {work: replace(one, cycles=means[work]) for work, one in found[0].items()}


def cta_cycles(results: dict[Workload, Result]) -> CTACycles:
    """The curves that grid.py needs from simulated workloads."""
    single = {w.tiles: r.cycles for w, r in results.items() if w.work_tiles == 1}
    several = {w.tiles: r.cycles for w, r in results.items() if w.work_tiles > 1}
    if 0 in several:  # blocks without rows, and one with a single key tile
        single[0] = (several.pop(0) - single[1]) / EMPTY_BLOCKS
    added = None
    if several:
        points = {
            n: (cycles - single[n]) / (PERSISTENT_WORK_TILES - 1) for n, cycles in several.items()
        }
        # Outside of the simulated ones a work tile saves as many cycles as at the nearest of them.
        saved = {n: single[n] - points[n] for n in points}
        points = {
            n: cycles - saved[min(saved, key=lambda known: abs(known - n))]
            for n, cycles in single.items()
            if n
        }
        added = Curve(tuple(sorted(points.items())))
    return CTACycles(Curve(tuple(sorted(single.items()))), added)


@dataclass(frozen=True)
class SteadyState:
    """One key tile and two query tiles in the steady state of a CTA.

    cycles      between two key tiles
    busy        share of these cycles in which a resource is busy, the busiest sub-partition's
    bound       the busiest resource if that is busy enough, else "waiting"; "-" if cycles are not known
    slack       1 - share of the busiest resource
    """

    cycles: float
    busy: dict[str, float]

    @property
    def bound(self) -> str:
        if isnan(self.cycles):
            return "-"
        busiest = max(self.busy, key=self.busy.__getitem__)
        return busiest if self.busy[busiest] >= BOUND_FROM else f"waiting ({busiest})"

    @property
    def slack(self) -> float:
        return 1 - max(self.busy.values())


def steady_state(results: dict[Workload, Result]) -> SteadyState:
    """The difference of the two longest single work tiles, per key tile."""
    short, long = sorted((w for w in results if w.work_tiles == 1), key=lambda w: w.tiles)[-2:]
    a, b, tiles = results[short], results[long], long.tiles - short.tiles
    cycles = (b.cycles - a.cycles) / tiles
    busy = {}
    for pipe in ("fma", "alu", "convert", "mufu", "uniform", "tmem"):
        busy[pipe] = max(
            b.pipe_busy.get((0, s, pipe), 0) - a.pipe_busy.get((0, s, pipe), 0)
            for s in range(SUB_PARTITIONS)
        )
    busy["issue"] = max(b.issued[0, s] - a.issued[0, s] for s in range(SUB_PARTITIONS))
    for name in ("tensor", "copies"):
        total = [sum(length for _, length in getattr(r, name).get(0, ())) for r in (a, b)]
        busy[name] = total[1] - total[0]
    return SteadyState(cycles, {name: value / tiles / cycles for name, value in busy.items()})
