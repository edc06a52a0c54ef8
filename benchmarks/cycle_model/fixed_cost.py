"""The fixed cost of published rows, apart from the SMs: several forms, fitted to the same rows.

    time = launch_us + fixed + SMs / speed

    nothing           no fixed cost, a speed for each run
    the same          one for all rows, as the model has it; the paper's speed is that of the model
    the same, speeds  one for all rows, a speed for each run
    each run          one for each run, and a speed
    each kernel       for each kernel of a run, from its rows only

All rows move the same bytes and are bound by the SMs. So "the same" may be a constant, a share of the bytes, or a
delay of the SMs; these rows cannot distinguish them. The distance is that of calibration.py, over the rows marked
fit; for "each kernel" over all its rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.cycle_model import calibration
from benchmarks.cycle_model.calibration import Errors, Row, descend
from benchmarks.cycle_model.grid import CTACycles, launch_time
from benchmarks.cycle_model.kernels import Variant
from cute_fa4.emulator.model.constants import Constant

RUNS = ("paper", "second_run")
FIXED_US = (0.0, 200.0, 0.01)  # lowest, highest, step
SPEED = (0.5, 1.2, 0.0001)
# The fixed cost and the speed of a run, by the name of the constant that stands for them; None: there is none.
FORMS: dict[str, tuple[Callable[[str], str | None], Callable[[str], str | None]]] = {
    "nothing": (lambda run: None, lambda run: run),
    "the same": (lambda run: "all", lambda run: None if run == "paper" else run),
    "the same, speeds": (lambda run: "all", lambda run: run),
    "each run": (lambda run: run, lambda run: run),
}


@dataclass(frozen=True)
class Point:
    """A published row: what it took, and what the SMs take of it at the model's clock, in microseconds."""

    row: Row
    us: float
    busy_us: float


@dataclass(frozen=True)
class Fitted:
    """The values of a form's constants: fixed costs in microseconds and speeds, each by its name."""

    fixed: dict[str, float]
    speed: dict[str, float]
    form: str
    launch_us: float

    def us(self, point: Point) -> float:
        """The form's prediction for a row."""
        fixed, speed = (name(point.row.run) for name in FORMS[self.form])
        return (
            self.launch_us + self.fixed.get(fixed, 0.0) + point.busy_us / self.speed.get(speed, 1.0)
        )

    def distance(self, points: list[Point]) -> float:
        """Root mean square of log(modelled / published)."""
        logs = [math.log(self.us(point) / point.us) for point in points]
        return math.sqrt(sum(x * x for x in logs) / len(logs))

    def errors(self, points: list[Point]) -> Errors:
        """Mean error of speeds, as in the table of calibration."""
        return Errors.of((point.us, self.us(point)) for point in points)


def points(cycles: dict[Variant, CTACycles], constants: dict[str, Constant]) -> list[Point]:
    """Every published row whose kernel is among these."""
    found = []
    for row in calibration.published_rows():
        if row.variant in cycles:
            time = launch_time(row.variant, row.problem, cycles[row.variant], constants)
            found.append(Point(row, row.problem.flops / row.tflops * 1e-6, time.busy_us))
    return found


def fit(form: str, rows: list[Point], launch_us: float) -> Fitted:
    """The constants of a form that are nearest to these rows."""
    fixed, speed = (
        dict.fromkeys(name for row in rows if (name := of(row.row.run)) is not None)
        for of in FORMS[form]
    )
    ranges = {("fixed", name): FIXED_US for name in fixed} | {
        ("speed", name): SPEED for name in speed
    }
    start = {key: 20.0 if key[0] == "fixed" else 0.9 for key in ranges}

    def fitted(values: dict) -> Fitted:
        of = {
            kind: {name: x for (k, name), x in values.items() if k == kind}
            for kind in ("fixed", "speed")
        }
        return Fitted(of["fixed"], of["speed"], form, launch_us)

    _, values = descend(lambda values: fitted(values).distance(rows), start, ranges)
    return fitted(values)


def table(cycles: dict[Variant, CTACycles], constants: dict[str, Constant]) -> str:
    """The forms and their errors, and below them what each kernel's rows say alone."""
    launch_us, found = constants["launch_us"].value, points(cycles, constants)
    halves = {use: [p for p in found if p.row.fitted is use] for use in (True, False)}
    lines = [
        "Forms of the fixed cost of flash-attn-4's published rows. Fit, check: mean error of speeds; distance: "
        "root mean square of log(modelled / published) over the rows marked fit.",
        "",
        "| fixed cost | paper: us | speed | second_run: us | speed | distance | fit | check |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for form, names in FORMS.items():
        one = fit(form, halves[True], launch_us)
        cells = []
        for run in RUNS:
            fixed, speed = (name(run) for name in names)
            cells += [f"{one.fixed.get(fixed, 0.0):.1f}", f"{one.speed.get(speed, 1.0):.3f}"]
        cells += [f"{one.distance(halves[True]):.4f}"]
        cells += [f"{one.errors(halves[use]).mean:.1%}" for use in (True, False)]
        lines.append("| " + " | ".join([form, *cells]) + " |")
    lines += [
        "",
        "The same of each kernel's rows alone, all of them.",
        "",
        "| run | d | mask | rows | fixed us | speed | distance |",
        "|---|---|---|---|---|---|---|",
    ]
    kernels = dict.fromkeys(replace(p.row, seqlen=0, tflops=0, fitted=True) for p in found)
    for kernel in kernels:
        mine = [p for p in found if replace(p.row, seqlen=0, tflops=0, fitted=True) == kernel]
        one = fit("each run", mine, launch_us)
        mask = "causal" if kernel.causal else "full"
        lines.append(
            f"| {kernel.run} | {kernel.head_dim} | {mask} | {len(mine)} | {one.fixed[kernel.run]:.1f} | "
            f"{one.speed[kernel.run]:.3f} | {one.distance(mine):.4f} |"
        )
    return "\n".join(lines)
