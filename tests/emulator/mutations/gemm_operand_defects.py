"""Defects of what a stranger's GEMM multiplies and where it stores: descriptors and coordinates of copies."""

from tests.emulator.mutations.edits import replace
from tests.emulator.mutations.gemm_places import (
    A_NOTE,
    A_STAGE,
    A_STEP,
    B_STAGE,
    LOADS,
    STORE,
    WAITS,
    Defect,
    at,
    descriptor,
    instruction,
)
from tests.emulator.mutations.mutant import WRONG_NUMBERS

OF_A = r"an MMA .* \(reads its operands\)", r"cute\.gemm\(mma", r"cute\.copy\(atoms\[0\]"
"""What a note about A has: both accesses and their lines."""


def before_its_wait(stage):
    """The cause of an MMA that reads a stage for which it has not waited yet."""
    return (
        rf"cause\? .* completes on full\[{stage}\] in phase 0; the latest wait of mma .* came after"
    )


DESCRIPTOR_DEFECTS = (
    Defect(
        "A is read from the next stage",
        replace(A_STAGE, r"xor.b32 \1, \2, 1; shl.b32 \1, \1, 10;"),
        "RaceError",
        (
            r"s_a\+0x4000\) \(operand A\)",
            r"TMA load of 16384 bytes at \(64, 0\)",
            before_its_wait(1),
        ),
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
        (
            r"s_b\+0x4000\) \(operand B\)",
            r"TMA load of 8192 bytes at \(128, 0\)",
            before_its_wait(2),
        ),
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
        (
            r"s_a\+0x4000\) \(operand A\)",
            r"TMA load of 16384 bytes at \(64, 0\)",
            before_its_wait(1),
        ),
    ),
    Defect(
        "A has a swizzle of 64 bytes",
        descriptor("A", swizzle=4),
        A_NOTE,
        (r"operand A .* is read with a swizzle of 64 .* written with a swizzle of 128", *OF_A),
    ),
    Defect(
        "B has no swizzle",
        descriptor("B", swizzle=0),
        A_NOTE,
        (r"operand B .* is read with no swizzle, but was written with a swizzle of 128 bytes",),
    ),
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
        (
            r"s_b\+0x2000\) \(operand B\).*an MMA 128x128x16",
            r"8192 bytes at \(64, 0\)",
            before_its_wait(1),
        ),
    ),
    Defect(
        "A and B are float16",
        instruction(1 << 7 | 1 << 10),
        A_NOTE,
        (r"operand A .* is read as f16, but was written with a tensor map of bf16", *OF_A),
    ),
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
        replace(at(r"mov\.pred \s*(%p\d+), 0;").after(WAITS["drained"]).first, r"mov.pred \1, -1;"),
        "UninitializedRead",
        (r"D of MMA .*\(accumulator\[:, 0\]\), which nobody has written",),
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
DEFECTS = (*DESCRIPTOR_DEFECTS, *COORDINATE_DEFECTS)
