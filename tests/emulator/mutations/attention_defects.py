"""Defects of the waits for the attention kernel's mbarriers, planted in its PTX; one line is one mistake.

An instruction is found by its role and the mbarrier it names. Where a role names one several times, they count in the
order of the PTX text:

    mma          kv_full[0] is K, kv_full[1] V (an even ring), each once       kv_empty[0]: V, K, V at the end
                 p_ready[1], p_last[1], o_ready[1]: in the loop, at the end
    softmax      every barrier of a key tile: whole tiles, masked tiles       row_scale[0] then: the row sums
                 p_ready[0] then: the phase that no tile uses
    correction   p_ready[i]: at the start, in the loop, O_i is free           row_scale[i]: factor, row sums
    load         kv_full[0], kv_empty[0]: K, V
    all          work_ready[0], work_read[0]: the first work tile, further ones

Here are waits and what barriers count. Arrivals are in arrival_defects.py, the work queue is in queue_defects.py,
tensor memory and the output in memory_defects.py, and what is computed in arithmetic_defects.py.
"""

from tests.emulator.mutations.attention_places import (
    AN_INIT,
    CAUSAL,
    EXPECT,
    FULL,
    at,
    expect,
    init,
    wait,
)
from tests.emulator.mutations.edits import (
    ALWAYS_TRUE,
    ANY,
    FLIPPED_PARITY,
    LAST,
    PARITY_0,
    ahead_of,
    delete,
    move,
    replace,
)
from tests.emulator.mutations.mutant import ASYNCHRONY, COUNTS, HANG, ORDER, Mutant

EARLY = (*ASYNCHRONY, *COUNTS)
EARLY_OR_HANG = (*EARLY, *HANG)


def waits():
    """A wait removed, for the wrong parity, or for the parity of the first work tile."""
    for role, mbarrier, nth, of, what in (
        ("mma", "q_full[0]", 0, 1, "q_full[0] before S0"),
        ("mma", "q_full[1]", 0, 1, "q_full[1] before S1"),
        ("mma", "kv_full[0]", 0, 1, "kv_full for K"),
        ("mma", "kv_full[1]", 0, 1, "kv_full for V"),
        ("mma", "p_ready[0]", 0, 1, "p_ready[0]"),
        ("mma", "p_ready[1]", 0, 2, "p_ready[1]"),
        ("mma", "p_ready[1]", 1, 2, "p_ready[1] of the last tile"),
        ("mma", "p_last[0]", 0, 1, "p_last[0]"),
        ("mma", "p_last[1]", 0, 2, "p_last[1]"),
        ("mma", "p_last[1]", 1, 2, "p_last[1] of the last tile"),
        ("softmax", "s_ready[0]", 0, 2, "s_ready of a whole tile"),
        ("softmax", "s_ready[0]", 1, 2, "s_ready of a masked tile"),
        ("softmax", "p_ready[0]", 0, 1, "p_ready before it writes the row sums"),
        ("correction", "row_scale[0]", 0, 2, "row_scale[0]"),
        ("correction", "row_scale[1]", 0, 2, "row_scale[1]"),
        ("correction", "row_scale[0]", 1, 2, "the row sums of query tile 0"),
        ("correction", "o_ready[0]", 0, 1, "o_ready[0]"),
        ("correction", "o_ready[1]", 0, 1, "o_ready[1]"),
        ("load", "kv_empty[0]", 0, 2, "kv_empty before K"),
        ("load", "kv_empty[0]", 1, 2, "kv_empty before V"),
        ("load", "q_free[0]", 0, 1, "q_free[0]"),
        ("load", "q_free[1]", 0, 1, "q_free[1]"),
    ):
        edit = wait(role, ALWAYS_TRUE, mbarrier, nth, of)
        yield Mutant(f"{role} does not wait for {what}", FULL, edit, EARLY)
    for role, mbarrier, nth, of, what in (
        ("mma", "kv_full[0]", 0, 1, "kv_full for K"),
        ("mma", "p_ready[0]", 0, 1, "p_ready[0]"),
        ("mma", "p_last[0]", 0, 1, "p_last[0]"),
        ("mma", "q_full[0]", 0, 1, "q_full[0]"),
        ("softmax", "s_ready[0]", 0, 2, "s_ready"),
        ("softmax", "p_ready[0]", 0, 1, "p_ready before the row sums"),
        ("correction", "row_scale[0]", 0, 2, "row_scale[0]"),
        ("correction", "row_scale[0]", 1, 2, "the row sums"),
        ("correction", "o_ready[0]", 0, 1, "o_ready[0]"),
        ("load", "kv_empty[0]", 0, 2, "kv_empty before K"),
        ("load", "q_free[0]", 0, 1, "q_free[0]"),
    ):
        edit = wait(role, FLIPPED_PARITY, mbarrier, nth, of)
        yield Mutant(f"{role} waits for the other parity of {what}", FULL, edit, EARLY_OR_HANG)
    for role, mbarrier, by in (
        ("mma", "q_full[0]", PARITY_0),
        ("correction", "o_ready[1]", PARITY_0),
        ("load", "q_free[1]", PARITY_0.replace(" 0,", " 1,")),
    ):
        yield Mutant(
            f"{role} waits for {mbarrier} as in the first work tile in every one",
            FULL,
            wait(role, by, mbarrier),
            EARLY_OR_HANG,
        )
    yield Mutant(
        "mma does not wait for s_free[0]",
        CAUSAL,
        wait("mma", ALWAYS_TRUE, "s_free[0]", subject=CAUSAL),
        EARLY,
    )
    for nth, what in ((0, "whole"), (1, "masked")):
        yield Mutant(
            f"softmax does not wait for pv_done of a {what} tile",
            CAUSAL,
            wait("softmax", ALWAYS_TRUE, "pv_done[0]", nth, 2, CAUSAL),
            EARLY,
        )
    yield Mutant(
        "correction does not wait for pv_done[1]",
        CAUSAL,
        wait("correction", ALWAYS_TRUE, "pv_done[1]", subject=CAUSAL),
        (),
        equivalent="softmax waits for pv_done before it raises row_scale, for which correction waits first",
    )


