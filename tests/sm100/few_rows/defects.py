"""Defects of the kernel with swapped operands, planted in its PTX; one line is one mistake.

Places are roles and mbarriers, as in tests/emulator/mutations/attention_places.py. The subject: three sequences of one
query, eight heads on one, 300 keys: three work tiles of three key tiles, the last of them masked, which one CTA claims
in order; scores so wide that a row is rescaled in most tiles. 3 is odd, so parities differ from work tile to work tile.
"""

import torch

from cute_fa4 import flash_attn_func
from cute_fa4.sm100.choose.choose_config import choose_config
from tests.emulator.mutations import attention_places
from tests.emulator.mutations.attention_call import executes
from tests.emulator.mutations.attention_places import (
    A_COMMIT,
    AFTER,
    AN_ARRIVAL,
    AN_INIT,
    BEFORE,
    INIT,
    MMA,
    PROXY_FENCE,
    WAIT_LD,
    WAIT_ST,
    announced,
    arrival,
    at,
    commit,
    expect,
    wait,
)
from tests.emulator.mutations.edits import (
    ALWAYS_TRUE,
    FLIPPED_PARITY,
    PARITY_0,
    delete,
    lines,
    move,
    replace,
)
from tests.emulator.mutations.mutant import (
    ASYNCHRONY,
    COUNTS,
    HANG,
    IN_FLIGHT,
    ORDER,
    WRONG_NUMBERS,
    Mutant,
    Subject,
)

NAME = "d128_swapped"
CONFIG = choose_config(
    qkv_dtype="bf16", head_dim=128, group=8, pack_gqa=True, write_lse=True, rows=8
)
attention_places.KNOWN[CONFIG.name] = CONFIG
SPREAD = 6.0  # of the queries: a row's maximum moves by more than 2^8 in most tiles


def subject(level) -> Subject:
    generator = torch.Generator().manual_seed(1)
    q = (torch.randn(3, 1, 8, 128, generator=generator) * SPREAD).bfloat16()
    k, v = torch.randn(2, 3, 300, 1, 128, generator=generator).bfloat16()

    def call(out):
        return flash_attn_func(q, k, v, return_lse=True, out=out)

    return Subject(NAME, executes(call, q, level))


# --- places. A whole tile comes first, a masked one after it, then the end of the work tile.

WHOLE, MASKED = wait("softmax", "s_ready").first, wait("softmax", "s_ready").last
P_FREE = wait("softmax", "pv_done").after(WHOLE).first
P_FREE_MASKED = wait("softmax", "pv_done").after(MASKED).first
O_DONE = wait("softmax", "pv_done").last
P_READY = arrival("softmax", "p_ready").after(WHOLE).first
P_READY_MASKED = arrival("softmax", "p_ready").after(MASKED).first
EXCHANGE = lines("softmax", r"bar\.sync\s+1, 128;")
TMEM_LOAD = lines("softmax", r"tcgen05\.ld\S+ \{.*\}, \[\S+\];")
A_LINE_OF_P = lines("softmax", r"st\.shared\.v4\.b32 (\[%r\d+\]), \{(.*), (.*), (.*), (.*)\};")
PUBLISHED = lines("softmax", r"bar\.warp\.sync\s+-1;")
K_FULL = wait("mma", "kv_full").first
V_FULL = wait("mma", "kv_full").last
P_LOOP, P_END = wait("mma", "p_ready").first, wait("mma", "p_ready").last
S_DONE, K_FREE = commit("s_ready"), commit("kv_empty").first
PV_DONE_LOOP, PV_DONE_END = commit("pv_done").first, commit("pv_done").last
V_FREE_LOOP = commit("kv_empty").after(P_LOOP).first
V_FREE_END = commit("kv_empty").last
Q_EMPTY = wait("load", "q_free[0]")
K_EMPTY = wait("load", "kv_empty").ahead_of(Q_EMPTY).last
V_EMPTY = wait("load", "kv_empty").last
S_PRODUCT = lines("mma", MMA).between(K_FULL, S_DONE)
O_PRODUCT = lines("mma", MMA).between(P_LOOP, V_FREE_LOOP)

EARLY = (*ASYNCHRONY, *COUNTS)
EARLY_OR_HANG = (*EARLY, *HANG)


def planted(name, edit, meant, **why) -> Mutant:
    return Mutant(name, NAME, edit, meant, **why)


