"""Defects of what crosses from one CTA of a pair to the other, planted in a kernel's PTX; one line is one mistake.

Places are in the order of the text: softmax, correction, products, copies. A family says what its own are (Crossings).
A name says the mbarrier of its place; `named` plants nothing where a kernel has more places than names, or others.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from cute_fa4 import flash_attn_func, masks
from cute_fa4.masks import BoundMask
from cute_fa4.sm100.choose.config import FA4Config
from tests.emulator.mutations.attention_call import executes
from tests.emulator.mutations.attention_places import address, bytes_of
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
PROXY_FENCE = r"fence\.proxy\.async\.shared::cta;"
ANSWER_READ = r"mbarrier\.arrive\.release\.cluster\.shared::cluster\.b64 _, (\[%r\d+\]), %r\d+;"

EARLY = (*ASYNCHRONY, *COUNTS)
EARLY_OR_HANG = (*EARLY, *HANG)
# A CTA has ended, and something still comes.
GONE = (*COUNTS, *IN_FLIGHT, "IllegalAccess", "EmulatorError")


def subject_of(
    name: str, level, mask: BoundMask, queries: int, keys: int, head_dim=128, heads=1
) -> Subject:
    """Heads of so many queries on so many keys under a mask; scores so wide that most tiles rescale rows."""
    generator = torch.Generator().manual_seed(1)
    q = (torch.randn(1, queries, heads, head_dim, generator=generator) * 6).bfloat16()
    k, v = torch.randn(2, 1, keys, heads, head_dim, generator=generator).bfloat16()

    def call(out):
        return flash_attn_func(q, k, v, mask=mask, return_lse=True, out=out, num_splits=1)

    return Subject(name, executes(call, q, level))


def causal_subject(name: str, level, queries: int, head_dim: int, heads: int = 1) -> Subject:
    """On 300 keys: three key tiles."""
    return subject_of(name, level, masks.causal(), queries, 300, head_dim, heads)


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


def named(config: FA4Config, names: tuple[str, ...], pattern: str, edit):
    """Edit, of a kernel with as many lines of a pattern as names, each at the mbarrier that a word of its name is."""

    def checked(ptx):
        text = ptx.split("\n")
        if f"_{config.name}_" not in ptx:
            raise PlantingError(f"the kernel is not {config.name}")
        found = [n for n, line in enumerate(text) if re.search(pattern, line)]
        if len(found) != len(names):
            raise PlantingError(
                f"the kernel has {len(found)} lines of {pattern!r}: {len(names)} names"
            )
        for n, name in zip(found, names, strict=True):
            [kind] = {row.name for row in config.barriers.rows} & set(re.findall(r"\w+", name))
            if address(_in_this_cta(text, n), n) not in bytes_of(config, kind):
                raise PlantingError(f"line {n}, {text[n].strip()!r}, is not {name!r}")
        return edit(ptx)

    return checked


def counted(places: dict[str, int], edit):
    """Edit, of a kernel with as many lines of each pattern as a list of defects knows, which says places by number."""

    def checked(ptx):
        for pattern, count in places.items():
            found = sum(bool(re.search(pattern, line)) for line in ptx.split("\n"))
            if found != count:
                raise PlantingError(
                    f"the kernel has {found} lines of {pattern!r}, {count} are known"
                )
        return edit(ptx)

    return checked


def _in_this_cta(text: list[str], number: int) -> list[str]:
    """The text with the address that a line takes from mapa, where it does, as it is in the own CTA."""
    operand = re.search(r"\[(\S+?)\]", text[number])[1]
    mapped = rf"\s*mapa\.shared::cluster\.u32\s+{re.escape(operand)}, (%r\d+), \d;"
    for line in reversed(text[:number]):
        if found := re.match(mapped, line):
            return [*text[:number], text[number].replace(operand, found[1]), *text[number + 1 :]]
    return text


@dataclass(frozen=True)
class Crossings:
    """Every place of a kernel by name, in the order of its text.

    arrivals_at_0  arrivals in CTA 0: P of a masked tile comes after that of a whole one
    of_p           how many of them, the first ones, are those of P: p_ready and p_last of each loop of softmax
    committed      commits in both CTAs
    awaited        waits of the mma warp of CTA 0
    announced      announcements of bytes
    doubled, in_one, missing, flipped   which of them are planted in further ways
    product        number of the MMA that is planted as one of CTA 0
    closes         phases of p_ready that CTA 0 completes at the end
    not_reached    name of a commit or wait -> why no call gets there
    """

    name: str
    config: FA4Config
    arrivals_at_0: tuple[str, ...]
    committed: tuple[str, ...]
    awaited: tuple[str, ...]
    announced: tuple[str, ...]
    doubled: tuple[int, ...]
    in_one: tuple[int, ...]
    missing: tuple[int, ...]
    flipped: tuple[int, ...]
    closes: int
    of_p: int = 4
    product: int = 0
    not_reached: dict[str, str] = field(default_factory=dict)

    def mutants(self) -> Iterator[Mutant]:
        for group in (arrivals, commits, waits, loads, meetings):
            yield from group(self)
        yield from claims(self.planted)

    def planted(self, name, edit, meant, **why) -> Mutant:
        return Mutant(name, self.name, edit, meant, **why)

    def planted_at(self, names, n, words, pattern, edit, meant) -> Mutant:
        """At place n of those with names; words: of the defect, with the name for {}."""
        equivalent = self.not_reached.get(names[n], "")
        edit = named(self.config, names, pattern, edit)
        return self.planted(words.format(names[n]), edit, meant, equivalent=equivalent)


def arrivals(self: Crossings):
    """Arrivals at CTA 0: missing, at the own CTA, or before what they say."""

    def planted(n, words, edit, meant):
        return self.planted_at(self.arrivals_at_0, n, words, REMOTE, edit, meant)

    for n in range(len(self.arrivals_at_0)):
        yield planted(n, "no arrival on {}", edited(REMOTE, n, ""), HANG)
    for n in self.doubled:
        twice = edited(
            REMOTE, n, r"\g<0> mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, \1, 1;"
        )
        yield planted(n, "two arrivals on {}", twice, EARLY_OR_HANG)
    for n, what in enumerate(("p_ready", "p_last")):
        yield self.planted(
            f"both CTAs raise {what} of softmax in CTA 1",
            edited(MAPA, n, r"mapa.shared::cluster.u32 \1, \2, 1;"),
            EARLY_OR_HANG,
        )
    for n in range(self.of_p):
        fence = edited(BEFORE, -1, "", ahead_of=REMOTE, at=n)
        yield planted(n, "no tcgen05 fence before {}", fence, (*ORDER, "TensorOrderError"))
        stored = edited(STORED, -1, "", ahead_of=REMOTE, at=n)
        yield planted(n, "P is not awaited before {}", stored, (*ORDER, *IN_FLIGHT))


def commits(self: Crossings):
    """Commits: on one CTA alone, on the other alone, or missing."""

    def planted(n, words, edit, meant):
        return self.planted_at(self.committed, n, words, COMMIT, edit, meant)

    for n in range(len(self.committed)):
        mask = edited(BOTH, n, "mov.b16 both_ctas, 1;")
        yield planted(n, "{} is committed in CTA 0 alone", mask, (*HANG, *EARLY))
    for n in self.in_one:
        mask = edited(BOTH, n, "mov.b16 both_ctas, 2;")
        yield planted(n, "{} is committed in CTA 1 alone", mask, (*HANG, *EARLY))
    for n in self.missing:
        yield planted(n, "no commit on {}", edited(COMMIT, n, ""), HANG)


def waits(self: Crossings):
    """Waits of the mma warp of CTA 0: none, or without the fence after."""

    def planted(n, words, edit, meant):
        return self.planted_at(self.awaited, n, words, WAIT, edit, meant)

    for n in range(len(self.awaited)):
        passed = edited(WAIT, n, "setp.eq.u32 complete, 0, 0;")
        yield planted(n, "mma does not wait for {}", passed, (*EARLY, "TensorOrderError"))
    for n in self.flipped:
        flipped = r"{.reg .b32 other; xor.b32 other, \2, 1; "
        flipped += r"mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 complete, \1, other;}"
        edit = edited(WAIT, n, flipped)
        yield planted(n, "mma waits for the other parity of {}", edit, EARLY_OR_HANG)


def loads(self: Crossings):
    """Bytes of the other CTA, and which half is whose."""
    for n in range(len(self.announced)):
        half = r"{.reg .b32 half; shr.u32 half, \3, 1; mbarrier.arrive.expect_tx.shared.b64 \1, \2, half;}"
        words, edit = "half of the bytes are announced on {}", edited(EXPECT, n, half)
        yield self.planted_at(self.announced, n, words, EXPECT, edit, EARLY_OR_HANG)
    for n, what in ((0, "Q"), (-1, "V")):
        yield self.planted(
            f"a copy of {what} does not say that its mbarrier is that of the pair",
            edited(LOAD, n, r"\1 "),
            ("IllegalAccess", *EARLY_OR_HANG),
        )


def meetings(self):
    """The beginning and the end, where both CTAs meet."""
    first = several(edited(CLUSTER_BARRIER, 0, ""), edited(CLUSTER_BARRIER, 0, ""))
    yield self.planted(
        "the CTAs do not meet before they begin", first, (*COUNTS, *ORDER, *MEMORY, "EmulatorError")
    )
    last = several(edited(CLUSTER_BARRIER, -1, ""), edited(CLUSTER_BARRIER, -1, ""))
    yield self.planted("the CTAs do not meet before they end", last, (*GONE, *ORDER, *MEMORY))
    no_wait = edited(CLUSTER_BARRIER, -1, "")
    yield self.planted(
        "a CTA does not wait for the other one before it ends", no_wait, (*GONE, *ORDER, *MEMORY)
    )
    for n in range(self.closes):
        yield self.planted(
            f"CTA 0 does not close p_ready[{n}]",
            edited(CLOSE, n, r"bra.uni COMPLETE;"),
            (*GONE, *HANG),
        )
    more = r"mbarrier.arrive.relaxed.cluster.shared::cta.b64 state, \1, 7;"
    yield self.planted(
        "CTA 0 closes p_ready[0] with an arrival too few", edited(CLOSE, 0, more), HANG
    )
    for name, pattern in (
        ("tcgen05.alloc", r"tcgen05\.alloc\.cta_group::2"),
        ("tcgen05.dealloc", r"tcgen05\.dealloc\.cta_group::2"),
        ("tcgen05.relinquish_alloc_permit", r"tcgen05\.relinquish_alloc_permit\.cta_group::2"),
    ):
        one = edited(pattern, 0, f"{name}.cta_group::1")
        yield self.planted(f"{name} for one CTA", one, (*MEMORY, "EmulatorError"))
    yield self.planted(
        "a product for one CTA", edited(MMA, self.product, r"@leader_thread \1.cta_group::1\2, \3, \4;"),
        (*MEMORY, "EmulatorError"),
    )  # fmt: skip


def claims(planted: Callable) -> Iterator[Mutant]:
    """CTA 0 claims for both. planted: (name, edit, meant) -> the defect of a kernel."""
    alone = QUERY.replace(r"\.multicast::cluster::all", "")
    yield planted(
        "the answer comes to CTA 0 alone",
        edited(QUERY, 0, alone.replace("\\", "")),
        HANG,
    )
    yield planted(
        "CTA 1 does not say that it has read the answer", edited(ANSWER_READ, 0, ""), HANG
    )
    unfenced = edited(PROXY_FENCE, -1, "", ahead_of=ANSWER_READ)
    yield planted(
        "no fence between an answer that is read and the next one", unfenced, ("ProxyError",)
    )
    relaxed = r"mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, \1, 1;"
    yield planted("CTA 1 says so without a release", edited(ANSWER_READ, 0, relaxed), ORDER)
