"""Planted defects of the kernel that dequantizes rows of a latent cache are caught by the checks meant for them.

Three commits plant all of them (tests/suite/turns.py), `pytest -m sweep` does at once.
"""

from functools import cache

import pytest

from tests.emulator.mutations.everything import LEVEL
from tests.emulator.mutations.mutant import assert_caught, try_mutant
from tests.emulator.mutations.quick import quick_or_sweep
from tests.sm100.latent.dequantized import defects, defects_of_576, defects_of_584

SUBJECTS = {
    defects.NAME: defects.subject,
    defects_of_576.NAME: defects_of_576.subject,
    defects_of_584.NAME: defects_of_584.subject,
    defects_of_584.IN_PAIRS: defects_of_584.subject_in_pairs,
}
MUTANTS = (
    *defects.mutants(),
    *defects_of_576.mutants(),
    *defects_of_584.mutants(),
    *defects_of_584.mutants_in_pairs(),
)
EQUIVALENT = [mutant for mutant in MUTANTS if mutant.equivalent]
CAUGHT = [mutant for mutant in MUTANTS if not mutant.equivalent]


@cache
def subject(name: str):
    return SUBJECTS[name](LEVEL)


@pytest.mark.sweep
@pytest.mark.parametrize("name", SUBJECTS)
def test_the_unchanged_kernel_is_clean_under_every_schedule(name):
    subject(name).expected()


@pytest.mark.parametrize("mutant", quick_or_sweep(CAUGHT))
def test_a_defect_is_caught_by_a_check_meant_for_it(mutant):
    assert_caught(mutant, subject(mutant.subject))


@pytest.mark.sweep
@pytest.mark.parametrize("mutant", EQUIVALENT, ids=lambda mutant: mutant.name)
def test_what_is_said_to_be_no_defect_is_none(mutant):
    outcome = try_mutant(mutant, subject(mutant.subject))
    assert not outcome.caught_by, outcome.message


def test_there_are_enough_defects():
    """What docs/verification.md says: all of them are caught."""
    assert len({mutant.name for mutant in CAUGHT}) == len(CAUGHT) >= 42 + 18
