"""Defects of what the attention kernel computes: descriptors, columns, coordinates, masks, factors.

Ordering is right in most of them, so that wrong numbers are what shows: they keep the tests' inputs honest.
MMAs in the order of the PTX text (head dim 128): S0 0..7, O1 8..15, S1 16..23, O0 24..31 | the last O1 32..39.
"""

import re

from tests.emulator.mutations.attention_places import (
    CAUSAL,
    FULL,
    STORE_WORD,
    TMEM_LOAD,
    TMEM_STORE,
    operand,
)
from tests.emulator.mutations.edits import delete, replace, retarget
from tests.emulator.mutations.mutant import ASYNCHRONY, MEMORY, WRONG_NUMBERS, Mutant

MMA = r"@leader_thread tcgen05\.mma\S+ (\[\S+\]), (.*), (0x[0-9a-f]+), (\w+);"
MMAS = 40
AN_MMA = "@leader_thread tcgen05.mma.cta_group::1.kind::f16"
B_HIGH = r"(mov\.b64 b, \{b_low), 0x40004040\}"

WRONG = (WRONG_NUMBERS,)
WRONG_OR_UNORDERED = (WRONG_NUMBERS, *ASYNCHRONY)


def flag(value, nth):
    """Edit of the accumulate operand of MMAs."""
    return replace("mma", MMA, rf"{AN_MMA} \1, \2, \3, {value};", nth, MMAS)


def descriptors():
    """Shared-memory and instruction descriptors."""
    for name, word, nth in (
        ("K's descriptor says 64-byte swizzle", "0x80004040", tuple(range(8))),
        ("one depth step of K says 32-byte swizzle", "0xc0004040", 3),
        ("one key step of V says no swizzle", "0x00004040", 28),
        ("one depth step of K: 8 rows are 512 bytes apart", "0x40004020", 3),
    ):
        yield Mutant(
            name, FULL, replace("mma", B_HIGH, rf"\1, {word}}}", nth, MMAS), WRONG_OR_UNORDERED
        )
    for name, pattern, to, of in (
        (
            "a depth step of Q is taken twice",
            r"add\.s32 a_low, (%r\d+), 4;",
            r"add.s32 a_low, \1, 2;",
            2,
        ),
        (
            "a key step of V is taken twice",
            r"add\.s32 b_low, (%r\d+), 256;",
            r"add.s32 b_low, \1, 128;",
            3,
        ),
        ("a key step of P is taken twice", r"add\.s32 a, (%r\d+), 16;", r"add.s32 a, \1, 8;", 3),
    ):
        yield Mutant(name, FULL, replace("mma", pattern, to, 1, of), WRONG)
    yield Mutant(
        "P is read one step ahead of its barrier",
        FULL,
        replace("mma", r"add\.s32 a, (%r\d+), 40;", r"add.s32 a, \1, 48;", 1, 3),
        WRONG_OR_UNORDERED,
    )
    for name, old, new, of in (
        ("half of the keys in the instruction descriptor", "0x8200490", "0x8100490", 16),
        ("V is K-major in the instruction descriptor", "0x8210490", "0x8200490", 24),
        ("P and V are float16 in the instruction descriptor", "0x8210490", "0x8210010", 24),
    ):
        yield Mutant(name, FULL, replace("mma", old, new, 0, of), WRONG_OR_UNORDERED)


def products():
    """Which products are made, where to, and whether they add."""
    yield Mutant(
        "the first step of S0 adds to what nobody wrote", FULL, flag(1, 0), ("UninitializedRead",)
    )
    yield Mutant("the second part of P V forgets the first", FULL, flag(0, 30), WRONG)
    first_step = r"(tcgen05\.mma.*), accumulate;"  # of O1, O0, the last O1
    yield Mutant(
        "O1 adds to what nobody wrote",
        FULL,
        replace("mma", first_step, r"\1, 1;", 0, 3),
        ("UninitializedRead",),
    )
    for nth, what in ((1, "O0"), (2, "O1 of the last tile")):
        yield Mutant(
            f"{what} forgets the tiles before",
            FULL,
            replace("mma", first_step, r"\1, 0;", nth, 3),
            WRONG,
        )
    yield Mutant("an MMA is missing", FULL, delete("mma", MMA, 5, MMAS), WRONG)
    yield Mutant(
        "S1 is written to the columns of S0",
        FULL,
        retarget("mma", MMA, tuple(range(16, 24)), MMAS, like=0),
        WRONG_OR_UNORDERED,
    )
    yield Mutant(
        "O0 is eight columns too far",
        FULL,
        replace("mma", r"(tcgen05\.mma\S+ \[%r\d+)\]", r"\1+8]", tuple(range(24, 32)), MMAS),
        (*WRONG_OR_UNORDERED, *MEMORY),
    )
    yield Mutant(
        "all threads of the warp issue an MMA",
        FULL,
        replace("mma", r"@leader_thread (tcgen05\.mma)", r"\1", 30, MMAS),
        ("EmulatorError",),
    )


