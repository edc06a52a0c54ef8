"""The power model: its law, its data, and what the pages and the README say of it."""

import re
from pathlib import Path

import pytest

from benchmarks.cycle_model import plots, power
from benchmarks.cycle_model.power import Energies, chips, halves, idle_w, rows

ROOT = Path(__file__).resolve().parents[2]
LAW = Energies(bf16=0.6, fp8=0.3, mxfp8=0.3, backward=1.25, exponent=0.5)


@pytest.mark.parametrize("limit", [500, 1000, 1400])
@pytest.mark.parametrize("work", ["forward", "backward"])
def test_a_limited_run_draws_the_limit(limit, work):
    """power = idle + e (clock / 1.9)^a x speed, where the clock is the boost clock times speed over burst."""
    burst, boost = 2400.0, 2.0
    speed = LAW.sustained(burst, boost, limit, "bf16", work)
    clock = boost * speed / burst
    energy = 0.6 * (1.25 if work == "backward" else 1) * (clock / power.REFERENCE_GHZ) ** 0.5
    assert speed < burst and idle_w() + energy * speed == pytest.approx(limit)


def test_a_run_below_the_limit_keeps_its_burst():
    """150 TFLOPS draw 90 W more than idle."""
    assert LAW.sustained(150.0, 1.965, 1000, "bf16") == 150.0


def test_more_utilisation_gains_less_at_the_limit():
    """The ratio of limited speeds is that of bursts to the power a / (1 + a)."""
    fast, slow = (LAW.sustained(burst, 2.0, 1000, "bf16") for burst in (2400.0, 2000.0))
    assert fast / slow == pytest.approx(1.2 ** (0.5 / 1.5))


def test_the_data_is_whole_and_the_halves_are_apart():
    to, check = halves()
    assert len(to) == len(check) and not set(to) & set(check)
    assert {row for row in rows() if row.is_long} == {*to, *check}
    data = power.published()
    assert {row.source for row in rows()} == set(data["sources"])
    assert {row.device for row in rows()} <= set(chips())
    for row in rows():
        assert row.tflops < chips()[row.device].peak(row.dtype), row
    for half in (to, check):
        assert {(row.work, row.dtype) for row in half} == {(r.work, r.dtype) for r in to}


def test_the_fit_is_a_minimum_and_the_other_half_agrees():
    """No step of 1 % of one energy makes the first half's squares smaller; the second half is within 5 % on average."""
    to, check = halves()
    found = power.fitted()
    least = sum(e * e for e in power.errors(found, to))
    for name in vars(found):
        for factor in (0.99, 1.01):
            moved = power.replace(found, **{name: getattr(found, name) * factor})
            assert sum(e * e for e in power.errors(moved, to)) >= least
    assert power.mean_error(check) < 0.05


def test_readme_and_index_say_what_the_model_says():
    burst, sustained = power.expectation(plots.text_of_pages())
    for page in ("README.md", "docs/performance/index.md"):
        said = re.search(
            r"of (1\.\d\d) in a burst is (1\.\d\d) at 1000 W", (ROOT / page).read_text()
        )
        assert said and said.groups() == (f"{burst:.2f}", f"{sustained:.2f}"), page
