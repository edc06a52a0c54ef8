"""Planted defects of what crosses from one CTA of a wide pair to the other are caught by the checks meant for them.

Every sixth runs always, the others in the sweep.
"""

from functools import cache

import pytest

from cute_fa4.calls import repeat
from cute_fa4.compiler.policy import PAIR_VARIABLE
from tests.emulator.mutations.everything import LEVEL
from tests.emulator.mutations.mutant import assert_caught
from tests.emulator.mutations.quick import quick_or_sweep
from tests.sm100.wide.pair import defects

CAUGHT = defects.mutants()


@pytest.fixture(autouse=True)
def pairs(monkeypatch):
    monkeypatch.setenv(PAIR_VARIABLE, "auto")
    repeat.clear()


@cache
def subject():
    return defects.subject(LEVEL)


@pytest.mark.parametrize("mutant", quick_or_sweep(CAUGHT))
def test_a_defect_is_caught_by_a_check_meant_for_it(mutant):
    assert_caught(mutant, subject())


def test_there_are_enough_defects():
    """What docs/verification.md says: all of them are caught."""
    assert len({mutant.name for mutant in CAUGHT}) == len(CAUGHT) >= 60
    assert not any(mutant.survives or mutant.equivalent for mutant in CAUGHT)
