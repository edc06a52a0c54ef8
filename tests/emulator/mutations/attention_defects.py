"""Defects of the attention kernel's synchronisation, planted in its PTX; one line is one mistake.

Numbers such as nth=9, of=14 count the instructions of one kind in a role, in the order of the PTX text:

    mma waits       0 q_full[0]  1 kv_full K0  2 q_full[1]  3 kv_full V0  4 p_ready[0]  5 p_last[0]
       (loop)       6 kv_full K  7 p_ready[1]  8 p_last[1]  9 kv_full V  10 p_ready[0] 11 p_last[0]
                   12 p_ready[1] 13 p_last[1]
    mma commits     0 s_ready[0]  1 s_ready[1]  2 kv_empty K0 | 3 s_ready[0]  4 kv_empty V  5 s_ready[1]
                    6 kv_empty K | 7 o_ready[0]  8 o_ready[1]
    softmax         whole tiles first, masked tiles second, then the output; arrivals of a tile:
                    0 row_scale  1 p_ready  2 p_last
    prologue        0 Q0  1 K0  2 Q1  3 V0;  waits for kv_empty  0 K0  1 V0
    load            0 K  1 V;  waits for kv_empty  0 K  1 V
    output          chunks of 64 columns: 0, 1, and again 0, 1 for rows that see no key
    correction      tile 0: both query tiles; then the loop: query tile 0, query tile 1

Defects of what is computed are in arithmetic_defects.py.
"""

import re

from cute_fa4.sm100 import barriers, smem_map
from cute_fa4.sm100.config import MBARRIER_BYTES, FA4Config
from tests.emulator.mutations.edits import (
    ALWAYS_TRUE,
    FLIPPED_PARITY,
    WAIT,
    both,
    delete,
    exchange,
    matches,
    move,
    replace,
    retarget,
)
from tests.emulator.mutations.mutant import (
    ASYNCHRONY,
    COUNTS,
    HANG,
    IN_FLIGHT,
    MEMORY,
    ORDER,
    Mutant,
)

FULL, CAUSAL = "d128_full", "d64_causal"

COMMIT = r"tcgen05\.commit\.\S+ (\[%r\d+\]);"
A_COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"
ARRIVE = r"mbarrier\.arrive\.shared\.b64 %rd\d+, (\[\S+\]), %r\d+;"
AN_INIT = "mbarrier.init.shared.b64"
AN_ARRIVAL = r"mbarrier.arrive.shared.b64 _, \1, 1;"
EXPECT = r"mbarrier\.arrive\.expect_tx\.shared\.b64 (%rd\d+), (\[\S+\]), (%r\d+);"
STORE_FACTOR = r"st\.shared\.b32\s+\[\S+\], (%r\d+);"
TMEM_STORE, TMEM_LOAD = (
    r"tcgen05\.st\.\S+ (\[%r\d+\]),.*;",
    r"tcgen05\.ld\.\S+ \{.*\}, (\[%r\d+\]);",
)


def mbarrier(name, index=0):
    """Address operand of an mbarrier of the kernel."""
    cfg = FA4Config()  # head dim 128, as the subject
    first = smem_map.regions(cfg)["mbarriers"].offset
    number = barriers.first_index(cfg, name) + index
    return f"[__dynamic_shmem__0+{first + number * MBARRIER_BYTES}]"


def init(name, text):
    """Edit of the mbarrier.init of the first barrier of a kind: lane n of one instruction makes barrier n.

    text: instructions with the address as group 1 and the count as group 2; they may use `mine` and `changed`.
    """
    lane = barriers.first_index(FA4Config(), name)
    return replace(
        "prologue",
        r"mbarrier\.init\.shared\.b64 \s*(\[\S+\]), (%r\d+);",
        "{.reg .pred mine; .reg .b32 lane, changed; mov.u32 lane, %laneid; "
        f"setp.eq.u32 mine, lane, {lane}; {text}}}",
    )


