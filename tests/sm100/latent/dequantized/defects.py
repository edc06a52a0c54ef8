"""Defects of the kernel that dequantizes rows of a latent cache, planted in its PTX; one line is one mistake.

Parts shared with mla_decode and mhaswap have their defects there; these are in the steps between the ring and the
products. Places are mbarriers, as in tests/emulator/mutations/attention_places.py. The subject: two sequences of one
query of 16 heads and 300 keys: two work tiles of three key tiles, the last of them masked, so that parities differ from
one to the next and a ring of three slots goes round within each. Scales differ by key and by slab.
"""

import torch

from cute_fa4.calls.operands.latent_rows import rows_from
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
    announced,
    commit,
    expect,
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
from tests.sm100.latent.latent_batches import call_of, config_of

NAME = "latent_rows"
CONFIG = config_of("mla_widen", heads_q=16, calls=("latent_rows",))
attention_places.KNOWN[CONFIG.name] = CONFIG
KEYS, PAGES = 300, 5  # of a sequence
SPREAD = 4.0  # of the queries, so that few keys make a row's result


def subject(level) -> Subject:
    generator = torch.Generator().manual_seed(1)
    latent = torch.randn(2 * PAGES * 64, 512, generator=generator)
    sizes = 2.0 ** torch.randint(-2, 3, (len(latent), 4), generator=generator)
    latent *= sizes.repeat_interleave(128, 1)
    rows = rows_from(latent, torch.randn(len(latent), 64, generator=generator))
    q = SPREAD * torch.randn(2, 1, 16, 576, generator=generator)
    call = dict(
        q=q.bfloat16(),
        k_cache=rows.view(2 * PAGES, 64, 1, 656),
        block_table=torch.randperm(2 * PAGES, generator=generator).int().view(2, PAGES),
        cache_seqlens=torch.tensor([KEYS, KEYS], dtype=torch.int32),
    )

    def of(out):
        return call_of(call, num_splits=1, out=out)

    return Subject(NAME, executes(of, call["q"][..., :512].contiguous(), level))


def arrival(mbarrier):
    return on(lines("kernel", ARRIVE), mbarrier, f"arrival at {mbarrier}")


def waits_for(mbarrier):
    return wait("kernel", mbarrier)


STORED = waits_for("kv_full")
FIRST, LAST = STORED.first, STORED.last  # slab of a key tile
READ, WIDE = arrival("kv_empty"), arrival("slab_wide")
K_PLACE, V_PLACE = waits_for("k_free"), waits_for("slab_free")
PIECE = lines("kernel", r"ld\.shared\.v4\.b32 \{(\S+), (\S+), (\S+), (\S+)\}, \[(%r\d+)\];")
SCALES = PIECE.after(FIRST).first  # of a key
LINE = lines("kernel", r"st\.shared\.v4\.b32 (\[%r\d+\]), \{(.*), (.*), (.*), (.*)\};")
K_STORE = lines("kernel", TMEM_STORE).after(FIRST)
CONVERSION = lines("kernel", r"cvt\.rn\.f16x2\.e4m3x2 (\S+), (\S+);")
EARLY = (*ASYNCHRONY, *COUNTS)
EARLY_OR_HANG = (*EARLY, *HANG)


def planted(name, edit, meant, **why) -> Mutant:
    return Mutant(name, NAME, edit, meant, **why)


