"""Planted defects of K with a remainder outside its slot are caught by the checks meant for them.

Three commits plant all of them (tests/suite/turns.py), `pytest -m sweep` does at once.
"""

from functools import cache

import pytest

from tests.emulator.mutations.everything import LEVEL
from tests.emulator.mutations.mutant import assert_caught, try_mutant
from tests.emulator.mutations.quick import quick_or_sweep
from tests.sm100.two_tiles import rest_defects

MUTANTS = rest_defects.mutants()
SURVIVORS = [mutant for mutant in MUTANTS if mutant.survives]
EQUIVALENT = [mutant for mutant in MUTANTS if mutant.equivalent]
CAUGHT = [mutant for mutant in MUTANTS if not mutant.survives and not mutant.equivalent]


@cache
def subject():
    return rest_defects.subject(LEVEL)


@pytest.mark.parametrize("mutant", quick_or_sweep(CAUGHT))
def test_a_defect_is_caught_by_a_check_meant_for_it(mutant):
    assert_caught(mutant, subject())


@pytest.mark.parametrize("mutant", [*EQUIVALENT, *SURVIVORS], ids=lambda m: m.name)
def test_what_is_said_not_to_be_caught_is_not(mutant):
    outcome = try_mutant(mutant, subject())
    assert not outcome.caught_by, outcome.message


def test_there_are_enough_defects_and_few_survive():
    """What docs/verification.md says."""
    planted = len(CAUGHT) + len(SURVIVORS)
    assert planted >= 25 and len(CAUGHT) >= 0.95 * planted
