"""Defects of a first key tile with a reference from its first quarter, planted in PTX: waits, fences, loads, stores.

Its arithmetic has separate defects, planted in the sources (test_first_tile_defects.py). Head dim 128, P over S,
has the subject of quarter_defects.py; head dim 64, P beside S, d64_lagged: three work tiles of a CTA, of which two run
again.
"""

from tests.emulator.mutations.attention_places import (
    AFTER,
    LAGGED,
    TMEM_LOAD,
    TMEM_STORE,
    WAIT_LD,
    arrival,
    wait,
)
from tests.emulator.mutations.attention_places import before as moved_before
from tests.emulator.mutations.edits import (
    ALWAYS_TRUE,
    FLIPPED_PARITY,
    delete,
    lines,
    move,
    replace,
    retarget,
)
from tests.emulator.mutations.mutant import COUNTS, HANG, ORDER, Mutant
from tests.sm100.two_tiles.quarter_defects import EARLY, FIRST, NAME, WHOLE, WRONG

FIRST_BESIDE = wait("softmax", "s_ready").of(4).number(1)
WHOLE_BESIDE = wait("softmax", "s_ready").of(4).number(2)


def of_first(pattern):
    """Lines of the first key tile, P over S."""
    return lines("softmax", pattern).between(FIRST, WHOLE)


def beside(pattern):
    """The same of P beside S."""
    return lines("softmax", pattern).between(FIRST_BESIDE, WHOLE_BESIDE)


LOADS = of_first(TMEM_LOAD).named("first", "second", "third", "last")
P_READY, P_LAST = (arrival("softmax", name).after(FIRST).first for name in ("p_ready", "p_last"))
S_FREE = arrival("softmax", "s_free").after(FIRST_BESIDE).first
PV_DONE = wait("softmax", "pv_done").after(FIRST_BESIDE).first
ARRIVAL = r"mbarrier.arrive.shared.b64 _, \1, 1;"


def planted(name, edit, meant, subject=NAME) -> Mutant:
    return Mutant(f"first tile: {name}", subject, edit, meant)


def mutants() -> tuple:
    """Those of P over S, then those of P beside S."""
    return (
        planted(
            "the quarter asked is the second", retarget(LOADS["first"], LOADS["second"]), WRONG
        ),
        planted("it does not wait for s_ready", replace(FIRST, ALWAYS_TRUE), EARLY),
        planted("it waits for the other parity", replace(FIRST, FLIPPED_PARITY), (*EARLY, *HANG)),
        planted("no fence after s_ready", delete(of_first(AFTER).first), ORDER),
        planted("the quarter is asked before it is there", delete(of_first(WAIT_LD).first), ORDER),
        planted(
            "p_ready is raised before the second quarter is stored",
            moved_before("softmax", P_READY, TMEM_STORE),
            EARLY,
        ),
        planted(
            "p_last is raised before the last quarter is stored",
            moved_before("softmax", P_LAST, TMEM_STORE),
            EARLY,
        ),
        planted("no p_last", delete(P_LAST), HANG),
        planted(
            "s_free is raised before the last quarter is read",
            move(S_FREE, before=beside(TMEM_LOAD).last, by=ARRIVAL),
            (*ORDER, *COUNTS),
            LAGGED,
        ),
        planted(
            "P is stored while the last product of the work tile before reads it",
            replace(PV_DONE, ALWAYS_TRUE),
            EARLY,
            LAGGED,
        ),
        planted(
            "the quarter is asked before it is there, beside",
            delete(beside(WAIT_LD).first),
            ORDER,
            LAGGED,
        ),
    )
