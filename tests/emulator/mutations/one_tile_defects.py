"""Defects of the kernel of one query tile: its waits, arrivals, commits, and the merge of even and odd key tiles.

Places as in attention_defects.py; what it shares with the kernel of two (copies of Q, the work queue, stores) is
planted there. Two heads of five key tiles: a work tile has three even and two odd ones, so that barriers of one
warpgroup are in another parity when the second work tile begins, and both have a rescale.
"""

from tests.emulator.mutations.attention_places import (
    A_COMMIT,
    AN_ARRIVAL,
    AN_INIT,
    CONFIGS,
    FACTOR,
    LOAD_WORD,
    MASKED_TILE,
    ONE_TILE,
    P_LAST,
    P_READY,
    STORE_WORD,
    SUMS,
    SUMS_WAIT,
    TMEM_LOAD,
    TMEM_STORE,
    UNUSED_PHASE,
    WAIT_LD,
    WHOLE_TILE,
    announced,
    arrival,
    before,
    commit,
    expect,
    in_columns,
    init,
    o_ready,
    operand,
    rescale,
    rescaled,
    sums,
    wait,
)
from tests.emulator.mutations.edits import (
    ALWAYS_TRUE,
    FLIPPED_PARITY,
    PARITY_0,
    delete,
    lines,
    replace,
    retarget,
)
from tests.emulator.mutations.mutant import (
    ASYNCHRONY,
    COUNTS,
    HANG,
    ORDER,
    WRONG_NUMBERS,
    Mutant,
)

EARLY = (*ASYNCHRONY, *COUNTS)
EARLY_OR_HANG = (*EARLY, *HANG)
WRONG = (WRONG_NUMBERS,)

# The MMA warp names both warpgroups' barriers alike, by an index; a product of the loop comes first, then the last one.
S_DONE = commit("s_ready")
K_FULL, V_FULL = wait("mma", "kv_full").first, wait("mma", "kv_full").last
K_FREE = commit("kv_empty").after(S_DONE).first
V_FREE = commit("kv_empty").last
PV_READY, PV_LAST = wait("mma", "p_ready"), wait("mma", "p_last")
K_EMPTY, V_EMPTY = wait("load", "kv_empty").first, wait("load", "kv_empty").last
K_BYTES, V_BYTES = expect("kv_full").first, expect("kv_full").last
O0_FREE = arrival("correction", "p_ready[0]").after(o_ready(0)).first
O1_FREE = arrival("correction", "p_ready[1]").after(o_ready(0)).first
SIDES = ((0, "even"), (1, "odd"))

WAITS = (
    ("mma", wait("mma", "q_full"), "q_full"),
    ("mma", K_FULL, "kv_full for K"),
    ("mma", V_FULL, "kv_full for V"),
    ("mma", PV_READY.first, "p_ready"),
    ("mma", PV_READY.last, "p_ready of the last tile"),
    ("mma", PV_LAST.first, "p_last"),
    ("mma", PV_LAST.last, "p_last of the last tile"),
    ("softmax", WHOLE_TILE, "s_ready of a whole tile"),
    ("softmax", MASKED_TILE, "s_ready of a masked tile"),
    ("softmax", SUMS_WAIT, "p_ready before it hands its state over"),
    *(("correction", rescale(i), f"row_scale of an {side} tile") for i, side in SIDES),
    *(("correction", sums(i), f"the {side} state") for i, side in SIDES),
    ("correction", o_ready(0), "o_ready"),
    ("load", wait("load", "q_free"), "q_free"),
    ("load", K_EMPTY, "kv_empty before K"),
    ("load", V_EMPTY, "kv_empty before V"),
)


def plant(name: str, edit, meant, **more) -> Mutant:
    return Mutant(f"one tile: {name}", ONE_TILE, edit, meant, **more)


def waits():
    """A wait removed, for the wrong parity, or for that of the first work tile."""
    for role, place, what in WAITS:
        yield plant(f"{role} does not wait for {what}", replace(place, ALWAYS_TRUE), EARLY)
    for role, place, what in WAITS[3:4] + WAITS[7:8] + WAITS[9:11] + WAITS[13:16]:
        edit = replace(place, FLIPPED_PARITY)
        yield plant(f"{role} waits for the other parity of {what}", edit, EARLY_OR_HANG)
    for role, place, what in WAITS[14:16]:
        edit = replace(place, PARITY_0)
        yield plant(f"{role} waits for {what} as in the first work tile", edit, EARLY_OR_HANG)


def counts():
    """mbarrier.init, expect_tx."""
    for what, nbytes, place, meant in (
        ("half of the bytes of Q are expected", 16384, expect("q_full"), EARLY_OR_HANG),
        ("half of the bytes of K are expected", 16384, K_BYTES, EARLY_OR_HANG),
        ("16 bytes too many of V are expected", 32784, V_BYTES, HANG),
    ):
        yield plant(what, announced(nbytes, place), meant)
    for count, name in (
        (255, "p_ready"),
        (257, "p_ready"),
        (127, "row_scale"),
        (2, "s_ready"),
        (2, "o_ready"),
    ):
        change = rf"selp.b32 changed, {count}, \2, mine; {AN_INIT} \1, changed;"
        yield plant(f"{name}[0] counts {count}", init(name, change, ONE_TILE), (*COUNTS, *HANG))


