"""Defects of what the attention kernel computes: descriptors, columns, coordinates, masks, factors.

Ordering is right in most of them, so that wrong numbers are what shows: they keep the tests' inputs honest.
A step is one MMA of a product: 16 columns of head dim (Q K^T) or 16 keys (P V).
"""

from tests.emulator.mutations.attention_places import (
    CAUSAL,
    CONFIGS,
    FACTOR,
    FULL,
    K_EMPTY,
    MASKED_TILE,
    P_READY,
    PV_LAST,
    STORE_WORD,
    SUMS,
    TMEM_LOAD,
    TMEM_STORE,
    V_EMPTY,
    WHOLE_TILE,
    o_ready,
    operand,
    product,
    region,
    rescale,
    rescaled,
    wait,
)
from tests.emulator.mutations.edits import delete, lines, replace, retarget
from tests.emulator.mutations.mutant import ASYNCHRONY, MEMORY, WRONG_NUMBERS, Mutant

AN_MMA = "@leader_thread tcgen05.mma.cta_group::1.kind::f16"
B_HIGH = r"(mov\.b64 b, \{b_low), 0x40004040\}"

WRONG = (WRONG_NUMBERS,)
WRONG_OR_UNORDERED = (WRONG_NUMBERS, *ASYNCHRONY)
TILES = CONFIGS[FULL].tiles


def flag(value, place):
    """Edit of the accumulate operand of an MMA."""
    return replace(place, rf"{AN_MMA} \1, \2, \3, {value};")


def descriptors():
    """Shared-memory and instruction descriptors."""
    for name, word, place in (
        ("K's descriptor says 64-byte swizzle", "0x80004040", product("S0", B_HIGH)),
        (
            "one depth step of K says 32-byte swizzle",
            "0xc0004040",
            product("S0", B_HIGH).middle,
        ),
        ("one key step of V says no swizzle", "0x00004040", product("O0", B_HIGH).middle),
        (
            "one depth step of K: 8 rows are 512 bytes apart",
            "0x40004020",
            product("S0", B_HIGH).middle,
        ),
    ):
        yield Mutant(name, FULL, replace(place, rf"\1, {word}}}"), WRONG_OR_UNORDERED)
    for name, of, pattern, to, meant in (
        (
            "a depth step of Q is taken twice",
            "S1",
            r"add\.s32 a_low, (%r\d+), 4;",
            r"add.s32 a_low, \1, 2;",
            WRONG,
        ),
        (
            "a key step of V is taken twice",
            "O0",
            r"add\.s32 b_low, (%r\d+), 256;",
            r"add.s32 b_low, \1, 128;",
            WRONG,
        ),
        (
            "a key step of P is taken twice",
            "O0",
            r"add\.s32 a, (%r\d+), 16;",
            r"add.s32 a, \1, 8;",
            WRONG,
        ),
        (
            "P is read one step ahead of its barrier",
            "O0",
            r"add\.s32 a, (%r\d+), 40;",
            r"add.s32 a, \1, 48;",
            WRONG_OR_UNORDERED,
        ),
    ):
        yield Mutant(name, FULL, replace(product(of, pattern), to), meant)
    for name, of, old, new in (
        ("half of the keys in the instruction descriptor", "S0", "0x8200490", "0x8100490"),
        ("V is K-major in the instruction descriptor", "O1", "0x8210490", "0x8200490"),
        ("P and V are float16 in the instruction descriptor", "O1", "0x8210490", "0x8210010"),
    ):
        yield Mutant(name, FULL, replace(product(of, old).first, new), WRONG_OR_UNORDERED)


def products():
    """Which products are made, where to, and whether they add."""
    yield Mutant(
        "the first step of S0 adds to what nobody wrote",
        FULL,
        flag(1, product("S0").first),
        ("UninitializedRead",),
    )
    yield Mutant(
        "the second part of P V forgets the first",
        FULL,
        flag(0, product("O0").after(PV_LAST["O0"]).first),
        WRONG,
    )
    first_step = lambda of: product(of, r"(tcgen05\.mma.*), accumulate;")
    yield Mutant(
        "O1 adds to what nobody wrote",
        FULL,
        replace(first_step("O1"), r"\1, 1;"),
        ("UninitializedRead",),
    )
    for of, what in (("O0", "O0"), ("the last O1", "O1 of the last tile")):
        yield Mutant(
            f"{what} forgets the tiles before", FULL, replace(first_step(of), r"\1, 0;"), WRONG
        )
    yield Mutant("an MMA is missing", FULL, delete(product("S0").middle), WRONG)
    yield Mutant(
        "S1 is written to the columns of S0",
        FULL,
        retarget(product("S1"), like=product("S0").first),
        WRONG_OR_UNORDERED,
    )
    yield Mutant(
        "O0 is eight columns too far",
        FULL,
        replace(product("O0", r"(tcgen05\.mma\S+ \[%r\d+)\]"), r"\1+8]"),
        (*WRONG_OR_UNORDERED, *MEMORY),
    )
    yield Mutant(
        "all threads of the warp issue an MMA",
        FULL,
        replace(product("O0", r"@leader_thread (tcgen05\.mma)").last, r"\1"),
        ("EmulatorError",),
    )


