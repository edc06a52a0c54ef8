"""Defects of parts that merge in a cluster, planted in PTX; what a CTA does before the merge is in defects.py.

The subject: one query, eight heads on one, 300 keys in a cluster of four: parts of one key tile, the last of 44 keys,
and a part without keys.
"""

import torch

from cute_fa4 import flash_attn_func
from cute_fa4.sm100.choose.choose_config import choose_config
from tests.emulator.mutations import attention_places
from tests.emulator.mutations.attention_call import executes
from tests.emulator.mutations.attention_places import EXPECT, announced, on, wait
from tests.emulator.mutations.edits import ALWAYS_TRUE, delete, lines, replace
from tests.emulator.mutations.mutant import (
    ASYNCHRONY,
    COUNTS,
    HANG,
    WRONG_NUMBERS,
    Mutant,
    Subject,
)

NAME = "d128_cluster"
CONFIG = choose_config(
    qkv_dtype="bf16",
    head_dim=128,
    group=8,
    pack_gqa=True,
    write_lse=True,
    rows=8,
    cluster_parts=4,
)
attention_places.KNOWN[CONFIG.name] = CONFIG


def subject(level) -> Subject:
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(1, 1, 8, 128, generator=generator).bfloat16()
    k, v = torch.randn(2, 1, 300, 1, 128, generator=generator).bfloat16()

    def call(out):
        return flash_attn_func(q, k, v, return_lse=True, out=out, num_splits=0)

    return Subject(NAME, executes(call, q, level))


ARRIVED, WAITED = (lines("kernel", rf"barrier\.cluster\.{what}\S*;") for what in ("arrive", "wait"))
# The maximum and sum of each row, O row by row, zeros of a part without keys: the same number for every CTA.
SENT = lines("softmax", r"(st\.async\S+) \[(%r\d+)\], (%r\d+), \[(%r\d+)\];")
SENDS = SENT.named(
    "the maximum",
    "the sum",
    *(f"row {i} of O" for i in range(8)),
    *(f"zeros {i}" for i in range(4)),
)
MAXIMUM, SUM = SENDS["the maximum"], SENDS["the sum"]
FIRST_O, LAST_O, A_ZERO = SENDS["row 0 of O"], SENDS["row 7 of O"], SENDS["zeros 0"]
# An address there and the mbarrier that hears of it: for a row's state, and for O of each of the four.
TO = lines("softmax", r"mapa\.shared::cluster\.u32 (%r\d+), (%r\d+), (%r\d+);").named(
    "the state's place", "the state's mbarrier",
    *(f"{what} of CTA {i}" for i in range(4) for what in ("the place", "the mbarrier")),
)  # fmt: skip
PARTS_IN = wait("softmax", "parts_in")
WEIGHT = (
    lines("softmax", r"ex2\.approx\.ftz\.f32\s+(%r\d+), (%r\d+);")
    .after(PARTS_IN)
    .named(
        *(f"part {i} of {what}" for what in ("the first rows", "the second rows") for i in range(4))
    )
)
ANNOUNCED = on(lines("softmax", EXPECT), "parts_in", "bytes announced on parts_in").first
A_ROW = 4 * (128 + 2)
BYTES = CONFIG.smem.parts.nbytes

WRONG = (WRONG_NUMBERS,)
MIXED = ("IllegalAccess",)  # data for one CTA, the news of it for another


def mutants():
    """Every defect of the merge."""
    to_third = r"mapa.shared::cluster.u32 \1, \2, 2;"
    sent_twice = r"\1 [\2], \3, [\4];" + "\n" + r"\1 [\2], \3, [\4];"
    heavier = replace(WEIGHT["part 1 of the first rows"], r"mov.b32 \1, 0f3F800000;")
    found = (
        ("softmax sends before the others run", delete(WAITED.first), COUNTS),
        ("the mbarriers' CTA does not say that it runs", delete(ARRIVED.first), (*HANG, *COUNTS)),
        ("the merge does not wait for the parts", replace(PARTS_IN, ALWAYS_TRUE), ASYNCHRONY),
        ("a row less is awaited", announced(BYTES - A_ROW, ANNOUNCED), (*COUNTS, *MIXED, *ASYNCHRONY)),
        ("a row more is awaited", announced(BYTES + A_ROW, ANNOUNCED), HANG),
        ("no bytes are awaited", delete(ANNOUNCED), HANG),
        ("the last row of O is not sent", delete(LAST_O), HANG),
        ("a row of O is sent twice", replace(FIRST_O, sent_twice), (*COUNTS, *MIXED, *ASYNCHRONY)),
        ("a part without keys sends a row less", delete(A_ZERO), HANG),
        ("the sum is not sent", delete(SUM), HANG),
        ("the maximum goes where the sum belongs", replace(SUM, r"\1 [\2+-32], \3, [\4];"), (*ASYNCHRONY, *WRONG)),
        ("rows of the second CTA go to the third", replace(TO["the place of CTA 1"], to_third), MIXED),
        ("news for the second CTA goes to the third", replace(TO["the mbarrier of CTA 1"], to_third), MIXED),
        ("the second part has weight 1", heavier, WRONG),
    )  # fmt: skip
    return [Mutant(f"cluster: {name}", NAME, edit, meant) for name, edit, meant in found]
