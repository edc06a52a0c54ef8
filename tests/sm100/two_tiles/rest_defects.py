"""Defects of K with a remainder outside its slot (head dims of q and k beyond 128), planted in the PTX of 192/128.

Parts shared with depth 128 have defects in tests/emulator/mutations; here are the second depth stage of
K, its one place, the wait that guards it, and the one chunk of O that is on its way. The subject: 3 heads, 256 queries
x 300 keys: a CTA claims 3 work tiles of 3 key tiles, so that 9 rests go through their place and 18 tiles through a ring
of three slots; scores wide enough that rows are rescaled.
"""

import re

import torch

from cute_fa4 import flash_attn_func
from cute_fa4.sm100.choose.choose_config import choose_config
from tests.emulator.mutations import attention_places
from tests.emulator.mutations.attention_call import executes
from tests.emulator.mutations.attention_places import (
    AN_INIT,
    INIT,
    MMA,
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
    PlantingError,
    delete,
    lines,
    replace,
)
from tests.emulator.mutations.mutant import (
    ASYNCHRONY,
    COUNTS,
    HANG,
    IN_FLIGHT,
    WRONG_NUMBERS,
    Mutant,
    Subject,
)

NAME = "d192_128"
CONFIG = choose_config(qkv_dtype="bf16", head_dim=192, head_dim_v=128, write_lse=True)
attention_places.KNOWN[CONFIG.name] = CONFIG
SPREAD = 6.0  # of the queries: a row's maximum moves by more than 2^8 in most tiles


def subject(level) -> Subject:
    generator = torch.Generator().manual_seed(1)

    def rows(n, depth):
        return torch.randn(1, n, 3, depth, generator=generator)

    q, k, v = (rows(256, 192) * SPREAD).bfloat16(), rows(300, 192).bfloat16(), rows(300, 128)
    v = v.bfloat16()

    def call(out):
        return flash_attn_func(q, k, v, return_lse=True, out=out)

    return Subject(NAME, executes(call, q[..., :128].contiguous(), level))


# --- places. K, its rest and V follow each other in the ring, in both roles.

COPY = r"cp\.async\.bulk\.tensor\.(.*) \[(\S+)\], \[(\S+), \{(.*)\}\], \[(\S+)\], (\S+);"
COPIES = lines("load", COPY).named("Q0", "K", "the rest of K", "Q1", "V")
K_COPY, REST_COPY = COPIES["K"], COPIES["the rest of K"]
PARTS = ("K", "the rest of K", "V")
K_FREED, REST_FREED, V_FREED = wait("load", "kv_empty").named(*PARTS).values()
K_BYTES, REST_BYTES, V_BYTES = expect("kv_full").named(*PARTS).values()
V_WITHOUT_REST = arrival("load", "kv_full")
K_FULL, REST_FULL, V_FULL, V_STAGES = (
    wait("mma", "kv_full").named(*PARTS, "the stage of the rest, without one, of V").values()
)
S0, S1 = commit("s_ready[0]"), commit("s_ready[1]")
REST_OF_S0 = lines("mma", MMA).between(REST_FULL, S0)
# 128 columns of K are eight steps of an MMA, the rest of 64 four.
PRODUCTS_OF_S1 = (
    lines("mma", MMA)
    .between(wait("mma", "q_full[1]"), S1)
    .named(*(f"step {i} of K" for i in range(8)), *(f"step {i} of the rest" for i in range(4)))
)
K_FREE = commit("kv_empty").after(S1).first
CHUNK_READ = lines("correction", r"cp\.async\.bulk\.wait_group\.read\s+0;")

EARLY = (*ASYNCHRONY, *COUNTS)
EARLY_OR_HANG = (*EARLY, *HANG)
WRONG = (WRONG_NUMBERS,)


def copied(place, **changes):
    """Edit of a copy: kind, to, tensor, where, mbarrier or hint."""
    names = ("kind", "to", "tensor", "where", "mbarrier", "hint")

    def edit(ptx):
        text = ptx.split("\n")
        number = place.find_one(text)
        parts = dict(zip(names, re.search(COPY, text[number]).groups(), strict=True))
        for name, change in changes.items():
            changed = change(parts[name]) if callable(change) else change
            if changed == parts[name]:
                raise PlantingError(f"{place.words}: {name} is {changed} already")
            parts[name] = changed
        text[number] = re.sub(
            COPY,
            "cp.async.bulk.tensor.{kind} [{to}], [{tensor}, {{{where}}}], [{mbarrier}], {hint};".format(**parts),
            text[number],
        )  # fmt: skip
        return "\n".join(text)

    return edit


def with_coordinate(number: int, value: str):
    """A change of `where`."""

    def change(where):
        found = where.split(", ")
        found[number] = value
        return ", ".join(found)

    return change


def like(other, part: int):
    """Edit of the rest's copy: a part of it as in another copy."""
    names = ("kind", "to", "tensor", "where", "mbarrier", "hint")

    def edit(ptx):
        text = ptx.split("\n")
        wanted = re.search(COPY, text[other.find_one(text)])[part]
        return copied(REST_COPY, **{names[part - 1]: wanted})(ptx)

    return edit


def operand_of(place, register: str, by: str):
    """Edit of the lines before an MMA that make one of its descriptors: "a_low" or "b_low"."""

    def edit(ptx):
        text = ptx.split("\n")
        number = place.find_one(text)
        while f"add.s32 {register}," not in text[number]:
            number -= 1
        changed = re.sub(r", \d+;", f", {by};", text[number])
        if changed == text[number]:
            raise PlantingError(f"{place.words}: {register} has {by} already")
        text[number] = changed
        return "\n".join(text)

    return edit


