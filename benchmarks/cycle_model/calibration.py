"""Published speeds of flash-attn-4 against modelled ones: the fit of at most six constants, its error.

    rows 0, 2, 4, ... of published.json   fit
    rows 1, 3, 5, ...                     check; they never influence a constant

The constants that change a CTA's cycles are tried on a grid (SIMULATED). For each point, coordinate descent finds
those that only affect the launch (LAUNCH). The smallest root mean square of log(modelled / published) over the fit
rows wins. No row is omitted from the tables.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cycle_model.evaluate import AlignedKernel, cta_cycles
from benchmarks.cycle_model.grid import CTACycles, launch_time
from benchmarks.cycle_model.kernels import THEIRS, Variant
from benchmarks.cycle_model.problems import TOKENS, Problem
from cute_fa4.emulator.model.constants import B200, FITTED_FILE, MAX_FITTED, Constant, with_values

PUBLISHED_FILE = Path(__file__).with_name("published.json")

# Candidates of constants that need a simulation, and the range and step of those that do not.
SIMULATED = {
    "lat_tmem": (20, 30, 40, 60),
    "pipe_efficiency": (0.9, 0.95, 1.0),
}
LAUNCH = {
    "cta_gap": (0, 8000, 50),
    "cold_memory": (0, 1, 0.005),
    "second_run_speed": (0.7, 1.0, 0.005),
}
assert len(SIMULATED) + len(LAUNCH) <= MAX_FITTED


@dataclass(frozen=True)
class Row:
    """A published speed. fitted: the row was used to choose constants."""

    run: str
    head_dim: int
    heads: int
    causal: bool
    seqlen: int
    tflops: float
    fitted: bool

    @property
    def variant(self) -> Variant:
        return Variant(THEIRS, self.head_dim, self.causal)

    @property
    def problem(self) -> Problem:
        return Problem(
            TOKENS // self.seqlen, self.heads, self.heads, self.seqlen, self.head_dim, self.causal
        )


def published_rows() -> list[Row]:
    """All rows of published.json, in its order."""
    rows = []
    for run, table in json.loads(PUBLISHED_FILE.read_text()).items():
        rows += [(run, *values) for values in table["rows"]]
    return [Row(*row, fitted=index % 2 == 0) for index, row in enumerate(rows)]


def modelled(row: Row, cycles: CTACycles, constants: dict[str, Constant]) -> float:
    """TFLOPS of the model for a published row."""
    factor = constants["second_run_speed"].value if row.run == "second_run" else 1.0
    time = launch_time(row.variant, row.problem, cycles, constants, factor)
    return time.tflops(row.problem)


@dataclass(frozen=True)
class Errors:
    """Relative errors |modelled / published - 1| of a set of rows."""

    mean: float
    worst: float

    @classmethod
    def of(cls, pairs) -> Errors:
        errors = [abs(ours / theirs - 1) for ours, theirs in pairs]
        return cls(sum(errors) / len(errors), max(errors))


def _distance(rows, cycles, constants) -> float:
    logs = [math.log(modelled(r, cycles[r.variant], constants) / r.tflops) for r in rows]
    return math.sqrt(sum(x * x for x in logs) / len(logs))


def descend(distance: Callable[[dict], float], start: dict, ranges: dict) -> tuple[float, dict]:
    """Coordinate descent: (smallest distance, its values). ranges: (lowest, highest, step) of each value."""
    values, best = dict(start), distance(start)
    reach = {name: (high - low) / 4 for name, (low, high, _) in ranges.items()}
    while any(reach[name] >= step for name, (_, _, step) in ranges.items()):
        improved = False
        for name, (low, high, step) in ranges.items():
            for sign in (1, -1):
                moved = min(high, max(low, values[name] + sign * max(reach[name], step)))
                tried = {**values, name: moved}
                found = distance(tried)
                if found < best - 1e-12:
                    best, values, improved = found, tried, True
        if not improved:
            reach = {name: length / 2 for name, length in reach.items()}
    return best, values


def fit_launch(rows: list[Row], cycles, constants) -> tuple[float, dict[str, float]]:
    """Coordinate descent over LAUNCH: (distance, values)."""
    start = {name: low for name, (low, _, _) in LAUNCH.items()} | {"second_run_speed": 0.85}
    return descend(
        lambda values: _distance(rows, cycles, with_values(constants, values)), start, LAUNCH
    )


def fit(kernels: dict[Variant, AlignedKernel], rows: list[Row]) -> tuple[float, dict[str, float]]:
    """The best values of all fitted constants on the rows marked fitted."""
    mine = [row for row in rows if row.fitted]
    best = (math.inf, {})
    for point in itertools.product(*SIMULATED.values()):
        simulated = dict(zip(SIMULATED, point, strict=True))
        constants = with_values(B200, simulated)
        cycles = {v: cta_cycles(k.simulate(constants)) for v, k in kernels.items()}
        distance, launch = fit_launch(mine, cycles, constants)
        print(f"{simulated} -> {distance:.4f} {launch}", flush=True)
        best = min(best, (distance, {**simulated, **launch}), key=lambda found: found[0])
    return best


def write(values: dict[str, float]) -> None:
    """Store the fitted values where constants.fitted_b200 finds them."""
    rows = {
        name: {"value": value, "unit": B200[name].unit, "why": B200[name].source}
        for name, value in values.items()
    }
    FITTED_FILE.write_text(json.dumps(rows, indent=1) + "\n")