def expect(nbytes, role, nth, of):
    return replace(
        role, EXPECT, rf"mbarrier.arrive.expect_tx.shared.b64 \1, \2, {nbytes};", nth, of
    )


def waits():
    """A wait removed, and a wait for the wrong parity."""
    places = [
        ("mma", 0, 14, "q_full[0] before S0"),
        ("mma", 2, 14, "q_full[1] before S1"),
        ("mma", 1, 14, "kv_full for the first K"),
        ("mma", 6, 14, "kv_full for K"),
        ("mma", 9, 14, "kv_full for V"),
        ("mma", 10, 14, "p_ready[0]"),
        ("mma", 7, 14, "p_ready[1]"),
        ("mma", 11, 14, "p_last[0]"),
        ("mma", 13, 14, "p_last[1] of the last tile"),
        ("softmax", 0, 3, "s_ready"),
        ("softmax", 2, 3, "o_ready"),
        ("correction", 2, 4, "row_scale[0]"),
        ("correction", 3, 4, "row_scale[1]"),
        ("load", 0, 2, "kv_empty before K"),
        ("load", 1, 2, "kv_empty before V"),
    ]
    for role, nth, of, what in places:
        edit = replace(role, WAIT, ALWAYS_TRUE, nth, of)
        yield Mutant(f"{role} does not wait for {what}", FULL, edit, (*ASYNCHRONY, *COUNTS))
    yield Mutant(
        "correction does not let the first factor of query tile 0 pass",
        FULL,
        replace("correction", WAIT, ALWAYS_TRUE, 0, 4),
        (*ASYNCHRONY, *COUNTS),
    )
    flipped = [
        ("mma", 6, 14, "kv_full for K"),
        ("mma", 10, 14, "p_ready[0]"),
        ("mma", 11, 14, "p_last[0]"),
        ("softmax", 0, 3, "s_ready"),
        ("softmax", 2, 3, "o_ready"),
        ("correction", 2, 4, "row_scale[0]"),
        ("load", 0, 2, "kv_empty before K"),
    ]
    for role, nth, of, what in flipped:
        edit = replace(role, WAIT, FLIPPED_PARITY, nth, of)
        yield Mutant(
            f"{role} waits for the other parity of {what}",
            FULL,
            edit,
            (*ASYNCHRONY, *COUNTS, *HANG),
        )


def bytes_and_counts():
    """mbarrier.init, expect_tx."""
    few = (*ASYNCHRONY, *COUNTS, *HANG)
    yield Mutant("Q0: half of its bytes are expected", FULL, expect(16384, "prologue", 0, 4), few)
    yield Mutant("K: half of its bytes are expected", FULL, expect(16384, "load", 0, 2), few)
    yield Mutant("V: 16 bytes too few are expected", FULL, expect(32752, "load", 1, 2), few)
    yield Mutant("V: 16 bytes too many are expected", FULL, expect(32784, "load", 1, 2), HANG)
    yield Mutant("K: twice its bytes are expected", FULL, expect(65536, "load", 0, 2), HANG)
    yield Mutant(
        "K: an arrival without expect_tx",
        FULL,
        replace("load", EXPECT, r"mbarrier.arrive.shared.b64 \1, \2, 1;", 0, 2),
        few,
    )
    for count, name, what in (
        (255, "p_ready", "one arrival too few"),
        (257, "p_ready", "one arrival too many"),
        (127, "row_scale", "one arrival too few"),
        (129, "row_scale", "one arrival too many"),
        (127, "p_last", "one arrival too few"),
        (2, "s_ready", "one arrival too many"),
        (2, "kv_full", "one arrival too many"),
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
        delete("prologue", r"bar\.sync\s+0;"),
        (*ASYNCHRONY, *COUNTS),
    )
    yield Mutant(
        "no fence.mbarrier_init",
        FULL,
        delete("prologue", r"fence\.mbarrier_init\S*;"),
        (*COUNTS, *ORDER),
    )


