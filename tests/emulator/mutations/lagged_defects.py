"""Defects of work tiles that are checked and rerun (work/checked.py): verdicts, waits for them, the second store.

Places as in attention_defects.py. The load warp looks for a verdict at three places: before it claims, and twice where
no block is left; there, the first look is at the work tile before the last.
"""

from cute_fa4.sm100.blueprint.entries import VERDICT_WORDS
from tests.emulator.mutations.attention_places import LAGGED, arrival, wait
from tests.emulator.mutations.edits import ALWAYS_TRUE, FLIPPED_PARITY, delete, lines, replace
from tests.emulator.mutations.mutant import (
    ASYNCHRONY,
    COUNTS,
    HANG,
    ORDER,
    WRONG_NUMBERS,
    Mutant,
)

EARLY = (*ASYNCHRONY, *COUNTS)
WRONG = (WRONG_NUMBERS,)

CHECKED = arrival("softmax", "work_checked")
VERDICTS = wait("load", "work_checked")
LOOKS = ((VERDICTS.first, "before a claim"), (VERDICTS.last, "of the last work tile"))
VERDICT = lines("softmax", r"st\.shared\.b32\s+(\[\S+\]), %r\d+;").ahead_of(CHECKED).last
FIRST_WRITTEN = lines("correction", r"cp\.async\.bulk\.wait_group\s+0;")


def _entry_after(match):
    base, _, offset = match[1].strip("[]").partition("+")
    return match[0].replace(match[1], f"[{base}+{int(offset) + 4 * VERDICT_WORDS}]")


def mutants():
    """Every defect of the verdicts."""
    yield Mutant("softmax does not report on a work tile", LAGGED, delete(CHECKED), HANG)
    yield Mutant(
        "a verdict is written after its entry",
        LAGGED,
        replace(VERDICT, _entry_after),
        (*EARLY, *WRONG),
    )
    yield Mutant("no verdict is written", LAGGED, delete(VERDICT), (*ASYNCHRONY, *WRONG))
    for place, words in LOOKS:
        yield Mutant(
            f"load does not wait for the verdict {words}",
            LAGGED,
            replace(place, ALWAYS_TRUE),
            (*EARLY, *WRONG),
        )
        yield Mutant(
            f"load waits for the other parity of the verdict {words}",
            LAGGED,
            replace(place, FLIPPED_PARITY),
            (*EARLY, *HANG, *WRONG),
        )
    yield Mutant(
        "the second output does not wait for the first", LAGGED, delete(FIRST_WRITTEN), ORDER
    )
    yield Mutant(
        "the second output waits until the first is read, not until it is written",
        LAGGED,
        replace(FIRST_WRITTEN, "cp.async.bulk.wait_group.read 0;"),
        ORDER,
    )
