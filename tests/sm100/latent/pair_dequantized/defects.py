"""Defects of the pair kernel that dequantizes rows of 656 bytes, planted in its PTX; one line is one mistake.

Parts shared with mla_pair have their defects there; these are in the steps between the copies and the MMAs.
The subject: a sequence of one query of 128 heads and 200 keys: two key tiles, the last of them masked, so that the ring
of units as they are multiplied goes round four times and that of stored ones more than twice. Scales differ by key and
by block. Places are in the order of the text: MMAs, copies, dequantization, which is last: two units, of K or of V.
"""

import torch

from cute_fa4.calls.operands.latent_rows import rows_from
from tests.emulator.mutations.attention_call import executes
from tests.emulator.mutations.mutant import HANG, ORDER, WRONG_NUMBERS, Mutant, Subject
from tests.sm100.latent.latent_batches import call_of, config_of
from tests.sm100.pairs_of_ctas import (
    BOTH,
    COMMIT,
    EARLY,
    EARLY_OR_HANG,
    EXPECT,
    MAPA,
    counted,
    edited,
)

NAME = "latent_rows_pair"
CONFIG = config_of("mla_widenpair", heads_q=128, calls=("latent_rows",))
KEYS, PAGES = 200, 4
SPREAD = 4.0  # of the queries, so that few keys make a row's result

WAIT = r"mbarrier\.try_wait\.parity\.shared\.b64 P1, (\[\S+\]), (\S+), \d+;"
PASSED = "setp.eq.u32 P1, 0, 0;"
FLIPPED = (
    r".reg .b32 flipped; xor.b32 flipped, \2, 1; "
    r"mbarrier.try_wait.parity.shared.b64 P1, \1, flipped, 10000000;"
)
ACQUIRE = r"mbarrier\.try_wait\.parity\.relaxed\.cluster\.shared::cta\.b64 complete, (\[%r\d+\]), (%r\d+), \d+;"
RAISE = r"mbarrier\.arrive\.relaxed\.cluster\.shared::cluster\.b64 _, (\[%r\d+\]), %r\d+;"
RELEASES = r"fence\.release\.sync_restrict::shared::cta\.cluster;"
ACQUIRES = r"fence\.acquire\.sync_restrict::shared::cluster\.cluster;"
PROXY = r"fence\.proxy\.async\.shared::cta;"
ARRIVE = r"mbarrier\.arrive\.shared\.b64 (%rd\d+), (\[%r\d+\+\d+\]), (%r\d+);"
CONVERSION = r"cvt\.rn\.f16x2\.e4m3x2 (\S+), (\S+);"
PIECE = r"ld\.shared\.v4\.b32 \{(\S+), (\S+), (\S+), (\S+)\}, \[(\S+)\];"
LINE = r"st\.shared\.v4\.b32 (\[\S+\]), \{(.*), (.*), (.*), (.*)\};"

# In the dequantization, from the end of the text: two waits of its drain and one for work are after these.
OF_DEQUANTIZE = {
    "the place of the second unit": -4, "the second unit as it is stored": -5,
    "the place of the first unit": -6, "the first unit as it is stored": -7,
}  # fmt: skip
# In load: three waits and those of the dequantization, with the first for work, are after these.
OF_LOAD = {
    "the slot of the last unit of V": -12, "the slot of the first unit of V": -15, "the rotary columns' slot": -16,
    "the slot of the last unit of K": -17, "the slot of the first unit of K": -20,
}  # fmt: skip
SCALES = 4  # among the pieces of 16 bytes: after the four of the first unit

# All there are: numbers mean other places as soon as one comes or goes.
PLACES = {WAIT: 35, ACQUIRE: 14, RAISE: 4, COMMIT: 17, BOTH: 17, EXPECT: 11, PROXY: 5}


def subject(level) -> Subject:
    generator = torch.Generator().manual_seed(1)
    latent = torch.randn(PAGES * 64, 512, generator=generator)
    sizes = 2.0 ** torch.randint(-2, 3, (len(latent), 4), generator=generator)
    latent *= sizes.repeat_interleave(128, 1)
    rows = rows_from(latent, torch.randn(len(latent), 64, generator=generator))
    q = SPREAD * torch.randn(1, 1, 128, 576, generator=generator)
    call = dict(
        q=q.bfloat16(),
        k_cache=rows.view(PAGES, 64, 1, 656),
        block_table=torch.randperm(PAGES, generator=generator).int().view(1, PAGES),
        cache_seqlens=torch.tensor([KEYS], dtype=torch.int32),
    )

    def of(out):
        return call_of(call, num_splits=1, out=out)

    return Subject(NAME, executes(of, call["q"][..., :512].contiguous(), level))


