"""Defects of the kernel of pairs over a latent cache, planted in its PTX; one line is one mistake.

The subject: a sequence of one query of 128 heads and 300 keys: three key tiles, the last of them masked; scores so wide
that a row is rescaled in most tiles. Places are in the order of the text: softmax, products, copies.
"""

import re
from dataclasses import replace

import torch

from tests.emulator.mutations.attention_call import executes
from tests.emulator.mutations.mutant import (
    ASYNCHRONY,
    COUNTS,
    HANG,
    IN_FLIGHT,
    MEMORY,
    ORDER,
    WRONG_NUMBERS,
    Mutant,
    Subject,
)
from tests.sm100.latent.latent_batches import call_of, config_of, draw, stored
from tests.sm100.pairs_of_ctas import (
    AFTER,
    BEFORE,
    BOTH,
    CLUSTER_BARRIER,
    COMMIT,
    EARLY,
    EARLY_OR_HANG,
    EXPECT,
    GONE,
    MAPA,
    claims,
    counted,
    edited,
    several,
)  # fmt: skip

NAME, INDEX_NAME, BLOCKS_NAME = "latent_pair", "latent_pair_by_index", "latent_pair_of_blocks"
CONFIG = config_of("mla_pair", heads_q=128, calls=("latent",))
SPREAD = 12.0  # of the queries: a row's maximum moves by more than 2^8 in most tiles

WAIT = r"mbarrier\.try_wait\.parity\.shared\.b64 P1, (\[\S+\]), (\S+), \d+;"
PASSED = "setp.eq.u32 P1, 0, 0;"
FLIPPED = (
    r".reg .b32 flipped; xor.b32 flipped, \2, 1; "
    r"mbarrier.try_wait.parity.shared.b64 P1, \1, flipped, 10000000;"
)
ACQUIRE = r"mbarrier\.try_wait\.parity\.relaxed\.cluster\.shared::cta\.b64 complete, (\[%r\d+\]), (%r\d+), \d+;"
RELEASE = r"mbarrier\.arrive\.relaxed\.cluster\.shared::cluster\.b64 _, (\[%r\d+\]), %r\d+;"
RELEASES = r"fence\.release\.sync_restrict::shared::cta\.cluster;"
ACQUIRES = r"fence\.acquire\.sync_restrict::shared::cluster\.cluster;"
PROXY = r"fence\.proxy\.async\.shared::cta;"
EXCHANGE = r"bar\.sync\s+1, 256;"
VOTE = r"vote\.sync\.any\.pred\s+(%p\d+), %p\d+, -1;"
BALLOT = r"vote\.sync\.ballot\.b32\s+(%r\d+), %p\d+, -1;"
LOADED, STORED = r"tcgen05\.wait::ld\S*;", r"tcgen05\.wait::st\S*;"
MMA = r"@leader_thread tcgen05\.mma\.cta_group::2\.kind::f16 (\S+), (\S+), (\S+), 0x([0-9a-f]+), (\w+);"
COPY = r"(cp\.async\.bulk\.tensor\.\dd\.shared::cluster\S*)\.cta_group::2 "

# In the order of the text.
WAITS = (
    "work of softmax", "s_ready of a whole tile", "pv_done before P of a whole tile", "s_ready of a masked tile",
    "pv_done before P of a masked tile", "pv_done before O is stored", "further work of softmax", "work of mma",
    "q_full", "the first unit of K", "the second unit of K", "the third unit of K", "the last unit of K",
    "the rotary columns", "the first unit of V", "the second unit of V", "the third unit of V", "the last unit of V",
)  # fmt: skip
OF_LOAD = ("q_free", "kv_empty before the first unit of K", *(f"kv_empty before unit {i} of K" for i in (1, 2, 3)),
           "rope_empty", *(f"kv_empty before unit {i} of V" for i in range(4)))  # fmt: skip
FIRST_OF_LOAD = 26  # of all waits
COMMITS = (
    *(f"kv_empty of unit {i} of K" for i in range(4)), "rope_empty", "s_ready", "q_free",
    *(f"kv_empty of unit {i} of V" for i in range(4)), "pv_done", *(f"kv_empty of the last V, {i}" for i in range(4)),
    "the last pv_done",
)  # fmt: skip

# All there are: numbers mean other places as soon as one comes or goes.
PLACES = {
    WAIT: 47, ACQUIRE: 2, RELEASE: 2, COMMIT: len(COMMITS), BOTH: len(COMMITS), EXPECT: 11, EXCHANGE: 3, PROXY: 3,
    AFTER: 7, LOADED: 14,
}  # fmt: skip


