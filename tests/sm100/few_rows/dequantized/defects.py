"""Defects of the kernel that dequantizes its keys, planted in its PTX; one line is one mistake.

Parts shared with mhaswap have their defects there; these are in the steps between the ring and the MMAs.
Places are mbarriers, as in tests/emulator/mutations/attention_places.py. The subject: two sequences of one query, eight
heads of bf16 on one of e4m3, 850 keys: two work tiles of seven key tiles, so that parities differ from one to the next
and a ring of 13 slots goes round within each. Rows differ in size by powers of two, and so do the halves of a row. The
code for even key tiles comes before that for odd ones; defects are planted in the former.
"""

import torch

from cute_fa4 import flash_attn_func
from cute_fa4.sm100.choose.choose_config import choose_config
from tests.emulator.mutations import attention_places
from tests.emulator.mutations.attention_call import executes
from tests.emulator.mutations.attention_places import (
    AFTER,
    AN_ARRIVAL,
    ARRIVE,
    BEFORE,
    INIT,
    PROXY_FENCE,
    TMEM_STORE,
    WAIT_ST,
    commit,
    on,
    wait,
)
from tests.emulator.mutations.edits import ALWAYS_TRUE, FLIPPED_PARITY, delete, lines, move, replace
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

NAME = "d128_dequantized"
CONFIG = choose_config(
    qkv_dtype="bf16", kv_dtype="e4m3", head_dim=128, group=8, pack_gqa=True, write_lse=True, rows=8
)
attention_places.KNOWN[CONFIG.name] = CONFIG


def subject(level) -> Subject:
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(2, 1, 8, 128, generator=generator)
    q = q * 2.0 ** (torch.arange(8) % 4)[:, None] * torch.where(torch.arange(128) < 64, 1.0, 0.125)
    q = q.bfloat16()
    k, v = torch.randn(2, 2, 850, 1, 128, generator=generator).to(torch.float8_e4m3fn)

    def call(out):
        return flash_attn_func(q, k, v, return_lse=True, out=out)

    return Subject(NAME, executes(call, q, level))


def arrival(mbarrier):
    return on(lines("kernel", ARRIVE), mbarrier, f"arrival at {mbarrier}")


def waits_for(mbarrier):
    return wait("kernel", mbarrier)


EVEN_AND_ODD = ("K", "V", "K of odd key tiles", "V of odd key tiles")
Q_THERE = waits_for("q_full")
K_THERE, V_THERE, *_ = waits_for("kv_full").named(*EVEN_AND_ODD).values()
OF_SOFTMAX = waits_for("q_wide")
K_READ, V_READ, *_ = arrival("kv_empty").named(*EVEN_AND_ODD).values()
Q_TAKEN, Q_WIDE, Q_READY = arrival("q_taken"), arrival("q_wide"), arrival("q_ready")
K_WIDE, V_WIDE = arrival("k_wide").first, arrival("v_wide").first
A_PIECE = lines("kernel", r"ld\.shared\.v4\.b32 (\{.*\}), (\[%r\d+\]);")
A_LINE = lines("kernel", r"st\.shared\.v4\.b32 (\[%r\d+\]), \{(.*), (.*), (.*), (.*)\};")
K_STORE, V_STORE = (lines("kernel", TMEM_STORE).after(there) for there in (K_THERE, V_THERE))
TRANSPOSED = lines("kernel", r"ldmatrix\.(\S+) \{(\S+), (\S+), (\S+), (\S+)\}, (\[%r\d+\]);").after(
    V_THERE
)
CONVERSION = lines("kernel", r"cvt\.rn\.f16x2\.e4m3x2 (\S+), (\S+);")
EARLY = (*ASYNCHRONY, *COUNTS)
EARLY_OR_HANG = (*EARLY, *HANG)


def planted(name, edit, meant, **why) -> Mutant:
    return Mutant(name, NAME, edit, meant, **why)


def waits():
    """A wait removed, or for the wrong parity."""
    for place, what in (
        (Q_THERE, "dequantize does not wait for Q"),
        (K_THERE, "dequantize does not wait for K"),
        (V_THERE, "dequantize does not wait for V"),
        (waits_for("k_free").first, "dequantize does not wait for the place of K"),
        (waits_for("v_free").first, "dequantize does not wait for the place of V"),
        (waits_for("q_taken"), "load does not wait for the place where Q arrives"),
        (waits_for("q_free"), "dequantize does not wait for the last S of the Q before"),
        (waits_for("q_ready"), "mma does not wait for Q in fp16"),
        (OF_SOFTMAX, "softmax does not wait for the scales of its rows"),
        (waits_for("k_wide"), "mma does not wait for K in fp16"),
        (waits_for("v_wide").first, "mma does not wait for V in fp16"),
        (waits_for("v_wide").last, "mma does not wait for V of the last key tile"),
    ):
        yield planted(what, replace(place, ALWAYS_TRUE), EARLY)
    for place, what in (
        (K_THERE, "K"),
        (waits_for("k_free").first, "the place of K"),
        (waits_for("q_taken"), "the place where Q arrives"),
        (waits_for("q_free"), "the last S of the Q before"),
        (waits_for("q_ready"), "Q in fp16"),
        (OF_SOFTMAX, "the scales of rows"),
        (waits_for("v_wide").first, "V in fp16"),
    ):
        edit = replace(place, FLIPPED_PARITY)
        yield planted(f"the other parity of {what} is waited for", edit, EARLY_OR_HANG)


