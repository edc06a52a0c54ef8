"""Planted defects of the kernel with swapped operands are caught by the checks meant for them.

Three commits plant all of them (tests/suite/turns.py), `pytest -m sweep` does at once.
"""

from functools import cache

import pytest

from tests.emulator.mutations.everything import LEVEL
from tests.emulator.mutations.mutant import assert_caught
from tests.emulator.mutations.quick import quick_or_sweep
from tests.sm100.few_rows import defects

MUTANTS = defects.mutants()


@cache
def subject():
    return defects.subject((LEVEL, "lanes"))


def test_the_unchanged_kernel_is_clean_under_every_schedule():
    subject().expected()


@pytest.mark.parametrize("mutant", quick_or_sweep(MUTANTS))
def test_a_defect_is_caught_by_a_check_meant_for_it(mutant):
    assert_caught(mutant, subject())


def test_there_are_enough_defects_and_none_survives():
    """What docs/verification.md says."""
    assert len(MUTANTS) >= 60
    assert not any(mutant.survives or mutant.equivalent for mutant in MUTANTS)
