"""Defects of the small kernels (small_kernels.py), each with the checks that are meant to catch it."""

from tests.emulator.mutations import edits
from tests.emulator.mutations.edits import Place, delete, lines, replace
from tests.emulator.mutations.mutant import (
    ASYNCHRONY,
    COUNTS,
    HANG,
    IN_FLIGHT,
    MEMORY,
    ORDER,
    WRONG_NUMBERS,
    Mutant,
)


def place(pattern) -> Place:
    """A pattern, or a place already."""
    return pattern if isinstance(pattern, Place) else lines("kernel", pattern)


def line(pattern, by):
    return replace(place(pattern), by)


def without(pattern):
    return delete(place(pattern))


def move(pattern, before):
    return edits.move(place(pattern), before=place(before))


NO_WAIT = r"setp.eq.u32 %p9, 0, 0;"


def handover():
    """Two mbarriers, generic accesses only."""
    wait_line = r"mbarrier\.try_wait\.parity\S* %p9, \[.*\], .*;"
    for name, edit, meant in (
        ("the reader does not wait", line(place(wait_line).last, NO_WAIT), (*ASYNCHRONY, *COUNTS)),
        ("the writer does not wait", line(place(wait_line).first, NO_WAIT), (*ASYNCHRONY, *COUNTS)),
        (
            "the writer waits for parity 0 first",
            line(r"xor\.b32 %r12, %r11, 1;", "mov.b32 %r12, %r11;"),
            HANG,
        ),
        (
            "the reader waits for parity 1 first",
            line(r"(%p9, \[%r2\]), %r11;", r"\1, %r12;"),
            (*ASYNCHRONY, *COUNTS, *HANG),
        ),
        (
            "the reader never changes its parity",
            line(r"(%p9, \[%r2\]), %r11;", r"\1, 0;"),
            (*ASYNCHRONY, *COUNTS, *HANG),
        ),
        ("full counts 31", line(r"(init\.shared\.b64 \[%r2\]), 32;", r"\1, 31;"), COUNTS),
        ("full counts 33", line(r"(init\.shared\.b64 \[%r2\]), 32;", r"\1, 33;"), (*COUNTS, *HANG)),
        (
            "full counts the threads of both warps",
            line(r"(init\.shared\.b64 \[%r2\]), 32;", r"\1, 64;"),
            HANG,
        ),
        (
            "the reader never frees the buffer",
            without(r"mbarrier\.arrive\S* _, \[%r2\+8\], 1;"),
            HANG,
        ),
        (
            "the reader frees the buffer before it reads",
            move(r"ld\.shared\.b32 %r13", before=r"add\.s32 %r13, %r13, 1;"),
            ASYNCHRONY,
        ),
        (
            "the writer announces before it writes",
            move(r"mbarrier\.arrive\S* _, \[%r2\], 1;", before=r"st\.shared\.b32 \[%r6"),
            ASYNCHRONY,
        ),
        (
            "the arrival is relaxed",
            line(
                r"mbarrier\.arrive\.shared\.b64 _, \[%r2\], 1;",
                "mbarrier.arrive.relaxed.cta.shared.b64 _, [%r2], 1;",
            ),
            ORDER,
        ),
        (
            "the wait is relaxed",
            line(r"(mbarrier\.try_wait\.parity)(\.shared\.b64 %p9, \[%r2\])", r"\1.relaxed.cta\2"),
            ORDER,
        ),
        ("no barrier between init and use", without(r"bar\.sync 0;"), (*ORDER, *COUNTS)),
        (
            "one store in the buffer is a row too far",
            line(r"st\.shared\.b32 \[%r6\+128\]", "st.shared.b32 [%r6+132]"),
            ASYNCHRONY,
        ),
        (
            "the buffer overlaps the mbarriers",
            line(r"st\.shared\.b32 \[%r6\+128\]", "st.shared.b32 [%r6]"),
            COUNTS + ("IllegalAccess",),
        ),
    ):
        yield Mutant(f"handover: {name}", "handover", edit, meant)


