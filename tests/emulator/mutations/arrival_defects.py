"""Defects of who raises the attention kernel's mbarriers: arrivals of threads, tcgen05.commit of the tensor core.

Places as in attention_defects.py.
"""

import re

from tests.emulator.mutations.attention_places import (
    A_COMMIT,
    AN_ARRIVAL,
    CAUSAL,
    FACTOR,
    FULL,
    K_FREE,
    LOAD_WORD,
    MASKED_TILE,
    P_LAST,
    P_READY,
    PV_DONE,
    S0_DONE,
    STORE_WORD,
    SUMS,
    SUMS_WAIT,
    TMEM_LOAD,
    TMEM_STORE,
    UNUSED_PHASE,
    V_FREE,
    WAIT_LD,
    arrival,
    before,
    commit,
    o_free,
    operand,
    rescale,
    rescaled,
)
from tests.emulator.mutations.edits import (
    both,
    delete,
    exchange,
    lines,
    replace,
    retarget,
)
from tests.emulator.mutations.mutant import ASYNCHRONY, COUNTS, HANG, ORDER, Mutant

EARLY = (*ASYNCHRONY, *COUNTS)
EARLY_OR_HANG = (*EARLY, *HANG)

AT_THE_START = arrival("correction", "p_ready[1]").ahead_of(rescale(0))
S_READ = arrival("softmax", "s_free").after(MASKED_TILE)


def arrivals():
    """An arrival that is missing, too many, too early or elsewhere."""
    for role, place, what in (
        ("softmax", FACTOR, "row_scale"),
        ("softmax", SUMS, "row_scale with the row sums"),
        ("softmax", P_LAST, "p_last"),
        ("correction", AT_THE_START, "p_ready[1] at the start"),
        ("correction", rescaled(1), "p_ready[1]"),
        ("correction", o_free(1), "p_ready[1] when O1 is free"),
    ):
        yield Mutant(f"{role} does not raise {what}", FULL, delete(place), HANG)
    yield Mutant(
        "softmax does not complete the phase of p_ready that no tile uses",
        FULL,
        delete(UNUSED_PHASE),
        COUNTS,
    )
    elected = r"{.reg .pred one; elect.sync _|one, 0xffffffff; @one \g<0>}"
    yield Mutant("one thread a warp raises p_ready", FULL, replace(P_READY, elected), HANG)
    twice = r"\g<0> " + AN_ARRIVAL
    yield Mutant("softmax raises p_ready twice", FULL, replace(P_READY, twice), EARLY)
    yield Mutant("correction raises p_ready[0] twice", FULL, replace(rescaled(0), twice), EARLY)
    yield Mutant(
        "p_ready and p_last are confused by softmax",
        FULL,
        exchange(P_READY, P_LAST),
        (),
        equivalent="p_ready is then raised after all of P is stored, and the MMA waits for both: only later",
    )
    for place, name, what in ((P_READY, "p_ready", "third"), (P_LAST, "p_last", "last")):
        yield Mutant(
            f"{name} is raised before the {what} quarter of P is stored",
            FULL,
            before("softmax", place, TMEM_STORE),
            ASYNCHRONY,
        )
    for place, what in ((FACTOR, "factor"), (SUMS, "row sum")):
        yield Mutant(
            f"row_scale is raised before the {what} is stored",
            FULL,
            before("softmax", place, STORE_WORD),
            ASYNCHRONY,
        )
    yield Mutant(
        "the first factor is not stored",
        FULL,
        delete(lines("softmax", STORE_WORD).ahead_of(FACTOR).last),
        ("UninitializedRead",),
    )
    yield Mutant(
        "the row sum is stored before softmax waits for p_ready",
        FULL,
        _sum_before_wait,
        ASYNCHRONY,
    )
    factor_read = lambda i: lines("correction", LOAD_WORD).after(rescale(i)).first
    yield Mutant(
        "correction reads the factor of the other query tile",
        FULL,
        retarget(factor_read(0), like=factor_read(1)),
        ASYNCHRONY,
    )
    yield Mutant(
        "O0 is free before the last tcgen05.ld of it",
        FULL,
        before("correction", o_free(0), TMEM_LOAD),
        ORDER,
    )
    yield Mutant(
        "O0 is free before the last tcgen05.ld of it has completed",
        FULL,
        before("correction", o_free(0), WAIT_LD),
        ORDER,
    )
    yield Mutant("softmax does not raise s_free", CAUSAL, delete(S_READ), HANG)
    yield Mutant(
        "s_free is raised before the scores are in registers",
        CAUSAL,
        before("softmax", S_READ, WAIT_LD),
        ORDER,
    )
    yield Mutant(
        "pv_done[0] is raised by an arrival of the thread that issued the MMAs",
        CAUSAL,
        replace(commit("pv_done[0]").first, f"@leader_thread {AN_ARRIVAL}"),
        ASYNCHRONY,
    )


