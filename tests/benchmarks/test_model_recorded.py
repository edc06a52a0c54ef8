"""Tables of records: a record says what was modelled, and figures of an earlier code are marked."""

import importlib.metadata
import re
from math import isnan
from pathlib import Path

import pytest

from benchmarks.cycle_model import copy_cost, instruction_cache, pages, recorded, records, report
from benchmarks.cycle_model.decode import recording
from benchmarks.cycle_model.decode.call import call_of
from benchmarks.cycle_model.decode.problems import DecodeProblem
from benchmarks.cycle_model.decode.time import ours
from benchmarks.cycle_model.evaluate import SteadyState, cta_cycles
from benchmarks.cycle_model.kernels import OURS, THEIRS, Variant
from benchmarks.cycle_model.modelled import BUSY, MARK, Modelled
from benchmarks.cycle_model.problems import Problem
from benchmarks.cycle_model.workloads import workloads_of
from cute_fa4.emulator.model.constants import fitted_b200

CONSTANTS = fitted_b200()
GENERATE = Path(__file__).parents[2] / "docs" / "generate.py"
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
    found = {
        str(v): records.entry(
            recorded.of_variant(v, CONSTANTS),
            {"code": "today", **recorded.figures_of(modelled(v))},
        )
        for v in KERNELS
    }
    monkeypatch.setattr(records, "records", lambda: found)
    monkeypatch.setattr(records, "digests", lambda: {str(KERNELS[0]): "today"})
    return found


def states() -> list[str]:
    return [recorded.of_variant(variant, CONSTANTS).state for variant in KERNELS]


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
    assert states() == ["stale" if n == number else "" for n in (0, 1)]
    assert all(figure.endswith(MARK) for figure in figures())


def test_other_code_of_ours_makes_a_record_stale(known):
    assert not any(MARK in figure for figure in figures())
    for variant in KERNELS:
        known[str(variant)]["code"] = "yesterday"
    assert states() == ["stale", ""]
    assert all(figure.endswith(MARK) for figure in figures())


def test_constants_of_launches_do_not_make_a_record_stale():
    """Microseconds of a launch come after the cycles of its CTAs; the clock of the chip does too, but is a rate."""
    later = CONSTANTS | {"launch_us": CONSTANTS["claim"]}
    assert records.inside(later | {"launch_us": CONSTANTS["launch_us"]}) == records.inside(
        CONSTANTS
    )
    assert records.inside(CONSTANTS | {"claim": CONSTANTS["bar_sync"]}) != records.inside(CONSTANTS)


def test_a_row_without_a_record_stays_as_it_is_printed_and_is_marked_once(known):
    del known[str(KERNELS[0])]
    kernels = {variant: recorded.recorded(variant, CONSTANTS) for variant in KERNELS}
    row = "| 512 | " + " | ".join(report.cells(kernels, KERNELS, SHORT, CONSTANTS)) + " |"
    printed = "| 512 | 900 | tensor | 700 | waiting | 1.29 |"
    once = recorded.kept(row, printed)
    assert once == f"| 512 | 900{MARK} | tensor | 700 | waiting | 1.29 |"
    assert recorded.kept(row, once) == once


def test_every_record_is_of_a_kernel_of_the_tables():
    assert set(records.records()) <= set(recorded.subjects())


def test_records_of_others_are_of_the_package_that_is_installed():
    """With another version: python benchmarks/model.py --record --only flash-attn-4."""
    for name, record in records.records().items():
        if "package" in record:
            package, version = record["package"].split()
            try:
                assert importlib.metadata.version(package) == version, name
            except importlib.metadata.PackageNotFoundError:
                continue


def test_the_list_has_what_is_missing_or_stale_and_only_that(known):
    """One of ours with older code, one that no record has."""
    subjects = {str(v): recorded.of_variant(v, CONSTANTS) for v in (*KERNELS, Variant(OURS, 128))}
    known[str(KERNELS[0])]["code"] = "yesterday"
    assert records.listing(subjects, None) == [
        f"stale    {KERNELS[0]}",
        f"missing  {Variant(OURS, 128)}",
        "1 missing, 1 stale, 0 recorded; 3 in all",
    ]
    assert records.listing(subjects, ["flash-attn-4"])[0] == f"recorded {KERNELS[1]}"


