"""Defects of the kernel that dequantizes rows of 576 bytes, planted in its PTX; one line is one mistake.

Steps that rows of 656 bytes share have their defects in defects.py. These are in the fifth slab, the rotary columns,
which the dequantize warps write where P lies afterwards. The subject: two sequences of one query of 32 heads and 300
keys, in tiles of 32 rows, whose P overwrites the rotary columns.
"""

import torch

from tests.emulator.mutations import attention_places
from tests.emulator.mutations.attention_call import executes
from tests.emulator.mutations.attention_places import AN_ARRIVAL, PROXY_FENCE, commit, wait
from tests.emulator.mutations.edits import ALWAYS_TRUE, FLIPPED_PARITY, delete, lines, move, replace
from tests.emulator.mutations.mutant import ORDER, WRONG_NUMBERS, Mutant, Subject
from tests.sm100.latent.dequantized.defects import (
    CONVERSION,
    EARLY,
    EARLY_OR_HANG,
    HANG,
    KEYS,
    LINE,
    PAGES,
    SPREAD,
    arrival,
)
from tests.sm100.latent.latent_batches import call_of, config_of

NAME = "latent_columns"
CONFIG = config_of(
    "mla_widen", heads_q=32, calls=("latent",), kv_dtype="e4m3", descales="", q_quantize="never"
)
attention_places.KNOWN[CONFIG.name] = CONFIG


def subject(level) -> Subject:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(2 * PAGES, 64, 1, 576, generator=generator)
    q = SPREAD * torch.randn(2, 1, 32, 576, generator=generator)
    call = dict(
        q=q.bfloat16(),
        k_cache=rows.to(torch.float8_e4m3fn),
        block_table=torch.randperm(2 * PAGES, generator=generator).int().view(2, PAGES),
        cache_seqlens=torch.tensor([KEYS, KEYS], dtype=torch.int32),
    )

    def of(out):
        return call_of(call, num_splits=1, out=out, q_quantize="never")

    return Subject(NAME, executes(of, call["q"][..., :512].contiguous(), level))


FREE = wait("kernel", "rope_empty")
STORED = wait("kernel", "kv_full").last
READ, WIDE = arrival("kv_empty").last, arrival("rope_full")


def planted(name, edit, meant, **why) -> Mutant:
    return Mutant(name, NAME, edit, meant, **why)


def mutants() -> tuple:
    rope_line = LINE.after(FREE)
    twice = replace(WIDE, r"\g<0> " + AN_ARRIVAL)
    other = replace(CONVERSION.last, r"cvt.rn.f16x2.e5m2x2 \1, \2;")
    exchanged = replace(rope_line.first, r"st.shared.v4.b32 \1, {\4, \5, \2, \3};")
    fence = lines("kernel", PROXY_FENCE).after(FREE).first
    return (
        planted(
            "dequantize does not wait for P V",
            replace(FREE, ALWAYS_TRUE),
            (),
            equivalent="k_free of the last slab follows S of this tile, whose commits follow P V of the one before",
        ),
        planted("the other parity of P V is waited for", replace(FREE, FLIPPED_PARITY), EARLY_OR_HANG),
        planted("dequantize does not wait for the fifth slab", replace(STORED, ALWAYS_TRUE), EARLY),
        planted(
            "mma does not wait for the dequantized rotary columns",
            replace(wait("kernel", "rope_full"), ALWAYS_TRUE),
            EARLY,
        ),
        planted("P V has no commit on rope_empty", delete(commit("rope_empty")), HANG),
        planted("rope_full is not raised", delete(WIDE), HANG),
        planted("rope_full is raised twice", twice, EARLY_OR_HANG),
        planted(
            "rope_full is raised before the columns are stored",
            move(WIDE, before=rope_line.first, by=AN_ARRIVAL),
            EARLY,
        ),
        planted("the slot of the fifth slab is not handed back", delete(READ), HANG),
        planted("no proxy fence after the columns and V", delete(fence), ORDER),
        planted("two columns are taken for e5m2", other, (WRONG_NUMBERS,)),
        planted("rotary columns are exchanged", exchanged, (WRONG_NUMBERS,)),
    )  # fmt: skip
