"""Defects of who raises the attention kernel's mbarriers: arrivals of threads, tcgen05.commit of the tensor core.

Places as in attention_defects.py.
"""

import re

from tests.emulator.mutations.attention_places import (
    A_COMMIT,
    AN_ARRIVAL,
    ARRIVE,
    CAUSAL,
    COMMIT,
    FULL,
    LOAD_WORD,
    STORE_WORD,
    TMEM_LOAD,
    TMEM_STORE,
    WAIT_LD,
    at,
    operand,
    without_commit,
)
from tests.emulator.mutations.edits import (
    ANY,
    FIRST,
    LAST,
    WAIT,
    ahead_of,
    behind,
    both,
    delete,
    exchange,
    matches,
    move,
    replace,
    retarget,
)
from tests.emulator.mutations.mutant import ASYNCHRONY, COUNTS, HANG, ORDER, Mutant

EARLY = (*ASYNCHRONY, *COUNTS)
EARLY_OR_HANG = (*EARLY, *HANG)


def arrivals():
    """An arrival that is missing, too many, too early or elsewhere."""
    for role, mbarrier, nth, of, what in (
        ("softmax", "row_scale[0]", 0, 3, "row_scale"),
        ("softmax", "row_scale[0]", 2, 3, "row_scale with the row sums"),
        ("softmax", "p_last[0]", 0, 2, "p_last"),
        ("correction", "p_ready[1]", 0, 3, "p_ready[1] at the start"),
        ("correction", "p_ready[1]", 1, 3, "p_ready[1]"),
        ("correction", "p_ready[1]", 2, 3, "p_ready[1] when O1 is free"),
    ):
        yield Mutant(
            f"{role} does not raise {what}",
            FULL,
            delete(role, ARRIVE, nth, of, on=at(mbarrier)),
            HANG,
        )
    yield Mutant(
        "softmax does not complete the phase of p_ready that no tile uses",
        FULL,
        delete("softmax", ARRIVE, 2, 3, on=at("p_ready[0]")),
        COUNTS,
    )
    p_ready, p_last, row_scale = at("p_ready[0]"), at("p_last[0]"), at("row_scale[0]")
    elected = r"{.reg .pred one; elect.sync _|one, 0xffffffff; @one \g<0>}"
    yield Mutant(
        "one thread a warp raises p_ready",
        FULL,
        replace("softmax", ARRIVE, elected, 0, 3, on=p_ready),
        HANG,
    )
    twice = r"\g<0> " + AN_ARRIVAL
    yield Mutant(
        "softmax raises p_ready twice",
        FULL,
        replace("softmax", ARRIVE, twice, 0, 3, on=p_ready),
        EARLY,
    )
    yield Mutant(
        "correction raises p_ready[0] twice",
        FULL,
        replace("correction", ARRIVE, twice, 1, 3, on=p_ready),
        EARLY,
    )
    tile = ahead_of("softmax", ARRIVE, 1, 2, on=at("p_last[0]"))
    yield Mutant(
        "p_ready and p_last are confused by softmax",
        FULL,
        # Of a whole tile: work_read, row_scale, p_ready, p_last; of a masked one, row_scale, p_ready.
        exchange(tile, ARRIVE, 2, 3, 6),
        (),
        equivalent="p_ready is then raised after all of P is stored, and the MMA waits for both: only later",
    )
    for of, mbarrier, store, what in ((3, p_ready, 2, "third"), (2, p_last, 3, "last")):
        name = "p_ready" if mbarrier == p_ready else "p_last"
        yield Mutant(
            f"{name} is raised before the {what} quarter of P is stored",
            FULL,
            move("softmax", ARRIVE, 0, of, TMEM_STORE, store, 8, by=AN_ARRIVAL, on=mbarrier),
            ASYNCHRONY,
        )
    yield Mutant(
        "row_scale is raised before the factor is stored",
        FULL,
        move("softmax", ARRIVE, 0, 3, STORE_WORD, 0, 5, by=AN_ARRIVAL, on=row_scale),
        ASYNCHRONY,
    )
    yield Mutant(
        "row_scale is raised before the row sum is stored",
        FULL,
        move("softmax", ARRIVE, 2, 3, STORE_WORD, 4, 5, by=AN_ARRIVAL, on=row_scale),
        ASYNCHRONY,
    )
    yield Mutant(
        "the first factor is not stored",
        FULL,
        delete("softmax", STORE_WORD, 0, 5),
        ("UninitializedRead",),
    )
    yield Mutant(
        "the row sum is stored before softmax waits for p_ready",
        FULL,
        _sum_before_wait,
        ASYNCHRONY,
    )
    yield Mutant(
        "correction reads the factor of the other query tile",
        FULL,
        retarget(behind("correction", WAIT, 0, 2, on=row_scale), LOAD_WORD, FIRST, ANY, like=1),
        ASYNCHRONY,
    )
    o_is_free = ahead_of("correction", ARRIVE, 2, 3, on=p_ready)
    yield Mutant(
        "O0 is free before the last tcgen05.ld of it",
        FULL,
        move("correction", ARRIVE, 2, 3, TMEM_LOAD, LAST, ANY, AN_ARRIVAL, p_ready, o_is_free),
        ORDER,
    )
    yield Mutant(
        "O0 is free before the last tcgen05.ld of it has completed",
        FULL,
        move("correction", ARRIVE, 2, 3, WAIT_LD, LAST, ANY, AN_ARRIVAL, p_ready, o_is_free),
        ORDER,
    )
    read, stored = at("s_free[0]", CAUSAL), at("pv_done[0]", CAUSAL)
    yield Mutant(
        "softmax does not raise s_free",
        CAUSAL,
        delete("softmax", ARRIVE, 1, 2, on=read),
        HANG,
    )
    yield Mutant(
        "s_free is raised before the scores are in registers",
        CAUSAL,
        move(
            "softmax", ARRIVE, 1, 2, WAIT_LD, LAST, ANY, AN_ARRIVAL, read,
            ahead_of("softmax", ARRIVE, 1, 2, on=read),
        ),
        ORDER,
    )  # fmt: skip
    yield Mutant(
        "pv_done[0] is raised by an arrival of the thread that issued the MMAs",
        CAUSAL,
        replace("mma", COMMIT, AN_ARRIVAL, 0, 2, on=stored),
        ASYNCHRONY,
    )