def arrivals():
    """An arrival that is missing, too many, too early or elsewhere."""
    yield Mutant("softmax does not raise row_scale", FULL, delete("softmax", ARRIVE, 0, 6), HANG)
    yield Mutant("softmax does not raise p_last", FULL, delete("softmax", ARRIVE, 2, 6), HANG)
    yield Mutant(
        "correction does not raise p_ready[1]", FULL, delete("correction", ARRIVE, 3, 4), HANG
    )
    elected = r"{.reg .pred one; elect.sync _|one, 0xffffffff; @one \g<0>}"
    yield Mutant(
        "one thread a warp raises p_ready", FULL, replace("softmax", ARRIVE, elected, 1, 6), HANG
    )
    twice = r"\g<0> " + AN_ARRIVAL
    yield Mutant(
        "softmax raises p_ready twice",
        FULL,
        replace("softmax", ARRIVE, twice, 1, 6),
        (*ASYNCHRONY, *COUNTS),
    )
    yield Mutant(
        "correction raises p_ready[0] twice",
        FULL,
        replace("correction", ARRIVE, twice, 2, 4),
        (*ASYNCHRONY, *COUNTS),
    )
    yield Mutant(
        "p_ready and p_last are confused by softmax",
        FULL,
        exchange("softmax", ARRIVE, 1, 2, 6),
        (),
        equivalent="p_ready is then raised after all of P is stored, and the MMA waits for both: only later",
    )
    for nth, name, store, what in ((1, "p_ready", 2, "third"), (2, "p_last", 3, "last")):
        yield Mutant(
            f"{name} is raised before the {what} quarter of P is stored",
            FULL,
            move("softmax", ARRIVE, nth, 6, TMEM_STORE, store, 8, by=AN_ARRIVAL),
            ASYNCHRONY,
        )
    yield Mutant(
        "row_scale is raised before the factor is stored",
        FULL,
        move("softmax", ARRIVE, 0, 6, STORE_FACTOR, 0, 4, by=AN_ARRIVAL),
        ASYNCHRONY,
    )
    yield Mutant(
        "the factor is not stored",
        FULL,
        delete("softmax", STORE_FACTOR, 0, 4),
        ("UninitializedRead",),
    )
    yield Mutant(
        "correction reads the factor of the other query tile",
        FULL,
        retarget("correction", r"ld\.shared\.b32\s+%r\d+, (\[\S+\]);", 0, 2, like=1),
        ASYNCHRONY,
    )


def commits():
    """tcgen05.commit: missing, elsewhere, too early, replaced by an arrival."""
    for nth, what in (
        (3, "s_ready[0]"),
        (6, "kv_empty of K"),
        (4, "kv_empty of V"),
        (7, "o_ready[0]"),
    ):
        edit = delete("mma", "@leader_thread " + COMMIT, nth, 9)
        yield Mutant(f"no commit on {what}", FULL, edit, HANG)
    elsewhere = (*ASYNCHRONY, *COUNTS, *HANG)
    yield Mutant(
        "S0 is committed on s_ready[1]",
        FULL,
        replace("mma", COMMIT, f"{A_COMMIT} {mbarrier('s_ready', 1)};", 3, 9),
        elsewhere,
    )
    yield Mutant(
        "K is committed on the slot of V", FULL, retarget("mma", COMMIT, 6, 9, like=4), elsewhere
    )
    yield Mutant("K's slot is released before S1 reads it", FULL, _early_release, ASYNCHRONY)
    for nth, what in (
        (6, "K's slot is released"),
        (4, "V's slot is released"),
        (3, "s_ready is raised"),
    ):
        yield Mutant(
            f"{what} by an arrival of the thread that issued the MMAs",
            FULL,
            replace("mma", COMMIT, AN_ARRIVAL, nth, 9),
            ASYNCHRONY,
        )
    yield Mutant(
        "o_ready[1] is committed before the last P V",
        FULL,
        both(
            delete("mma", "@leader_thread " + COMMIT, 8, 9),
            replace(
                "mma",
                COMMIT,
                rf"\g<0> @leader_thread {A_COMMIT} {mbarrier('o_ready', 1)};",
                7,
                8,
            ),
        ),
        ASYNCHRONY,
    )
    yield Mutant(
        "all threads of the warp commit s_ready[0]",
        FULL,
        replace("mma", r"@leader_thread (tcgen05\.commit)", r"\1", 3, 9),
        COUNTS,
    )


