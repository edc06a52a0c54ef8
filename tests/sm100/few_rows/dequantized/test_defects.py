"""Planted defects of the kernel that dequantizes its keys are caught by the checks meant for them.

Three commits plant all of them (tests/suite/turns.py), `pytest -m sweep` does at once.
"""

from functools import cache

import pytest

from tests.emulator.mutations.everything import LEVEL
from tests.emulator.mutations.mutant import assert_caught
from tests.emulator.mutations.quick import quick_or_sweep
from tests.sm100.few_rows.dequantized import defects

CAUGHT = defects.mutants()


@cache
def subject():
    return defects.subject(LEVEL)


@pytest.mark.parametrize("mutant", quick_or_sweep(CAUGHT))
def test_a_defect_is_caught_by_a_check_meant_for_it(mutant):
    assert_caught(mutant, subject())


def test_there_are_enough_defects():
    """What docs/verification.md says: all of them are caught."""
    assert len({mutant.name for mutant in CAUGHT}) == len(CAUGHT) >= 30
    assert not any(mutant.survives or mutant.equivalent for mutant in CAUGHT)
