"""Defects of a stranger's GEMM (tests/emulator/three_stage_gemm.py), and what their reports must say.

Each is one mistake of one line of PTX. `says` are regular expressions: where the emulator can know the cause, they ask
for it: who arrived, bytes announced and arrived, both accesses, the allocation. The schedule is the tamest, in_order.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.emulator.mutations.edits import (
    ALWAYS_TRUE,
    FLIPPED_PARITY,
    PARITY_0,
    delete,
    move,
    replace,
)
from tests.emulator.mutations.gemm_places import (
    A_STAGE,
    A_STEP,
    ALLOC,
    ARRIVAL,
    B_STAGE,
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
    STORE,
    SYNCS,
    TWICE,
    WAITS,
    at,
    count,
    descriptor,
    instruction,
)
from tests.emulator.mutations.mutant import WRONG_NUMBERS


@dataclass(frozen=True)
class Defect:
    """error: class of the report, or WRONG_NUMBERS if only the comparison with float64 can show it."""

    name: str
    edit: Callable[[str], str]
    error: str
    says: tuple = ()
    level: str = "hardware"


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
        (r"accumulator\[:, 0\]",),
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
        (r"drained phase 0: epilogue arrives 32 times but only 31 of 127 arrivals are left",),
    ),
    Defect(
        "drained counts 64 arrivals",
        count("drained", 64),
        "BarrierError",
        ("drained: phases 0 to 1 completed before this wait looked",),
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
        (r"full\[0\] phase 0: load arrives 1 times but only 0 of 1 arrivals are left",),
    ),
    Defect(
        "epilogue arrives twice",
        replace(ARRIVAL, TWICE),
        "BarrierError",
        ("drained: phases 0 to 1 completed before this wait looked",),
    ),
    Defect(
        "mma commits twice",
        replace(COMMITS["empty"], TWICE),
        "BarrierError",
        (r"empty\[0\]: phases 0 to 1 completed before this wait looked",),
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
DESCRIPTOR_DEFECTS = (
    Defect(
        "A is read from the next stage",
        replace(A_STAGE, r"xor.b32 \1, \2, 1; shl.b32 \1, \1, 10;"),
        "RaceError",
        (r"s_a\+0x4000\) \(operand A\)", r"TMA load of 16384 bytes at \(64, 0\)"),
    ),
    Defect(
        "A is always read from stage 0",
        replace(A_STAGE, r"mov.b32 \1, 0;"),
        "RaceError",
        (r"s_a\+", r"TMA load of 16384 bytes at \(\d+, 0\)", "reads its operands"),
    ),
    Defect(
        "B's stages are as far apart as A's",
        replace(B_STAGE, r"shl.b32 \1, \2, 10;"),
        "RaceError",
        (r"s_b\+0x4000\) \(operand B\)", r"TMA load of 8192 bytes at \(128, 0\)"),
    ),
    Defect(
        "a step of A is taken twice",
        replace(A_STEP, r"add.s32 \1, \2, 4;"),
        WRONG_NUMBERS,
    ),
    Defect("A: 8 rows are 512 bytes apart", descriptor("A", stride=32), WRONG_NUMBERS),
    Defect(
        "A: 8 rows are 2,048 bytes apart",
        descriptor("A", stride=128),
        "RaceError",
        (r"s_a\+0x4000\) \(operand A\)", r"TMA load of 16384 bytes at \(64, 0\)"),
    ),
    Defect("A has a swizzle of 64 bytes", descriptor("A", swizzle=4), WRONG_NUMBERS),
    Defect("B has no swizzle", descriptor("B", swizzle=0), WRONG_NUMBERS),
    Defect(
        "M is 64",
        instruction((128 ^ 64) // 16 << 24),
        "UninitializedRead",
        (r"lane 16, column 0 \(accumulator\[:, 0\]\), which nobody has written",),
    ),
    Defect(
        "N is 32",
        instruction((64 ^ 32) // 8 << 17),
        "UninitializedRead",
        (r"lane 0, column 32 \(accumulator\[:, 32\]\), which nobody has written",),
    ),
    Defect(
        "N is 128",
        instruction((64 ^ 128) // 8 << 17),
        "RaceError",
        (r"s_b\+0x2000\) \(operand B\).*an MMA 128x128x16", r"8192 bytes at \(64, 0\)"),
    ),
    Defect("A and B are float16", instruction(1 << 7 | 1 << 10), WRONG_NUMBERS),
    Defect(
        "D is float16",
        instruction(1 << 4),
        "EmulatorError",
        (r"tcgen05\.mma instruction descriptor .*A format with D of f16",),
    ),
    Defect(
        "A is MN-major",
        instruction(1 << 15),
        "EmulatorError",
        (r"start address is 0x820; accepted: multiples of .* \(MN-major\)",),
    ),
    Defect(
        "the first product adds",
        replace(
            at(r"mov\.pred \s*(%p\d+), 0;").behind(WAITS["drained"]).first, r"mov.pred \1, -1;"
        ),
        "UninitializedRead",
        (r"D of MMA .*\(accumulator\[:, 0\]\), which nobody has written",),
    ),
)
RACE_DEFECTS = (
    Defect(
        "load does not wait for empty",
        replace(WAITS["empty"], ALWAYS_TRUE),
        "BarrierError",
        (r"full\[0\] phase 0: load arrives 1 times but only 0 of 1 arrivals are left",),
    ),
    Defect(
        "mma does not wait for full",
        replace(WAITS["full"], ALWAYS_TRUE),
        "RaceError",
        (r"s_b\) \(operand B\)", r"TMA load of 8192 bytes at \(0, 0\)"),
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
COORDINATE_DEFECTS = (
    Defect(
        "A's blocks overlap",
        replace(
            at(r"shl\.b32 \s*(%r\d+), (%r\d+), 6;").ahead_of(LOADS["A"]), r"shl.b32 \1, \2, 5;"
        ),
        WRONG_NUMBERS,
    ),
    Defect(
        "B is that of the first tile",
        replace(LOADS["B"], r"\1 [\2+\3], [\4, {\5, 0}], [\7]"),
        WRONG_NUMBERS,
    ),
    Defect(
        "B's coordinates are exchanged",
        replace(LOADS["B"], r"\1 [\2+\3], [\4, {\6, \5}], [\7]"),
        WRONG_NUMBERS,
    ),
    Defect(
        "C is stored eight rows further",
        replace(STORE, r"\1 [\2, {\3, 8}]"),
        WRONG_NUMBERS,
    ),
    Defect(
        "both tiles are stored to the first",
        replace(STORE, r"\1 [\2, {0, \4}]"),
        "RaceError",
        (r"race on byte 0 of the tensor \(128, 128\) float32", "writes global memory"),
    ),
)
DEFECTS = (
    *FENCE_DEFECTS,
    *PHASE_DEFECTS,
    *COUNT_DEFECTS,
    *DESCRIPTOR_DEFECTS,
    *RACE_DEFECTS,
    *LEAK_DEFECTS,
    *COORDINATE_DEFECTS,
)