def bulk():
    """Asynchronous proxy in both directions."""
    wait_line = r"mbarrier\.try_wait\.parity\S* %p9, \[.*\], .*;"
    few = (*ASYNCHRONY, *COUNTS, *HANG)
    for name, edit, meant in (
        ("nobody waits for the copy", line(wait_line, NO_WAIT), ASYNCHRONY),
        ("half of the bytes are expected", line(place(r", 256;").first, ", 128;"), few),
        (
            "the copy brings half of the bytes",
            line(r", 256, \[%r2\];", ", 128, [%r2];"),
            (*HANG, "UninitializedRead"),
        ),
        (
            "no bytes are expected",
            line(
                r"arrive\.expect_tx\.shared\.b64 _, \[%r2\], 256;", "arrive.shared.b64 _, [%r2], 1;"
            ),
            few,
        ),
        (
            "every thread expects the bytes",
            without(r"@%p1 bra loaded;"),
            (*few, "IllegalAccess"),
        ),
        ("no proxy fence before the bulk store", without(r"fence\.proxy\.async\S*;"), ORDER),
        ("no fence after mbarrier.init", without(r"fence\.mbarrier_init\S*;"), COUNTS),
        (
            "the proxy fence is an ordinary fence",
            line(r"fence\.proxy\.async\S*;", "fence.acq_rel.cta;"),
            ORDER,
        ),
        ("no barrier before the bulk store", without(r"bar\.sync 1, 64;"), ASYNCHRONY),
        ("nobody waits for the bulk store", without(r"cp\.async\.bulk\.wait_group 0;"), IN_FLIGHT),
        ("the group is not committed", without(r"cp\.async\.bulk\.commit_group;"), IN_FLIGHT),
        ("all but one group are waited for", line(r"wait_group 0;", "wait_group 1;"), IN_FLIGHT),
        (
            "the bulk store is 16 bytes too long",
            line(r"\[%r2\+128\], 256;", "[%r2+128], 272;"),
            ("IllegalAccess", "UninitializedRead"),
        ),
        (
            "the bulk store is 8 bytes too short",
            line(r"\[%r2\+128\], 256;", "[%r2+128], 248;"),
            ("IllegalAccess",),
        ),
        (
            "a number is changed after the barrier",
            move(r"st\.shared\.b32 \[%r4", before=r"@%p1 bra stored;"),
            ORDER,
        ),
    ):
        yield Mutant(f"bulk: {name}", "bulk", edit, meant)
    yield Mutant(
        "bulk: only the reads of the bulk store are waited for",
        "bulk",
        line(r"wait_group 0;", "wait_group.read 0;"),
        (),
        equivalent="no thread writes the buffer or reads the result afterwards, and the end of the grid "
        "completes the writes",
    )

    yield Mutant(
        "bulk: the proxy fence comes after the barrier",
        "bulk",
        move(r"fence\.proxy\.async\S*;", before=r"@%p1 bra stored;"),
        (),
        equivalent="the thread that stores executes the fence, and the barrier orders the other threads' "
        "writes before it: the fence lies on the path from every write to the copy",
    )


def cluster():
    """Distributed shared memory and remote arrivals."""
    sync = r"barrier\.cluster\.(arrive\.release|wait\.acquire)\.aligned;"
    begin = place(sync).ahead_of(place(r"ld\.global"))
    end = place(sync).after(place(r"st\.global"))
    for name, edit, meant in (
        (
            "the arrival goes to the own CTA",
            line(r"(mapa\S* %r10, %r2), %r5;", r"\1, %r4;"),
            (*ASYNCHRONY, *HANG),
        ),
        (
            "the number goes to the own CTA",
            line(r"(mapa\S* %r9, %r7), %r5;", r"\1, %r4;"),
            (WRONG_NUMBERS, *ASYNCHRONY),
        ),
        (
            "the arrival goes to a rank that does not exist",
            line(r"(mapa\S* %r10, %r2), %r5;", r"\1, 2;"),
            ("IllegalAccess", "EmulatorError"),
        ),
        (
            "the peer's mbarrier may not be initialised yet",
            without(begin),
            (*ORDER, *COUNTS, "IllegalAccess"),
        ),
        (
            "the number is not waited for",
            line(r"mbarrier\.try_wait\S* %p9, \[%r2\], 0;", NO_WAIT),
            ASYNCHRONY,
        ),
        (
            "the arrival is relaxed",
            line(r"arrive\.release\.cluster", "arrive.relaxed.cluster"),
            ORDER,
        ),
        ("the wait is relaxed", line(r"parity\.acquire\.cluster", "parity.relaxed.cluster"), ORDER),
        ("the wait is tried once", without(r"@!%p9 bra arrived;"), ASYNCHRONY),
        (
            "the barrier counts the warps of both CTAs",
            line(r"(init\.shared\.b64 \[%r2\]), 32;", r"\1, 64;"),
            HANG,
        ),
        ("the barrier counts 31", line(r"(init\.shared\.b64 \[%r2\]), 32;", r"\1, 31;"), COUNTS),
        (
            "the number is sent after the arrival",
            move(r"mbarrier\.arrive", before=r"st\.shared::cluster"),
            ASYNCHRONY,
        ),
        (
            "lane 0 skips the cluster barrier",
            line(begin.first, r"@%p1 \g<0>"),
            ("DivergenceError",),
        ),
    ):
        yield Mutant(f"cluster: {name}", "cluster", edit, meant)

    for name, edit in (
        (
            "the arrival has the scope of the CTA",
            line(r"arrive\.release\.cluster", "arrive.release.cta"),
        ),
        (
            "the wait has the scope of the CTA",
            line(r"parity\.acquire\.cluster", "parity.acquire.cta"),
        ),
        ("the arrival names no scope", line(r"arrive\.release\.cluster", "arrive")),
        ("the wait names no scope", line(r"parity\.acquire\.cluster", "parity")),
    ):
        yield Mutant(f"cluster: {name}", "cluster", edit, ORDER)
    yield Mutant(
        "cluster: no cluster barrier at the end",
        "cluster",
        without(end),
        (),
        equivalent="a CTA waits for its peer's arrival, which is the peer's last access to it",
    )