def arrivals():
    """Missing, early, or too many."""
    for place, what in (
        (K_READ, "a slot of K is not handed back"),
        (V_READ, "a slot of V is not handed back"),
        (Q_TAKEN, "q_taken is not raised"),
        (Q_WIDE, "q_wide is not raised"),
        (Q_READY, "q_ready is not raised"),
        (K_WIDE, "k_wide is not raised"),
        (V_WIDE, "v_wide is not raised"),
        (commit("k_free"), "no commit on k_free"),
        (commit("v_free").first, "no commit on v_free"),
    ):
        yield planted(what, delete(place), HANG)
    for place, before, what in (
        (K_READ, A_PIECE.after(K_THERE).first, "a slot of K is released before it is read"),
        (V_READ, TRANSPOSED.first, "a slot of V is released before it is read"),
        (K_WIDE, K_STORE.first, "k_wide is raised before K is stored"),
        (V_WIDE, V_STORE.first, "v_wide is raised before V is stored"),
        (Q_TAKEN, A_PIECE.after(Q_THERE).first, "q_taken is raised before Q is read"),
        (Q_WIDE, A_LINE.after(Q_THERE).first, "q_wide is raised before Q is stored"),
        (Q_READY, A_LINE.after(Q_THERE).first, "q_ready is raised before Q is stored"),
    ):
        yield planted(what, move(place, before=before, by=AN_ARRIVAL), EARLY)
    twice = replace(V_WIDE, r"\g<0> " + AN_ARRIVAL)
    yield planted("v_wide is raised twice", twice, EARLY_OR_HANG)
    lane = CONFIG.barriers.first_index("kv_empty")
    mine = "{.reg .pred mine; .reg .b32 lane, changed; mov.u32 lane, %laneid; " + (
        f"setp.eq.u32 mine, lane, {lane}; selp.b32 changed, 1, "
    )
    edit = replace(
        lines("prologue", INIT).first, mine + r"\2, mine; mbarrier.init.shared.b64 \1, changed;}"
    )
    yield planted("kv_empty[0] counts one arrival, as where the MMA reads it", edit, EARLY_OR_HANG)


def order():
    """Fences, and the wait for tensor memory."""
    fence = lines("kernel", PROXY_FENCE)
    yield planted(
        "no proxy fence after Q", delete(fence.ahead_of(K_THERE).after(Q_THERE).last), ORDER
    )
    for name, there in (("k", K_THERE), ("v", V_THERE)):
        stored = lines("kernel", WAIT_ST).after(there).first
        what = f"no wait for {name.upper()} in tensor memory"
        yield planted(what, delete(stored), (*ORDER, *IN_FLIGHT))
        before = lines("kernel", BEFORE).after(there).first
        yield planted(f"no tcgen05 fence before {name}_wide", delete(before), ORDER)
        after = lines("kernel", AFTER).after(waits_for(f"{name}_free").first).first
        yield planted(f"no tcgen05 fence after {name}_free", delete(after), ORDER)


def numbers():
    """Defects of arithmetic."""
    wrong = (WRONG_NUMBERS,)
    other = replace(CONVERSION.first, r"cvt.rn.f16x2.e5m2x2 \1, \2;")
    yield planted("two numbers of K are taken for e5m2", other, wrong)
    yield planted(
        "columns of V are exchanged",
        replace(TRANSPOSED.first, r"ldmatrix.\1 {\3, \2, \4, \5}, \6;"),
        wrong,
    )
    other = replace(CONVERSION.after(V_THERE).first, r"cvt.rn.f16x2.e5m2x2 \1, \2;")
    yield planted("two numbers of V are taken for e5m2", other, wrong)
    largest = (
        lines("kernel", r"shfl\.sync\.bfly\.b32\s+(\S+), (\S+), 8, 31, -1;").after(Q_THERE).first
    )
    yield planted(
        "a row's largest number is that of half of it", replace(largest, r"mov.b32 \1, \2;"), wrong
    )


def mutants() -> tuple:
    return tuple(mutant for group in (waits, arrivals, order, numbers) for mutant in group())
