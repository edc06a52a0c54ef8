"""Results of `hopper check` as records of a data file and as tables."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from cute_fa4.hopper import check, command, report
from cute_fa4.hopper.variant import Variant

DATA = Path(__file__).resolve().parents[2] / "docs" / "data" / "hopper.json"


def a_result(**changes) -> dict:
    rows = [
        {**asdict(check.Row(asdict(Variant()), "causal", "1 x 8192, 8192 keys", {"keys": [8192]}, 6, 32, 40, 7)),
         "relative_error": 2.1e-3, "guarded": False},
        {**asdict(check.Row(asdict(Variant()), "causal", "1 x 1, 1 keys", {"keys": [1]}, 5, 1, 0, 0)),
         "relative_error": 1e-3, "guarded": True},
    ]  # fmt: skip
    return {"date": "2026-01-02", "commit": "abc", "device": "NVIDIA H200", "driver": "1", "ptxas": "2", "rows": rows,
            "gradients": [{"title": "gradients d=64/64 bf16", "of_allowed": 0.617}], "foreign": [], "failures": [],
            "controls": 1, **changes}  # fmt: skip


def run_report(*arguments) -> int:
    parser = argparse.ArgumentParser()
    command.add_options(parser)
    parsed = parser.parse_args(["report", *map(str, arguments)])
    return parsed.run(parsed)


@pytest.fixture
def files(tmp_path):
    """Two result files of one run: problems, and the cases of the host library."""
    cases = [{"name": "a case", "seen": "0 wrong rows", "ok": True}]
    results = [a_result(), a_result(rows=[], gradients=[], controls=0, driver_cases=cases)]
    for number, result in enumerate(results):
        (tmp_path / str(number)).write_text(json.dumps(result))
    return [tmp_path / "0", tmp_path / "1"]


def test_tables_of_a_run(files, capsys):
    assert run_report(*files) == 0
    text = capsys.readouterr().out
    assert "2026-01-02, commit abc, NVIDIA H200, driver 1" in text
    assert "11 launches of 2 problems (1 of them between unmapped pages), 40 of 197 blocks" in text
    assert "| 128 | bf16 | causal | 2 | 11 | 40 / 197 | 7 | 2.10e-03 |" in text
    assert "| 128 | causal | 1 x 8192, 8192 keys | 6 |" in text
    assert "| gradients d=64/64 bf16 | 0.62 |" in text
    assert "| a case | 0 wrong rows |" in text


def test_a_run_is_added_once(files, tmp_path):
    data = tmp_path / "data.json"
    other = report.record(a_result(commit="def", driver_cases=[]))
    report.add(data, other)
    assert run_report(*files, "--add", data) == 0
    assert run_report(*files, "--add", data) == 0
    records = json.loads(data.read_text())
    assert [one["commit"] for one in records] == ["def", "abc"]
    assert records[0] == other and records[1]["driver_cases"] == [["a case", "0 wrong rows"]]
    assert "| 2 | 2026-01-02, abc |" in report.summary(records)


def test_results_of_two_commits_make_no_record(tmp_path):
    for name, commit in (("a", "1"), ("b", "2")):
        (tmp_path / name).write_text(json.dumps(a_result(commit=commit)))
    with pytest.raises(report.ReportError, match="different commit: 1, 2"):
        report.read([tmp_path / "a", tmp_path / "b"])


def test_a_file_that_holds_no_records_is_refused(tmp_path):
    (tmp_path / "data.json").write_text("{}")
    with pytest.raises(report.ReportError, match="not a list of records"):
        report.add(tmp_path / "data.json", report.record(a_result(driver_cases=[])))


def test_the_data_file_adds_up():
    """The totals of a run are the sums of its variants, if any, whose columns are those of report.VARIANT."""
    records = json.loads(DATA.read_text())
    assert DATA.read_text() == report.as_text(records)
    for run in records:
        rows = [dict(zip(report.VARIANT, row, strict=True)) for row in run["variants"]]
        for total in ("problems", "launches", "claimed", "blocks"):
            assert sum(row[total] for row in rows) == run[total], (run["commit"], total)