def subject(level) -> Subject:
    batch = draw(1, [300], heads=128)
    batch.q[0] *= SPREAD
    call = stored(batch, 64)

    def of(out):
        return call_of(call, num_splits=1, out=out)

    return Subject(NAME, executes(of, call["q"][..., :512].contiguous(), level))


def index_subject(level, name=INDEX_NAME, queries=1, keys=140) -> Subject:
    """Queries of 128 heads that list so many keys, every third of them none."""
    batch = draw(queries, [256], heads=128)
    call = stored(batch, 64)
    lists = call["block_table"][:, :4].repeat_interleave(64, 1) * 64 + torch.arange(256) % 64
    lists = lists[:, None, :keys].int().repeat(1, queries, 1)
    lists[:, :, ::3] = -1
    given = call | dict(block_table=None, cache_seqlens=None, indices=lists, num_splits=1)

    def of(out):
        return call_of(given, out=out)

    return Subject(name, executes(of, call["q"][..., :512].contiguous(), level))


def blocks_subject(level) -> Subject:
    """Three blocks of one key tile each: no copy of a further tile comes between one claim and the next."""
    return index_subject(level, BLOCKS_NAME, queries=3, keys=100)


def planted(name, edit, meant, **why) -> Mutant:
    return Mutant(name, NAME, edit, meant, **why)


def index_mutants() -> tuple:
    """Of keys by index: which a warp takes for keys, and which rows are copied."""

    def planted(name, edit):
        return Mutant(name, INDEX_NAME, edit, (WRONG_NUMBERS, *ASYNCHRONY))

    every = r"mov.b32 \1, -1;"
    found = [
        planted(f"every entry of the list is a key, {n}", edited(BALLOT, n, every))
        for n in range(2)
    ]
    none = planted("no entry of the list is a key", edited(BALLOT, 0, r"mov.b32 \1, 0;"))
    return (*found, none)


def claim_mutants() -> tuple:
    """Of several blocks: CTA 0 claims for both."""
    return tuple(claims(lambda name, edit, meant: Mutant(name, BLOCKS_NAME, edit, meant)))


def waits():
    """A wait removed, or for the wrong parity."""
    for n in (1, 2, 3, 4, 5, 8, 9, 12, 13, 14, 17):
        yield planted(f"no wait for {WAITS[n]}", edited(WAIT, n, PASSED), EARLY)
    for i, what in enumerate(OF_LOAD):
        if i in (0, 3, 4):
            continue  # one work tile; the units between are like their neighbors
        n = FIRST_OF_LOAD + i
        yield planted(f"load does not wait for {what}", edited(WAIT, n, PASSED), EARLY)
    for n in (1, 5, 9, 13, 17, FIRST_OF_LOAD + 1, FIRST_OF_LOAD + 5):
        what = WAITS[n] if n < len(WAITS) else OF_LOAD[n - FIRST_OF_LOAD]
        yield planted(
            f"a wait for the other parity of {what}", edited(WAIT, n, FLIPPED), EARLY_OR_HANG
        )
    for n, what in enumerate(("p_ready", "the last p_ready")):
        passed = edited(ACQUIRE, n, "setp.eq.u32 complete, 0, 0;")
        yield planted(f"mma does not wait for {what}", passed, (*EARLY, "TensorOrderError"))


def arrivals():
    """p_ready: missing, twice, in the wrong CTA, without what makes P visible."""
    for n, what in enumerate(("a whole", "a masked")):
        yield planted(f"no arrival for P of {what} tile", edited(RELEASE, n, ""), HANG)
        twice = r"\g<0> mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, \1, 1;"
        yield planted(
            f"two arrivals for P of {what} tile", edited(RELEASE, n, twice), EARLY_OR_HANG
        )
        yield planted(f"no proxy fence after P of {what} tile", edited(PROXY, n, ""), ORDER)
        before = edited(BEFORE, -1, "", ahead_of=RELEASE, at=n)
        yield planted(
            f"no tcgen05 fence after P of {what} tile", before, (*ORDER, "TensorOrderError")
        )
    elsewhere = edited(MAPA, 0, r"mapa.shared::cluster.u32 \1, \2, 1;")
    yield planted("both CTAs raise p_ready in CTA 1", elsewhere, EARLY_OR_HANG)
    yield planted("p_ready is raised without releasing P", edited(RELEASES, 0, ""), ORDER)
    yield planted("P is used without acquiring it", edited(ACQUIRES, 0, ""), ORDER)
    backwards = edited(RELEASES, 0, "fence.acquire.sync_restrict::shared::cluster.cluster;")
    yield planted("the fence before p_ready acquires", backwards, ORDER)


