"""Defects of the waits for the attention kernel's mbarriers, planted in its PTX; one line is one mistake.

A place is a role and the mbarrier it names (attention_places.py). Where a role names an mbarrier in several tiles or
stages, the defect says in which.

Here are waits and what barriers count. Arrivals are in arrival_defects.py, the work queue is in queue_defects.py,
tensor memory and the output in memory_defects.py, and what is computed in arithmetic_defects.py.
"""

from tests.emulator.mutations.attention_places import (
    AN_INIT,
    CAUSAL,
    FULL,
    K_BYTES,
    K_EMPTY,
    K_FULL,
    MASKED_TILE,
    PV_LAST,
    PV_READY,
    SUMS_WAIT,
    V_BYTES,
    V_EMPTY,
    V_FULL,
    WHOLE_TILE,
    announced,
    expect,
    init,
    o_ready,
    rescale,
    sums,
    wait,
)
from tests.emulator.mutations.edits import (
    ALWAYS_TRUE,
    FLIPPED_PARITY,
    PARITY_0,
    delete,
    lines,
    move,
    replace,
)
from tests.emulator.mutations.mutant import ASYNCHRONY, COUNTS, HANG, ORDER, Mutant

EARLY = (*ASYNCHRONY, *COUNTS)
EARLY_OR_HANG = (*EARLY, *HANG)


def waits():
    """A wait removed, for the wrong parity, or for the parity of the first work tile."""
    for role, place, what in (
        ("mma", wait("mma", "q_full[0]"), "q_full[0] before S0"),
        ("mma", wait("mma", "q_full[1]"), "q_full[1] before S1"),
        ("mma", K_FULL, "kv_full for K"),
        ("mma", V_FULL, "kv_full for V"),
        ("mma", PV_READY["O0"], "p_ready[0]"),
        ("mma", PV_READY["O1"], "p_ready[1]"),
        ("mma", PV_READY["the last O1"], "p_ready[1] of the last tile"),
        ("mma", PV_LAST["O0"], "p_last[0]"),
        ("mma", PV_LAST["O1"], "p_last[1]"),
        ("mma", PV_LAST["the last O1"], "p_last[1] of the last tile"),
        ("softmax", WHOLE_TILE, "s_ready of a whole tile"),
        ("softmax", MASKED_TILE, "s_ready of a masked tile"),
        ("softmax", SUMS_WAIT, "p_ready before it writes the row sums"),
        ("correction", rescale(0), "row_scale[0]"),
        ("correction", rescale(1), "row_scale[1]"),
        ("correction", sums(0), "the row sums of query tile 0"),
        ("correction", o_ready(0), "o_ready[0]"),
        ("correction", o_ready(1), "o_ready[1]"),
        ("load", K_EMPTY, "kv_empty before K"),
        ("load", V_EMPTY, "kv_empty before V"),
        ("load", wait("load", "q_free[0]"), "q_free[0]"),
        ("load", wait("load", "q_free[1]"), "q_free[1]"),
    ):
        yield Mutant(f"{role} does not wait for {what}", FULL, replace(place, ALWAYS_TRUE), EARLY)
    for role, place, what in (
        ("mma", K_FULL, "kv_full for K"),
        ("mma", PV_READY["O0"], "p_ready[0]"),
        ("mma", PV_LAST["O0"], "p_last[0]"),
        ("mma", wait("mma", "q_full[0]"), "q_full[0]"),
        ("softmax", WHOLE_TILE, "s_ready"),
        ("softmax", SUMS_WAIT, "p_ready before the row sums"),
        ("correction", rescale(0), "row_scale[0]"),
        ("correction", sums(0), "the row sums"),
        ("correction", o_ready(0), "o_ready[0]"),
        ("load", K_EMPTY, "kv_empty before K"),
        ("load", wait("load", "q_free[0]"), "q_free[0]"),
    ):
        edit = replace(place, FLIPPED_PARITY)
        yield Mutant(f"{role} waits for the other parity of {what}", FULL, edit, EARLY_OR_HANG)
    for role, mbarrier, by in (
        ("mma", "q_full[0]", PARITY_0),
        ("correction", "o_ready[1]", PARITY_0),
        ("load", "q_free[1]", PARITY_0.replace(" 0,", " 1,")),
    ):
        yield Mutant(
            f"{role} waits for {mbarrier} as in the first work tile in every one",
            FULL,
            replace(wait(role, mbarrier), by),
            EARLY_OR_HANG,
        )
    yield Mutant(
        "mma does not wait for s_free[0]",
        CAUSAL,
        replace(wait("mma", "s_free[0]"), ALWAYS_TRUE),
        EARLY,
    )
    for tile, what in ((WHOLE_TILE, "whole"), (MASKED_TILE, "masked")):
        yield Mutant(
            f"softmax does not wait for pv_done of a {what} tile",
            CAUSAL,
            replace(wait("softmax", "pv_done").after(tile).first, ALWAYS_TRUE),
            EARLY,
        )
    yield Mutant(
        "correction does not wait for pv_done",
        CAUSAL,
        replace(wait("correction", "pv_done"), ALWAYS_TRUE),
        (),
        equivalent="softmax waits for pv_done before it raises row_scale, for which correction waits first",
    )


