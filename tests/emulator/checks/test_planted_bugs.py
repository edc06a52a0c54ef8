"""Every ordering check finds the bug it is for, and nothing in the kernel that has it repaired."""

import re

import numpy as np
import pytest

from cute_fa4.emulator.ptx.errors import BarrierError
from tests.emulator.checks.planted_bugs import BUGS

LEVELS = ("ptx", "hardware")
by_name = pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "_"))


@by_name
@pytest.mark.parametrize("level", LEVELS)
def test_the_bug_is_reported_at_its_levels(bug, level):
    if level not in bug.levels:
        bug.run(fixed=False, checks=level)
        return
    with pytest.raises(bug.error, match=re.escape(bug.message)) as error:
        bug.run(fixed=False, checks=level)
    assert type(error.value) is bug.error
    assert "PTX line" in str(error.value) or "lacks" in str(error.value), "where it happened"


@by_name
@pytest.mark.parametrize("mode", ["in_order", "random", "hostile"])
@pytest.mark.parametrize("level", LEVELS)
def test_the_corrected_twin_passes(bug, level, mode):
    for seed in range(3):
        bug.run(fixed=True, checks=level, mode=mode, seed=seed)


def test_both_accesses_are_named():
    """The first bug: who reads, who wrote, the PTX lines of both, and where."""
    with pytest.raises(BUGS[0].error) as error:
        BUGS[0].run(fixed=False, checks="hardware")
    text = str(error.value)
    assert "dynamic +0x0" in text
    assert "ld.shared.b32" in text and "st.shared.b32" in text
    assert text.count("PTX line") == 2 and "warp 0" in text and "warp 1" in text


def test_without_checks_a_race_is_not_looked_for():
    assert BUGS[0].run(fixed=False, checks=None) is not None


def test_unknown_levels_are_refused():
    with pytest.raises(ValueError, match="accepted are None, one of ptx, hardware"):
        BUGS[0].run(fixed=True, checks="cuda")


@pytest.mark.parametrize("mode", ["in_order", "random", "hostile"])
def test_a_store_that_nobody_waited_for_is_a_note_at_level_hardware(mode):
    """Also where a schedule leaves it in flight when the CTA ends; the note, and what is stored, are the same."""
    bug = next(bug for bug in BUGS if bug.name == "nobody waits for a store")
    for seed in range(4):
        out, result = bug.launch(fixed=False, checks="hardware", mode=mode, seed=seed)
        notes = result.notes
        assert [note.check for note in notes] == ["store_at_end"] and "bulk store" in notes[0]
        assert np.array_equal(out, bug.launch(fixed=True, checks="hardware")[0])
    with pytest.raises(BarrierError, match="bulk store"):
        bug.run(fixed=False, checks=("hardware", "store_at_end"))
