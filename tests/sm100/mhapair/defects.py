"""Defects of what crosses from one CTA of a pair to the other, planted in the kernel's PTX; one line is one mistake.

The subject: 600 queries on 300 keys, causal: a block of both CTAs and one of which CTA 1 has no row, three key tiles
each, which one pair claims one after the other. Places are in the order of the text: softmax, correction, products,
copies.
"""

import re

import torch

from cute_fa4 import flash_attn_func
from tests.emulator.mutations.attention_call import executes
from tests.emulator.mutations.edits import PlantingError
from tests.emulator.mutations.mutant import (
    ASYNCHRONY,
    COUNTS,
    HANG,
    IN_FLIGHT,
    MEMORY,
    ORDER,
    Mutant,
    Subject,
)

NAME = "d128_pair"

REMOTE = r"mbarrier\.arrive\.relaxed\.cluster\.shared::cluster\.b64 _, (\[%r\d+\]), %r\d+;"
COMMIT = r"@leader_thread tcgen05\.commit\.\S+ (\[%r\d+\]), both_ctas;"
BOTH = r"mov\.b16 both_ctas, 3;"
WAIT = r"mbarrier\.try_wait\.parity\.relaxed\.cluster\.shared::cta\.b64 complete, (\[%r\d+\]), (%r\d+), \d+;"
EXPECT = r"mbarrier\.arrive\.expect_tx\.shared\.b64 (%rd\d+), (\[\S+\]), (%r\d+);"
MAPA = r"mapa\.shared::cluster\.u32\s+(%r\d+), (%r\d+), 0;"
CLUSTER_BARRIER = r"barrier\.cluster\.(arrive|wait);"
BEFORE, AFTER = r"tcgen05\.fence::before_thread_sync;", r"tcgen05\.fence::after_thread_sync;"
STORED = r"tcgen05\.wait::st\.sync\.aligned;"
LOAD = r"(cp\.async\.bulk\.tensor\.\dd\.shared::cluster\S*)\.cta_group::2 "
QUERY = r"clusterlaunchcontrol\.try_cancel\.async\.shared::cta\.mbarrier::complete_tx::bytes\.multicast::cluster::all"
CLOSE = r"mbarrier\.arrive\.relaxed\.cluster\.shared::cta\.b64 state, (\[%r\d+\]), (%r\d+);"
MMA = r"@leader_thread (tcgen05\.mma)\.cta_group::2(\S+ .*), (0x[0-9a-f]+), (\w+);"
ANSWER_READ = r"mbarrier\.arrive\.release\.cluster\.shared::cluster\.b64 _, (\[%r\d+\]), %r\d+;"

EARLY = (*ASYNCHRONY, *COUNTS)
EARLY_OR_HANG = (*EARLY, *HANG)
# A CTA has ended, and something still comes.
GONE = (*COUNTS, *IN_FLIGHT, "IllegalAccess", "EmulatorError")


def subject(level) -> Subject:
    generator = torch.Generator().manual_seed(1)
    q = (torch.randn(1, 600, 1, 128, generator=generator) * 6).bfloat16()
    k, v = torch.randn(2, 1, 300, 1, 128, generator=generator).bfloat16()

    def call(out):
        return flash_attn_func(q, k, v, causal=True, return_lse=True, out=out, num_splits=1)

    return Subject(NAME, executes(call, q, level))


def edited(pattern: str, number: int, by: str, ahead_of: str | None = None, at: int = 0):
    """Edit: line `number` that matches becomes `by`; with ahead_of, counted backwards from its line number `at`."""

    def edit(ptx):
        text = ptx.split("\n")
        found = [n for n, line in enumerate(text) if re.search(pattern, line)]
        if ahead_of is not None:
            marks = [n for n, line in enumerate(text) if re.search(ahead_of, line)]
            found = [n for n in found if n < marks[at]]
        if not -len(found) <= number < len(found):
            raise PlantingError(f"the kernel has {len(found)} lines of {pattern!r}, not {number}")
        n = found[number]
        text[n] = re.sub(pattern, by, text[n])
        return "\n".join(text)

    return edit


def several(*edits):
    def edit(ptx):
        for one in edits:
            ptx = one(ptx)
        return ptx

    return edit


def planted(name, edit, meant, **why) -> Mutant:
    return Mutant(name, NAME, edit, meant, **why)


# Arrivals at CTA 0, in the order of the text: P of a masked tile comes behind that of a whole one.
ARRIVALS = (
    "p_ready of a whole tile", "p_last of a whole tile", "p_ready of a masked tile", "p_last of a masked tile",
    "p_ready[0] before the first tile", "p_ready[1] before the first tile", "p_ready[0] behind a rescale",
    "p_ready[1] behind a rescale", "p_ready[0] when O is read", "p_ready[1] when O is read",
)  # fmt: skip
COMMITS = (
    "s_ready[0]", "q_free[0]", "o_ready[1]", "kv_empty of V", "s_ready[1]", "q_free[1]", "kv_empty of K", "o_ready[0]",
    "kv_empty of the last V", "the last o_ready[1]",
)  # fmt: skip
P_OF_SOFTMAX = 4  # of ARRIVALS: those of softmax
WAITS = (
    "p_ready[1]", "p_last[1]", "p_ready[0]", "p_last[0]", "the last p_ready[1]", "the last p_last[1]",
)  # fmt: skip