def waits():
    """A wait removed, for the wrong parity, or for the parity of the first work tile."""
    for role, place, what in (
        ("mma", wait("mma", "q_full[0]"), "q_full"),
        ("mma", K_FULL, "kv_full for K"),
        ("mma", V_FULL, "kv_full for V"),
        ("mma", P_LOOP, "p_ready"),
        ("mma", P_END, "p_ready of the last key tile"),
        ("softmax", WHOLE, "s_ready of a whole tile"),
        ("softmax", MASKED, "s_ready of a masked tile"),
        ("softmax", P_FREE, "pv_done before it stores P"),
        ("softmax", P_FREE_MASKED, "pv_done before it stores P of a masked tile"),
        ("softmax", O_DONE, "pv_done before it stores O"),
        ("load", Q_EMPTY, "q_free"),
        ("load", K_EMPTY, "kv_empty before K"),
        ("load", V_EMPTY, "kv_empty before V"),
    ):
        yield planted(f"{role} does not wait for {what}", replace(place, ALWAYS_TRUE), EARLY)
    for role, place, what in (
        ("mma", wait("mma", "q_full[0]"), "q_full"),
        ("mma", K_FULL, "kv_full for K"),
        ("mma", P_LOOP, "p_ready"),
        ("softmax", WHOLE, "s_ready"),
        ("softmax", P_FREE, "pv_done"),
        ("softmax", O_DONE, "pv_done before it stores O"),
        ("load", K_EMPTY, "kv_empty before K"),
    ):
        edit = replace(place, FLIPPED_PARITY)
        yield planted(f"{role} waits for the other parity of {what}", edit, EARLY_OR_HANG)
    edit = replace(wait("mma", "q_full[0]"), PARITY_0)
    yield planted("mma waits for q_full as in the first work tile", edit, EARLY_OR_HANG)


def arrivals():
    """Arrivals and commits: missing, twice, early, or of the wrong number."""
    for place, what in (
        (P_READY, "p_ready"),
        (arrival("softmax", "work_read").last, "work_read"),
    ):
        yield planted(f"softmax does not raise {what}", delete(place), HANG)
    yield planted(
        "softmax raises p_ready twice", replace(P_READY, r"\g<0> " + AN_ARRIVAL), EARLY_OR_HANG
    )
    early = move(P_READY, before=A_LINE_OF_P.ahead_of(P_READY).last, by=AN_ARRIVAL)
    yield planted("p_ready is raised before P is stored", early, ORDER)
    elected = r"{.reg .pred one; elect.sync _|one, 0xffffffff; @one \g<0>}"
    yield planted("one thread a warp raises p_ready", replace(P_READY, elected), HANG)
    for place, what in (
        (S_DONE, "s_ready"),
        (PV_DONE_LOOP, "pv_done"),
        (PV_DONE_END, "pv_done of the last key tile"),
        (K_FREE, "kv_empty after K"),
        (V_FREE_LOOP, "kv_empty after V"),
        (commit("q_free[0]"), "q_free"),
    ):
        yield planted(f"no commit on {what}", delete(place), HANG)
    other = rf"{A_COMMIT} [__dynamic_shmem__0+{at(CONFIG, 'pv_done[0]')}]; \g<0>"
    yield planted(
        "pv_done is committed before the slot of the last V is",
        # The commit after it is then in flight when the CTA exits.
        lambda ptx: delete(PV_DONE_END)(replace(V_FREE_END, other)(ptx)),
        ("EmulatorError", *IN_FLIGHT),
    )
    first = lines("mma", MMA).after(P_END).first
    yield planted(
        "pv_done is committed before the last product",
        lambda ptx: delete(PV_DONE_END)(
            replace(first, f"{A_COMMIT} [__dynamic_shmem__0+{at(CONFIG, 'pv_done[0]')}]; " + r"\g<0>")(ptx)
        ),
        (*ASYNCHRONY, *IN_FLIGHT),
    )  # fmt: skip
    for name, count in (
        ("p_ready", 127),
        ("p_ready", 129),
        ("pv_done", 2),
        ("s_ready", 2),
        ("work_read", 159),
        ("q_free", 2),
    ):
        lane = CONFIG.barriers.first_index(name)
        mine = "{.reg .pred mine; .reg .b32 lane, changed; mov.u32 lane, %laneid; " + (
            f"setp.eq.u32 mine, lane, {lane}; selp.b32 changed, {count}, "
        )
        edit = replace(lines("prologue", INIT), mine + r"\2, mine; " + AN_INIT + r" \1, changed;}")
        yield planted(f"{name}[0] counts {count} arrivals", edit, (*COUNTS, *HANG))
    for what, nbytes, place, meant in (
        ("Q: half of its bytes are expected", 2048, expect("q_full[0]"), EARLY_OR_HANG),
        ("K: half of its bytes are expected", 16384, expect("kv_full").first, EARLY_OR_HANG),
        ("V: 16 bytes too many are expected", 32784, expect("kv_full").last, HANG),
    ):
        yield planted(what, announced(nbytes, place), meant)


