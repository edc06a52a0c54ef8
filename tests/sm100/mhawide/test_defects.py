"""Planted defects of the kernel for head dims up to 256 are caught by the checks meant for them."""

from functools import cache

import pytest

from tests.emulator.mutations.everything import LEVEL
from tests.emulator.mutations.mutant import try_mutant
from tests.sm100.mhawide import defects

MUTANTS = defects.mutants()
SURVIVORS = [mutant for mutant in MUTANTS if mutant.survives]
EQUIVALENT = [mutant for mutant in MUTANTS if mutant.equivalent]
CAUGHT = [mutant for mutant in MUTANTS if not mutant.survives and not mutant.equivalent]


@cache
def subject():
    return defects.subject(LEVEL)


@pytest.mark.parametrize("mutant", CAUGHT, ids=lambda m: m.name)
def test_a_defect_is_caught_by_a_check_meant_for_it(mutant):
    outcome = try_mutant(mutant, subject())
    assert outcome.caught_by, "nothing noticed"
    assert outcome.as_meant, (
        f"caught by {outcome.caught_by}, meant {mutant.meant}: {outcome.message}"
    )


@pytest.mark.parametrize("mutant", [*EQUIVALENT, *SURVIVORS], ids=lambda m: m.name)
def test_what_is_said_not_to_be_caught_is_not(mutant):
    outcome = try_mutant(mutant, subject())
    assert not outcome.caught_by, outcome.message


def test_there_are_enough_defects_and_few_survive():
    """What docs/verification.md says."""
    planted = len(CAUGHT) + len(SURVIVORS)
    assert planted >= 30 and len(CAUGHT) >= 0.95 * planted
