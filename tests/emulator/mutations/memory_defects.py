"""Defects of the attention kernel's tensor memory and of the output's way through shared memory.

Places as in attention_defects.py. A chunk of the output is 64 columns. Its way: wait until its buffer was read
(wait_group.read), CHUNK_BARRIER, write, PROXY_FENCE, CHUNK_BARRIER, copy; the last read of O frees it (o_free), so
that what follows is the last chunk's.
"""

from tests.emulator.mutations.attention_places import (
    AFTER,
    BEFORE,
    BUFFER_READ,
    CAUSAL,
    CHUNK_BARRIER,
    FACTOR,
    FEW_KEYS,
    FULL,
    P_LAST,
    P_READY,
    PROXY_FENCE,
    PV_LAST,
    PV_READY,
    WAIT_LD,
    WAIT_ST,
    WHOLE_TILE,
    arrival,
    o_free,
    o_ready,
    rescale,
    rescaled,
)
from tests.emulator.mutations.edits import delete, lines, move, replace
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
        "tensor memory is not freed",
        FULL,
        delete(lines("epilogue", r"tcgen05\.dealloc\S+\s+.*;")),
        MEMORY,
    )
    for part, what in (("epilogue", "freed"), ("prologue", "allocated")):
        edit = replace(lines(part, r"(mov\.b32\s+%r\d+), 512;"), r"\1, 256;")
        yield Mutant(f"half of tensor memory is {what}", FULL, edit, MEMORY)
    yield Mutant(
        "the permit to allocate is given back before the allocation",
        FULL,
        move(
            lines("prologue", r"tcgen05\.relinquish"), before=lines("prologue", r"tcgen05\.alloc")
        ),
        MEMORY,
    )
    yield Mutant(
        "tensor memory is freed without waiting for the other roles",
        FULL,
        delete(lines("epilogue", r"bar\.sync\s+0;")),
        (*ORDER, *MEMORY),
    )


def fences():
    """tcgen05.wait::ld, wait::st, and the fences at a barrier."""
    ahead = lambda role, place, pattern: lines(role, pattern).ahead_of(place).last
    after = lambda role, place, pattern: lines(role, pattern).after(place).first
    for role, place, what, meant in (
        ("softmax", ahead("softmax", P_READY, WAIT_ST), "wait::st before p_ready", ASYNCHRONY),
        ("softmax", ahead("softmax", P_LAST, WAIT_ST), "wait::st before p_last", ASYNCHRONY),
        ("correction", ahead("correction", rescaled(0), WAIT_ST),
         "wait::st after the rescale of O0", ASYNCHRONY),
        ("correction", ahead("correction", rescaled(1), WAIT_ST),
         "wait::st after the rescale of O1", ASYNCHRONY),
        ("softmax", after("softmax", WHOLE_TILE, WAIT_LD), "wait::ld after reading S", ORDER),
        ("correction", after("correction", rescale(0), WAIT_LD),
         "wait::ld after reading O0 to rescale it", ORDER),
        ("correction", after("correction", o_ready(0), WAIT_LD),
         "wait::ld after reading O0 to store it", ORDER),
        ("correction", ahead("correction", o_free(1), WAIT_LD),
         "wait::ld before O1 is free", ORDER),
        ("softmax", ahead("softmax", P_READY, BEFORE), "fence before p_ready", ORDER),
        ("softmax", ahead("softmax", P_LAST, BEFORE), "fence before p_last", ORDER),
        ("correction", ahead("correction", rescaled(0), BEFORE), "fence before p_ready[0]", ORDER),
        ("correction", ahead("correction", o_free(0), BEFORE), "fence before O0 is free", ORDER),
        ("softmax", after("softmax", WHOLE_TILE, AFTER), "fence after s_ready", ORDER),
        ("correction", after("correction", rescale(0), AFTER), "fence after row_scale[0]", ORDER),
        ("correction", after("correction", o_ready(0), AFTER), "fence after o_ready[0]", ORDER),
        ("mma", after("mma", PV_READY["O0"], AFTER), "fence after p_ready[0]", ORDER),
        ("mma", after("mma", PV_LAST["O0"], AFTER), "fence after p_last[0]", ORDER),
        ("mma", after("mma", PV_READY["the last O1"], AFTER),
         "fence after p_ready[1] of the last tile", ORDER),
    ):  # fmt: skip
        yield Mutant(f"{role}: no tcgen05.{what}", FULL, delete(place), meant)


COMMIT_GROUP = r"cp\.async\.bulk\.commit_group;"


def chunk(pattern, place):
    """The nearest line of correction after a matching place: of the chunk that begins or ends there."""
    return lines("correction", pattern).after(place).first


