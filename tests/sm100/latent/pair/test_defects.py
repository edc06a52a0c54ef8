"""Planted defects of pairs of CTAs over a latent cache are caught by the checks meant for them."""

from functools import cache

import pytest

from tests.emulator.mutations.everything import LEVEL
from tests.emulator.mutations.mutant import assert_caught
from tests.emulator.mutations.quick import quick_or_sweep
from tests.sm100.latent.pair import defects

MUTANTS = defects.mutants()


@cache
def subject():
    return defects.subject(LEVEL)


@pytest.mark.sweep
def test_the_unchanged_kernel_is_clean_under_every_schedule():
    subject().expected()


@pytest.mark.parametrize("mutant", quick_or_sweep(MUTANTS))
def test_a_defect_is_caught_by_a_check_meant_for_it(mutant):
    assert_caught(mutant, subject())


def test_there_are_enough_defects():
    """What docs/verification.md says."""
    assert len(MUTANTS) >= 60


@pytest.mark.sweep
@pytest.mark.parametrize("mutant", defects.index_mutants(), ids=lambda mutant: mutant.name)
def test_a_defect_of_keys_by_index_is_caught(mutant):
    assert_caught(mutant, index_subject())


@pytest.mark.parametrize("mutant", quick_or_sweep(defects.claim_mutants()))
def test_a_defect_of_claims_is_caught(mutant):
    assert_caught(mutant, blocks_subject())


@cache
def index_subject():
    return defects.index_subject(LEVEL)


@cache
def blocks_subject():
    return defects.blocks_subject(LEVEL)
