"""Kernels of others run unmodified, and say what the table of docs/emulator.md says.

They need a checkout of CUTLASS: CUTLASS=DIR pytest -m sweep tests/emulator/test_foreign_kernels.py
"""

import os
import re
from pathlib import Path

import pytest

from tests.emulator.foreign_kernels import CASES, EXAMPLES, ROOT, run

TABLE = (
    (ROOT / "docs" / "emulator.md").read_text().split("<!-- foreign:")[1].split("<!-- /foreign")[0]
)


def test_the_table_of_the_document_has_every_case_and_no_failure():
    rows = [line for line in TABLE.split("\n") if line.startswith("| ")][1:]
    assert len(rows) == len(CASES)
    for case, line in zip(CASES, rows, strict=True):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert cells[0] == case.name and cells[1] == Path(case.file).name
        assert cells[4].startswith(case.reports or "clean"), case.name
        assert cells[5] == "within its tolerance"


@pytest.mark.parametrize("case", CASES, ids=lambda case: re.sub(r"\W+", "_", case.name))
def test_a_kernel_of_others(case):
    """Its own comparison passes; the checks report what is known, and nothing else."""
    cutlass = os.environ.get("CUTLASS", "")
    if not (Path(cutlass) / EXAMPLES / "cute/blackwell" / case.file).is_file() or not cutlass:
        pytest.skip(
            "no checkout of CUTLASS: git clone https://github.com/NVIDIA/cutlass, and CUTLASS=DIR"
        )
    said = run(case, cutlass)
    assert said["error"] == case.reports, said["message"]
    if case.reports:
        assert run(case, cutlass, checks="")["error"] == ""