def columns():
    """Where softmax and correction read and write tensor memory."""
    shift = lambda columns: lambda match: match[0].replace(match[1], f"{match[1][:-1]}+{columns}]")
    scores = lines("softmax", TMEM_LOAD).between(WHOLE_TILE, FACTOR)
    yield Mutant(
        "softmax reads scores eight columns too far",
        FULL,
        replace(scores.middle, shift(8)),
        WRONG_OR_UNORDERED,
    )
    yield Mutant(
        "softmax reads lanes of another warp", FULL, replace(scores.first, shift(32 << 16)), MEMORY
    )
    yield Mutant(
        "a quarter of P is stored sixteen columns too far",
        FULL,
        replace(lines("softmax", TMEM_STORE).between(WHOLE_TILE, P_READY).middle, shift(16)),
        WRONG_OR_UNORDERED,
    )
    read = lambda i: lines("correction", TMEM_LOAD).after(o_ready(i)).first
    yield Mutant(
        "sixteen columns of the output are read from the other query tile",
        FULL,
        retarget(read(0), like=read(1)),
        WRONG_OR_UNORDERED,
    )
    yield Mutant(
        "sixteen columns of O1 are not rescaled",
        FULL,
        delete(lines("correction", TMEM_STORE).between(rescale(1), rescaled(1)).middle),
        WRONG,
    )


def coordinates():
    """What TMA copies where, and where the results go."""
    slots = region("kv")
    to_slot = rf"(cp\.async\.bulk\.tensor\.\dd\.shared::cta\.global\S* \[%r\d+)\+{slots}\]"
    copy_of_k = lines("load", to_slot).between(K_EMPTY, V_EMPTY)
    yield Mutant(
        "K is copied to the slot after its own",
        FULL,
        replace(copy_of_k, rf"\1+{slots + TILES.kv_slot_bytes}]"),
        (*WRONG_OR_UNORDERED, "IllegalAccess"),
    )
    yield Mutant(
        "every K and V is the first one",
        FULL,
        replace(lines("load", r"shl\.b32\s+(%r\d+), %r\d+, 7;"), r"mov.b32 \1, 0;"),
        WRONG,
    )
    q1 = lines("load", r"(cp\.async\S+ \[)(__dynamic_shmem__0)(\+\d+)(\].*)(\[\S+\])(.*)").between(
        wait("load", "q_free[1]"), V_EMPTY
    )
    yield Mutant(
        "Q1 is copied over Q0",
        FULL,
        replace(q1, r"\1\2\4\5\6"),
        WRONG_OR_UNORDERED,
    )
    yield Mutant(
        "Q1 tells the barrier of Q0",
        FULL,
        replace(q1, rf"\1\2\3\4{operand('q_full[0]')}\6"),
        (*ASYNCHRONY, "BarrierError", "Deadlock"),
    )
    store = r"(cp\.async\.bulk\.tensor\.4d\.global\S+ \[%rd\d+, \{%r\d+), (%r\d+)(,.*;)"
    yield Mutant(
        "the output tile is stored 128 rows further",
        CAUSAL,
        replace(
            lines("correction", store).after(o_ready(0).first).first,
            r"{.reg .b32 further; add.s32 further, \2, 128; \1, further\3}",
        ),
        (*WRONG, "RaceError"),
    )
    first, second = region("o"), region("o") + TILES.o_chunk_bytes
    from_second = lines("correction", rf"(cp\.async\.bulk\.tensor.*)\+{second}\]")
    yield Mutant(
        "a chunk is stored from the other chunk's buffer",
        FULL,
        replace(from_second.after(o_ready(0)).first, rf"\1+{first}]"),
        (*WRONG, "RaceError"),
    )
    yield Mutant(
        "the LSE is stored a row further",
        CAUSAL,
        replace(lines("softmax", r"st\.global\.b32\s+\[(%rd\d+)\]"), r"st.global.b32 [\1+4]"),
        (*WRONG, "IllegalAccess"),
    )


def softmax():
    """Factors and masks."""
    vote = r"vote\.sync\.any\.pred\s+(%p\d+), %p\d+, -1;"
    yield Mutant(
        "the rescale of O0 is skipped",
        FULL,
        replace(
            lines("correction", vote).after(rescale(0)).first,
            r"setp.eq.u32 \1, 0, 1;",
        ),
        WRONG,
    )
    word = lines("softmax", STORE_WORD)
    yield Mutant(
        "the row sum is not rescaled",
        FULL,
        replace(word.ahead_of(FACTOR).last, r"\g<0> mov.b32 \1, 0f3F800000;"),
        WRONG,
    )
    yield Mutant("the row sum is not stored", FULL, delete(word.ahead_of(SUMS).last), WRONG)
    masked = lambda pattern: lines("softmax", pattern).after(MASKED_TILE)
    yield Mutant(
        "a mask word shows one key too many",
        CAUSAL,
        replace(
            masked(r"shl\.b32 bit, 1, (%r\d+);").middle,
            r".reg .b32 n; add.s32 n, \1, 1; shl.b32 bit, 1, n;",
        ),
        WRONG,
    )
    yield Mutant(
        "the masks show every key",
        CAUSAL,
        replace(masked(r"add\.s32 (%r\d+), bit, -1;"), r"mov.b32 \1, -1;"),
        WRONG,
    )


def mutants():
    """Every defect of the kernel's arithmetic."""
    for group in (descriptors, products, columns, coordinates, softmax):
        yield from group()