def arrivals():
    """Arrivals at CTA 0: missing, at the own CTA, or before what they say."""
    for n, what in enumerate(ARRIVALS):
        yield planted(f"no arrival on {what}", edited(REMOTE, n, ""), HANG)
    for n in (0, 3, 6):
        twice = edited(
            REMOTE, n, r"\g<0> mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, \1, 1;"
        )
        yield planted(f"two arrivals on {ARRIVALS[n]}", twice, EARLY_OR_HANG)
    for n, what in enumerate(("p_ready", "p_last")):
        yield planted(
            f"both CTAs raise {what} of softmax in CTA 1",
            edited(MAPA, n, r"mapa.shared::cluster.u32 \1, \2, 1;"),
            EARLY_OR_HANG,
        )
    for n in range(P_OF_SOFTMAX):
        yield planted(
            f"no tcgen05 fence before {ARRIVALS[n]}",
            edited(BEFORE, -1, "", ahead_of=REMOTE, at=n),
            (*ORDER, "TensorOrderError"),
        )
        yield planted(
            f"P is not awaited before {ARRIVALS[n]}",
            edited(STORED, -1, "", ahead_of=REMOTE, at=n),
            (*ORDER, *IN_FLIGHT),
        )


def commits():
    """Commits: on one CTA alone, on the other alone, or missing."""
    for n, what in enumerate(COMMITS):
        mask = edited(BOTH, n, "mov.b16 both_ctas, 1;")
        yield planted(f"{what} is committed in CTA 0 alone", mask, (*HANG, *EARLY))
    for n in (0, 3, 7):
        mask = edited(BOTH, n, "mov.b16 both_ctas, 2;")
        yield planted(f"{COMMITS[n]} is committed in CTA 1 alone", mask, (*HANG, *EARLY))
    for n in (0, 1, 6):
        yield planted(f"no commit on {COMMITS[n]}", edited(COMMIT, n, ""), HANG)


def waits():
    """Waits of the mma warp of CTA 0: none, or without the fence behind."""
    for n, what in enumerate(WAITS):
        passed = edited(WAIT, n, "setp.eq.u32 complete, 0, 0;")
        yield planted(f"mma does not wait for {what}", passed, (*EARLY, "TensorOrderError"))
    for n in (0, 3):
        flipped = r"{.reg .b32 other; xor.b32 other, \2, 1; "
        flipped += r"mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 complete, \1, other;}"
        yield planted(
            f"mma waits for the other parity of {WAITS[n]}", edited(WAIT, n, flipped), EARLY_OR_HANG
        )


def loads():
    """Bytes of the other CTA, and which half is whose."""
    for n, what in ((1, "Q0"), (2, "K"), (3, "Q1"), (4, "V")):
        half = r"{.reg .b32 half; shr.u32 half, \3, 1; mbarrier.arrive.expect_tx.shared.b64 \1, \2, half;}"
        yield planted(
            f"the bytes of one CTA are announced for {what}", edited(EXPECT, n, half), EARLY_OR_HANG
        )
    for n, what in ((0, "Q0"), (-1, "V")):
        yield planted(
            f"a copy of {what} does not say that its mbarrier is that of the pair",
            edited(LOAD, n, r"\1 "),
            ("IllegalAccess", *EARLY_OR_HANG),
        )


def meetings():
    """The beginning and the end, where both CTAs meet."""
    first = several(edited(CLUSTER_BARRIER, 0, ""), edited(CLUSTER_BARRIER, 0, ""))
    yield planted(
        "the CTAs do not meet before they begin", first, (*COUNTS, *ORDER, *MEMORY, "EmulatorError")
    )
    last = several(edited(CLUSTER_BARRIER, -1, ""), edited(CLUSTER_BARRIER, -1, ""))
    yield planted("the CTAs do not meet before they end", last, (*GONE, *ORDER, *MEMORY))
    no_wait = edited(CLUSTER_BARRIER, -1, "")
    yield planted(
        "a CTA does not wait for the other one before it ends", no_wait, (*GONE, *ORDER, *MEMORY)
    )
    for n in (0, 1):
        yield planted(
            f"CTA 0 does not close p_ready[{n}]",
            edited(CLOSE, n, r"bra.uni COMPLETE;"),
            (*GONE, *HANG),
        )
    more = r"mbarrier.arrive.relaxed.cluster.shared::cta.b64 state, \1, 7;"
    yield planted("CTA 0 closes p_ready[0] with an arrival too few", edited(CLOSE, 0, more), HANG)
    for name, pattern in (
        ("tcgen05.alloc", r"tcgen05\.alloc\.cta_group::2"),
        ("tcgen05.dealloc", r"tcgen05\.dealloc\.cta_group::2"),
        ("tcgen05.relinquish_alloc_permit", r"tcgen05\.relinquish_alloc_permit\.cta_group::2"),
    ):
        one = edited(pattern, 0, f"{name}.cta_group::1")
        yield planted(f"{name} for one CTA", one, (*MEMORY, "EmulatorError"))
    yield planted(
        "a product for one CTA", edited(MMA, 0, r"@leader_thread \1.cta_group::1\2, \3, \4;"),
        (*MEMORY, "EmulatorError"),
    )  # fmt: skip


def claims():
    """CTA 0 claims for both."""
    alone = QUERY.replace(r"\.multicast::cluster::all", "")
    yield planted(
        "the answer comes to CTA 0 alone",
        edited(QUERY, 0, alone.replace("\\", "")),
        HANG,
    )
    yield planted(
        "CTA 1 does not say that it has read the answer", edited(ANSWER_READ, 0, ""), HANG
    )
    relaxed = r"mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, \1, 1;"
    yield planted("CTA 1 says so without a release", edited(ANSWER_READ, 0, relaxed), ORDER)


def mutants() -> tuple:
    groups = (arrivals, commits, waits, loads, meetings, claims)
    return tuple(mutant for group in groups for mutant in group())