def planted(name, edit, meant, **why) -> Mutant:
    return Mutant(name, NAME, counted(PLACES, edit), meant, **why)


def waits():
    """A wait removed, or for the wrong parity."""
    for what, n in OF_DEQUANTIZE.items():
        yield planted(
            f"dequantize does not wait for {what}", edited(WAIT, n, PASSED), EARLY_OR_HANG
        )
        other = edited(WAIT, n, FLIPPED)
        yield planted(f"dequantize waits for the other parity of {what}", other, EARLY_OR_HANG)
    for what, n in OF_LOAD.items():
        if "first unit of K" in what:
            continue  # of two key tiles its slot is another one each time
        yield planted(f"load does not wait for {what}", edited(WAIT, n, PASSED), EARLY)
    passed = "setp.eq.u32 complete, 0, 0;"
    units = {
        0: "the first unit of K",
        3: "the last unit of K",
        5: "the first unit of V",
        8: "the last unit of V",
    }
    for n, what in units.items():
        yield planted(f"mma does not wait for {what}", edited(ACQUIRE, n, passed), EARLY)


def arrivals():
    """Missing, twice, in the wrong CTA, for too few bytes, without what makes a unit visible."""
    for n, what in ((-2, "first"), (-1, "second")):
        yield planted(f"no arrival for the {what} unit", edited(RAISE, n, ""), HANG)
        twice = r"\g<0> mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, \1, 1;"
        yield planted(f"two arrivals for the {what} unit", edited(RAISE, n, twice), EARLY_OR_HANG)
        elsewhere = edited(MAPA, n, r"mapa.shared::cluster.u32 \1, \2, 1;")
        yield planted(f"the {what} unit is announced in CTA 1", elsewhere, EARLY_OR_HANG)
        yield planted(f"no proxy fence after the {what} unit", edited(PROXY, n, ""), ORDER)
        yield planted(
            f"the {what} unit is announced without releasing it", edited(RELEASES, n, ""), ORDER
        )
        slot = edited(ARRIVE, n - 1, "")  # the last one is for work
        yield planted(f"the slot of the {what} unit is not handed back", slot, HANG)
    for n, what in ((0, "the first unit of K"), (8, "the last unit of V")):
        yield planted(f"{what} is used without acquiring it", edited(ACQUIRES, n, ""), ORDER)
    for n, what in ((2, "the first unit of K"), (6, "the rotary columns"), (10, "the last unit of V")):  # fmt: skip
        half = r"{.reg .b32 half; shr.u32 half, \3, 1; mbarrier.arrive.expect_tx.shared.b64 \1, \2, half;}"
        yield planted(f"half of {what} is expected", edited(EXPECT, n, half), EARLY_OR_HANG)
    for n, what in ((0, "the first unit of K"), (3, "the last unit of K"), (7, "the first unit of V")):  # fmt: skip
        one = edited(BOTH, n, "mov.b16 both_ctas, 1;")
        yield planted(f"the slot of {what} is freed in CTA 0 alone", one, EARLY_OR_HANG)
        yield planted(f"the slot of {what} is not freed", edited(COMMIT, n, ""), HANG)


def numbers():
    """Defects of arithmetic."""
    wrong = (WRONG_NUMBERS,)
    rotated = edited(PIECE, SCALES, r"ld.shared.v4.b32 {\4, \1, \2, \3}, [\5];")
    yield planted("the scales are those of the blocks before", rotated, wrong)
    next_key = edited(PIECE, SCALES, r"ld.shared.v4.b32 {\1, \2, \3, \4}, [\5+32];")
    yield planted(
        "the scales are those of the next key", next_key, (*wrong, "UninitializedRead", *EARLY)
    )
    for n, what in ((0, "the first unit"), (-1, "the second unit")):
        other = edited(CONVERSION, n, r"cvt.rn.f16x2.e5m2x2 \1, \2;")
        yield planted(f"two numbers of {what} are taken for e5m2", other, wrong)
        exchanged = edited(LINE, n, r"st.shared.v4.b32 \1, {\4, \5, \2, \3};")
        yield planted(f"columns of {what} are exchanged", exchanged, wrong)
    swapped = edited(PIECE, 0, r"ld.shared.v4.b32 {\3, \4, \1, \2}, [\5];")
    yield planted("eight stored numbers are exchanged", swapped, wrong)


def mutants() -> tuple:
    return tuple(mutant for group in (waits, arrivals, numbers) for mutant in group())