def bytes_and_counts():
    """mbarrier.init, expect_tx."""
    few = EARLY_OR_HANG
    yield Mutant("Q0: half of its bytes are expected", FULL, expect(16384, "q_full[0]"), few)
    yield Mutant("K: half of its bytes are expected", FULL, expect(16384, "kv_full[0]", 0, 2), few)
    yield Mutant("V: 16 bytes too few are expected", FULL, expect(32752, "kv_full[0]", 1, 2), few)
    yield Mutant("V: 16 bytes too many are expected", FULL, expect(32784, "kv_full[0]", 1, 2), HANG)
    yield Mutant("K: twice its bytes are expected", FULL, expect(65536, "kv_full[0]", 0, 2), HANG)
    bare = r"mbarrier.arrive.shared.b64 \1, \2, 1;"
    yield Mutant(
        "K: an arrival without expect_tx",
        FULL,
        replace("load", EXPECT, bare, 0, 2, on=at("kv_full[0]")),
        few,
    )
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
    yield Mutant(
        "no barrier between mbarrier.init and the roles",
        FULL,
        delete("prologue", r"bar\.sync\s+2, 512;"),
        EARLY,
    )
    yield Mutant(
        "the load warp does not arrive at the barrier behind mbarrier.init",
        FULL,
        delete("prologue", r"bar\.arrive\s+2, 512;"),
        HANG,
    )
    yield Mutant(
        "the load warp arrives at that barrier before mbarrier.init",
        FULL,
        move(
            "prologue",
            r"bar\.arrive\s+2, 512;",
            0,
            1,
            r"@%p\d+ bra",
            LAST,
            ANY,
            before_where=ahead_of("prologue", r"mbarrier\.init"),
        ),
        EARLY,
    )
    yield Mutant(
        "no fence.mbarrier_init",
        FULL,
        delete("prologue", r"fence\.mbarrier_init\S*;"),
        (*COUNTS, *ORDER),
    )


def mutants():
    """Every defect of a wait or of what a barrier counts."""
    for group in (waits, bytes_and_counts):
        yield from group()