def order():
    """Fences, waits for tensor memory, and the barrier of the softmax warps."""
    fence = lines("softmax", PROXY_FENCE)
    yield planted("no proxy fence after P", delete(fence.first), ORDER)
    yield planted("no proxy fence after P of a masked tile", delete(fence.last), ORDER)
    late = move(fence.ahead_of(P_READY).last, before=A_LINE_OF_P.ahead_of(P_READY).last)
    yield planted("the proxy fence is before P", late, ORDER)
    before = lines("softmax", BEFORE)
    yield planted("no tcgen05 fence before p_ready of a masked tile", delete(before.last), ORDER)
    after = lines("softmax", AFTER)
    yield planted("no tcgen05 fence after s_ready", delete(after.after(WHOLE).first), ORDER)
    yield planted("no tcgen05 fence before O is stored", delete(after.last), ORDER)
    loads = lines("softmax", WAIT_LD)
    yield planted("no wait for the scores", delete(loads.first), ORDER)
    yield planted("no wait for O before it is stored", delete(loads.last), ORDER)
    stores = lines("softmax", WAIT_ST)
    yield planted("no wait for the rescaled O", delete(stores.first), (*ORDER, *IN_FLIGHT))
    for place, what in (
        (EXCHANGE.first, "the maxima of a whole tile"),
        (EXCHANGE.after(MASKED).first, "the maxima of a masked tile"),
        (EXCHANGE.last, "the row sums"),
    ):
        yield planted(
            f"no barrier between the warps before {what} are read", delete(place), ASYNCHRONY
        )
    for place, what in ((PUBLISHED.first, "biases"), (PUBLISHED.last, "inverse sums")):
        yield planted(
            f"no barrier between the lanes before {what} are read",
            delete(place),
            ("RaceError",),
        )
    one_buffer = replace(lines("softmax", r"and\.b32\s+(%r\d+), (%r\d+), 512;"), r"mov.b32 \1, 0;")
    yield planted("maxima are exchanged through one buffer", one_buffer, ORDER)


def numbers():
    """Defects of arithmetic."""
    redux = lines("softmax", r"redux\.sync\.max\.f32")
    yield planted(
        "a minimum for the maximum of a row",
        replace(redux.first, "redux.sync.min.f32"),
        (WRONG_NUMBERS,),
    )
    yield planted(
        "a maximum over half of the lanes",
        replace(
            lines("softmax", r"(redux\.sync\.max\.f32 \S+ \S+), 0xffffffff;").first,
            r"\1, 0x0000ffff;",
        ),
        ("DivergenceError", "EmulatorError", WRONG_NUMBERS),
    )
    vote = lines("softmax", r"vote\.sync\.any\.pred\s+(%p\d+), %p\d+, -1;")
    never = replace(vote.first, r"setp.ne.u32 \1, 0, 0;")
    yield planted("O is never rescaled in a whole tile", never, (WRONG_NUMBERS,))
    halves = r"st.shared.v4.b32 \1, {\4, \5, \2, \3};"
    yield planted(
        "rows of P are exchanged",
        replace(A_LINE_OF_P.ahead_of(P_READY).last, halves),
        (WRONG_NUMBERS,),
    )
    yield planted(
        "the unused rows of P are not zeroed", delete(A_LINE_OF_P.first), ("UninitializedRead",)
    )
    for place, bit, what in (
        (O_PRODUCT.first, 15, "V is K-major in the instruction descriptor"),
        (O_PRODUCT.first, 16, "P is K-major in the instruction descriptor"),
        (S_PRODUCT.first, 16, "Q is MN-major in the instruction descriptor"),
    ):
        yield planted(what, flipped(place, bit), (WRONG_NUMBERS, *ASYNCHRONY, "EmulatorError"))
    yield planted(
        "the first product of a key tile adds to the old S",
        replace(lines("mma", r"(tcgen05\.mma\S+ \[\S+\], a, b, 0x[0-9a-f]+), 0;").first, r"\1, 1;"),
        (WRONG_NUMBERS, *ASYNCHRONY),
    )


def flipped(place, bit: int):
    """Edit: a bit of the instruction descriptor of an MMA."""
    import re

    def edit(ptx):
        text = ptx.split("\n")
        number = place.find_one(text)
        word = int(re.search(r"0x[0-9a-f]+", text[number])[0], 16)
        text[number] = re.sub(r"0x[0-9a-f]+", f"{word ^ 1 << bit:#x}", text[number])
        return "\n".join(text)

    return edit


def mutants() -> tuple:
    return tuple(mutant for group in (waits, arrivals, order, numbers) for mutant in group())
