"""Planted defects of the kernel with swapped operands are caught by the checks meant for them."""

from functools import cache

import pytest

from tests.emulator.mutations.everything import LEVEL
from tests.emulator.mutations.mutant import assert_caught, try_mutant
from tests.sm100.mhaswap import defects

MUTANTS = defects.mutants()
SURVIVORS = [mutant for mutant in MUTANTS if mutant.survives]
CAUGHT = [mutant for mutant in MUTANTS if not mutant.survives]


@cache
def subject():
    return defects.subject(LEVEL)


def test_the_unchanged_kernel_is_clean_under_every_schedule():
    subject().expected()


@pytest.mark.parametrize("mutant", CAUGHT, ids=lambda m: m.name)
def test_a_defect_is_caught_by_a_check_meant_for_it(mutant):
    assert_caught(mutant, subject())


@pytest.mark.parametrize("mutant", SURVIVORS, ids=lambda m: m.name)
def test_what_is_said_not_to_be_caught_is_not(mutant):
    outcome = try_mutant(mutant, subject())
    assert not outcome.caught_by, outcome.message


def test_there_are_enough_defects_and_few_survive():
    """What docs/verification.md says."""
    planted = len(CAUGHT) + len(SURVIVORS)
    assert planted >= 60 and len(CAUGHT) >= 0.95 * planted
    assert len(SURVIVORS) == 2
