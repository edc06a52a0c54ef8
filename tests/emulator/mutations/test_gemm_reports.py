"""Reports of a stranger's GEMM name causes: one mistake is planted at a time, and its report is read.

The kernel is compiled once; a defect edits its PTX and takes a tenth of a second, so every run plants all.
"""

import dataclasses
import math
import re
from pathlib import Path

import pytest

from cute_fa4 import emulator
from tests.emulator import three_stage_gemm
from tests.emulator.mutations import gemm_defects, gemm_operand_defects
from tests.emulator.mutations.gemm_places import A_NOTE
from tests.emulator.mutations.mutant import BUDGET, SCHEDULES, WRONG_NUMBERS

DEFECTS = (*gemm_defects.DEFECTS, *gemm_operand_defects.DEFECTS)
ERROR = 1e-3
"""Of a sum of 320 products in float32; a wrong operand is off by more than 1."""
INSTRUCTIONS = 2500
DOCUMENT = Path(__file__).parents[3] / "docs" / "debugging.md"
GROUPS = ("FENCE", "PHASE", "COUNT", "RACE", "LEAK")


def run(defect):
    """(class of the error or "", its text, distance from float64, notes)."""
    planted = dict(mode="in_order", checks=defect.level, transform=lambda _, ptx: defect.edit(ptx))
    with emulator.use(**planted, instruction_budget=BUDGET * INSTRUCTIONS) as ran:
        try:
            distance = three_stage_gemm.run()
        except emulator.EmulatorError as error:
            return type(error).__name__, str(error), math.nan, ran.notes
    return "", "", distance, ran.notes


@pytest.mark.parametrize("level", ["ptx", "hardware"])
@pytest.mark.parametrize("mode, seed", SCHEDULES)
def test_the_gemm_is_right_and_clean_under_every_schedule(level, mode, seed):
    with emulator.use(mode=mode, seed=seed, checks=level) as ran:
        assert three_stage_gemm.run() < ERROR
    assert not ran.notes and ran.instructions < INSTRUCTIONS


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_the_report_of_a_mistake_names_its_cause(defect):
    error, text, distance, notes = run(defect)
    if defect.error in (WRONG_NUMBERS, A_NOTE):
        assert not error, text
        assert not distance < 1, "the numbers are right"
        assert bool(notes) == (defect.error == A_NOTE), notes
        text = "\n".join(notes)
    else:
        assert error == defect.error, text or f"no report; differs by {distance}"
    for words in defect.says:
        assert re.search(words, text), f"{words!r} is not in:\n{text}"


def test_a_note_becomes_an_error_where_it_is_asked_for():
    defect = next(defect for defect in DEFECTS if defect.error == A_NOTE)
    error, text, _, _ = run(dataclasses.replace(defect, level=("ptx", "operand_layout")))
    assert error == "BarrierError" and re.search(defect.says[0], text)


def test_the_documented_numbers_of_mistakes_and_reports():
    """Only the comparison of the result shows the others: a wrong operand that is complete and in order."""
    rows = re.findall(r"^\| .* \| (\d+) \| (\d+) \|$", DOCUMENT.read_text(), re.M)
    groups = (
        *(getattr(gemm_defects, f"{kind}_DEFECTS") for kind in GROUPS),
        gemm_operand_defects.DESCRIPTOR_DEFECTS,
        gemm_operand_defects.COORDINATE_DEFECTS,
    )
    reported = [sum(defect.error != WRONG_NUMBERS for defect in group) for group in groups]
    assert [(str(n), str(len(group))) for n, group in zip(reported, groups, strict=True)] == rows
    assert f"{len(DEFECTS)} mistakes of one PTX line" in DOCUMENT.read_text()