def product():
    """Generic writes, tensor core, tensor memory."""
    wait_line = r"mbarrier\.try_wait\.parity\S* %p9, \[.*\], .*;"
    commit = r"tcgen05\.commit\.\S+ \[%r2\];"
    for name, edit, meant in (
        ("no proxy fence before the MMA", without(r"fence\.proxy\.async\S*;"), ORDER),
        (
            "no barrier before the MMA",
            without(place(r"bar\.sync 0;").first),
            (*ASYNCHRONY, *COUNTS),
        ),
        ("no commit", without(commit), HANG),
        (
            "the commit precedes the MMA",
            move(commit, before=r"tcgen05\.mma"),
            ASYNCHRONY,
        ),
        (
            "the commit is an arrival",
            line(commit, "mbarrier.arrive.shared.b64 _, [%r2], 1;"),
            ASYNCHRONY,
        ),
        ("nobody waits for the commit", line(wait_line, NO_WAIT), ASYNCHRONY),
        ("the wait is for parity 1", line(r"%p9, \[%r2\], 0;", "%p9, [%r2], 1;"), ASYNCHRONY),
        (
            "no tcgen05.fence after the wait",
            without(place(r"tcgen05\.fence::after\S*;").last),
            ORDER,
        ),
        ("no tcgen05.wait::ld", without(r"tcgen05\.wait::ld\S*;"), ORDER),
        ("tensor memory is not freed", without(r"tcgen05\.dealloc.*;"), MEMORY),
        (
            "tensor memory is freed by the warp that is through first",
            without(place(r"bar\.sync 0;").last),
            (*ORDER, *MEMORY),
        ),
        (
            "the address of tensor memory is read before the barrier",
            move(r"ld\.shared\.b32 %r8", before=r"fence\.proxy\.async"),
            ASYNCHRONY,
        ),
        ("16 columns are allocated", line(r"(tcgen05\.alloc.*), 32;", r"\1, 16;"), MEMORY),
        (
            "D adds to what nobody wrote",
            line(r"setp\.ne\.u32 %p3, %r1, %r1;", "setp.eq.u32 %p3, %r1, %r1;"),
            ("UninitializedRead",),
        ),
        (
            "the chunks of A are 1024 bytes apart",
            line(r"or\.b32 %r9, %r9, 8388608;", "or.b32 %r9, %r9, 4194304;"),
            (WRONG_NUMBERS,),
        ),
        (
            "B has 64 rows in the instruction descriptor",
            line(r"0x8080490", "0x8100490"),
            (*MEMORY, "UninitializedRead"),
        ),
        (
            "a lane of the third warp's columns is read by the second",
            line(r"shr\.u32 %r11, %r1, 5;", "shr.u32 %r11, %r1, 4;"),
            (*MEMORY, "EmulatorError"),
        ),
        (
            "B's second chunk is not written",
            without(r"st\.shared\.v4\.b32 \[%r6\+5632\].*;"),
            ("UninitializedRead",),
        ),
        (
            "only half of the lanes load",
            line(r"(tcgen05\.ld\S* \{%r20)", r"@!%p4 \1"),
            ("DivergenceError",),
        ),
    ):
        if "half of the lanes" in name:
            edit = _half_of_the_lanes
        yield Mutant(f"product: {name}", "product", edit, meant)


def _half_of_the_lanes(ptx):
    half = "and.b32 %r15, %r1, 16; setp.ne.u32 %p4, %r15, 0; "
    return line(r"(tcgen05\.ld\S* \{%r20)", rf"{half}@!%p4 \1")(ptx)


def staged():
    """cp.async groups."""
    for name, edit, meant in (
        ("the first group is not waited for", line(r"wait_group 1;", "wait_group 2;"), ASYNCHRONY),
        ("the second group is not waited for", line(r"wait_group 0;", "wait_group 1;"), ASYNCHRONY),
        (
            "both copies are one group",
            without(place(r"cp\.async\.commit_group;").first),
            ASYNCHRONY,
        ),
        ("no barrier after the first wait", without(place(r"bar\.sync 0;").first), ASYNCHRONY),
        ("no barrier after the second wait", without(place(r"bar\.sync 0;").last), ASYNCHRONY),
        (
            "the copies overlap",
            line(r"\[%r4\+256\], \[%rd4", "[%r4+252], [%rd4"),
            (*ASYNCHRONY, WRONG_NUMBERS),
        ),
        (
            "the copy reads beyond the input",
            line(r"\[%rd4\+256\]", "[%rd4+260]"),
            ("IllegalAccess",),
        ),
    ):
        yield Mutant(f"staged: {name}", "staged", edit, meant)


def mutants():
    """Every defect of the small kernels."""
    for group in (handover, bulk, cluster, product, staged):
        yield from group()
