"""Defects of parts that merge in a cluster, planted in PTX; what a CTA does before the merge is in defects.py.

The subject: one query, eight heads on one, 300 keys in a cluster of four: parts of one key tile, the last of 44 keys,
and a part without keys.
"""

import torch

from cute_fa4 import flash_attn_func
from cute_fa4.sm100.choose_config import choose_config
from tests.emulator.mutations import attention_places
from tests.emulator.mutations.attention_call import executes
from tests.emulator.mutations.edits import delete, lines, replace
from tests.emulator.mutations.mutant import ASYNCHRONY, HANG, WRONG_NUMBERS, Mutant, Subject

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


# Softmax when it has handed in, softmax without rows, mma, load, and every thread before it leaves.
MET = lines("kernel", r"barrier\.cluster\.(arrive|wait)\S*;")
ARRIVED, WAITED = (lines("kernel", rf"barrier\.cluster\.{what}\S*;") for what in ("arrive", "wait"))
# Zeros of a part without keys, then O row by row.
HANDED_IN = lines("softmax", r"st\.shared\.f32 \[(%r\d+)\], (%r\d+);")
STATE = lines("softmax", r"st\.shared\.b32\s+\[\S+\], (%r\d+);")
REMOTE = lines("softmax", r"mapa\.shared::cluster\.u32 there, (%r\d+), (%r\d+);")
WEIGHT = lines("softmax", r"ex2\.approx\.ftz\.f32\s+(%r\d+), (%r\d+);").behind(REMOTE.first)

WRONG = (WRONG_NUMBERS,)
ENDED = ("IllegalAccess", "BarrierError")


def mutants():
    """Every defect of the merge."""
    of_first = r"mapa.shared::cluster.u32 there, \1, 0;"
    found = (
        ("softmax reads before all have handed in", delete(WAITED.first), ASYNCHRONY),
        ("the last row of O is not handed in", delete(HANDED_IN.last), (*ASYNCHRONY, *WRONG)),
        ("a part without keys hands in nothing", delete(HANDED_IN.first), (*ASYNCHRONY, *WRONG)),
        ("the sum is not handed in", delete(STATE.last), (*ASYNCHRONY, *WRONG)),
        ("O of the second part is that of the first", replace(REMOTE.number(1), of_first), WRONG),
        ("the maximum of the second part is that of the first", replace(REMOTE.number(5), of_first), WRONG),
        ("the second part has weight 1", replace(WEIGHT.number(1), r"mov.b32 \1, 0f3F800000;"), WRONG),
        ("mma does not meet the others", together(delete(ARRIVED.number(2)), delete(WAITED.number(2))), HANG),
        ("a CTA ends while others read", together(delete(ARRIVED.last), delete(WAITED.last)), ENDED),
    )  # fmt: skip
    return [Mutant(f"cluster: {name}", NAME, edit, meant) for name, edit, meant in found]


def together(*edits):
    """One edit after the other; places are looked up anew, so the last line of a text comes first."""

    def edited(ptx):
        for edit in edits:
            ptx = edit(ptx)
        return ptx

    return edited