def columns():
    """Where softmax and correction read and write tensor memory."""
    shift = lambda columns: lambda match: match[0].replace(match[1], f"{match[1][:-1]}+{columns}]")
    yield Mutant(
        "softmax reads scores eight columns too far",
        FULL,
        replace("softmax", TMEM_LOAD, shift(8), 1, 8),
        WRONG_OR_UNORDERED,
    )
    yield Mutant(
        "softmax reads lanes of another warp",
        FULL,
        replace("softmax", TMEM_LOAD, shift(32 << 16), 0, 8),
        MEMORY,
    )
    yield Mutant(
        "a quarter of P is stored sixteen columns too far",
        FULL,
        replace("softmax", TMEM_STORE, shift(16), 1, 8),
        WRONG_OR_UNORDERED,
    )
    yield Mutant(
        "sixteen columns of the output are read from the other query tile",
        FULL,
        retarget("correction", TMEM_LOAD, 16, 32, like=24),
        WRONG_OR_UNORDERED,
    )
    yield Mutant(
        "sixteen columns of O1 are not rescaled",
        FULL,
        delete("correction", TMEM_STORE, 10, 16),
        WRONG,
    )


def coordinates():
    """What TMA copies where, and where the results go."""
    to_slot = r"(cp\.async\.bulk\.tensor\.\dd\.shared::cta\.global\S* \[%r\d+)\+65536\]"
    yield Mutant(
        "K is copied to the slot after its own",
        FULL,
        replace("load", to_slot, r"\1+98304]", 0, 2),
        (*WRONG_OR_UNORDERED, "IllegalAccess"),
    )
    yield Mutant(
        "every K and V is the first one",
        FULL,
        replace("load", r"shl\.b32\s+(%r\d+), %r\d+, 7;", r"mov.b32 \1, 0;"),
        WRONG,
    )
    yield Mutant(
        "Q1 is copied over Q0",
        FULL,
        replace("load", r"(cp\.async\S+ \[__dynamic_shmem__0)\+32768\]", r"\1]"),
        WRONG_OR_UNORDERED,
    )
    yield Mutant(
        "Q1 tells the barrier of Q0",
        FULL,
        replace(
            "load",
            rf"(cp\.async.*){re.escape(operand('q_full[1]'))}",
            rf"\1{operand('q_full[0]')}",
        ),
        (*ASYNCHRONY, "BarrierError", "Deadlock"),
    )
    store = r"(cp\.async\.bulk\.tensor\.4d\.global\S+ \[%rd\d+, \{%r\d+), (%r\d+)(,.*;)"
    yield Mutant(
        "the output tile is stored 128 rows further",
        CAUSAL,
        replace(
            "correction",
            store,
            r"{.reg .b32 further; add.s32 further, \2, 128; \1, further\3}",
            0,
            4,
        ),
        (*WRONG, "RaceError"),
    )
    yield Mutant(
        "a chunk is stored from the other chunk's buffer",
        FULL,
        replace("correction", r"(cp\.async\.bulk\.tensor.*)\+212992\]", r"\1+196608]", 0, 4),
        (*WRONG, "RaceError"),
    )
    yield Mutant(
        "the LSE is stored a row further",
        CAUSAL,
        replace("softmax", r"st\.global\.b32\s+\[(%rd\d+)\]", r"st.global.b32 [\1+4]"),
        (*WRONG, "IllegalAccess"),
    )


def softmax():
    """Factors and masks."""
    yield Mutant(
        "the rescale of O0 is skipped",
        FULL,
        replace(
            "correction",
            r"vote\.sync\.any\.pred\s+(%p\d+), %p\d+, -1;",
            r"setp.eq.u32 \1, 0, 1;",
            0,
            2,
        ),
        WRONG,
    )
    yield Mutant(
        "the row sum is not rescaled",
        FULL,
        replace("softmax", STORE_WORD, r"\g<0> mov.b32 \1, 0f3F800000;", 0, 5),
        WRONG,
    )
    yield Mutant("the row sum is not stored", FULL, delete("softmax", STORE_WORD, 4, 5), WRONG)
    yield Mutant(
        "a mask word shows one key too many",
        CAUSAL,
        replace(
            "softmax",
            r"shl\.b32 bit, 1, (%r\d+);",
            r".reg .b32 n; add.s32 n, \1, 1; shl.b32 bit, 1, n;",
            1,
            4,
        ),
        WRONG,
    )
    yield Mutant(
        "the masks show every key",
        CAUSAL,
        replace("softmax", r"add\.s32 (%r\d+), bit, -1;", r"mov.b32 \1, -1;", "all", 4),
        WRONG,
    )


def mutants():
    """Every defect of the kernel's arithmetic."""
    for group in (descriptors, products, columns, coordinates, softmax):
        yield from group()