def test_a_launch_and_a_kernel_of_decode_come_back_as_recorded(monkeypatch):
    """One block, three blocks, and a merge; without a record everything is NaN, and nothing hangs."""
    problem = DecodeProblem.even(1, 1 << 20)
    call = call_of(problem)
    subject = recording.attention(call.config, 1, CONSTANTS)
    works = [(n, blocks, 1) for blocks in (1, 3) for n in (1, 2, 4, 8, 16)]
    found = {
        subject.name: {"cycles": [[*w, *[w[1] * (3000.0 + 1400 * w[0])] * 6] for w in works]},
        recording.label(call.merge): {"cycles": [[2, 3000.0], [32, 6000.0]]},
    }
    for each in found.values():
        each |= {"code": "today", "constants": records.inside(CONSTANTS), "ptxas": "13.4.59"}
    monkeypatch.setattr(records, "records", lambda: found)
    monkeypatch.setattr(
        records,
        "digests",
        lambda: dict.fromkeys(map(recording.label, (call.config, call.merge)), "today"),
    )
    source = recording.Recorded()
    curves = source.attention(call.config, 1, CONSTANTS)
    assert curves.per_tile(curves.latencies[0]) == 1400 and curves.first[0](4) == 3000 + 4 * 1400
    assert curves.further[0](4) == curves.first[0](4)
    time = ours(problem, CONSTANTS, source=source)
    assert time.us > 0 and not time.state and "13.4.59" in source.made_by()
    found[recording.label(call.merge)]["code"] = "yesterday"
    assert ours(problem, CONSTANTS, source=source).state == "stale"
    del found[subject.name]
    time = ours(problem, CONSTANTS, source=source)
    assert time.state == "missing" and isnan(time.us) and MARK.strip() in source.made_by()


def test_every_table_of_the_pages_is_written_by_the_generator():
    """A table that no record, no data and no test of its own writes is one that nothing marks when it is old."""
    text = "\n".join(path.read_text() for path in (*pages.PAGES, *pages.OTHERS))
    marks = set(re.findall(r"^<!-- (\w+)", text, re.MULTILINE))
    written = set(recorded.tables())
    of_generate = set(re.findall(r'^            "(\w+)":', GENERATE.read_text(), re.MULTILINE))
    of_others = {"hopper", "power_fit", "power_check", "power_speeds", "nvfp4", "nvfp4_draws"} | {
        name for name in marks if name.startswith("peers")
    }
    assert marks - written - of_generate == of_others
    assert written <= marks


def test_a_record_of_ours_has_the_digest_that_tests_hold(monkeypatch):
    """A trace is of the emulator's PTX, which has other lines: its digest would always be stale."""
    monkeypatch.setattr(records, "_compiled", lambda subject: {"code": "as compiled"})
    subject = records.Subject("k", "k", CONSTANTS, lambda: {"code": "as traced", "cycles": 1})
    assert records.measured(lambda: {"k": subject}, ["k"])["k"]["code"] == "as compiled"


@pytest.mark.parametrize("variant", instruction_cache.KERNELS, ids=str)
def test_the_recorded_loops_fit_the_instruction_caches(variant):
    """Half of the smaller cache, so that a cache of half the size would do; test_model_headline.py counts again."""
    code = instruction_cache.recorded(variant)
    if code.whole != code.whole:
        pytest.fail("not recorded: python benchmarks/model.py --record")
    assert code.sub_loop < instruction_cache.L0_BYTES / 2
    assert code.sub_loop <= code.loop < instruction_cache.L1_BYTES / 2 < code.whole * 2


@pytest.mark.parametrize("page_size", copy_cost.PAGE_SIZES)
def test_the_copies_of_a_key_tile_have_its_bytes(page_size):
    """K and V of 128 keys and 128 columns of 16 bits, whatever the pages."""
    cost = copy_cost.recorded(page_size)
    if cost.copies != cost.copies:
        pytest.fail("not recorded: python benchmarks/model.py --record")
    assert cost.copies * cost.bytes_of_copy == 2 * 128 * 128 * 2