def _early_release(ptx):
    """The commit on kv_empty of K, with the computation of its address, to behind the commit of S0."""
    lines = ptx.split("\n")
    found = matches(lines, "mma", COMMIT, 9)
    address = re.search(COMMIT, lines[found[6]])[1].strip("[]")
    (definition,) = matches(lines, "mma", rf"add\.s32\s+{address}, ", 1)
    moved = [lines[definition], lines[found[6]]]
    lines[definition] = lines[found[6]] = ""
    lines[found[3]] = "\n".join([lines[found[3]], *moved])
    return "\n".join(lines)


def tensor_memory():
    """Allocation, waits and fences of tensor memory."""
    yield Mutant(
        "tensor memory is not freed",
        FULL,
        delete("epilogue", r"tcgen05\.dealloc\S+\s+.*;"),
        MEMORY,
    )
    half = r"\1, 256;"
    yield Mutant(
        "half of tensor memory is freed",
        FULL,
        replace("epilogue", r"(mov\.b32\s+%r\d+), 512;", half),
        MEMORY,
    )
    yield Mutant(
        "half of tensor memory is allocated",
        FULL,
        replace("prologue", r"(mov\.b32\s+%r\d+), 512;", half),
        MEMORY,
    )
    yield Mutant(
        "the permit to allocate is given back before the allocation",
        FULL,
        move("prologue", r"tcgen05\.relinquish", 0, 1, r"tcgen05\.alloc", 0, 1),
        MEMORY,
    )
    yield Mutant(
        "tensor memory is freed without waiting for the other roles",
        FULL,
        delete("epilogue", r"bar\.sync\s+0;"),
        (*ORDER, *MEMORY),
    )
    wait_st, wait_ld = r"tcgen05\.wait::st\S*;", r"tcgen05\.wait::ld\S*;"
    for role, nth, of, what in (
        ("softmax", 0, 4, "before p_ready"),
        ("softmax", 1, 4, "before p_last"),
        ("correction", 0, 2, "after the rescale of O0"),
        ("correction", 1, 2, "after the rescale of O1"),
    ):
        edit = delete(role, wait_st, nth, of)
        yield Mutant(f"{role}: no tcgen05.wait::st {what}", FULL, edit, ASYNCHRONY)
    for role, nth, of, what in (
        ("softmax", 0, 6, "after reading S"),
        ("softmax", 2, 6, "after reading O"),
        ("correction", 0, 16, "after reading O0"),
    ):
        edit = delete(role, wait_ld, nth, of)
        yield Mutant(f"{role}: no tcgen05.wait::ld {what}", FULL, edit, ORDER)
    before, after = r"tcgen05\.fence::before\S*;", r"tcgen05\.fence::after\S*;"
    for role, pattern, nth, of, what in (
        ("softmax", before, 0, 4, "before p_ready"),
        ("softmax", before, 1, 4, "before p_last"),
        ("correction", before, 0, 2, "before p_ready[0]"),
        ("softmax", after, 0, 3, "after s_ready"),
        ("softmax", after, 2, 3, "after o_ready"),
        ("correction", after, 0, 2, "after row_scale[0]"),
        ("mma", after, 4, 8, "after p_ready[0]"),
        ("mma", after, 5, 8, "after p_last[0]"),
    ):
        edit = delete(role, pattern, nth, of)
        yield Mutant(f"{role}: no tcgen05.fence {what}", FULL, edit, ORDER)


