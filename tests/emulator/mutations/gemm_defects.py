"""Defects of a stranger's GEMM (tests/emulator/three_stage_gemm.py), and what their reports must say.

Each is one mistake of one line of PTX. `says` are regular expressions: where the emulator can know the cause, they ask
for it: who arrived, bytes announced and arrived, both accesses, the allocation. The schedule is the tamest, in_order.
"""

from tests.emulator.mutations.edits import (
    ALWAYS_TRUE,
    FLIPPED_PARITY,
    PARITY_0,
    delete,
    move,
    replace,
)
from tests.emulator.mutations.gemm_places import (
    ALLOC,
    ARRIVAL,
    COMMITS,
    DEALLOC,
    EXPECT,
    FENCES,
    INITS,
    LOADS,
    NBYTES,
    PARITY_1,
    READ,
    RELINQUISH,
    SYNCS,
    TWICE,
    WAITS,
    Defect,
    at,
    count,
)

FENCE_DEFECTS = (
    Defect(
        "no proxy fence before the TMA store",
        delete(at(r"fence\.proxy\.async\.shared::cta;")),
        "ProxyError",
        (r"no fence\.proxy\.async", r"cute\.copy\(c_atom", r"autovec_copy\(registers"),
    ),
    Defect(
        "no fence after mbarrier.init",
        delete(at(r"fence\.mbarrier_init\S*;")),
        "BarrierError",
        (r"full\[0\].*fence\.mbarrier_init", r"mbarrier_init\(full", r"cute\.copy\(atoms\[0\]"),
        "ptx",
    ),
    *(
        Defect(
            f"no tcgen05.fence {where}",
            delete(FENCES[where]),
            "TensorOrderError",
            (r"\(accumulator\[:, \d+\]\)", "before_thread_sync", "after_thread_sync"),
            "ptx",
        )
        for where in FENCES
    ),
    Defect(
        "no tcgen05.wait::ld",
        delete(at(r"tcgen05\.wait::ld\S*;")),
        "RegisterHazard",
        (r"used before tcgen05\.wait::ld", r"autovec_copy\(registers"),
        "ptx",  # at "hardware" these registers are interlocked
    ),
    *(
        Defect(
            f"no commit to {name}",
            delete(COMMITS[name]),
            "Deadlock",
            (rf"{barrier}, phase 0, lacks 1 of 1 arrivals; awaited.* nothing has ever come",),
        )
        for name, barrier in (("empty", r"empty\[0\]"), ("done", "done"))
    ),
)
PHASE_DEFECTS = (
    Defect(
        "load does not flip",
        replace(WAITS["empty"], PARITY_1),
        "BarrierError",
        (r"cause\? load waited for empty\[0\] with parity 1 .*no phase of it had completed",),
    ),
    Defect(
        "mma does not flip for full",
        replace(WAITS["full"], PARITY_0),
        "BarrierError",
        (r"cause\? mma waited for full\[0\] with parity 0 .*the next phase has parity 1",),
    ),
    Defect(
        "mma does not flip for drained",
        replace(WAITS["drained"], PARITY_1),
        "RaceError",
        (r"accumulator\[:, 0\]", r"cause\? mma waited for drained with parity 1 .*passed at once"),
    ),
    Defect(
        "epilogue does not flip",
        replace(WAITS["done"], PARITY_0),
        "RaceError",
        (r"cause\? epilogue waited for done with parity 0 .*the next phase has parity 1",),
    ),
    Defect(
        "load begins with parity 0",
        replace(WAITS["empty"], FLIPPED_PARITY),
        "Deadlock",
        (r"empty\[0\], phase 0,.* of the first phase; a wait for parity 1 passes at once",),
    ),
    Defect(
        "mma begins with parity 1 for full",
        replace(WAITS["full"], FLIPPED_PARITY),
        "Deadlock",
        (
            r"full\[0\], phase 1,.*awaited with parity 1; nothing came in this phase, and in phase 0",
        ),
    ),
    Defect(
        "mma begins with parity 0 for drained",
        replace(WAITS["drained"], FLIPPED_PARITY),
        "Deadlock",
        (r"drained, phase 0,.* of the first phase; a wait for parity 1 passes at once",),
    ),
    Defect(
        "epilogue begins with parity 1",
        replace(WAITS["done"], FLIPPED_PARITY),
        "UninitializedRead",
        (r"cause\? epilogue waited for done with parity 1 .*the first phase has parity 0",),
    ),
)
COUNT_DEFECTS = (
    Defect(
        "drained counts 127 arrivals",
        count("drained", 127),
        "BarrierError",
        (
            r"drained phase 0: epilogue arrives 32 times but only 31 of 127 arrivals are left",
            r"cause\? drained, phase 0,.*\n +96 arrivals +epilogue .*mbarrier_arrive\(drained\)",
        ),
    ),
    Defect(
        "drained counts 64 arrivals",
        count("drained", 64),
        "BarrierError",
        (
            "drained: phases 0 to 1 completed before this wait looked",
            r"cause\? drained, phase 2, .* in phase 1:\n +\d+ arrivals +epilogue .*\(drained\)",
        ),
    ),
    Defect(
        "drained counts 129 arrivals",
        count("drained", 129),
        "Deadlock",
        (r"lacks 1 of 129 arrivals.*\n +128 arrivals +epilogue .*mbarrier_arrive\(drained\)",),
    ),
    Defect(
        "full[1] counts two arrivals",
        count("full[1]", 2),
        "Deadlock",
        (r"full\[1\], phase 0, lacks 1 of 2 arrivals.*\n.*\n +1 arrival +load .*expect_tx\(full",),
    ),
    Defect(
        "empty[1] counts two arrivals",
        count("empty[1]", 2),
        "Deadlock",
        (r"empty\[1\], phase 0, lacks 1 of 2 arrivals.*\n +1 arrival +mma .*commit\(empty",),
    ),
    Defect(
        "full[2] is not initialised",
        delete(INITS["full[2]"]),
        "BarrierError",
        (r"no mbarrier is initialised at .*full\+0x10",),
    ),
    Defect(
        "B's bytes are not announced",
        replace(NBYTES, r"mov.b32 \1, 16384;"),
        "RaceError",
        (r"cause\? full\[0\]: 16384 bytes were announced for phase 0, and 24576 bytes came",),
    ),
    Defect(
        "8,192 bytes too many are announced",
        replace(NBYTES, r"mov.b32 \1, 32768;"),
        "Deadlock",
        (
            r"full\[0\], phase 0, lacks 8192 bytes;.*\n +expects 32768 bytes",
            r"8192 bytes came .*\(atoms\[1\]",
        ),
    ),
    Defect(
        "no bytes are announced",
        replace(EXPECT, r"mbarrier.arrive.shared.b64 \1, \2, 1;"),
        "RaceError",
        (r"cause\? full\[0\]: 0 bytes were announced for phase 0, and 24576 bytes came",),
    ),
    Defect(
        "load arrives twice",
        replace(EXPECT, TWICE),
        "BarrierError",
        (
            r"full\[0\] phase 0: load arrives 1 times but only 0 of 1 arrivals are left",
            r"cause\? full\[0\], phase 0, lacks 49152 bytes; in this phase:\n +expects 24576 bytes",
            r"\n +1 arrival +load .*expect_tx\(full",
        ),
    ),
    Defect(
        "epilogue arrives twice",
        replace(ARRIVAL, TWICE),
        "BarrierError",
        (
            "drained: phases 0 to 1 completed before this wait looked",
            r"cause\? drained, phase 2, .* in phase 1:\n +\d+ arrivals +epilogue .*\(drained\)",
        ),
    ),
    Defect(
        "mma commits twice",
        replace(COMMITS["empty"], TWICE),
        "BarrierError",
        (
            r"empty\[0\]: phases 0 to 1 completed before this wait looked",
            r"cause\? empty\[0\], phase 2, .* in phase 1:\n +1 arrival +mma .*commit\(empty",
        ),
    ),
    Defect(
        "one thread of a warp raises drained",
        replace(ARRIVAL, r"{.reg .pred one; elect.sync _|one, 0xffffffff; @one \g<0>}"),
        "Deadlock",
        (r"lacks 124 of 128 arrivals;.*\n +4 arrivals +epilogue .*mbarrier_arrive\(drained\)",),
    ),
    Defect(
        "B tells the next mbarrier",
        replace(LOADS["B"], r"\1 [\2+\3], [\4, {\5, \6}], [\7+8]"),
        "Deadlock",
        (r"full\[0\], phase 0, lacks 8192 bytes", r"the 8192 bytes that came already"),
    ),
)
RACE_DEFECTS = (
    Defect(
        "load does not wait for empty",
        replace(WAITS["empty"], ALWAYS_TRUE),
        "BarrierError",
        (
            r"full\[0\] phase 0: load arrives 1 times but only 0 of 1 arrivals are left",
            r"cause\? full\[0\], phase 0, lacks 49152 bytes; in this phase:\n +expects 24576 bytes",
            r"\n +1 arrival +load .*expect_tx\(full",
        ),
    ),
    Defect(
        "mma does not wait for full",
        replace(WAITS["full"], ALWAYS_TRUE),
        "RaceError",
        (
            r"s_b\) \(operand B\)",
            r"cause\? .* completes on full\[0\] in phase 0, for which mma has not waited",
        ),
    ),
    Defect(
        "epilogue does not wait for done",
        replace(WAITS["done"], ALWAYS_TRUE),
        "UninitializedRead",
        (r"\(accumulator\[:, 0\]\), which nobody has written .*; wait for the MMA",),
    ),
    Defect(
        "mma does not wait for drained",
        replace(WAITS["drained"], ALWAYS_TRUE),
        "RaceError",
        (r"\(accumulator\[:, 0\]\)", r"missing is a wait for the mbarrier of a tcgen05\.commit"),
    ),
    Defect(
        "A is copied to the next stage",
        replace(LOADS["A"], r"\1 [\2+17408], [\4, {\5, \6}], [\7]"),
        "RaceError",
        (r"s_b\)", r"16384 bytes at \(128, 0\) \(writes", r"8192 bytes at \(0, 0\) \(writes"),
    ),
    Defect(
        "the output is overwritten before the store has read it",
        delete(READ["before reuse"]),
        "RaceError",
        (r"s_c\+0x\w+\)", r"TMA store of 32768 bytes at \(0, 0\) \(reads its source\)"),
    ),
    Defect(
        "the store is in no bulk group",
        delete(at(r"cp\.async\.bulk\.commit_group;")),
        "RaceError",
        (r"s_c\+0x\w+\)", r"TMA store of 32768 bytes at \(0, 0\) \(reads its source\)"),
    ),
    Defect(
        "the store is not waited for before exit",
        delete(READ["at the end"]),
        "InFlightError",
        (r"nobody has waited for: the TMA store of 32768 bytes at \(64, 0\)", "the bulk group"),
        "ptx",  # a note at "hardware"
    ),
    *(
        Defect(
            f"no barrier of the epilogue {where}",
            delete(SYNCS[where]),
            "RaceError",
            (r"s_c\+0x\w+\)", r"TMA store of 32768 bytes at \(0, 0\) \(reads its source\)"),
        )
        for where in SYNCS
    ),
    Defect(
        "no barrier after the allocation",
        delete(at(r"bar\.sync \s*0;").first),
        "RaceError",
        (r"\(dynamic \+0x40, address\)", r"alloc_tmem\(N, address\)"),
    ),
)
LEAK_DEFECTS = (
    Defect(
        "tensor memory is not freed",
        delete(DEALLOC),
        "TensorMemoryError",
        (r"allocated are columns 0 to 63", r"allocated by\n(.*\n)+.*alloc_tmem\(N, address\)"),
    ),
    Defect(
        "tensor memory is freed twice",
        replace(DEALLOC, TWICE),
        "TensorMemoryError",
        (r"dealloc of 64 columns .* but nothing is allocated", r"dealloc_tmem\(tmem, N\)"),
    ),
    Defect(
        "32 columns are freed",
        replace(DEALLOC, r"tcgen05.dealloc.cta_group::1.sync.aligned.b32 \1, 32;"),
        "TensorMemoryError",
        (r"dealloc of 32 columns .* but allocated are columns 0 to 63",),
    ),
    Defect(
        "32 columns are allocated",
        replace(ALLOC, r"tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 \1, 32;"),
        "TensorMemoryError",
        (r"D of MMA .* touches columns 0 to 63; column 32 .* is not allocated",),
    ),
    Defect(
        "columns are allocated after the permit was given up",
        move(RELINQUISH, before=ALLOC),
        "TensorMemoryError",
        (r"tcgen05\.alloc of 64 columns after tcgen05\.relinquish_alloc_permit",),
    ),
)
DEFECTS = (
    *FENCE_DEFECTS,
    *PHASE_DEFECTS,
    *COUNT_DEFECTS,
    *RACE_DEFECTS,
    *LEAK_DEFECTS,
)
