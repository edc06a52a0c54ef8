"""Planted defects of P that begins with the first quarter of S are caught by the checks meant for them.

Three commits plant all of them (tests/suite/turns.py), `pytest -m sweep` does at once.
"""

from functools import cache

import pytest

from tests.emulator.mutations.everything import LEVEL
from tests.emulator.mutations.mutant import assert_caught
from tests.emulator.mutations.quick import quick_or_sweep
from tests.sm100.two_tiles import quarter_defects
from tests.sm100.two_tiles.quarter_defects import CONFIG

MUTANTS = quarter_defects.mutants()


@cache
def subject():
    return quarter_defects.subject(LEVEL)


def test_the_subject_begins_p_with_the_first_quarter():
    assert CONFIG.schedule.lags and CONFIG.reads_by_quarter
    assert CONFIG.p_first_part == CONFIG.tiles.BN // 2


@pytest.mark.parametrize("mutant", quick_or_sweep(MUTANTS))
def test_a_defect_is_caught_by_a_check_meant_for_it(mutant):
    assert_caught(mutant, subject())


def test_there_are_enough_defects_and_none_survives():
    """What docs/verification.md says."""
    assert len(MUTANTS) >= 15
    assert not any(mutant.survives or mutant.equivalent for mutant in MUTANTS)
