"""Planted defects of the kernel that dequantizes its keys are caught by the checks meant for them.

Three commits plant all of them (tests/suite/turns.py), `pytest -m sweep` does at once.
"""

from functools import cache

import pytest

from tests.emulator.mutations.everything import LEVEL
from tests.emulator.mutations.mutant import assert_caught
from tests.emulator.mutations.quick import quick_or_sweep
from tests.sm100.few_rows.dequantized import (
    defects,
    defects_of_blocks,
    defects_of_interleaved,
    defects_of_mx,
)

_MODULES = (defects, defects_of_blocks, defects_of_interleaved, defects_of_mx)
MODULES = {module.NAME: module for module in _MODULES}
CAUGHT = tuple(mutant for module in MODULES.values() for mutant in module.mutants())


@cache
def subject(name):
    return MODULES[name].subject(LEVEL)


@pytest.mark.parametrize("mutant", quick_or_sweep(CAUGHT))
def test_a_defect_is_caught_by_a_check_meant_for_it(mutant):
    assert_caught(mutant, subject(mutant.subject))


def test_there_are_enough_defects():
    """What docs/verification.md says: all of them are caught."""
    assert len({mutant.name for mutant in CAUGHT}) == len(CAUGHT) >= 48
    assert not any(mutant.survives or mutant.equivalent for mutant in CAUGHT)
