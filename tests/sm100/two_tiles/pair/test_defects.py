"""Planted defects of what crosses from one CTA of a pair to the other are caught by the checks meant for them.

Three commits plant all of them (tests/suite/turns.py), `pytest -m sweep` all at once.
"""

from functools import cache
from pathlib import Path

import pytest

from cute_fa4.calls import repeat
from tests.emulator.mutations.edits import PlantingError
from tests.emulator.mutations.everything import LEVEL
from tests.emulator.mutations.mutant import assert_caught, try_mutant
from tests.emulator.mutations.quick import quick_or_sweep
from tests.sm100.two_tiles.pair import defects

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "verification.md"
MUTANTS = defects.mutants()
SURVIVORS = [mutant for mutant in MUTANTS if mutant.survives]
EQUIVALENT = [mutant for mutant in MUTANTS if mutant.equivalent]
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
    return {
        defects.NAME: defects.subject,
        defects.TWO_HEADS: defects.subject_of_two_heads,
    }[name](LEVEL)


@pytest.mark.parametrize("mutant", quick_or_sweep(CAUGHT))
def test_a_defect_is_caught_by_a_check_meant_for_it(mutant):
    assert_caught(mutant, subject(mutant.subject))


@pytest.mark.sweep
@pytest.mark.parametrize(
    "mutant", [*EQUIVALENT, *SURVIVORS], ids=lambda m: f"{m.subject}: {m.name}"
)
def test_what_is_said_not_to_be_caught_is_not(mutant):
    outcome = try_mutant(mutant, subject(mutant.subject))
    assert not outcome.caught_by, outcome.message


def test_there_are_enough_defects_and_few_survive():
    """What docs/verification.md says."""
    names = {mutant.name for mutant in MUTANTS}
    assert len(names) == len(MUTANTS) and defects.MISSED_LATER in names
    planted, unreached = len(CAUGHT) + len(SURVIVORS), len(MUTANTS) - len(CAUGHT) - len(SURVIVORS)
    assert (
        f"{len(CAUGHT)} of {planted} are caught by a check meant for them" in DOCUMENT.read_text()
    )
    assert planted >= 60 and not SURVIVORS and unreached == len(defects.CROSSINGS.not_reached)


def test_a_kernel_with_a_further_place_is_planted_nothing():
    """Names that go by position would each mean another place from there on."""
    wait = "mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 complete, [%r1], %r2, 1;"
    kernel = f"entry _{defects.CONFIG.name}_0("
    waits = [m for m in MUTANTS if m.name.startswith("mma does not wait")]
    for count in (len(waits) - 1, len(waits) + 1):
        with pytest.raises(PlantingError, match=f"has {count} lines"):
            waits[0].edit("\n".join([kernel, *[wait] * count]))
    with pytest.raises(PlantingError, match="is not 'p_ready of the other'"):
        waits[0].edit("\n".join([kernel, *[wait] * len(waits)]))
