"""Planted defects of the append to caches of 4 bits are noticed. Three commits plant all (tests/suite/turns.py)."""

from functools import cache

import pytest

from tests.emulator.mutations.everything import LEVEL
from tests.emulator.mutations.mutant import assert_caught
from tests.emulator.mutations.quick import quick_or_sweep
from tests.sm100.append.defects import mutants, subject

once = cache(subject)


@pytest.mark.parametrize("mutant", quick_or_sweep(mutants()))
def test_a_defect_is_caught_by_a_check_meant_for_it(mutant):
    assert_caught(mutant, once(mutant.subject, LEVEL))
