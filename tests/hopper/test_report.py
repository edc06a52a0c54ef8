"""Results of `hopper check` as tables of a page."""

import argparse
import json
from dataclasses import asdict

import pytest

from cute_fa4.hopper import check, command, report
from cute_fa4.hopper.variant import Variant


def a_result(**changes) -> dict:
    rows = [
        {**asdict(check.Row(asdict(Variant()), "causal", "1 x 8192, 8192 keys", {"keys": [8192]}, 6, 32, 40, 7)),
         "relative_error": 2.1e-3, "guarded": False},
        {**asdict(check.Row(asdict(Variant()), "causal", "1 x 1, 1 keys", {"keys": [1]}, 5, 1, 0, 0)),
         "relative_error": 1e-3, "guarded": True},
    ]  # fmt: skip
    return {"date": "2026-01-02", "commit": "abc", "device": "NVIDIA H200", "driver": "1", "ptxas": "2", "rows": rows,
            "foreign": [], "failures": [], "controls": 1, **changes}  # fmt: skip


def test_tables(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(a_result()))
    cases_seen = [{"name": "a case", "seen": "0 wrong rows", "ok": True}]
    also = a_result(rows=[], controls=0, driver_cases=cases_seen)
    (tmp_path / "b.json").write_text(json.dumps(also))
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    files = [str(tmp_path / name) for name in ("a.json", "b.json")]
    options = ["report", *files, "--write", str(page)]
    parser = argparse.ArgumentParser()
    command.add_options(parser)
    parsed = parser.parse_args(options)
    assert parsed.run(parsed) == 0
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert "2026-01-02, commit abc, NVIDIA H200, driver 1" in text
    assert "11 launches of 2 problems (1 of them between unmapped pages), 40 of 197 blocks" in text
    assert "| 128 | bf16 | causal | 2 | 11 | 40 / 197 | 7 | 2.10e-03 |" in text
    assert "| 128 | causal | 1 x 8192, 8192 keys | 6 |" in text
    assert "| a case | 0 wrong rows |" in text

    report.write(page, report.tables(a_result(commit="def", driver_cases=[])), add=True)
    both = page.read_text()
    assert both.startswith("before\n") and both.endswith("\nafter\n")
    assert both.index("commit abc") < both.index("commit def") and both.count(report.END) == 1


def test_results_of_two_commits_make_no_table(tmp_path):
    for name, commit in (("a", "1"), ("b", "2")):
        (tmp_path / name).write_text(json.dumps(a_result(commit=commit)))
    with pytest.raises(report.ReportError, match="different commit: 1, 2"):
        report.read([tmp_path / "a", tmp_path / "b"])


def test_a_page_without_a_place_is_refused(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("nothing")
    with pytest.raises(report.ReportError, match="between which the tables belong"):
        report.write(page, "text")
