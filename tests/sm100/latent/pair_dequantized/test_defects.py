"""Planted defects of CTA pairs that dequantize rows of a latent cache are caught by the checks meant for them.

Three commits plant all of them (tests/suite/turns.py), `pytest -m sweep` does at once.
"""

from functools import cache

import pytest

from tests.emulator.mutations.everything import LEVEL
from tests.emulator.mutations.mutant import assert_caught
from tests.emulator.mutations.quick import quick_or_sweep
from tests.sm100.latent.pair_dequantized import defects, defects_of_576

PLANTED = {module.NAME: module for module in (defects, defects_of_576)}
MUTANTS = tuple(mutant for module in PLANTED.values() for mutant in module.mutants())


@cache
def subject(name: str):
    return PLANTED[name].subject(LEVEL)


@pytest.mark.sweep
@pytest.mark.parametrize("name", PLANTED)
def test_the_unchanged_kernel_is_clean_under_every_schedule(name):
    subject(name).expected()


@pytest.mark.parametrize("mutant", quick_or_sweep(MUTANTS))
def test_a_defect_is_caught_by_a_check_meant_for_it(mutant):
    assert_caught(mutant, subject(mutant.subject))


def test_there_are_enough_defects():
    """What docs/verification.md says: all of them are caught."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 49