def arrivals():
    """An arrival that is missing, too many, or too early."""
    at_the_start = arrival("correction", "p_ready[1]").ahead_of(rescale(0))
    for role, place, what in (
        ("softmax", FACTOR, "row_scale"),
        ("softmax", SUMS, "row_scale with its state"),
        ("softmax", P_LAST, "p_last"),
        ("correction", at_the_start, "p_ready[1] at the start"),
        ("correction", rescaled(0), "p_ready[0]"),
        ("correction", rescaled(1), "p_ready[1]"),
        ("correction", O1_FREE, "p_ready[1] when O1 is free"),
    ):
        yield plant(f"{role} does not raise {what}", delete(place), HANG)
    yield plant("softmax leaves the phase that no tile uses open", delete(UNUSED_PHASE), COUNTS)
    twice = r"\g<0> " + AN_ARRIVAL
    yield plant("softmax raises p_ready twice", replace(P_READY, twice), EARLY)
    yield plant("correction raises p_ready[1] twice", replace(rescaled(1), twice), EARLY)
    for place, name in ((P_READY, "p_ready"), (P_LAST, "p_last")):
        edit = before("softmax", place, TMEM_STORE)
        yield plant(f"{name} is raised before its last part of P is stored", edit, ASYNCHRONY)
    yield plant(
        "the state is handed over before the maximum is stored",
        before("softmax", SUMS, STORE_WORD),
        ASYNCHRONY,
    )
    yield plant(
        "the maximum is not handed over",
        delete(lines("softmax", STORE_WORD).between(SUMS_WAIT, SUMS).last),
        ("UninitializedRead",),
    )
    for instruction, what in ((TMEM_LOAD, "read"), (WAIT_LD, "in registers")):
        edit = before("correction", O0_FREE, instruction)
        yield plant(f"O0 is free before it is {what}", edit, ORDER)
    yield plant(
        "O1 is free before it is read",
        before("correction", O1_FREE, TMEM_LOAD),
        (),
        equivalent="the first product of the next O1 is issued after that of O0, which waits until all is read",
    )


def commits():
    """tcgen05.commit: missing, elsewhere, or replaced by an arrival."""
    for place, what in (
        (S_DONE, "s_ready"),
        (commit("q_free"), "q_free"),
        (K_FREE, "kv_empty of K"),
        (V_FREE, "kv_empty of the last V"),
        (commit("o_ready"), "o_ready"),
    ):
        yield plant(f"no commit on {what}", delete(place), HANG)
    yield plant(
        "every S is committed on s_ready[1]",
        replace(S_DONE, f"{A_COMMIT} {operand('s_ready[1]', ONE_TILE)};"),
        EARLY_OR_HANG,
    )
    for place, what in (
        (K_FREE, "K's slot is released"),
        (V_FREE, "the last V's slot is released"),
        (S_DONE, "s_ready is raised"),
        (commit("o_ready"), "o_ready is raised"),
    ):
        edit = replace(place, f"@leader_thread {AN_ARRIVAL}")
        yield plant(f"{what} by an arrival of the thread that issued the MMAs", edit, ASYNCHRONY)


def merging():
    """What correction makes of two states and two O."""
    word = lines("correction", LOAD_WORD)
    of_even, of_odd = word.between(sums(0), sums(1)), word.after(sums(1))
    weight = lines("correction", r"ex2\.approx\.ftz\.f32\s+(%r\d+), (%r\d+);").after(sums(1))
    one = r"mov.b32 \1, 0f3F800000;"
    yield plant("the even O has weight 1", replace(weight.first, one), WRONG)
    yield plant("the odd O has weight 1", replace(weight.last, one), WRONG)
    for odd, even, what in (
        (of_odd.first, of_even.first, "maximum"),
        (of_odd.last, of_even.last, "sum"),
    ):
        edit = retarget(odd, like=even)
        yield plant(f"the odd {what} is that of the even tiles", edit, (*WRONG, *ASYNCHRONY))
    added = lines("correction", r"fma\.rn\.f32\s+(%r\d+), (%r\d+), (%r\d+), (%r\d+);")
    total = added.after(weight.last).first
    yield plant("the odd sum is left out", replace(total, r"mul.f32 \1, \2, \3;"), WRONG)
    reads = lines("correction", TMEM_LOAD).after(o_ready(0))
    o0, o1 = (in_columns(reads, column).first for column in CONFIGS[ONE_TILE].tmem.o)
    edit = retarget(o1, like=o0)
    yield plant("the first columns of O1 are those of O0", edit, WRONG)


def mutants():
    """Every defect of the kernel of one query tile."""
    for group in (waits, counts, arrivals, commits, merging):
        yield from group()