def _sum_before_wait(ptx):
    """The wait of softmax for p_ready, from its first line to its last, moved to after the store of the row sum."""
    text = ptx.split("\n")
    wait_line = SUMS_WAIT.find_one(text)
    store = lines("softmax", STORE_WORD).ahead_of(SUMS).last.find_one(text)
    begin = max(i for i in range(wait_line) if text[i].strip() == "{")
    end = min(i for i in range(wait_line, store) if text[i].strip() == "}") + 1
    block = text[begin:end]
    return "\n".join([*text[:begin], *text[end : store + 1], *block, *text[store + 1 :]])


def commits():
    """tcgen05.commit: missing, elsewhere, too early, replaced by an arrival."""
    for place, what in (
        (S0_DONE, "s_ready[0]"),
        (commit("q_free[0]"), "q_free[0]"),
        (K_FREE, "kv_empty of K"),
        (V_FREE, "kv_empty of V"),
        (PV_DONE["O0"], "o_ready[0]"),
        (PV_DONE["O1"], "o_ready[1] of a work tile that another one follows"),
        (PV_DONE["the last O1"], "o_ready[1] of the last work tile"),
    ):
        yield Mutant(f"no commit on {what}", FULL, delete(place), HANG)
    yield Mutant(
        "no commit on pv_done of the leader",
        CAUSAL,
        delete(commit("pv_done").first),
        HANG,
    )
    yield Mutant(
        "S0 is committed on s_ready[1]",
        FULL,
        replace(S0_DONE, f"{A_COMMIT} {operand('s_ready[1]')};"),
        EARLY_OR_HANG,
    )
    yield Mutant(
        "slot 0 is released whichever slot K was in",
        FULL,
        replace(K_FREE, f"{A_COMMIT} {operand('kv_empty[0]')};"),
        EARLY_OR_HANG,
    )
    yield Mutant("K's slot is released before S1 reads it", FULL, _early_release, ASYNCHRONY)
    for place, what in (
        (K_FREE, "K's slot is released"),
        (V_FREE, "V's slot is released"),
        (S0_DONE, "s_ready is raised"),
        (commit("q_free[1]"), "q_free[1] is raised"),
        (PV_DONE["O0"], "o_ready[0] is raised"),
    ):
        yield Mutant(
            f"{what} by an arrival of the thread that issued the MMAs",
            FULL,
            replace(place, f"@leader_thread {AN_ARRIVAL}"),
            ASYNCHRONY,
        )
    for late, early, what in (
        ("o_ready[1]", "o_ready[0]", "the last P V"),
        ("q_free[1]", "q_free[0]", "the last S1"),
    ):
        add = rf"\g<0> {A_COMMIT} {operand(late)};"
        yield Mutant(
            f"{late} is committed before {what}",
            FULL,
            both(delete(commit(late)), replace(commit(early), add)),
            ASYNCHRONY,
        )
    yield Mutant(
        "all threads of the warp commit s_ready[0]",
        FULL,
        replace(S0_DONE, lambda match: match[0].removeprefix("@leader_thread ")),
        COUNTS,
    )


def _early_release(ptx):
    """The commit on kv_empty of K, with the computation of its address, moved to after the commit of S0."""
    text = ptx.split("\n")
    s_ready, release = S0_DONE.find_one(text), K_FREE.find_one(text)
    register = re.search(K_FREE.pattern, text[release])[1].strip("[]")
    definition = lines("mma", rf"add\.s32\s+{register}, ").find_one(text)
    moved = [text[definition], text[release]]
    text[definition] = text[release] = ""
    text[s_ready] = "\n".join([text[s_ready], *moved])
    return "\n".join(text)


def mutants():
    """Every defect of an arrival."""
    for group in (arrivals, commits):
        yield from group()
