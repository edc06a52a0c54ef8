"""Defects of the attention kernel's work queue: claims, announcements, and how they are read.

A work tile of several key tiles is announced before its predecessor's last keys are copied, and read before its own
first S is used: then the barriers of Q, K, V, S and P order what work_ready and work_read are for. Defects of those two
are planted where there is at most one key tile, d64_few_keys. Places as in attention_defects.py.
"""

from cute_fa4.sm100.blueprint.entries import WORK_WORDS
from tests.emulator.mutations.attention_places import (
    AN_ARRIVAL,
    FEW_KEYS,
    FULL,
    LOAD_WORD,
    PROXY_FENCE,
    TRY_CANCEL,
    announced,
    arrival,
    expect,
    region,
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
from tests.emulator.mutations.mutant import (
    ASYNCHRONY,
    COUNTS,
    HANG,
    ORDER,
    WRONG_NUMBERS,
    Mutant,
)

QUEUE = f"[__dynamic_shmem__0+{region('work_queue')}]"
EARLY = (*ASYNCHRONY, *COUNTS)
RESPONSE = lines("load", r"ld\.shared\.v2\.b64\s+\{%rd\d+, %rd\d+\}, \[\S+\];")
CLAIM = lines("load", TRY_CANCEL)
ANSWERED = wait("load", "work_claimed[0]")
ROLES = ("softmax", "correction", "mma")


def claims():
    """try_cancel and its response."""
    yield Mutant(
        "the answer to a claim is not waited for",
        FULL,
        replace(ANSWERED, ALWAYS_TRUE),
        EARLY,
    )
    yield Mutant(
        "load waits for the other parity of work_claimed",
        FULL,
        replace(ANSWERED, FLIPPED_PARITY),
        (*EARLY, *HANG),
    )
    yield Mutant(
        "load waits for work_claimed as for the first claim every time",
        FULL,
        replace(ANSWERED, PARITY_0),
        (*EARLY, *HANG),
    )
    yield Mutant(
        "half of the answer's bytes are expected",
        FULL,
        announced(8, expect("work_claimed[0]")),
        (*EARLY, *HANG),
    )
    yield Mutant(
        "twice the answer's bytes are expected",
        FULL,
        announced(32, expect("work_claimed[0]")),
        HANG,
    )
    yield Mutant(
        "a claim without expect_tx",
        FULL,
        replace(expect("work_claimed[0]"), r"mbarrier.arrive.shared.b64 \1, \2, 1;"),
        (*EARLY, *HANG),
    )
    yield Mutant(
        "no proxy fence after the answer is read", FULL, delete(lines("load", PROXY_FENCE)), ORDER
    )
    yield Mutant(
        "the proxy fence comes before the answer is read",
        FULL,
        move(lines("load", PROXY_FENCE), before=RESPONSE),
        ORDER,
    )
    yield Mutant(
        "the lanes of the load warp do not meet after the answer is read",
        FULL,
        delete(lines("load", r"bar\.warp\.sync\s+-1;")),
        ORDER,
        survives="lanes of a warp are one actor: whether another lane has read is not told apart",
    )
    branches = lines("load", r"@%p\d+ bra.*;").ahead_of(CLAIM)
    elected = branches.last  # one lane; ahead of it: only for the first key tile of a block
    yield Mutant(
        "a block is claimed for every key tile",
        FULL,
        delete(branches.ahead_of(elected).last),
        (*EARLY, *HANG),
    )
    yield Mutant("every lane claims a block", FULL, delete(elected), (*COUNTS, *HANG))
    yield Mutant(
        "the answer is written over the first entry of the queue",
        FULL,
        replace(CLAIM, _answer_over_the_first_entry),
        ASYNCHRONY,
    )
    refused = lines("load", r"(selp\.b32\s+%r\d+, %r\d+), -1, %p\d+;")
    yield Mutant(
        "a refusal is taken for a block",
        FULL,
        replace(
            refused.after(RESPONSE).first,
            r"{.reg .pred p; setp.eq.u32 p, 0, 0; \1, -1, p;}",
        ),
        ("EmulatorError",),
    )
    yield Mutant(
        "the claimed block is y, not x, of the answer",
        FULL,
        replace(lines("load", r"(get_first_ctaid)::x"), r"\1::y"),
        (WRONG_NUMBERS, "RaceError"),
    )


def _answer_over_the_first_entry(match):
    first, last = match.span(1)
    begin = match.start()
    return match[0][: first - begin] + QUEUE + match[0][last - begin :]


def announcements():
    """work_ready, work_read, and the words between them."""
    for role in ROLES:
        ready, read = wait(role, "work_ready[0]"), arrival(role, "work_read[0]")
        for place, what in (
            (ready.first, "the first work tile"),
            (ready.last, "a further work tile"),
        ):
            yield Mutant(
                f"{role} does not wait for {what}", FEW_KEYS, replace(place, ALWAYS_TRUE), EARLY
            )
        yield Mutant(
            f"{role} waits for the other parity of work_ready",
            FULL,
            replace(ready.last, FLIPPED_PARITY),
            (*EARLY, *HANG),
        )
        yield Mutant(f"{role} does not raise work_read", FULL, delete(read.first), HANG)
        words = lines(role, r"ld\.shared\.(v\d\.)?b32")
        yield Mutant(
            f"{role} raises work_read before it reads",
            FEW_KEYS,
            move(read.last, before=words.after(ready.last).first, by=AN_ARRIVAL),
            ASYNCHRONY,
        )
    written, free = arrival("load", "work_ready[0]"), wait("load", "work_read[0]")
    entry = lines("load", r"st\.shared\.v4\.b32\s+.*;")
    yield Mutant(
        "load does not wait for work_read", FEW_KEYS, replace(free.last, ALWAYS_TRUE), EARLY
    )
    yield Mutant("load does not raise work_ready", FULL, delete(written.last), HANG)
    yield Mutant(
        "load raises work_ready before it writes",
        FEW_KEYS,
        move(written.last, before=entry.after(free.last).first, by=AN_ARRIVAL),
        ASYNCHRONY,
    )
    yield Mutant(
        "one thread a warp raises work_read",
        FULL,
        replace(
            arrival("softmax", "work_read[0]").first,
            r"{.reg .pred one; elect.sync _|one, 0xffffffff; @one \g<0>}",
        ),
        HANG,
    )
    yield Mutant(
        "mma raises work_read twice",
        FULL,
        replace(arrival("mma", "work_read[0]").first, r"\g<0> " + AN_ARRIVAL),
        (*EARLY, *HANG),
    )
    yield Mutant(
        "a part of the first entry is not written",
        FULL,
        delete(entry.ahead_of(written.first).middle),
        ("UninitializedRead",),
    )
    word = lines("correction", LOAD_WORD).after(wait("correction", "work_ready[0]").last).first
    yield Mutant(
        "correction reads the entry after its own",
        FULL,
        replace(word, _entry_after),
        (*EARLY, WRONG_NUMBERS),
    )


def _entry_after(match):
    base, offset = match[1].strip("[]").split("+")
    return match[0].replace(match[1], f"[{base}+{int(offset) + 4 * WORK_WORDS}]")


def mutants():
    """Every defect of the work queue."""
    for group in (claims, announcements):
        yield from group()
