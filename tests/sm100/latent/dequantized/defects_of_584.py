"""Defects of the kernels over rows of 584 bytes, alone and in pairs, planted in their PTX; one line is one mistake.

Steps that other rows share have their defects in defects.py. These are in slab 3, whose second half are the rotary
columns and whose first half comes in lines, and in the scales of blocks. The subjects: two sequences of one query of 16
heads, and one of 128, each with 300 keys, so that parities come round. Scales differ by key and by block.
"""

import torch

from tests.emulator.mutations import attention_places
from tests.emulator.mutations.attention_call import executes
from tests.emulator.mutations.attention_places import AN_ARRIVAL, announced, expect, wait
from tests.emulator.mutations.edits import ALWAYS_TRUE, delete, lines, move, replace
from tests.emulator.mutations.mutant import WRONG_NUMBERS, Mutant, Subject
from tests.sm100.latent.dequantized.defects import (
    EARLY,
    EARLY_OR_HANG,
    HANG,
    K_PLACE,
    K_STORE,
    KEYS,
    LAST,
    LINE,
    PAGES,
    PIECE,
    READ,
    SPREAD,
    arrival,
)
from tests.sm100.latent.dequantized.row_batches import empty, in_pages
from tests.sm100.latent.latent_batches import call_of, config_of

NAME, IN_PAIRS = "latent_pages", "latent_pages_pair"
OF_CALLS = dict(head_dim=512, calls=("latent_pages",), page_sizes=(1,))
CONFIGS = {
    NAME: config_of("mla_widen", heads_q=16, **OF_CALLS),
    IN_PAIRS: config_of("mla_widenpair", heads_q=128, **OF_CALLS),
}
attention_places.KNOWN.update({config.name: config for config in CONFIGS.values()})


def subject(level, name=NAME) -> Subject:
    batch, heads = (2, 16) if name == NAME else (1, 128)
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(batch * PAGES * 64, 512, generator=generator)
    sizes = 2.0 ** torch.randint(-2, 3, (len(rows), 8), generator=generator)
    cache = empty(batch * PAGES, 64, 584)
    in_pages(cache, torch.arange(len(rows)), rows * sizes.repeat_interleave(64, 1))
    q = SPREAD * torch.randn(batch, 1, heads, 512, generator=generator)
    call = dict(
        q=q.bfloat16(),
        k_cache=cache,
        block_table=torch.randperm(batch * PAGES, generator=generator).int().view(batch, PAGES),
        cache_seqlens=torch.full((batch,), KEYS, dtype=torch.int32),
    )

    def of(out):
        return call_of(call, num_splits=1, out=out)

    return Subject(name, executes(of, call["q"].contiguous(), level))


def subject_in_pairs(level) -> Subject:
    return subject(level, IN_PAIRS)


# The softmax looks keys up four words at a time; after it, the second word of the scales of a key.
LOOK_UP = lines("kernel", r"ld\.global\.b32\s+(\S+), \[(%rd\d+)\+12\];").last
SECOND_WORD = lines("kernel", r"ld\.global\.b32\s+(\S+), \[(%rd\d+)\+4\];").after(LOOK_UP)
LAST_STORED, READ_STORED = wait("kernel", "stored_full").last, arrival("stored_empty")
NEXT_KEY = r"ld.global.b32 \1, [\2+12];"
FIRST_WORD = r"ld.global.b32 \1, [\2];"
EXCHANGED = r"st.shared.v4.b32 \1, {\4, \5, \2, \3};"
NEXT_LINE = r"ld.shared.v4.b32 {\1, \2, \3, \4}, [\5+64];"
OTHER_PLACE = r"ld.shared.v4.b32 {\3, \4, \1, \2}, [\5];"
WRONG = (WRONG_NUMBERS,)
UNSET_OR_WRONG = (*WRONG, "UninitializedRead")
OUTSIDE = (*WRONG, "IllegalAccess")  # the last key has no next one


def planted(name, edit, meant, subject=NAME) -> Mutant:
    return Mutant(name, subject, edit, meant)


def mutants() -> tuple:
    word = SECOND_WORD.named("of the first key tile", "of the next one")
    early = move(READ.last, before=K_PLACE.last, by=AN_ARRIVAL)
    without_lines = announced(16384, expect("kv_full").last)
    return (
        planted("the first scales are of the next key", replace(word["of the first key tile"], NEXT_KEY), OUTSIDE),
        planted("scales ahead are those of the next key", replace(word["of the next one"], NEXT_KEY), OUTSIDE),
        planted("slabs 2 and 3 have the scales of 0 and 1", replace(word["of the next one"], FIRST_WORD), WRONG),
        planted("dequantize does not wait for the rotary columns", replace(LAST, ALWAYS_TRUE), EARLY),
        planted("the slot of the rotary columns is released before it is read", early, EARLY),
        planted("the slot of the rotary columns is not handed back", delete(READ.last), HANG),
        planted("the bytes of the lines are not expected", without_lines, EARLY_OR_HANG),
        planted("a line is that of the next key", replace(PIECE.after(LAST).first, NEXT_LINE), UNSET_OR_WRONG),
        planted("rotary columns of V are exchanged", replace(LINE.last, EXCHANGED), WRONG),
        planted("K has no rotary columns", delete(K_STORE.last), UNSET_OR_WRONG),
    )  # fmt: skip


def mutants_in_pairs() -> tuple:
    word = SECOND_WORD.named("of K", "of V", "of the next K", "of the next V")
    stored, of_pair = LINE.after(LAST_STORED), (WRONG, IN_PAIRS)
    return (
        *(
            planted(f"the scales {which} are those of the next key", replace(place, NEXT_KEY), OUTSIDE, IN_PAIRS)
            for which, place in word.items()
        ),
        planted("V has the scales of the first half of the columns", replace(word["of V"], FIRST_WORD), *of_pair),
        planted("rotary columns of a unit are exchanged", replace(stored.first, EXCHANGED), *of_pair),
        planted("stored rotary columns are exchanged", replace(PIECE.after(LAST_STORED).first, OTHER_PLACE), *of_pair),
        planted("the slot of the last unit is not handed back", delete(READ_STORED.last), HANG, IN_PAIRS),
    )  # fmt: skip
