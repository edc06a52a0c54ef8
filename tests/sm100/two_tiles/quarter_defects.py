"""Defects of lagged references with P over S (head dim 128), planted in PTX: P begins with the first quarter of S.

Defects of reruns are planted in tests/emulator/mutations (d64_lagged), those of the first key tile
for itself in first_tile_defects.py; here are the loops over key tiles without a maximum, which read, compute and store
quarter by quarter, and hand P over in halves.

    key tile    0                 1                  2                    of 300 keys
    loop        whole, first      whole, lagged      masked, lagged

The subject: 2 heads, 200 queries x 300 keys, so that a CTA claims two work tiles of three key tiles, and 3 is odd:
parities differ. Scores climb by 30 nats a key tile: every row renews its reference, and O is rescaled.
"""

import torch

from cute_fa4 import flash_attn_func
from cute_fa4.calls import repeat
from cute_fa4.sm100.blueprint import tuning
from cute_fa4.sm100.choose.choose_config import choose_config
from tests.emulator.mutations import attention_places
from tests.emulator.mutations.attention_call import executes
from tests.emulator.mutations.attention_places import (
    AFTER,
    BEFORE,
    TMEM_LOAD,
    TMEM_STORE,
    WAIT_LD,
    WAIT_ST,
    arrival,
    wait,
)
from tests.emulator.mutations.attention_places import before as moved_before
from tests.emulator.mutations.edits import (
    ALWAYS_TRUE,
    FLIPPED_PARITY,
    delete,
    lines,
    replace,
    retarget,
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

NAME = "d128_lagged"
CONFIG = choose_config(qkv_dtype="bf16", head_dim=128, write_lse=True, first_reference="quarter")
attention_places.KNOWN[CONFIG.name] = CONFIG
HEADS, QUERIES, KEYS = 2, 200, 300
CLIMB = 30.0  # nats a key tile

EARLY = (*ASYNCHRONY, *COUNTS, *IN_FLIGHT)
WRONG = (WRONG_NUMBERS, *ASYNCHRONY)


def subject(level) -> Subject:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn(1, rows, HEADS, 128, generator=generator) for rows in (QUERIES, KEYS, KEYS)
    )
    q[..., 0] = 4.0
    k[..., 0] = (torch.arange(KEYS) // 128 * CLIMB * 128**0.5 / 4.0)[:, None]
    q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()

    def call(out):
        with tuning.using(attention_places.TABLE), repeat.apart(repeat.Plans()):
            return flash_attn_func(q, k, v, return_lse=True, out=out)

    return Subject(NAME, executes(call, q, level))


# --- places. Softmax has four loops over key tiles: whole and masked ones, of each first the exact ones; and between
# those of whole tiles the first key tile, which has a reference from a quarter of it.

LOOPS = wait("softmax", "s_ready").named("exact whole", "first", "whole", "exact masked", "masked")
FIRST, WHOLE, EXACT_MASKED, MASKED = (
    LOOPS["first"],
    LOOPS["whole"],
    LOOPS["exact masked"],
    LOOPS["masked"],
)


def of_whole(pattern):
    """Lines of the loop over whole key tiles that lag."""
    return lines("softmax", pattern).between(WHOLE, EXACT_MASKED)


LOADS, STORES = (
    of_whole(place).named("first", "second", "third", "last") for place in (TMEM_LOAD, TMEM_STORE)
)
P_READY, P_LAST = (arrival("softmax", name).after(WHOLE).first for name in ("p_ready", "p_last"))
P_READY_MASKED = arrival("softmax", "p_ready").after(MASKED).first
FACTOR = arrival("softmax", "row_scale").after(WHOLE).first
FACTOR_MASKED = arrival("softmax", "row_scale").after(MASKED).first


def _over_the_last_quarter(match):
    moved = match[0].replace(match[1], "[beyond]")
    return f"{{.reg .b32 beyond; add.s32 beyond, {match[1].strip('[]')}, 96; {moved}}}"


def planted(name, edit, meant) -> Mutant:
    return Mutant(f"quarters: {name}", NAME, edit, meant)


def mutants() -> tuple:
    """Every defect of P in quarters; every fourth one, from the first on, is another kind."""
    return (
        planted(
            "P of the first is stored over the last one of S, which is not read yet",
            replace(STORES["first"], _over_the_last_quarter),
            (*WRONG, *IN_FLIGHT),
        ),
        planted(
            "P of the second is stored there",
            replace(STORES["second"], _over_the_last_quarter),
            (*WRONG, *IN_FLIGHT),
        ),
        planted(
            "the last one is read where the third is",
            retarget(LOADS["last"], like=LOADS["third"]),
            WRONG,
        ),
        planted(
            "p_ready is raised before the second is stored",
            moved_before("softmax", P_READY, TMEM_STORE),
            EARLY,
        ),
        planted(
            "p_ready of a masked tile is raised before the second is stored",
            moved_before("softmax", P_READY_MASKED, TMEM_STORE),
            EARLY,
        ),
        planted(
            "p_last is raised before the last one is stored",
            moved_before("softmax", P_LAST, TMEM_STORE),
            EARLY,
        ),
        planted("the first is used before it is there", delete(of_whole(WAIT_LD).first), ORDER),
        planted("the last is used before it is there", delete(of_whole(WAIT_LD).last), ORDER),
        planted(
            "p_ready does not wait for the stores",
            delete(of_whole(WAIT_ST).first),
            (*ORDER, *IN_FLIGHT),
        ),
        planted("no factor for O with a whole tile", delete(FACTOR), HANG),
        planted("no factor for O with a masked tile", delete(FACTOR_MASKED), HANG),
        planted("no fence before p_ready", delete(of_whole(BEFORE).first), ORDER),
        planted(
            "softmax does not wait for s_ready of a masked tile",
            replace(MASKED, ALWAYS_TRUE),
            EARLY,
        ),
        planted(
            "softmax does not wait for s_ready of a whole tile", replace(WHOLE, ALWAYS_TRUE), EARLY
        ),
        planted(
            "softmax waits for the other parity of s_ready of a whole tile",
            replace(WHOLE, FLIPPED_PARITY),
            (*EARLY, *HANG),
        ),
        planted("no fence after s_ready", delete(of_whole(AFTER).first), ORDER),
    )
