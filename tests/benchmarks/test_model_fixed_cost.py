"""Forms of the fixed cost: what made the rows is found again, and a form that cannot say it is further away."""

from dataclasses import replace

import pytest

from benchmarks.cycle_model import calibration, fixed_cost
from benchmarks.cycle_model.grid import CTACycles, Curve
from benchmarks.cycle_model.kernels import THEIRS, Variant
from cute_fa4.emulator.model.constants import B200

LAUNCH_US = 1.78
MADE = {"paper": (12.0, 0.9), "second_run": (60.0, 0.8)}  # fixed microseconds and speed of each run


def points_of(made: dict) -> list[fixed_cost.Point]:
    """The published rows of d=128, with SMs that take 100 us and more, and the times that such runs would have."""
    found = []
    for row in calibration.published_rows():
        if row.head_dim == 128:
            busy, (fixed, speed) = 100.0 * row.seqlen / 1024, made[row.run]
            found.append(fixed_cost.Point(row, LAUNCH_US + fixed + busy / speed, busy))
    return found


def test_a_form_finds_what_made_the_rows():
    one = fixed_cost.fit("each run", points_of(MADE), LAUNCH_US)
    for run, (fixed, speed) in MADE.items():
        assert one.fixed[run] == pytest.approx(fixed, abs=0.5)
        assert one.speed[run] == pytest.approx(speed, abs=0.002)


def test_rows_without_a_fixed_cost_get_none():
    points = points_of({run: (0.0, speed) for run, (_, speed) in MADE.items()})
    assert fixed_cost.fit("each run", points, LAUNCH_US).fixed == pytest.approx(
        {"paper": 0.0, "second_run": 0.0}, abs=0.5
    )


def test_a_form_with_fewer_constants_is_further_away():
    """A speed of 0.9 that the model does not have is taken for a fixed cost: "the same" has too much of it."""
    points = points_of({"paper": (12.0, 0.9), "second_run": (12.0, 0.8)})
    distance = {
        form: fixed_cost.fit(form, points, LAUNCH_US).distance(points) for form in fixed_cost.FORMS
    }
    assert distance["each run"] < 0.002 and distance["the same, speeds"] < 0.002
    assert min(distance["nothing"], distance["the same"]) > 0.01
    assert fixed_cost.fit("the same", points, LAUNCH_US).fixed["all"] > 20


def test_a_point_is_a_row_with_what_its_sms_take():
    """The clock and the work of a CTA; neither the launch nor the fixed cost of the model is in it."""
    cycles = {Variant(THEIRS, 64, True): CTACycles(Curve(((1, 1000.0), (2, 2000.0))))}
    constants = {**B200, "cold_memory": replace(B200["cold_memory"], value=0.5)}
    found = fixed_cost.points(cycles, constants)
    rows = [r for r in calibration.published_rows() if r.variant in cycles]
    assert [point.row for point in found] == rows
    assert found == fixed_cost.points(cycles, B200)
    for point in found:
        assert point.us * point.row.tflops == pytest.approx(point.row.problem.flops * 1e-6)
