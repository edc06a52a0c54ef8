"""Defects of the append to caches whose blocks have scales, planted in the kernel's PTX; one line is one mistake.

The subject: new rows of bf16 with every kind of block (tests/serving/block_appends.py), packed, in pages of 16,
with global scales that differ from head to head. The results are all bytes of the codes and the scales. A second
subject has the better of two scales for each block, and interleaved scales of V. A third cache is MXFP8.
"""

import torch

from cute_fa4 import emulator
from tests.emulator.mutations.edits import delete, lines, replace
from tests.emulator.mutations.mutant import ORDER, WRONG_NUMBERS, Mutant, Subject
from tests.serving.block_appends import HEADS, Cache, appended, rows
from tests.serving.test_append import NEW

NAME, BETTER, MX = "append_4_bits", "append_4_bits_four_over_six", "append_mxfp8"


def subject(name: str, level) -> Subject:
    of, depth = "mxe4m3" if name == MX else "e2m1", 64
    new = [
        [rows(of, n, depth, torch.bfloat16, seed=i + b) for b, n in enumerate(NEW)] for i in (0, 10)
    ]
    numbers = 0.01 + torch.rand(2, len(NEW), HEADS, generator=torch.Generator().manual_seed(1))
    given = dict(zip(("k_descale", "v_descale"), numbers, strict=True))

    def execute(edit, mode, seed, budget):
        transform = None if edit is None else lambda name, ptx: edit(ptx)
        using = dict(mode=mode, seed=seed, checks=level, transform=transform)
        cache = Cache(of, (16, "NHD"), len(NEW), (depth, depth))
        if name == BETTER:
            cache.four_over_six, cache.v_layout = True, "interleaved4"
        with emulator.use(**using, instruction_budget=budget) as result:
            appended(cache, new, True, given)
        return b"".join(x.numpy().tobytes() for x in cache.bytes()), result.instructions

    return Subject(name, execute)


SIZE = lines("kernel", r"abs\.f32\s+(\S+), (\S+);")
LARGER = lines("kernel", r"max\.NaN\.f32\s+(\S+), (\S+), (\S+);")
BY_SIX = lines("kernel", r"div\.rn\.f32\s+(\S+), (\S+), 0f40C00000;")
DIVISION = lines("kernel", r"div\.rn\.f32\s+(\S+), (\S+), (\S+);")
UNIT = lines("kernel", r"mul\.f32\s+(\S+), (\S+), (\S+);")
UNIT_IS_POSITIVE = lines("kernel", r"setp\.gt\.f32\s+(\S+), (\S+), 0f00000000;")
IS_FINITE = lines("kernel", r"setp\.ne\.f32\s+(\S+), (\S+), 0f7F800000;")
TO_SCALES = lines("kernel", r"cvt\.rn\.satfinite\.e4m3x2\.f32 (low), (\S+), (\S+);")
TO_CODES = lines("kernel", r"cvt\.rn\.satfinite\.e2m1x2\.f32 (\S+), (\S+), (\S+);")
WORD = lines("kernel", r"mov\.b32 (\S+), \{byte0, byte1, byte2, byte3\};")
CODES = lines("kernel", r"st\.global\.v4\.b32\s+(\[\S+\]), \{(\S+), (\S+), (\S+), (\S+)\};")
A_SCALE = lines("kernel", r"st\.global\.b8\s+\[(%rd\d+)\], (\S+);")
NEXT_SCALE = lines("kernel", r"st\.global\.b8\s+\[(%rd\d+)\+1\], (\S+);")
SECOND_LOAD = lines("kernel", r"ld\.global\.v4\.b32\s+(\{.*\}), \[(%rd\d+)\+16\];")
IS_BETTER = lines("kernel", r"setp\.lt\.f32\s+(\S+), (\S+), (\S+);")
DIFFERENCE = lines("kernel", r"sub\.rn\.f32 (\S+), (\S+), (\S+);")
TOTAL = lines("kernel", r"add\.rn\.f32 (\S+), (\S+), (\S+);")
LAST_LOAD = lines("kernel", r"ld\.global\.v4\.b32\s+(\{.*\}), \[(%rd\d+)\+48\];")
LEAST_POWER = lines("kernel", r"max\.s32\s+(\S+), (\S+), 8;")
EXPONENT = lines("kernel", r"add\.s32\s+(\S+), (\S+), -8;")
CORRECTION = lines("kernel", r"fma\.rn\.f32x2\s+(\S+), (\S+), (\S+), (\S+);")
IS_ZEROS = lines("kernel", r"setp\.eq\.f32\s+(\S+), (\S+), 0f00000000;")
INVERSE = lines("kernel", r"sub\.s32\s+(\S+), 2130706432, (\S+);")
SECOND_HALF = lines("kernel", r"st\.global\.v4\.b32\s+\[(\S+)\+16\], (\{.*\});")