def bytes_and_counts():
    """mbarrier.init, expect_tx."""
    few = EARLY_OR_HANG
    for what, nbytes, place, meant in (
        ("Q0: half of its bytes are expected", 16384, expect("q_full[0]"), few),
        ("K: half of its bytes are expected", 16384, K_BYTES, few),
        ("V: 16 bytes too few are expected", 32752, V_BYTES, few),
        ("V: 16 bytes too many are expected", 32784, V_BYTES, HANG),
        ("K: twice its bytes are expected", 65536, K_BYTES, HANG),
    ):
        yield Mutant(what, FULL, announced(nbytes, place), meant)
    bare = r"mbarrier.arrive.shared.b64 \1, \2, 1;"
    yield Mutant("K: an arrival without expect_tx", FULL, replace(K_BYTES, bare), few)
    for count, name, what in (
        (255, "p_ready", "one arrival too few"),
        (257, "p_ready", "one arrival too many"),
        (127, "row_scale", "one arrival too few"),
        (129, "row_scale", "one arrival too many"),
        (127, "p_last", "one arrival too few"),
        (2, "s_ready", "one arrival too many"),
        (2, "q_free", "one arrival too many"),
        (2, "kv_full", "one arrival too many"),
        (2, "work_ready", "one arrival too many"),
        (415, "work_read", "one arrival too few"),
        (417, "work_read", "one arrival too many"),
        (2, "work_claimed", "one arrival too many"),
    ):
        yield Mutant(
            f"{name}[0] counts {what}: {count}",
            FULL,
            init(name, rf"selp.b32 changed, {count}, \2, mine; {AN_INIT} \1, changed;"),
            (*COUNTS, *HANG),
        )
    yield Mutant(
        "s_ready[0] is not initialised", FULL, init("s_ready", rf"@!mine {AN_INIT} \1, \2;"), COUNTS
    )
    yield Mutant(
        "s_ready[0] is initialised twice",
        FULL,
        init("s_ready", rf"{AN_INIT} \1, \2; @mine {AN_INIT} \1, \2;"),
        COUNTS,
    )
    set_up, arrival = r"bar\.sync\s+2, 512;", r"bar\.arrive\s+2, 512;"
    yield Mutant(
        "no barrier between mbarrier.init and the roles",
        FULL,
        delete(lines("prologue", set_up)),
        EARLY,
    )
    yield Mutant(
        "the load warp does not arrive at the barrier after mbarrier.init",
        FULL,
        delete(lines("prologue", arrival)),
        HANG,
    )
    initialised = lines("prologue", r"mbarrier\.init")
    yield Mutant(
        "the load warp arrives at that barrier before mbarrier.init",
        FULL,
        move(
            lines("prologue", arrival),
            before=lines("prologue", r"@%p\d+ bra").ahead_of(initialised).last,
        ),
        EARLY,
    )
    yield Mutant(
        "no fence.mbarrier_init",
        FULL,
        delete(lines("prologue", r"fence\.mbarrier_init\S*;")),
        (*COUNTS, *ORDER),
    )


def mutants():
    """Every defect of a wait or of what a barrier counts."""
    for group in (waits, bytes_and_counts):
        yield from group()
