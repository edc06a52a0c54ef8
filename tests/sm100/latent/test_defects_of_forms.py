"""Planted defects of latent caches of 512 columns and of several heads, and of the largest scores.

Waits, fences, arrivals and numbers are those of 576 columns (defects.py), planted in the kernel of 512, which has no
ring of RoPE columns, and in the launches over a cache of three heads, whose rows are three rows apart. Defects of the
largest scores are planted in kernels that return them, alone and in pairs: the log-sum-exp cannot show them.
"""

from functools import cache

import pytest
import torch

from tests.emulator.mutations import attention_places
from tests.emulator.mutations.attention_call import executes
from tests.emulator.mutations.edits import lines, replace
from tests.emulator.mutations.everything import LEVEL
from tests.emulator.mutations.mutant import WRONG_NUMBERS, Mutant, Subject, assert_caught
from tests.emulator.mutations.quick import quick_or_sweep
from tests.sm100.latent import defects
from tests.sm100.latent.latent_batches import call_of, config_of, draw, stored
from tests.sm100.latent.test_defects_of_8_bits import planted_again

COLUMNS, HEADS = "latent_512", "latent_three_heads"
LARGEST, LARGEST_PAIR = "latent_largest", "latent_pair_largest"
QUERY_HEADS = {COLUMNS: 64, HEADS: 192, LARGEST: 64, LARGEST_PAIR: 128}
for _config in (
    config_of("mla_decode", heads_q=64, calls=("latent",), head_dim=512),
    config_of("mla_decode", heads_q=64, calls=("latent",)).with_(write_max=True),
    config_of("mla_pair", heads_q=128, calls=("latent",)).with_(write_max=True),
):
    attention_places.KNOWN[_config.name] = _config


@cache
def subject(name) -> Subject:
    """Three key tiles, the last one masked; two sequences where one CTA claims both."""
    batch = draw(1, [300] * (1 if name in (HEADS, LARGEST_PAIR) else 2), heads=QUERY_HEADS[name])
    for q in batch.q:
        q *= defects.SPREAD
    call, options = stored(batch, 64), {"num_splits": 1}
    if name == COLUMNS:
        call |= {x: call[x][..., :512].contiguous() for x in ("q", "k_cache")}
    elif name == HEADS:
        others = [call["k_cache"], call["k_cache"].flip(-1), -call["k_cache"]]
        call["k_cache"] = torch.cat(others, 2)
    else:
        options["return_max_logits"] = True

    def of(out):
        out, *of_rows = call_of(call, **options, out=out)
        return out, torch.stack(of_rows)

    return Subject(name, executes(of, call["q"][..., :512].contiguous(), LEVEL))


# Of a whole tile: the maxima of a row's other threads or warps, in order.
MAXIMUM = lines("kernel", r"\tmax\.f32\s+(%r\d+), (%r\d+), (%r\d+);")
OF_ANOTHER = MAXIMUM.after(MAXIMUM.first).first
STORED = lines("kernel", r"st\.global\.b32\s+\[(%rd\d+)\], (%r\d+);").last
SCALED = lines("kernel", r"mul\.f32\s+(%r\d+), (%r\d+), (%r\d+);").ahead_of(STORED).last


def of_largest(name: str) -> list[Mutant]:
    def planted(what, edit) -> Mutant:
        return Mutant(f"{name}: {what}", name, edit, (WRONG_NUMBERS, "IllegalAccess"))

    return [
        planted("the scores of some threads are left out", replace(OF_ANOTHER, r"mov.b32 \1, \2;")),
        planted("the largest score is not scaled", replace(SCALED, r"mov.b32 \1, \3;")),
        planted("the largest score is that of another row", replace(STORED, r"st.global.b32 [\1+4], \2;")),
    ]  # fmt: skip


OF_ROPE = ("rotary", "rope")
OF_HEADS = (
    "mma does not wait for the first slab",
    "softmax raises p_ready twice",
    "half of a slab is expected",
    "no proxy fence after P",
    "the first slab adds to the old S",
    "V is K-major in the instruction descriptor",
)
MUTANTS = [
    *(
        m
        for m in planted_again((*defects.waits(), *defects.order(), *defects.numbers()), COLUMNS)
        if not any(word in m.name for word in OF_ROPE)
    ),
    *planted_again((m for m in defects.mutants() if m.name in OF_HEADS), HEADS),
    *of_largest(LARGEST),
    *of_largest(LARGEST_PAIR),
]


@pytest.mark.parametrize("mutant", quick_or_sweep(MUTANTS))
def test_a_defect_is_caught_by_a_check_meant_for_it(mutant):
    assert_caught(mutant, subject(mutant.subject))


@pytest.mark.sweep
@pytest.mark.parametrize("name", QUERY_HEADS)
def test_the_unchanged_kernels_are_clean_under_every_schedule(name):
    subject(name).expected()


def test_there_are_enough_defects():
    """What docs/verification.md says."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 40
