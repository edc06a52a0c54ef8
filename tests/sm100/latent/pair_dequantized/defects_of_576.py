"""Defects of the pair kernel that dequantizes rows of 576 bytes, planted in its PTX; one line is one mistake.

Units have their defects in defects.py; these are in the rotary columns, which the dequantize warps of both CTAs write
for the MMAs of CTA 0. The subject: a sequence of one query of 128 heads and 300 keys, so that parities come round.
"""

import torch

from tests.emulator.mutations import attention_places
from tests.emulator.mutations.attention_call import executes
from tests.emulator.mutations.attention_places import wait
from tests.emulator.mutations.edits import ALWAYS_TRUE, FLIPPED_PARITY, delete, lines, replace
from tests.emulator.mutations.mutant import (
    ASYNCHRONY,
    COUNTS,
    HANG,
    ORDER,
    WRONG_NUMBERS,
    Mutant,
    Subject,
)
from tests.sm100.latent.dequantized.defects import CONVERSION, LINE, SPREAD, arrival
from tests.sm100.latent.latent_batches import call_of, config_of
from tests.sm100.latent.pair_dequantized.defects import PROXY, RAISE, RELEASES

NAME = "latent_columns_pair"
CONFIG = config_of(
    "mla_widenpair",
    heads_q=128,
    calls=("latent",),
    kv_dtype="e4m3",
    descales="",
    q_quantize="never",
)
attention_places.KNOWN[CONFIG.name] = CONFIG
KEYS, PAGES = 300, 5
EARLY = (*ASYNCHRONY, *COUNTS)


def subject(level) -> Subject:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(PAGES, 64, 1, 576, generator=generator)
    q = SPREAD * torch.randn(1, 1, 128, 576, generator=generator)
    call = dict(
        q=q.bfloat16(),
        k_cache=rows.to(torch.float8_e4m3fn),
        block_table=torch.randperm(PAGES, generator=generator).int().view(1, PAGES),
        cache_seqlens=torch.tensor([KEYS], dtype=torch.int32),
    )

    def of(out):
        return call_of(call, num_splits=1, out=out, q_quantize="never")

    return Subject(NAME, executes(of, call["q"][..., :512].contiguous(), level))


STORED, FREE = wait("kernel", "stored_rope_full"), wait("kernel", "rope_empty")


def planted(name, edit, meant, **why) -> Mutant:
    return Mutant(name, NAME, edit, meant, **why)


def mutants() -> tuple:
    raised = lines("kernel", RAISE).after(FREE.first).first
    other = replace(CONVERSION.after(STORED.first).first, r"cvt.rn.f16x2.e5m2x2 \1, \2;")
    swapped = r"st.shared.v4.b32 \1, {\4, \5, \2, \3};"
    return (
        planted("dequantize does not wait for stored columns", replace(STORED.first, ALWAYS_TRUE), EARLY),
        planted("the other parity of stored columns", replace(STORED.first, FLIPPED_PARITY), (*EARLY, *HANG)),
        planted("dequantize does not wait for S", replace(FREE.first, ALWAYS_TRUE), EARLY),
        planted("stored columns are not handed back", delete(arrival("stored_rope_empty")), HANG),
        planted("rope_full is not raised", delete(raised), HANG),
        planted("no proxy fence after the columns", delete(lines("kernel", PROXY).after(FREE.first).first), ORDER),
        planted("no release after the columns", delete(lines("kernel", RELEASES).after(FREE.first).first), ORDER),
        planted("two columns are taken for e5m2", other, (WRONG_NUMBERS,)),
        planted("rotary columns are exchanged", replace(LINE.after(FREE.first).first, swapped), (WRONG_NUMBERS,)),
    )  # fmt: skip
