"""Defects of the attention kernel's tensor memory and of the output's way through shared memory.

Places as in attention_defects.py; chunks of the output count O0 0, O0 1, O1 0, O1 1 (64 columns each), then the same
four again for a work tile without keys. CHUNK_BARRIER: before a chunk is written, before it is stored.
"""

import re

from tests.emulator.mutations.attention_places import (
    AFTER,
    ARRIVE,
    BEFORE,
    CAUSAL,
    CHUNK_BARRIER,
    FEW_KEYS,
    FULL,
    PROXY_FENCE,
    WAIT_LD,
    WAIT_ST,
    at,
)
from tests.emulator.mutations.edits import (
    ANY,
    FIRST,
    LAST,
    WAIT,
    ahead_of,
    behind,
    delete,
    matches,
    move,
    replace,
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


def allocation():
    """tcgen05.alloc, dealloc."""
    yield Mutant(
        "tensor memory is not freed", FULL, delete("epilogue", r"tcgen05\.dealloc\S+\s+.*;"), MEMORY
    )
    for part, what in (("epilogue", "freed"), ("prologue", "allocated")):
        edit = replace(part, r"(mov\.b32\s+%r\d+), 512;", r"\1, 256;")
        yield Mutant(f"half of tensor memory is {what}", FULL, edit, MEMORY)
    yield Mutant(
        "the permit to allocate is given back before the allocation",
        FULL,
        move("prologue", r"tcgen05\.relinquish", 0, 1, r"tcgen05\.alloc"),
        MEMORY,
    )
    yield Mutant(
        "tensor memory is freed without waiting for the other roles",
        FULL,
        delete("epilogue", r"bar\.sync\s+0;"),
        (*ORDER, *MEMORY),
    )


def fences():
    """tcgen05.wait::ld, wait::st, and the fences at a barrier."""
    arrival = lambda role, mbarrier, nth, of: ahead_of(role, ARRIVE, nth, of, on=at(mbarrier))
    awaited = lambda role, mbarrier, nth, of: behind(role, WAIT, nth, of, on=at(mbarrier))
    for role, place, pattern, which, what, meant in (
        ("softmax", arrival("softmax", "p_ready[0]", 0, 3), WAIT_ST, LAST,
         "wait::st before p_ready", ASYNCHRONY),
        ("softmax", arrival("softmax", "p_last[0]", 0, 2), WAIT_ST, LAST,
         "wait::st before p_last", ASYNCHRONY),
        ("correction", arrival("correction", "p_ready[0]", 1, 3), WAIT_ST, LAST,
         "wait::st after the rescale of O0", ASYNCHRONY),
        ("correction", arrival("correction", "p_ready[1]", 1, 3), WAIT_ST, LAST,
         "wait::st after the rescale of O1", ASYNCHRONY),
        ("softmax", awaited("softmax", "s_ready[0]", 0, 2), WAIT_LD, FIRST,
         "wait::ld after reading S", ORDER),
        ("correction", awaited("correction", "row_scale[0]", 0, 2), WAIT_LD, FIRST,
         "wait::ld after reading O0 to rescale it", ORDER),
        ("correction", awaited("correction", "o_ready[0]", 0, 1), WAIT_LD, FIRST,
         "wait::ld after reading O0 to store it", ORDER),
        ("correction", arrival("correction", "p_ready[1]", 2, 3), WAIT_LD, LAST,
         "wait::ld before O1 is free", ORDER),
        ("softmax", arrival("softmax", "p_ready[0]", 0, 3), BEFORE, LAST,
         "fence before p_ready", ORDER),
        ("softmax", arrival("softmax", "p_last[0]", 0, 2), BEFORE, LAST,
         "fence before p_last", ORDER),
        ("correction", arrival("correction", "p_ready[0]", 1, 3), BEFORE, LAST,
         "fence before p_ready[0]", ORDER),
        ("correction", arrival("correction", "p_ready[0]", 2, 3), BEFORE, LAST,
         "fence before O0 is free", ORDER),
        ("softmax", awaited("softmax", "s_ready[0]", 0, 2), AFTER, FIRST,
         "fence after s_ready", ORDER),
        ("correction", awaited("correction", "row_scale[0]", 0, 2), AFTER, FIRST,
         "fence after row_scale[0]", ORDER),
        ("correction", awaited("correction", "o_ready[0]", 0, 1), AFTER, FIRST,
         "fence after o_ready[0]", ORDER),
        ("mma", awaited("mma", "p_ready[0]", 0, 1), AFTER, FIRST, "fence after p_ready[0]", ORDER),
        ("mma", awaited("mma", "p_last[0]", 0, 1), AFTER, FIRST, "fence after p_last[0]", ORDER),
        ("mma", awaited("mma", "p_ready[1]", 1, 2), AFTER, FIRST,
         "fence after p_ready[1] of the last tile", ORDER),
    ):  # fmt: skip
        yield Mutant(f"{role}: no tcgen05.{what}", FULL, delete(place, pattern, which, ANY), meant)


def output():
    """The output's way through shared memory, and the stores."""
    for chunk, what in ((0, "O0"), (3, "O1")):
        yield Mutant(
            f"no proxy fence before a chunk of {what} is stored",
            FULL,
            delete("correction", PROXY_FENCE, chunk, 8),
            ORDER,
        )
        yield Mutant(
            f"no barrier before a chunk of {what} is stored",
            FULL,
            delete("correction", CHUNK_BARRIER, 2 * chunk + 1, 16),
            ASYNCHRONY,
        )
    buffer_read = r"cp\.async\.bulk\.wait_group\.read\s+1;"
    for chunk, what in ((0, "the last work tile's copy"), (2, "O0's copy")):
        yield Mutant(
            f"a chunk buffer is written before {what} has read it",
            FULL,
            delete("correction", buffer_read, chunk, 8),
            ASYNCHRONY,
        )
        yield Mutant(
            f"no barrier between the wait for {what} and the next chunk",
            FULL,
            delete("correction", CHUNK_BARRIER, 2 * chunk, 16),
            ASYNCHRONY,
        )
    yield Mutant(
        "two copies may be reading when a chunk buffer is written",
        FULL,
        replace("correction", r"(cp\.async\.bulk\.wait_group\.read\s+)1;", r"\g<1>2;", 1, 8),
        ASYNCHRONY,
    )
    for count, what, meant in (
        (64, "half of the threads", (*ASYNCHRONY, *COUNTS)),
        (256, "two warpgroups", HANG),
    ):
        yield Mutant(
            f"the barrier before a chunk counts {what}",
            FULL,
            replace("correction", r"(bar\.sync\s+1), 128;", rf"\1, {count};", 1, 16),
            meant,
        )
    yield Mutant(
        "the end does not wait for the copies of the output",
        FULL,
        delete("correction", r"cp\.async\.bulk\.wait_group\.read\s+0;"),
        IN_FLIGHT,
    )
    yield Mutant(
        "the end waits for all but the last copy of the output",
        FULL,
        replace("correction", r"(cp\.async\.bulk\.wait_group\.read\s+)0;", r"\g<1>1;"),
        IN_FLIGHT,
    )
    commit_group = r"cp\.async\.bulk\.commit_group;"
    yield Mutant(
        "a chunk's copy is not committed to a group",
        FULL,
        delete("correction", commit_group, 0, 8),
        ASYNCHRONY,
    )
    yield Mutant(
        "the last chunk's copy is not committed to a group",
        FULL,
        delete("correction", commit_group, 3, 8),
        (*IN_FLIGHT, *ASYNCHRONY),
    )
    yield Mutant(
        "no proxy fence before a chunk of zeros is stored",
        FEW_KEYS,
        delete("correction", PROXY_FENCE, 2, 4),
        ORDER,
    )
    yield Mutant(
        "a buffer is written with zeros before its last copy has read it",
        FEW_KEYS,
        delete("correction", buffer_read, 2, 4),
        ASYNCHRONY,
    )
    yield Mutant(
        "the LSE of rows beyond the end is stored", CAUSAL, _unguarded_lse, ("IllegalAccess",)
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
    vote = r"vote\.sync\.any\.pred\s+(%p\d+), (%p\d+), -1;"
    yield Mutant(
        "each thread decides alone whether O0 is rescaled",
        FULL,
        replace("correction", vote, r"mov.pred \1, \2;", 0, 2),
        ("DivergenceError", *HANG),
    )
    half = r"{.reg .pred some; .reg .b32 lane; mov.u32 lane, %laneid; setp.lt.u32 some, lane, 16; @some \g<0>}"
    yield Mutant(
        "an aligned instruction is executed by half of the warp",
        FULL,
        replace("softmax", WAIT_ST, half, 0, 4),
        ("DivergenceError",),
    )
    yield Mutant(
        "a vote that names half of the warp",
        FULL,
        replace("correction", vote, r"vote.sync.any.pred \1, \2, 65535;", 0, 2),
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
    """Every defect of tensor memory, the output, and registers."""
    for group in (allocation, fences, output, registers_and_lanes):
        yield from group()
