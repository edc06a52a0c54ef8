"""Defects of the attention kernel's work queue: claims, announcements, and how they are read.

A work tile of several key tiles is announced before its predecessor's last keys are copied, and read before its own
first S is used: then the barriers of Q, K, V, S and P order what work_ready and work_read are for. Defects of those two
are planted where there is at most one key tile, d64_few_keys. Places as in attention_defects.py.
"""

from cute_fa4.sm100.work.entries import WORK_WORDS
from tests.emulator.mutations.attention_places import (
    AN_ARRIVAL,
    ARRIVE,
    CONFIGS,
    EXPECT,
    FEW_KEYS,
    FULL,
    LOAD_WORD,
    PROXY_FENCE,
    TRY_CANCEL,
    at,
    expect,
    wait,
)
from tests.emulator.mutations.edits import (
    ALWAYS_TRUE,
    ANY,
    FIRST,
    FLIPPED_PARITY,
    LAST,
    PARITY_0,
    WAIT,
    ahead_of,
    behind,
    delete,
    move,
    replace,
)
from tests.emulator.mutations.mutant import ASYNCHRONY, COUNTS, HANG, ORDER, WRONG_NUMBERS, Mutant

READY, READ, CLAIMED = at("work_ready[0]"), at("work_read[0]"), at("work_claimed[0]")
QUEUE = f"[__dynamic_shmem__0+{CONFIGS[FULL].smem.work_queue.offset}]"
READY_D64, READ_D64 = at("work_ready[0]", FEW_KEYS), at("work_read[0]", FEW_KEYS)
EARLY = (*ASYNCHRONY, *COUNTS)
RESPONSE = r"ld\.shared\.v2\.b64\s+\{%rd\d+, %rd\d+\}, \[\S+\];"
A_BRANCH = r"@%p\d+ bra.*;"
ROLES = ("softmax", "correction", "mma")


def claims():
    """try_cancel and its response."""
    yield Mutant(
        "the answer to a claim is not waited for",
        FULL,
        wait("load", ALWAYS_TRUE, "work_claimed[0]"),
        EARLY,
    )
    yield Mutant(
        "load waits for the other parity of work_claimed",
        FULL,
        wait("load", FLIPPED_PARITY, "work_claimed[0]"),
        (*EARLY, *HANG),
    )
    yield Mutant(
        "load waits for work_claimed as for the first claim every time",
        FULL,
        wait("load", PARITY_0, "work_claimed[0]"),
        (*EARLY, *HANG),
    )
    yield Mutant(
        "half of the answer's bytes are expected",
        FULL,
        expect(8, "work_claimed[0]"),
        (*EARLY, *HANG),
    )
    yield Mutant("twice the answer's bytes are expected", FULL, expect(32, "work_claimed[0]"), HANG)
    yield Mutant(
        "a claim without expect_tx",
        FULL,
        replace("load", EXPECT, r"mbarrier.arrive.shared.b64 \1, \2, 1;", on=CLAIMED),
        (*EARLY, *HANG),
    )
    yield Mutant(
        "no proxy fence after the answer is read", FULL, delete("load", PROXY_FENCE), ORDER
    )
    yield Mutant(
        "the proxy fence comes before the answer is read",
        FULL,
        move("load", PROXY_FENCE, 0, 1, RESPONSE),
        ORDER,
    )
    yield Mutant(
        "the lanes of the load warp do not meet after the answer is read",
        FULL,
        delete("load", r"bar\.warp\.sync\s+-1;"),
        ORDER,
        survives="lanes of a warp are one actor: whether another lane has read is not told apart",
    )
    branches = ahead_of("load", TRY_CANCEL)
    yield Mutant(
        "a block is claimed for every key tile",
        FULL,
        delete(branches, A_BRANCH, LAST - 1, ANY),
        (*EARLY, *HANG),
    )
    yield Mutant(
        "every lane claims a block", FULL, delete(branches, A_BRANCH, LAST, ANY), (*COUNTS, *HANG)
    )
    yield Mutant(
        "the answer is written over the first entry of the queue",
        FULL,
        replace("load", TRY_CANCEL, _answer_over_the_first_entry),
        ASYNCHRONY,
    )
    refused = r"(selp\.b32\s+%r\d+, %r\d+), -1, %p\d+;"
    yield Mutant(
        "a refusal is taken for a block",
        FULL,
        replace(
            behind("load", RESPONSE),
            refused,
            r"{.reg .pred p; setp.eq.u32 p, 0, 0; \1, -1, p;}",
            FIRST,
            ANY,
        ),
        ("EmulatorError",),
    )
    yield Mutant(
        "the claimed block is y, not x, of the answer",
        FULL,
        replace("load", r"(get_first_ctaid)::x", r"\1::y"),
        (WRONG_NUMBERS, "RaceError"),
    )


