"""Defects of P in the columns of the other S (two_tiles/p_crossed.py): who waits before it reads, stores and makes S
again.

Places as in attention_defects.py. In a key tile softmax waits three times for s_free: softmax 1 for that of S0 of its
tile, softmax 0 for that of S1 before it stores P0, softmax 1 for that of the next S0 before it stores P1; each is
in the text for whole and for masked tiles.
"""

from tests.emulator.mutations.attention_places import CROSSED, arrival, wait
from tests.emulator.mutations.edits import ALWAYS_TRUE, FLIPPED_PARITY, delete, replace
from tests.emulator.mutations.mutant import ASYNCHRONY, COUNTS, HANG, WRONG_NUMBERS, Mutant

EARLY = (*ASYNCHRONY, *COUNTS, WRONG_NUMBERS)
S0_READ = wait("softmax", "s_free[0]").named(
    "S0 of a whole tile", "S0 of a masked tile", "P1 of a whole tile", "P1 of a masked tile"
)
S1_READ = wait("softmax", "s_free[1]").named("P0 of a whole tile", "P0 of a masked tile")
RAISED = arrival("softmax", "s_free").named("of a whole tile", "of a masked tile")
COLUMNS = (
    (S1_READ["P0 of a whole tile"], "P0 is stored before S1 is read"),
    (S0_READ["P1 of a whole tile"], "P1 is stored before the next S0 is read"),
)
IMPLIED = "O0 of the tile before is issued first and waits for P0, which softmax 0 stores when it has seen s_free[1]"
OF_THE_SAME_TILE = S0_READ["S0 of a whole tile"]


def mutants():
    """Every defect of crossed P."""
    for place, words in COLUMNS:
        yield Mutant(f"crossed: {words}", CROSSED, replace(place, ALWAYS_TRUE), EARLY)
        yield Mutant(
            f"crossed: {words}, by a flipped parity",
            CROSSED,
            replace(place, FLIPPED_PARITY),
            (*EARLY, *HANG),
        )
    yield Mutant(
        "crossed: softmax 1 waits for the other parity of S0 of its tile",
        CROSSED,
        replace(OF_THE_SAME_TILE, FLIPPED_PARITY),
        (*EARLY, *HANG),
    )
    for i in range(2):
        yield Mutant(
            f"crossed: mma makes S{i} before the last one is read",
            CROSSED,
            replace(wait("mma", f"s_free[{i}]"), ALWAYS_TRUE),
            EARLY,
            equivalent=IMPLIED if i else "",
        )
    yield Mutant(
        "crossed: softmax does not raise s_free",
        CROSSED,
        delete(RAISED["of a whole tile"]),
        HANG,
    )
