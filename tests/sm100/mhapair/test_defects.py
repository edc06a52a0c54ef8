"""Planted defects of what crosses from one CTA of a pair to the other are caught by the checks meant for them.

Every third runs always, and of those of eight bits every ninth; the others in the sweep.
"""

from functools import cache

import pytest

from cute_fa4.calls import repeat
from tests.emulator.mutations.everything import LEVEL
from tests.emulator.mutations.mutant import assert_caught, try_mutant
from tests.emulator.mutations.quick import quick_or_sweep
from tests.sm100.mhapair import crossed_defects, defects

MUTANTS = defects.mutants()
OF_8_BITS = tuple(crossed_defects.mutants())
CROSSED = [mutant for mutant in OF_8_BITS if not mutant.equivalent]
SURVIVORS = [mutant for mutant in MUTANTS if mutant.survives]
EQUIVALENT = [mutant for mutant in (*MUTANTS, *OF_8_BITS) if mutant.equivalent]
CAUGHT = [mutant for mutant in MUTANTS if not mutant.survives and not mutant.equivalent]


@pytest.fixture(autouse=True)
def pairs(monkeypatch):
    monkeypatch.setenv("CUTE_FA4_PAIR", "on")
    monkeypatch.setenv("CUTE_FA4_MAXIMUM", "exact")
    repeat.clear()
    yield
    repeat.clear()


@cache
def subject(name):
    return {s.name: s for s in (defects.subject(LEVEL), crossed_defects.subject(LEVEL))}[name]


@pytest.mark.parametrize("mutant", [*quick_or_sweep(CAUGHT, 3), *quick_or_sweep(CROSSED, 9)])
def test_a_defect_is_caught_by_a_check_meant_for_it(mutant):
    assert_caught(mutant, subject(mutant.subject))


@pytest.mark.sweep
@pytest.mark.parametrize("mutant", [*EQUIVALENT, *SURVIVORS], ids=lambda m: m.name)
def test_what_is_said_not_to_be_caught_is_not(mutant):
    outcome = try_mutant(mutant, subject(mutant.subject))
    assert not outcome.caught_by, outcome.message


def test_there_are_enough_defects_and_few_survive():
    """What docs/verification.md says."""
    names = {mutant.name for mutant in MUTANTS}
    assert len(names) == len(MUTANTS)
    planted = len(CAUGHT) + len(SURVIVORS)
    assert planted >= 60 and len(CAUGHT) >= 0.95 * planted
    of_8_bits = {mutant.name for mutant in OF_8_BITS}
    assert len(of_8_bits) == len(OF_8_BITS) and len(CROSSED) >= 30