def _sum_before_wait(ptx):
    """The wait of softmax for p_ready, from its first line to its last, to behind the store of the row sum."""
    lines = ptx.split("\n")
    (wait_line,) = matches(lines, "softmax", WAIT, 1, on=at("p_ready[0]"))
    store = matches(lines, "softmax", STORE_WORD, 5)[4]
    begin = max(i for i in range(wait_line) if lines[i].strip() == "{")
    end = min(i for i in range(wait_line, store) if lines[i].strip() == "}") + 1
    block = lines[begin:end]
    return "\n".join([*lines[:begin], *lines[end : store + 1], *block, *lines[store + 1 :]])


def commits():
    """tcgen05.commit: missing, elsewhere, too early, replaced by an arrival."""
    for mbarrier, nth, of, what in (
        ("s_ready[0]", 0, 1, "s_ready[0]"),
        ("q_free[0]", 0, 1, "q_free[0]"),
        ("kv_empty[0]", 1, 3, "kv_empty of K"),
        ("kv_empty[0]", 0, 3, "kv_empty of V"),
        ("o_ready[0]", 0, 1, "o_ready[0]"),
        ("o_ready[1]", 0, 2, "o_ready[1] of a work tile that another one follows"),
        ("o_ready[1]", 1, 2, "o_ready[1] of the last work tile"),
    ):
        yield Mutant(f"no commit on {what}", FULL, without_commit(mbarrier, nth, of), HANG)
    yield Mutant(
        "no commit on pv_done[1]", CAUSAL, without_commit("pv_done[1]", 0, 2, CAUSAL), HANG
    )
    yield Mutant(
        "S0 is committed on s_ready[1]",
        FULL,
        replace("mma", COMMIT, f"{A_COMMIT} {operand('s_ready[1]')};", on=at("s_ready[0]")),
        EARLY_OR_HANG,
    )
    slot_0 = f"{A_COMMIT} {operand('kv_empty[0]')};"
    yield Mutant(
        "slot 0 is released whichever slot K was in",
        FULL,
        replace("mma", COMMIT, slot_0, 1, 3, on=at("kv_empty[0]")),
        EARLY_OR_HANG,
    )
    yield Mutant("K's slot is released before S1 reads it", FULL, _early_release, ASYNCHRONY)
    for mbarrier, nth, of, what in (
        ("kv_empty[0]", 1, 3, "K's slot is released"),
        ("kv_empty[0]", 0, 3, "V's slot is released"),
        ("s_ready[0]", 0, 1, "s_ready is raised"),
        ("q_free[1]", 0, 1, "q_free[1] is raised"),
        ("o_ready[0]", 0, 1, "o_ready[0] is raised"),
    ):
        yield Mutant(
            f"{what} by an arrival of the thread that issued the MMAs",
            FULL,
            replace("mma", COMMIT, AN_ARRIVAL, nth, of, on=at(mbarrier)),
            ASYNCHRONY,
        )
    for late, nth, of, early, what in (
        ("o_ready[1]", (0, 1), 2, "o_ready[0]", "the last P V"),
        ("q_free[1]", (0,), 1, "q_free[0]", "the last S1"),
    ):
        drop = replace("mma", "@leader_thread " + COMMIT, "", nth, of, on=at(late))
        add = rf"\g<0> @leader_thread {A_COMMIT} {operand(late)};"
        yield Mutant(
            f"{late} is committed before {what}",
            FULL,
            both(drop, replace("mma", COMMIT, add, on=at(early))),
            ASYNCHRONY,
        )
    yield Mutant(
        "all threads of the warp commit s_ready[0]",
        FULL,
        replace("mma", r"@leader_thread (tcgen05\.commit.*)", r"\1", on=at("s_ready[0]")),
        COUNTS,
    )


def _early_release(ptx):
    """The commit on kv_empty of K, with the computation of its address, to behind the commit of S0."""
    lines = ptx.split("\n")
    (s_ready,) = matches(lines, "mma", COMMIT, 1, on=at("s_ready[0]"))
    release = matches(lines, "mma", COMMIT, 3, on=at("kv_empty[0]"))[1]
    register = re.search(COMMIT, lines[release])[1].strip("[]")
    (definition,) = matches(lines, "mma", rf"add\.s32\s+{register}, ", 1)
    moved = [lines[definition], lines[release]]
    lines[definition] = lines[release] = ""
    lines[s_ready] = "\n".join([lines[s_ready], *moved])
    return "\n".join(lines)


def mutants():
    """Every defect of an arrival."""
    for group in (arrivals, commits):
        yield from group()