def commits():
    """Commits: in one CTA alone, or missing."""
    for n in (0, 3, 4, 5, 7, 11, 16):
        one = edited(BOTH, n, "mov.b16 both_ctas, 1;")
        yield planted(f"{COMMITS[n]} is committed in CTA 0 alone", one, EARLY_OR_HANG)
    for n in (0, 4, 5, 10, 11):
        yield planted(f"no commit on {COMMITS[n]}", edited(COMMIT, n, ""), HANG)


def order():
    """Fences, waits for tensor memory, the barrier of the softmax warps, and the meetings."""
    for n, what in ((0, "s_ready"), (-2, "p_ready"), (-1, "the last p_ready")):
        yield planted(
            f"no tcgen05 fence after {what}", edited(AFTER, n, ""), (*ORDER, "TensorOrderError")
        )
    yield planted("no wait for the scores", edited(LOADED, 0, ""), ORDER)
    yield planted("no wait for the rescaled O", edited(STORED, 0, ""), (*ORDER, *IN_FLIGHT))
    yield planted("no wait for O before it is stored", edited(LOADED, -1, ""), ORDER)
    for n, what in ((0, "the maxima of a whole tile"), (2, "the row sums")):
        yield planted(f"no barrier before {what} are read", edited(EXCHANGE, n, ""), ASYNCHRONY)
    first = several(edited(CLUSTER_BARRIER, 0, ""), edited(CLUSTER_BARRIER, 0, ""))
    yield planted(
        "the CTAs do not meet before they begin", first, (*COUNTS, *ORDER, *MEMORY, "EmulatorError")
    )
    last = several(edited(CLUSTER_BARRIER, -1, ""), edited(CLUSTER_BARRIER, -1, ""))
    yield planted("the CTAs do not meet before they end", last, (*GONE, *ORDER, *MEMORY))


def products():
    """Bytes that are expected, whose half a copy is, and what is computed."""
    for n, what in (
        (0, "an answer"),
        (1, "Q"),
        (2, "the first unit of K"),
        (6, "the rotary columns"),
        (10, "the last unit of V"),
    ):
        half = r"{.reg .b32 half; shr.u32 half, \3, 1; mbarrier.arrive.expect_tx.shared.b64 \1, \2, half;}"
        yield planted(f"half of {what} is expected", edited(EXPECT, n, half), EARLY_OR_HANG)
    for n, what in ((0, "Q"), (-1, "V")):
        own = edited(COPY, n, r"\1 ")
        yield planted(
            f"a copy of {what} counts in its own CTA", own, ("IllegalAccess", *EARLY_OR_HANG)
        )
    for n in (0, 1):
        never = edited(VOTE, n, r"setp.ne.u32 \1, 0, 0;")
        yield planted(f"O is never rescaled, {n}", never, (WRONG_NUMBERS,))

    def computes(n, bit=None, value=None):
        def edit(ptx):
            found = [m for m in re.finditer(MMA, ptx)][n]
            d, a, b, bits, adds = found.groups()
            bits = int(bits, 16) ^ (0 if bit is None else 1 << bit)
            adds = adds if value is None else value
            line = f"@leader_thread tcgen05.mma.cta_group::2.kind::f16 {d}, {a}, {b}, {bits:#x}, {adds};"
            return ptx[: found.start()] + line + ptx[found.end() :]

        return edit

    wrong = (WRONG_NUMBERS, *ASYNCHRONY)
    yield planted("S begins with the old one", computes(0, value=1), wrong)
    yield planted("the rotary columns begin a new S", computes(32, value=0), wrong)
    yield planted("the second half of the keys begins a new O", computes(36 + 4, value=0), wrong)
    for n, what in ((36, "V of the first output"), (36 + 8, "V of the second output")):
        yield planted(f"{what} is K-major", computes(n, bit=16), (*wrong, "IllegalAccess"))


def among(places: dict[str, int], mutants) -> list[Mutant]:
    """The same, in a kernel that has so many places of each kind."""
    return [replace(mutant, edit=counted(places, mutant.edit)) for mutant in mutants]


def mutants() -> tuple:
    groups = (waits, arrivals, commits, order, products)
    return tuple(mutant for group in groups for mutant in among(PLACES, group()))