def waits():
    """A wait removed, or for the wrong parity."""
    for place, what in (
        (FIRST, "dequantize does not wait for the first slab"),
        (LAST, "dequantize does not wait for the last slab"),
        (
            K_PLACE.first,
            "dequantize does not wait for the place of the third slab in tensor memory",
        ),
        (K_PLACE.last, "dequantize does not wait for the place of the last slab in tensor memory"),
        (
            V_PLACE.first,
            "dequantize does not wait for the place of the first slab in shared memory",
        ),
        (
            V_PLACE.last,
            "dequantize does not wait for the place of the second slab in shared memory",
        ),
        (waits_for("slab_wide").first, "mma does not wait for the first slab"),
        (waits_for("slab_wide").last, "mma does not wait for the last slab"),
        (waits_for("rope_full"), "mma does not wait for the rotary columns"),
        (waits_for("kv_empty").first, "load does not wait for the slot of the first slab"),
    ):
        yield planted(what, replace(place, ALWAYS_TRUE), EARLY)
    for place, what in (
        (FIRST, "the first slab"),
        (K_PLACE.first, "the first place in tensor memory"),
        (V_PLACE.first, "the first place in shared memory"),
        (waits_for("slab_wide").last, "the last slab dequantized"),
    ):
        edit = replace(place, FLIPPED_PARITY)
        yield planted(f"the other parity of {what} is waited for", edit, EARLY_OR_HANG)


def arrivals():
    """Missing, early, too many, or for too few bytes."""
    for place, what in (
        (READ.first, "the slot of the first slab is not handed back"),
        (READ.last, "the slot of the last slab is not handed back"),
        (WIDE.first, "slab_wide of the first slab is not raised"),
        (commit("k_free").first, "no commit on k_free"),
        (commit("slab_free").first, "no commit on slab_free of the first slab"),
        (commit("slab_free").last, "no commit on slab_free of the second slab"),
        (commit("rope_empty"), "no commit on rope_empty"),
    ):
        yield planted(what, delete(place), HANG)
    for place, before, what in (
        (READ.first, SCALES, "the slot of the first slab is released before it and the scales are read"),
        (READ.last, PIECE.after(LAST).first, "the slot of the last slab is released before it is read"),
        (WIDE.first, K_STORE.first, "slab_wide is raised before K is stored"),
        (WIDE.last, LINE.after(LAST).first, "slab_wide is raised before V is stored"),
    ):  # fmt: skip
        yield planted(what, move(place, before=before, by=AN_ARRIVAL), EARLY)
    twice = replace(WIDE.first, r"\g<0> " + AN_ARRIVAL)
    yield planted("slab_wide is raised twice", twice, EARLY_OR_HANG)
    without_scales = announced(16384, expect("kv_full").first)
    yield planted("the bytes of the scales are not expected", without_scales, EARLY_OR_HANG)
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
    fence = lines("kernel", PROXY_FENCE).after(LAST).first
    yield planted(
        "no proxy fence after V",
        delete(fence),
        (),
        equivalent="the softmax's, after P, follows S, which follows all that was dequantized",
    )
    stored = lines("kernel", WAIT_ST).after(FIRST).first
    yield planted("no wait for K in tensor memory", delete(stored), (*ORDER, *IN_FLIGHT))
    before = lines("kernel", BEFORE).after(FIRST).first
    yield planted("no tcgen05 fence before slab_wide", delete(before), ORDER)
    after = lines("kernel", AFTER).after(K_PLACE.first).first
    yield planted("no tcgen05 fence after k_free", delete(after), ORDER)


def numbers():
    """Defects of arithmetic."""
    wrong = (WRONG_NUMBERS,)
    rotated = r"ld.shared.v4.b32 {\4, \1, \2, \3}, [\5];"
    yield planted("the scale is that of the neighbouring slab", replace(SCALES, rotated), wrong)
    next_key = r"ld.shared.v4.b32 {\1, \2, \3, \4}, [\5+32];"
    yield planted(
        "the scale is that of the next key",
        replace(SCALES, next_key),
        (*wrong, "UninitializedRead"),
    )
    other = replace(CONVERSION.first, r"cvt.rn.f16x2.e5m2x2 \1, \2;")
    yield planted("two numbers are taken for e5m2", other, wrong)
    exchanged = replace(LINE.after(FIRST).first, r"st.shared.v4.b32 \1, {\4, \5, \2, \3};")
    yield planted("columns of V are exchanged", exchanged, wrong)


def mutants() -> tuple:
    return tuple(mutant for group in (waits, arrivals, order, numbers) for mutant in group())
