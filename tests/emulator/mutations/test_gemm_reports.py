"""Reports of a stranger's GEMM name causes: one mistake is planted at a time, and its report is read.

The kernel is compiled once; a defect edits its PTX and takes a tenth of a second, so every run plants all.
"""

import math
import re

import pytest

from cute_fa4 import emulator
from tests.emulator import three_stage_gemm
from tests.emulator.mutations.gemm_defects import DEFECTS
from tests.emulator.mutations.mutant import BUDGET, SCHEDULES, WRONG_NUMBERS

ERROR = 1e-3
"""Of a sum of 320 products in float32; a wrong operand is off by more than 1."""
INSTRUCTIONS = 2500


def run(defect):
    """(class of the error or "", its text, distance from float64)."""
    planted = dict(mode="in_order", checks=defect.level, transform=lambda _, ptx: defect.edit(ptx))
    with emulator.use(**planted, instruction_budget=BUDGET * INSTRUCTIONS):
        try:
            distance = three_stage_gemm.run()
        except emulator.EmulatorError as error:
            return type(error).__name__, str(error), math.nan
    return "", "", distance


@pytest.mark.parametrize("level", ["ptx", "hardware"])
@pytest.mark.parametrize("mode, seed", SCHEDULES)
def test_the_gemm_is_right_and_clean_under_every_schedule(level, mode, seed):
    with emulator.use(mode=mode, seed=seed, checks=level) as ran:
        assert three_stage_gemm.run() < ERROR
    assert not ran.notes and ran.instructions < INSTRUCTIONS


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_the_report_of_a_mistake_names_its_cause(defect):
    error, text, distance = run(defect)
    if defect.error == WRONG_NUMBERS:
        assert not error, text
        assert not distance < 1, "the numbers are right"
    else:
        assert error == defect.error, text or f"no report; differs by {distance}"
    for words in defect.says:
        assert re.search(words, text), f"{words!r} is not in:\n{text}"


def test_most_mistakes_have_a_report():
    """Only the comparison of the result shows the others: a wrong operand that is complete and in order."""
    by_report = [defect for defect in DEFECTS if defect.error != WRONG_NUMBERS]
    assert len(by_report) >= 0.85 * len(DEFECTS)