def output():
    """The output's way through shared memory, and the stores."""
    first_of_o0, first_of_o1, last_of_o1 = o_ready(0), o_ready(1), o_free(1)
    for place, what in ((first_of_o0, "O0"), (last_of_o1, "O1")):
        fence = chunk(PROXY_FENCE, place)
        yield Mutant(
            f"no proxy fence before a chunk of {what} is stored", FULL, delete(fence), ORDER
        )
        yield Mutant(
            f"no barrier before a chunk of {what} is stored",
            FULL,
            delete(chunk(CHUNK_BARRIER, fence)),
            ASYNCHRONY,
        )
    for place, what in ((first_of_o0, "the last work tile's copy"), (first_of_o1, "O0's copy")):
        was_read = chunk(BUFFER_READ, place)
        yield Mutant(
            f"a chunk buffer is written before {what} has read it",
            FULL,
            delete(was_read),
            ASYNCHRONY,
        )
        yield Mutant(
            f"no barrier between the wait for {what} and the next chunk",
            FULL,
            delete(chunk(CHUNK_BARRIER, was_read)),
            ASYNCHRONY,
        )
    one_left = r"(cp\.async\.bulk\.wait_group\.read\s+)1;"
    yield Mutant(
        "two copies may be reading when a chunk buffer is written",
        FULL,
        replace(lines("correction", one_left).ahead_of(o_free(0)).last, r"\g<1>2;"),
        ASYNCHRONY,
    )
    counted = r"(bar\.sync\s+1), 128;"
    for count, what, meant in (
        (64, "half of the threads", (*ASYNCHRONY, *COUNTS)),
        (256, "two warpgroups", HANG),
    ):
        stored = chunk(counted, chunk(PROXY_FENCE, first_of_o0))
        yield Mutant(
            f"the barrier before a chunk counts {what}",
            FULL,
            replace(stored, rf"\1, {count};"),
            meant,
        )
    yield Mutant(
        "the end does not wait for the copies of the output",
        FULL,
        delete(lines("correction", r"cp\.async\.bulk\.wait_group\.read\s+0;")),
        IN_FLIGHT,
    )
    yield Mutant(
        "the end waits for all but the last copy of the output",
        FULL,
        replace(lines("correction", r"(cp\.async\.bulk\.wait_group\.read\s+)0;"), r"\g<1>1;"),
        IN_FLIGHT,
    )
    yield Mutant(
        "a chunk's copy is not committed to a group",
        FULL,
        delete(chunk(COMMIT_GROUP, first_of_o0)),
        ASYNCHRONY,
    )
    yield Mutant(
        "the last chunk's copy is not committed to a group",
        FULL,
        delete(chunk(COMMIT_GROUP, last_of_o1)),
        (*IN_FLIGHT, *ASYNCHRONY),
    )
    zeros = chunk(
        COMMIT_GROUP, arrival("correction", "p_ready").last
    )  # after it: chunks of a work tile without keys
    yield Mutant(
        "no proxy fence before a chunk of zeros is stored",
        FEW_KEYS,
        delete(chunk(PROXY_FENCE, zeros)),
        ORDER,
    )
    yield Mutant(
        "a buffer is written with zeros before its last copy has read it",
        FEW_KEYS,
        delete(chunk(BUFFER_READ, zeros)),
        ASYNCHRONY,
    )
    yield Mutant(
        "the LSE of rows beyond the end is stored", CAUSAL, _unguarded_lse, ("IllegalAccess",)
    )


def _unguarded_lse(ptx):
    """The last comparison before the store of the LSE, with 65536 rows instead of what there are."""
    store = lines("softmax", r"st\.global\.b32")
    comparison = lines("softmax", r"(setp\.ge\.s32\s+%p\d+, %r\d+), %r\d+;")
    return replace(comparison.ahead_of(store).last, r"\1, 65536;")(ptx)


def registers_and_lanes():
    """Converged instructions, register pool."""
    vote = r"vote\.sync\.any\.pred\s+(%p\d+), (%p\d+), -1;"
    of_o0 = lines("correction", vote).after(rescale(0)).first
    yield Mutant(
        "each thread decides alone whether O0 is rescaled",
        FULL,
        replace(of_o0, r"mov.pred \1, \2;"),
        ("DivergenceError", *HANG),
    )
    half = r"{.reg .pred some; .reg .b32 lane; mov.u32 lane, %laneid; setp.lt.u32 some, lane, 16; @some \g<0>}"
    yield Mutant(
        "an aligned instruction is executed by half of the warp",
        FULL,
        replace(lines("softmax", WAIT_ST).after(FACTOR).first, half),
        ("DivergenceError",),
    )
    yield Mutant(
        "a vote that names half of the warp",
        FULL,
        replace(of_o0, r"vote.sync.any.pred \1, \2, 65535;"),
        ("DivergenceError", "EmulatorError"),
    )
    yield Mutant(
        "softmax asks for more registers than there are",
        FULL,
        replace(
            lines("softmax", r"setmaxnreg\.inc\S*\s+192;"), "setmaxnreg.inc.sync.aligned.u32 240;"
        ),
        HANG,
    )
    yield Mutant(
        "correction keeps its registers",
        FULL,
        delete(lines("correction", r"setmaxnreg\.dec\S*\s+88;")),
        HANG,
    )


def mutants():
    """Every defect of tensor memory, the output, and registers."""
    for group in (allocation, fences, output, registers_and_lanes):
        yield from group()
