"""Planted defects of the latent kernel are caught by the checks meant for them; a few by default, all in the sweep."""

from functools import cache

import pytest

from tests.emulator.mutations.everything import LEVEL
from tests.emulator.mutations.mutant import assert_caught, try_mutant
from tests.emulator.mutations.quick import quick_or_sweep
from tests.sm100.latent import defects

MUTANTS = defects.mutants()
EQUIVALENT = [mutant for mutant in MUTANTS if mutant.equivalent]
CAUGHT = [mutant for mutant in MUTANTS if not mutant.survives and not mutant.equivalent]


@cache
def subject():
    return defects.subject(LEVEL)


@pytest.mark.sweep
def test_the_unchanged_kernel_is_clean_under_every_schedule():
    subject().expected()


@pytest.mark.parametrize("mutant", quick_or_sweep(CAUGHT))
def test_a_defect_is_caught_by_a_check_meant_for_it(mutant):
    assert_caught(mutant, subject())


@pytest.mark.sweep
@pytest.mark.parametrize("mutant", EQUIVALENT, ids=lambda m: m.name)
def test_what_is_said_to_be_no_defect_is_none(mutant):
    outcome = try_mutant(mutant, subject())
    assert not outcome.caught_by, outcome.message


def test_there_are_enough_defects_and_none_survives():
    """What docs/verification.md says."""
    assert len(CAUGHT) >= 40 and len(CAUGHT) + len(EQUIVALENT) == len(MUTANTS)