def planted(name, edit, meant, **why) -> Mutant:
    return Mutant(name, NAME, edit, meant, **why)


def waits():
    for role, place, what in (
        ("mma", K_FULL, "the columns in the slot"),
        ("mma", REST_FULL, "the rest"),
        ("mma", V_FULL, "V"),
        ("load", REST_FREED, "the place of the rest"),
        ("load", K_FREED, "the slot of K"),
    ):
        yield planted(f"{role} does not wait for {what}", replace(place, ALWAYS_TRUE), EARLY)
    for role, place, what in (
        ("mma", REST_FULL, "the rest"),
        ("load", REST_FREED, "the place of the rest"),
    ):
        other = replace(place, FLIPPED_PARITY)
        yield planted(f"{role} waits for the other parity of {what}", other, EARLY_OR_HANG)
    yield planted(
        "load does not wait for the slot of V",
        replace(V_FREED, ALWAYS_TRUE),
        (),
        equivalent="the rest of K has waited for the same slot",
    )
    yield planted(
        "mma does not wait for the arrival of V on the stage of the rest",
        replace(V_STAGES, ALWAYS_TRUE),
        (),
        equivalent="the bytes of V are all on the first stage, whose wait comes before",
    )


def counts():
    """Bytes, arrivals, commits."""
    for what, nbytes, place, meant in (
        ("half of the rest's bytes are expected", 8192, REST_BYTES, EARLY_OR_HANG),
        ("16 bytes of the rest too many are expected", 16400, REST_BYTES, HANG),
        ("the rest's bytes are expected with the slot's", 49152, K_BYTES, HANG),
        ("half of V's bytes are expected", 16384, V_BYTES, EARLY_OR_HANG),
    ):
        yield planted(what, announced(nbytes, place), meant)
    yield planted("the rest counts on the slot's stage", like(K_COPY, 5), EARLY_OR_HANG)
    yield planted("V does not arrive on the stage of the rest", delete(V_WITHOUT_REST), HANG)
    twice = replace(V_WITHOUT_REST, r"\g<0> mbarrier.arrive.shared.b64 _, \1, 1;")
    yield planted("V arrives twice on the stage of the rest", twice, EARLY_OR_HANG)
    yield planted("no commit on kv_empty after K", delete(K_FREE), HANG)
    for name, offset, count in (("kv_full", 1, 2), ("kv_empty", 0, 2)):
        lane = CONFIG.barriers.first_index(name) + offset
        edit = replace(
            lines("prologue", INIT),
            "{.reg .pred mine; .reg .b32 lane, changed; mov.u32 lane, %laneid; "
            rf"setp.eq.u32 mine, lane, {lane}; selp.b32 changed, {count}, \2, mine; "
            + AN_INIT + r" \1, changed;}",
        )  # fmt: skip
        yield planted(f"{name}[0], barrier {offset}, counts {count} arrivals", edit, HANG)


def places():
    """Sources and destinations of copies, and operands of MMAs."""
    slot = CONFIG.smem.kv.offset
    yield planted(
        "the rest lies over slot 0",
        copied(REST_COPY, to=lambda at: at.replace(str(CONFIG.smem.k_rest.offset), str(slot))),
        (*ASYNCHRONY, WRONG_NUMBERS),
    )
    first_columns = copied(REST_COPY, where=with_coordinate(0, "0"))
    yield planted("the rest is the first columns of K", first_columns, WRONG)
    first_rows = copied(REST_COPY, where=with_coordinate(1, "0"))
    yield planted("every rest is that of the first key tile", first_rows, WRONG)
    first_head = copied(REST_COPY, where=with_coordinate(2, "0"))
    yield planted("the rest is that of the first head", first_head, WRONG)
    overwrites = r"@leader_thread tcgen05.mma.cta_group::1.kind::f16 \1, \2, \3, 0;"
    yield planted("the rest of S0 overwrites", replace(REST_OF_S0.first, overwrites), WRONG)
    rest_of_s1 = PRODUCTS_OF_S1["step 0 of the rest"]
    yield planted("the rest of S1 overwrites", replace(rest_of_s1, overwrites), WRONG)
    yield planted(
        "S1 leaves out a step of its rest", delete(PRODUCTS_OF_S1["step 3 of the rest"]), WRONG
    )
    yield planted("Q0 of the rest is that of the slot", operand_of(REST_OF_S0.first, "a_low", "0"), WRONG)  # fmt: skip
    yield planted(
        "the rest of S1 is 32 bytes further",
        operand_of(rest_of_s1, "b_low", "2"),
        (*WRONG, *ASYNCHRONY),
    )


def output():
    """One chunk of O on its way: the next is written when it has been read."""
    another = replace(CHUNK_READ.first, "cp.async.bulk.wait_group.read 1;")
    yield planted("a chunk of O is written over the one before", another, EARLY)
    yield planted(
        "no barrier before a chunk of O is written",
        delete(chunk_barriers(8)["before chunk 1"]),
        EARLY,
    )
    yield planted(
        "the CTA ends while a chunk of O is read",
        delete(CHUNK_READ.last),
        (*IN_FLIGHT, *ASYNCHRONY, "EmulatorError"),
    )


def mutants() -> tuple:
    return tuple(mutant for group in (waits, counts, places, output) for mutant in group())
