"""Defects of the kernel for head dims up to 512, planted in its PTX; one line is one mistake.

Places are roles and mbarriers, as in tests/emulator/mutations/attention_places.py. The subject: two heads, 128 queries
and 300 keys: a CTA claims 2 work tiles of 3 key tiles, the last of them masked. 3 is odd, so that a buffer of S belongs
to other tiles of the second work tile than of the first, and 48 units go through a ring of nine slots; scores so wide
that rows are rescaled in most tiles.
"""

import torch

from cute_fa4 import flash_attn_func
from cute_fa4.sm100.choose.choose_config import choose_config
from tests.emulator.mutations import attention_places
from tests.emulator.mutations.attention_call import executes
from tests.emulator.mutations.attention_places import (
    AFTER,
    AN_ARRIVAL,
    BEFORE,
    MMA,
    TMEM_STORE,
    WAIT_LD,
    WAIT_ST,
    announced,
    arrival,
    chunk_barriers,
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

NAME = "d256_wide"
CONFIG = choose_config(qkv_dtype="bf16", head_dim=256, write_lse=True)
attention_places.KNOWN[CONFIG.name] = CONFIG
SPREAD = 6.0  # of the queries: a row's maximum moves by more than 2^8 in most tiles


def subject(level) -> Subject:
    generator = torch.Generator().manual_seed(1)
    q = (torch.randn(1, 128, 2, 256, generator=generator) * SPREAD).bfloat16()
    k, v = torch.randn(2, 1, 300, 2, 256, generator=generator).bfloat16()

    def call(out):
        return flash_attn_func(q, k, v, return_lse=True, out=out)

    return Subject(NAME, executes(call, q, level))


# --- places. Four units of K make S, then four of V add to O; the last MMA of a work tile has a separate copy.

OF_UNITS = tuple(f"unit {unit} of {what}" for what in ("K", "V", "the last V") for unit in range(4))
UNITS, FREED, SLOTS = (
    place.named(*OF_UNITS)
    for place in (wait("mma", "kv_full"), commit("kv_empty"), wait("load", "kv_empty"))
)
K_UNIT, LAST_K_UNIT = UNITS["unit 0 of K"], UNITS["unit 3 of K"]
SECOND_V_UNIT = UNITS["unit 1 of V"]
S_DONE = commit("s_ready")
K_FREE, V_FREE = FREED["unit 0 of K"], FREED["unit 0 of V"]
PV_DONE_END = commit("pv_done").last
P_READY, P_LAST = wait("mma", "p_ready").first, wait("mma", "p_last").first
WHOLE = wait("softmax", "s_ready").first
FACTOR = arrival("softmax", "row_scale").first
P_STORED = arrival("softmax", "p_ready").after(WHOLE).first
SUMS_WAIT = wait("softmax", "p_ready")
SUMS = arrival("softmax", "row_scale").last
RESCALE, SUMS_COME = wait("correction", "row_scale").first, wait("correction", "row_scale").last
O_DONE, O_DONE_END = wait("correction", "pv_done").first, wait("correction", "pv_done").last
RESCALED = arrival("correction", "p_ready").after(O_DONE).first
O_FREE = arrival("correction", "p_ready").after(O_DONE_END).first
UNIT_BYTES = expect("kv_full")
S_PRODUCT = (
    lines("mma", MMA)
    .between(K_UNIT, S_DONE)
    .named(*(f"step {i} of unit {unit}" for unit in range(4) for i in range(4)))
)

EARLY = (*ASYNCHRONY, *COUNTS)
EARLY_OR_HANG = (*EARLY, *HANG)
WRONG = (WRONG_NUMBERS,)


def planted(name, edit, meant, **why) -> Mutant:
    return Mutant(name, NAME, edit, meant, **why)


def waits():
    for role, place, what in (
        ("mma", wait("mma", "q_full"), "q_full"),
        ("mma", K_UNIT, "a unit of K"),
        ("mma", SECOND_V_UNIT, "the second unit of V"),
        ("mma", P_READY, "p_ready"),
        ("mma", P_LAST, "p_last"),
        ("softmax", WHOLE, "s_ready of a whole tile"),
        ("softmax", SUMS_WAIT, "p_ready before the sums"),
        ("correction", RESCALE, "the factor"),
        ("correction", O_DONE, "the product before"),
        ("correction", SUMS_COME, "the row sums"),
        ("correction", O_DONE_END, "the last product"),
        ("load", wait("load", "q_free"), "q_free"),
        ("load", SLOTS["unit 0 of K"], "the slot of a unit of K"),
        ("load", SLOTS["unit 1 of V"], "the slot of a unit of V"),
    ):
        yield planted(f"{role} does not wait for {what}", replace(place, ALWAYS_TRUE), EARLY)
    for role, place, what in (
        ("mma", LAST_K_UNIT, "the last unit of K"),
        ("softmax", WHOLE, "s_ready"),
        ("correction", O_DONE, "the product before"),
    ):
        edit = replace(place, FLIPPED_PARITY)
        yield planted(f"{role} waits for the other parity of {what}", edit, EARLY_OR_HANG)
    again = replace(wait("mma", "q_full"), PARITY_0)
    yield planted("mma waits for q_full as in the first work tile", again, EARLY_OR_HANG)


def arrivals():
    for place, what in (
        (FACTOR, "the factor"),
        (SUMS, "the row sums"),
        (RESCALED, "p_ready"),
        (O_FREE, "that O is free"),
    ):
        yield planted(f"nobody says {what}", delete(place), HANG)
    for place, what in (
        (S_DONE, "s_ready"),
        (K_FREE, "kv_empty after a unit of K"),
        (V_FREE, "kv_empty after a unit of V"),
        (PV_DONE_END, "pv_done of the last tile"),
        (commit("q_free"), "q_free"),
    ):
        yield planted(f"no commit on {what}", delete(place), HANG)
    early = move(RESCALED, before=lines("correction", TMEM_STORE).ahead_of(RESCALED).last, by=AN_ARRIVAL)  # fmt: skip
    yield planted("p_ready is raised before O is rescaled", early, (*ORDER, *COUNTS, *HANG))
    half = announced(8192, UNIT_BYTES.first)
    yield planted("half of the bytes of a unit are expected", half, EARLY_OR_HANG)


def order():
    for role, place, what in (
        ("softmax", lines("softmax", AFTER).after(WHOLE).first, "after s_ready"),
        ("softmax", lines("softmax", BEFORE).ahead_of(P_STORED).last, "before p_ready"),
        ("correction", lines("correction", AFTER).after(O_DONE).first, "before O is rescaled"),
        ("correction", lines("correction", BEFORE).ahead_of(RESCALED).last, "after the rescale"),
        ("mma", lines("mma", AFTER).after(P_READY).first, "after p_ready"),
    ):
        yield planted(f"{role}: no tcgen05 fence {what}", delete(place), ORDER)
    yield planted("no wait for the scores", delete(lines("softmax", WAIT_LD).first), ORDER)
    stores = lines("correction", WAIT_ST)
    yield planted("no wait for the rescaled O", delete(stores.first), (*ORDER, *IN_FLIGHT))
    chunk = chunk_barriers(8)["before chunk 1"]
    yield planted("no barrier before a chunk of O is written", delete(chunk), EARLY)


def numbers():
    overwrites = r"@leader_thread tcgen05.mma.cta_group::1.kind::f16 \1, \2, \3, 0;"
    yield planted(
        "a unit of K overwrites S", replace(S_PRODUCT["step 0 of unit 1"], overwrites), WRONG
    )
    adds = r"@leader_thread tcgen05.mma.cta_group::1.kind::f16 \1, \2, \3, 1;"
    yield planted(
        "S adds to the one before",
        replace(S_PRODUCT["step 0 of unit 0"], adds),
        (*WRONG, *ASYNCHRONY),
    )
    yield planted("a step of S is left out", delete(S_PRODUCT["step 3 of unit 3"]), WRONG)
    vote = lines("correction", r"vote\.sync\.any\.pred\s+(%p\d+), %p\d+, -1;")
    never = replace(vote.first, r"setp.ne.u32 \1, 0, 0;")
    yield planted("O is never rescaled", never, WRONG)


def mutants() -> tuple:
    return tuple(mutant for group in (waits, arrivals, order, numbers) for mutant in group())
