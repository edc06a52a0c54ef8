"""Defects of single-tile work: where one query tile is shared, and at the changes from and to two query tiles.

The body itself is that of the kernel of one query tile, with its own defects (one_tile_defects.py). New here is
that both bodies use the same barriers and the same place of Q1.
"""

from tests.emulator.mutations.attention_places import (
    PROXY_FENCE,
    SINGLE,
    arrival,
    commit,
    wait,
)
from tests.emulator.mutations.edits import ALWAYS_TRUE, delete, lines, replace
from tests.emulator.mutations.mutant import ASYNCHRONY, COUNTS, HANG, WRONG_NUMBERS, Mutant

EARLY_OR_HANG = (*ASYNCHRONY, *COUNTS, *HANG)

HANDED_BACK = arrival("correction", "q_free[1]")
GROUPS = lines("correction", r"cp\.async\.bulk\.commit_group;").named(
    "of a single O",
    "of the chunk that is not there",
    "of O0",
    "of O1",
    "of zeros of one",
    "of zeros of both",
)
MAXIMUM = lines("softmax", r"st\.shared\.b32\s+\[\S+\], (%r\d+);").after(
    arrival("softmax", "p_last").last
)


def mutants():
    """Every defect of single-tile work."""
    for name, edit, meant in (
        ("load does not lend the place of Q1", delete(arrival("load", "q_full[1]")), HANG),
        ("load does not wait for q_free[1]", replace(wait("load", "q_free[1]"), ALWAYS_TRUE), EARLY_OR_HANG),
        ("mma does not look at q_full[1]", replace(wait("mma", "q_full[1]").first, ALWAYS_TRUE), EARLY_OR_HANG),
        ("mma says nothing of O1", delete(commit("o_ready[1]").first), HANG),
        ("mma does not say that P V is done", delete(commit("pv_done").first), HANG),
        ("correction does not hand Q1 back", delete(HANDED_BACK), HANG),
        (
            "correction hands Q1 back before every row has been read",
            delete(lines("correction", r"bar\.sync\s+1, 128;").ahead_of(HANDED_BACK).last),
            ASYNCHRONY,
        ),
        (
            "correction hands Q1 back without a fence",
            delete(lines("correction", PROXY_FENCE).ahead_of(HANDED_BACK).last),
            ASYNCHRONY,
        ),
        (
            "the chunk that is not there is no group",
            delete(GROUPS["of the chunk that is not there"]),
            ASYNCHRONY,
        ),
        ("softmax keeps no maximum", delete(MAXIMUM.last), (*ASYNCHRONY, WRONG_NUMBERS)),
    ):  # fmt: skip
        yield Mutant(f"single: {name}", SINGLE, edit, meant)