def _answer_over_the_first_entry(match):
    first, last = match.span(1)
    begin = match.start()
    return match[0][: first - begin] + QUEUE + match[0][last - begin :]


def announcements():
    """work_ready, work_read, and the words between them."""
    for role in ROLES:
        for nth, what in ((0, "the first work tile"), (1, "a further work tile")):
            yield Mutant(
                f"{role} does not wait for {what}",
                FEW_KEYS,
                wait(role, ALWAYS_TRUE, "work_ready[0]", nth, 2, FEW_KEYS),
                EARLY,
            )
        yield Mutant(
            f"{role} waits for the other parity of work_ready",
            FULL,
            wait(role, FLIPPED_PARITY, "work_ready[0]", 1, 2),
            (*EARLY, *HANG),
        )
        yield Mutant(
            f"{role} does not raise work_read",
            FULL,
            delete(role, ARRIVE, 0, 2, on=READ),
            HANG,
        )
        words = r"ld\.shared\.(v\d\.)?b32"
        yield Mutant(
            f"{role} raises work_read before it reads",
            FEW_KEYS,
            move(
                role, ARRIVE, 1, 2, words, FIRST, ANY, AN_ARRIVAL, READ_D64,
                behind(role, WAIT, 1, 2, on=READY_D64),
            ),
            ASYNCHRONY,
        )  # fmt: skip
    yield Mutant(
        "load does not wait for work_read",
        FEW_KEYS,
        wait("load", ALWAYS_TRUE, "work_read[0]", 1, 2, FEW_KEYS),
        EARLY,
    )
    yield Mutant(
        "load does not raise work_ready", FULL, delete("load", ARRIVE, 1, 2, on=READY), HANG
    )
    yield Mutant(
        "load raises work_ready before it writes",
        FEW_KEYS,
        move(
            "load", ARRIVE, 1, 2, r"st\.shared\.v4\.b32", FIRST, ANY, AN_ARRIVAL, READY_D64,
            behind("load", WAIT, 1, 2, on=READ_D64),
        ),
        ASYNCHRONY,
    )  # fmt: skip
    yield Mutant(
        "one thread a warp raises work_read",
        FULL,
        replace(
            "softmax",
            ARRIVE,
            r"{.reg .pred one; elect.sync _|one, 0xffffffff; @one \g<0>}",
            0,
            2,
            on=READ,
        ),
        HANG,
    )
    yield Mutant(
        "mma raises work_read twice",
        FULL,
        replace("mma", ARRIVE, r"\g<0> " + AN_ARRIVAL, 0, 2, on=READ),
        (*EARLY, *HANG),
    )
    yield Mutant(
        "a part of the first entry is not written",
        FULL,
        delete("load", r"st\.shared\.v4\.b32\s+.*;", 1, 6),
        ("UninitializedRead",),
    )
    yield Mutant(
        "correction reads the entry behind its own",
        FULL,
        replace(behind("correction", WAIT, 1, 2, on=READY), LOAD_WORD, _entry_behind, FIRST, ANY),
        (*EARLY, WRONG_NUMBERS),
    )


def _entry_behind(match):
    base, offset = match[1].strip("[]").split("+")
    return match[0].replace(match[1], f"[{base}+{int(offset) + 4 * WORK_WORDS}]")


def mutants():
    """Every defect of the work queue."""
    for group in (claims, announcements):
        yield from group()
