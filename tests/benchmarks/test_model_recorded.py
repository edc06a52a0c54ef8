"""Tables of records: a record says what was modelled, and figures of an earlier code are marked."""

import importlib.metadata

import pytest

from benchmarks.cycle_model import recorded, report
from benchmarks.cycle_model.evaluate import SteadyState, cta_cycles
from benchmarks.cycle_model.kernels import OURS, THEIRS, Variant
from benchmarks.cycle_model.modelled import BUSY, MARK, Modelled
from benchmarks.cycle_model.problems import Problem
from benchmarks.cycle_model.workloads import workloads_of
from cute_fa4.emulator.model.constants import fitted_b200

CONSTANTS = fitted_b200()
KERNELS = Variant(OURS, 64), Variant(THEIRS, 64)
SHORT, LONG = (Problem(32768 // n, 32, 32, n, 64, False) for n in (512, 1024))


def modelled(variant: Variant) -> Modelled:
    """Invented cycles of its workloads: each work tile starts in 5,000, each key tile takes 2,000."""
    results = {
        work: recorded.Cycles(work.work_tiles * (5000.0 + 2000.0 * work.tiles))
        for work in workloads_of(variant)
    }
    steady = SteadyState(2000.0, dict.fromkeys(BUSY, 0.5))
    return Modelled(variant, cta_cycles(results), steady, results, "13.4.59")


@pytest.fixture
def known(monkeypatch) -> dict:
    """Records of both kernels and the digest of ours, in place of the files."""
    found = {str(v): recorded.record_of(modelled(v), CONSTANTS, "today") for v in KERNELS}
    monkeypatch.setattr(recorded, "records", lambda: found)
    monkeypatch.setattr(recorded, "digests", lambda: {str(KERNELS[0]): "today"})
    return found


def figures() -> list[str]:
    """Our cells of two rows of the table of speeds."""
    kernels = {variant: recorded.recorded(variant, CONSTANTS) for variant in KERNELS}
    return [report.cells(kernels, KERNELS, problem, CONSTANTS)[0] for problem in (SHORT, LONG)]


def test_a_record_gives_the_figures_of_what_was_modelled(known):
    for variant in KERNELS:
        found, fresh = recorded.recorded(variant, CONSTANTS), modelled(variant)
        assert (found.cycles, found.steady, found.state) == (fresh.cycles, fresh.steady, "")


@pytest.mark.parametrize("number", [0, 1], ids=["ours", "flash-attn-4's"])
def test_other_constants_make_a_record_stale(known, number):
    known[str(KERNELS[number])]["constants"] = "others"
    assert [recorded.state_of(v, CONSTANTS) for v in KERNELS] == [
        "stale" if n == number else "" for n in (0, 1)
    ]
    assert all(figure.endswith(MARK) for figure in figures())


def test_other_code_of_ours_makes_a_record_stale(known):
    assert not any(MARK in figure for figure in figures())
    for variant in KERNELS:
        known[str(variant)]["code"] = "yesterday"
    assert [recorded.state_of(v, CONSTANTS) for v in KERNELS] == ["stale", ""]
    assert all(figure.endswith(MARK) for figure in figures())


def test_constants_of_launches_do_not_make_a_record_stale():
    """Microseconds of a launch come after the cycles of its CTAs; the clock of the chip does too, but is a rate."""
    later = CONSTANTS | {"launch_us": CONSTANTS["claim"]}
    assert recorded.inside(later | {"launch_us": CONSTANTS["launch_us"]}) == recorded.inside(
        CONSTANTS
    )
    assert recorded.inside(CONSTANTS | {"claim": CONSTANTS["bar_sync"]}) != recorded.inside(
        CONSTANTS
    )


def test_a_row_without_a_record_stays_as_it_is_printed_and_is_marked_once(known):
    del known[str(KERNELS[0])]
    kernels = {variant: recorded.recorded(variant, CONSTANTS) for variant in KERNELS}
    row = "| 512 | " + " | ".join(report.cells(kernels, KERNELS, SHORT, CONSTANTS)) + " |"
    printed = "| 512 | 900 | tensor | 700 | waiting | 1.29 |"
    once = recorded.kept(row, printed)
    assert once == f"| 512 | 900{MARK} | tensor | 700 | waiting | 1.29 |"
    assert recorded.kept(row, once) == once


def test_every_record_is_of_a_kernel_of_the_tables():
    assert set(recorded.records()) <= set(recorded.kernels())


def test_records_of_others_are_of_the_package_that_is_installed():
    """With another version: python benchmarks/model.py --record --only flash-attn-4."""
    for name, record in recorded.records().items():
        if "package" in record:
            package, version = record["package"].split()
            try:
                assert importlib.metadata.version(package) == version, name
            except importlib.metadata.PackageNotFoundError:
                continue
