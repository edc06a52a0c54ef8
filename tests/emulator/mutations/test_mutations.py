"""Planted defects are caught by the checks meant for them; equivalent mutants are not caught.

The sizes of the subjects are explained where they are made (attention_kernel.py, small_kernels.py); together
the mutants take about two minutes.
"""

from collections import Counter
from functools import cache

import pytest

from tests.emulator.mutations.__main__ import DOCUMENT
from tests.emulator.mutations.edits import PlantingError, replace
from tests.emulator.mutations.everything import mutants, subjects
from tests.emulator.mutations.mutant import try_mutant

DEFECTS = [mutant for mutant in mutants() if not mutant.equivalent and not mutant.survives]
SURVIVORS = [mutant for mutant in mutants() if mutant.survives]
EQUIVALENT = [mutant for mutant in mutants() if mutant.equivalent]


@cache
def outcome_of(mutant):
    return try_mutant(mutant, subjects()[mutant.subject])


@pytest.mark.parametrize("name", list(subjects()))
def test_the_unchanged_kernel_is_clean_under_every_schedule(name):
    subjects()[name].expected()


@pytest.mark.parametrize("mutant", DEFECTS, ids=lambda m: m.name)
def test_a_defect_is_caught_by_a_check_meant_for_it(mutant):
    outcome = outcome_of(mutant)
    assert outcome.caught_by, "nothing noticed"
    assert outcome.as_meant, (
        f"caught by {outcome.caught_by}, meant {mutant.meant}: {outcome.message}"
    )


@pytest.mark.parametrize("mutant", EQUIVALENT, ids=lambda m: m.name)
def test_an_equivalent_mutant_gives_the_same_bits_and_no_report(mutant):
    assert not outcome_of(mutant).caught_by, outcome_of(mutant).message


@pytest.mark.parametrize("mutant", SURVIVORS, ids=lambda m: m.name)
def test_a_known_survivor_still_survives(mutant):
    """When it no longer does, its reason in the table is wrong."""
    assert not outcome_of(mutant).caught_by, outcome_of(mutant).message


def test_there_are_enough_defects_of_every_kind_and_few_survive():
    """The numbers that docs/verification.md states: at least 60 defects, at least 95 % caught."""
    planted = len(DEFECTS) + len(SURVIVORS)
    assert planted >= 60 and len(DEFECTS) >= 0.95 * planted
    assert max(Counter(mutant.name for mutant in mutants()).values()) == 1
    meant = {kind for mutant in DEFECTS for kind in mutant.meant}
    assert meant >= {
        "RaceError", "UninitializedRead", "BarrierError", "Deadlock", "DivergenceError", "InFlightError",
        "TensorMemoryError", "IllegalAccess", "wrong numbers",
    }  # fmt: skip


def test_the_document_names_every_mutant():
    """The table was written with the mutants of today (python -m tests.emulator.mutations --write)."""
    document = DOCUMENT.read_text()
    missing = [mutant.name for mutant in mutants() if f"| {mutant.name} |" not in document]
    assert not missing


def test_an_edit_that_does_not_apply_exactly_is_refused():
    """Of 2 where there is 1, and a replacement that changes nothing: no defect is planted by accident."""
    with pytest.raises(PlantingError, match="1 lines of section 'kernel' match 'bar"):
        replace("kernel", "bar.sync", "", 0, 2)("bar.sync 0;")
    with pytest.raises(PlantingError, match="changes nothing"):
        replace("kernel", "bar.sync", "bar.sync")("bar.sync 0;")