def output():
    """The output's way through shared memory, and the stores."""
    yield Mutant(
        "no proxy fence before the output is stored",
        FULL,
        delete("softmax", r"fence\.proxy\.async\S*;", 0, 4),
        ORDER,
    )
    bar = r"(bar\.sync\s+%r\d+), 128;"
    yield Mutant(
        "no barrier before the output is stored", FULL, delete("softmax", bar, 0, 4), ASYNCHRONY
    )
    yield Mutant(
        "the barrier before the output counts half of the threads",
        FULL,
        replace("softmax", bar, r"\1, 64;", 0, 4),
        (*ASYNCHRONY, *COUNTS),
    )
    yield Mutant(
        "the barrier before the output counts both warpgroups",
        FULL,
        replace("softmax", bar, r"\1, 256;", 0, 4),
        HANG,
    )
    yield Mutant(
        "the store of the output is not waited for",
        FULL,
        delete("softmax", r"cp\.async\.bulk\.wait_group\s+0;"),
        IN_FLIGHT,
    )
    yield Mutant(
        "the store of the output is not committed to a group",
        FULL,
        delete("softmax", r"cp\.async\.bulk\.commit_group;"),
        IN_FLIGHT,
    )
    yield Mutant(
        "the LSE of rows beyond the end is stored",
        CAUSAL,
        _unguarded_lse,
        ("IllegalAccess",),
    )


def _unguarded_lse(ptx):
    """The last comparison before the store of the LSE, with 65536 rows instead of what there are."""
    lines = ptx.split("\n")
    (store,) = matches(lines, "softmax", r"st\.global\.b32", 1)
    comparison = r"(setp\.ge\.s32\s+%p\d+, %r\d+), %r\d+;"
    guard = max(i for i in range(store) if re.search(comparison, lines[i]))
    lines[guard] = re.sub(comparison, r"\1, 65536;", lines[guard])
    return "\n".join(lines)


def registers_and_lanes():
    """Converged instructions, register pool."""
    yield Mutant(
        "each thread decides alone whether O0 is rescaled",
        FULL,
        replace(
            "correction",
            r"vote\.sync\.any\.pred\s+(%p\d+), (%p\d+), -1;",
            r"mov.pred \1, \2;",
            0,
            2,
        ),
        ("DivergenceError", *HANG),
    )
    half = r"{.reg .pred some; .reg .b32 lane; mov.u32 lane, %laneid; setp.lt.u32 some, lane, 16; @some \g<0>}"
    yield Mutant(
        "an aligned instruction is executed by half of the warp",
        FULL,
        replace("softmax", r"tcgen05\.wait::st\S*;", half, 0, 4),
        ("DivergenceError",),
    )
    yield Mutant(
        "a vote that names half of the warp",
        FULL,
        replace("correction", r"(vote\.sync\.any\.pred\s+%p\d+, %p\d+), -1;", r"\1, 65535;", 0, 2),
        ("DivergenceError", "EmulatorError"),
    )
    yield Mutant(
        "softmax asks for more registers than there are",
        FULL,
        replace("softmax", r"setmaxnreg\.inc\S*\s+192;", "setmaxnreg.inc.sync.aligned.u32 240;"),
        HANG,
    )
    yield Mutant(
        "correction keeps its registers",
        FULL,
        delete("correction", r"setmaxnreg\.dec\S*\s+88;"),
        HANG,
    )


def mutants():
    """Every defect of the kernel's synchronisation."""
    for group in (
        waits, bytes_and_counts, arrivals, commits, tensor_memory, output, registers_and_lanes,
    ):  # fmt: skip
        yield from group()


__all__ = ["CAUSAL", "FULL", "TMEM_LOAD", "TMEM_STORE", "mutants"]
