"""Kernels of others run unmodified, and say what the table of docs/emulator_coverage.md says.

They need a checkout of CUTLASS, and the packages: CUTLASS=DIR pytest -m sweep tests/emulator/test_foreign_kernels.py
"""

import os
import re
from pathlib import Path

import pytest

from tests import pairwise
from tests.emulator.foreign_kernels import CASES, ROOT, run

PAGE = (ROOT / "docs" / "emulator_coverage.md").read_text()
TABLE = PAGE.split("<!-- foreign:")[1].split("<!-- /foreign")[0]
# The page's entries for level "ptx", by class of the report.
PTX = {m[1] for m in re.finditer(r"^\| `(\w+Error|RegisterHazard)` \|", PAGE, re.M)}


def test_the_table_of_the_document_has_every_case_and_no_failure():
    rows = [line for line in TABLE.split("\n") if line.startswith("| ")][1:]
    assert len(rows) == len(CASES)
    for case, line in zip(CASES, rows, strict=True):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert cells[0].split()[0] == case.origin
        assert cells[1:3] == [case.name, Path(case.file).name.removesuffix(".py")]
        assert cells[5].startswith(case.reports or "clean"), case.name
        assert cells[6] == "clean" or cells[6] in PTX, case.name
        assert cells[7] == ("right" if case.mode == "in_order" else f'right, mode "{case.mode}"')


@pairwise.sweep_only("kernels of others", seconds=60)
@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: re.sub(r"\W+", "_", f"{case.origin} {case.name}")
)
def test_a_kernel_of_others(case):
    """Its own comparison passes; the checks report what is known, and nothing else."""
    cutlass = os.environ.get("CUTLASS", "")
    if missing := case.missing(cutlass):
        pytest.skip(missing)
    said = run(case, cutlass)
    assert said["error"] == case.reports, said["message"]
    if case.reports:
        assert run(case, cutlass, checks="")["error"] == ""
    if case.shows:
        mode, error = case.shows
        assert run(case, cutlass, checks="", mode=mode)["error"] == error