def of_mx() -> list:
    found = []
    for of, pick in (("K", lambda place: place.first), ("V", lambda place: place.last)):
        for what, edit in (
            (
                "a negative number is not the largest",
                replace(SIZE.after(pick(DIVISION)).first, r"mov.b32 \1, \2;"),
            ),
            (
                "the largest of a block is not NaN",
                replace(LARGER.after(pick(DIVISION)).first, r"max.f32 \1, \2, \3;"),
            ),
            ("a number is not divided", replace(pick(DIVISION), r"mov.b32 \1, \2;")),
            ("the least power is not kept", replace(pick(LEAST_POWER), r"mov.b32 \1, \2;")),
            ("a power is twice as large", replace(pick(EXPONENT), r"add.s32 \1, \2, -7;")),
            (
                "zeros have the least power",
                replace(IS_ZEROS.after(pick(LEAST_POWER)).first, r"setp.eq.u32 \1, 0, 1;"),
            ),
            ("numbers are multiplied by the power", replace(pick(INVERSE), r"mov.b32 \1, \2;")),
            ("infinity is a number", replace(pick(IS_FINITE), r"setp.eq.u32 \1, 0, 0;")),
            ("16 numbers are stored upon others", replace(pick(SECOND_HALF), r"st.global.v4.b32 [\1], \2;")),
            ("the scale of a block is not stored", delete(pick(A_SCALE))),
            ("the last eight are those before", replace(pick(LAST_LOAD), r"ld.global.v4.b32 \1, [\2+32];")),
        ):  # fmt: skip
            found.append(Mutant(f"{what}, {of}, MXFP8", MX, edit, (WRONG_NUMBERS,)))
    # Earlier ones do not show: the last correction mends them.
    remainder = replace(CORRECTION.last, r"mov.b64 \1, \2;")
    found.append(Mutant("two quotients are remainders, V, MXFP8", MX, remainder, (WRONG_NUMBERS,)))
    return found


def mutants() -> tuple:
    found = of_mx()
    for of, pick in (("K", lambda place: place.first), ("V", lambda place: place.last)):
        for what, edit in (
            ("a negative number is not the largest", replace(pick(SIZE), r"mov.b32 \1, \2;")),
            ("the largest of a block is not NaN", replace(pick(LARGER), r"max.f32 \1, \2, \3;")),
            (
                "one number is not looked at",
                replace(pick(LARGER.after(LARGER.first)), r"mov.b32 \1, \2;"),
            ),
            ("a block is divided by 4", replace(pick(BY_SIX), r"div.rn.f32 \1, \2, 0f40800000;")),
            (
                "scales of blocks are not in units of the global scale",
                replace(DIVISION.after(pick(BY_SIX)).first, r"mov.b32 \1, \2;"),
            ),
            ("the unit lacks the global scale", replace(pick(UNIT), r"mov.b32 \1, \2;")),
            ("a unit of 0 divides", replace(pick(UNIT_IS_POSITIVE), r"setp.eq.u32 \1, 0, 0;")),
            ("infinity is a number", replace(pick(IS_FINITE), r"setp.eq.u32 \1, 0, 0;")),
            (
                "two scales change places",
                replace(pick(TO_SCALES), r"cvt.rn.satfinite.e4m3x2.f32 \1, \3, \2;"),
            ),
            (
                "two columns change places",
                replace(pick(TO_CODES), r"cvt.rn.satfinite.e2m1x2.f32 \1, \3, \2;"),
            ),
            ("two bytes change places", replace(pick(WORD), r"mov.b32 \1, {byte1, byte0, byte2, byte3};")),
            ("words of codes change places", replace(pick(CODES), r"st.global.v4.b32 \1, {\3, \2, \4, \5};")),
            ("codes are not stored", delete(pick(CODES))),
            ("the scale of a block is not stored", delete(pick(A_SCALE))),
            ("a scale is stored upon another", replace(pick(NEXT_SCALE), r"st.global.b8 [\1], \2;")),
            ("eight numbers are read twice", replace(pick(SECOND_LOAD), r"ld.global.v4.b32 \1, [\2];")),
            (
                "the last eight are those before",
                replace(pick(LAST_LOAD), r"ld.global.v4.b32 \1, [\2+32];"),
            ),
        ):  # fmt: skip
            found.append(Mutant(f"{what}, {of}", NAME, edit, (WRONG_NUMBERS,)))
        for what, edit in (
            ("the worse of two scales", replace(pick(IS_BETTER), r"setp.gt.f32 \1, \2, \3;")),
            ("never the other scale", replace(pick(IS_BETTER), r"setp.eq.u32 \1, 0, 1;")),
            ("a value is its own error", replace(pick(DIFFERENCE), r"mov.b32 \1, \3;")),
            ("half of the errors are not added", replace(pick(TOTAL), r"mov.b32 \1, \2;")),
        ):
            found.append(Mutant(f"{what}, {of}", BETTER, edit, (WRONG_NUMBERS,)))
    moved = replace(A_SCALE.last, r"st.global.b8 [\1+1], \2;")
    found.append(Mutant("a scale is that of the token after, V", BETTER, moved, ORDER))
    return tuple(found)
