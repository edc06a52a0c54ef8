"""Defects of 8-bit pairs: P in the columns of the other S, where two CTAs have to have read it, and half lines of V.

The subject: 300 queries on 400 keys, causal, e4m3: a block whose CTA 1 has rows too, and four key tiles, so that either
parity of every barrier comes twice. Places are in the order of the text: softmax, correction, products, copies. In the
text of softmax come the whole tiles' waits first, then those of masked tiles.
"""

import torch

from cute_fa4 import flash_attn_func
from cute_fa4.sm100.choose.choose_config import choose_config
from tests.emulator.mutations.attention_call import executes
from tests.emulator.mutations.mutant import (
    ASYNCHRONY,
    COUNTS,
    HANG,
    MEMORY,
    ORDER,
    WRONG_NUMBERS,
    Mutant,
    Subject,
)
from tests.sm100.pairs_of_ctas import (
    BEFORE,
    BOTH,
    COMMIT,
    MAPA,
    MMA,
    REMOTE,
    WAIT,
    counted,
    edited,
    named,
)

NAME = "d128_pair_e4m3"
CONFIG = choose_config(
    qkv_dtype="e4m3", head_dim=128, causal=True, write_lse=True, family="mhapair"
)
QUERIES, KEYS = 300, 400
EARLY = (*ASYNCHRONY, *COUNTS, "TensorOrderError", WRONG_NUMBERS)
EARLY_OR_HANG = (*EARLY, *HANG)

OWN_ARRIVAL = r"mbarrier\.arrive\.shared\.b64 %rd\d+, (\[%r\d+\]), %r\d+;"
OWN_WAIT = r"mbarrier\.try_wait\.parity\.shared\.b64 P1, (\[%r\d+\]), (%r\d+), \d+;"
HALF_OF_V = r"shl\.b32\s+(%r\d+), (%r\d+), 6;"
PASSED = "setp.eq.u32 P1, 0, 0;"
FLIPPED = (
    r"{.reg .b32 other; xor.b32 other, \2, 1; mbarrier.try_wait.parity.shared.b64 P1, \1, other;}"
)

# Waits of softmax, by their number in the text.
OF_THE_SAME_TILE = 2, 7  # softmax 1: S0 of its tile has been read; whole tiles, masked ones
P0_OVER_S1 = 5, 10
P1_OVER_S0 = 11, 12
# Waits of the mma warp of CTA 0.
AWAITED = (
    "s_free[0]", "p_ready[0]", "p_last[0]", "s_free[1]", "p_ready[1]", "p_last[1]",
    "the last p_ready[0]", "the last p_last[0]", "the last p_ready[1]", "the last p_last[1]",
)  # fmt: skip
OF_P0 = "O0 of the tile before waits for P0 of both CTAs, which softmax 0 stores when it has seen S1 read"
AT_ONCE = "P of eight bits is stored at once: p_last follows p_ready, and nobody passes a phase after the last"
EQUIVALENT = {"s_free[1]": OF_P0, "the last p_last[0]": AT_ONCE, "the last p_last[1]": AT_ONCE}
COMMITTED = (
    "s_ready[0]", "q_free[0]", "pv_done[0]", "s_ready[1]", "q_free[1]", "kv_empty of K", "pv_done[1]", "kv_empty of V",
    "the last pv_done[0]", "o_ready[0]", "kv_empty of the last V", "the last pv_done[1]", "o_ready[1]",
)  # fmt: skip
PLANTED = 0, 2, 3, 5, 6, 7  # the others are in the list of 16 bits (defects.py)
# All there are: numbers mean other places as soon as one comes or goes.
PLACES = {REMOTE: 12, OWN_ARRIVAL: 5, OWN_WAIT: 46, MMA: 24, BOTH: len(COMMITTED)}


def subject(level) -> Subject:
    generator = torch.Generator().manual_seed(1)
    draw = lambda rows: torch.randn(1, rows, 1, 128, generator=generator)
    q, k, v = (
        (x * draw(n)).to(torch.float8_e4m3fn) for x, n in ((6, QUERIES), (1, KEYS), (1, KEYS))
    )
    like_out = torch.empty(1, QUERIES, 1, 128, dtype=torch.bfloat16)

    def call(out):
        return flash_attn_func(q, k, v, causal=True, return_lse=True, out=out, num_splits=1)

    return Subject(NAME, executes(call, like_out, level))


def mutants():
    for group in (arrivals, turns, products, commits, halves):
        for name, edit, meant in group():
            words = name.removeprefix("mma does not wait for ")
            yield Mutant(
                name, NAME, counted(PLACES, edit), meant, equivalent=EQUIVALENT.get(words, "")
            )


def arrivals():
    """S has been read: raised in CTA 0 for its mma warp, and in the own CTA for the other warpgroup."""
    for n, tiles in enumerate(("whole", "masked")):
        yield f"no arrival on s_free of {tiles} tiles", edited(REMOTE, n, ""), HANG
        unfenced = edited(BEFORE, -1, "", ahead_of=REMOTE, at=n)
        yield f"no tcgen05 fence before s_free of {tiles} tiles", unfenced, (*ORDER, *EARLY)
    twice = edited(
        REMOTE, 0, r"\g<0> mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, \1, 1;"
    )
    yield "two arrivals on s_free", twice, EARLY_OR_HANG
    in_cta_1 = edited(MAPA, 0, r"mapa.shared::cluster.u32 \1, \2, 1;")
    yield "both CTAs raise s_free in CTA 1", in_cta_1, EARLY_OR_HANG
    yield "no arrival on s_read of whole tiles", edited(OWN_ARRIVAL, 0, ""), HANG
    yield "no arrival on s_read of masked tiles", edited(OWN_ARRIVAL, 2, ""), HANG


def turns():
    """The warpgroups of a CTA take turns with columns."""
    places = {
        "softmax 1 does not look at S0 of its tile": OF_THE_SAME_TILE,
        "P0 is stored before S1 is read": P0_OVER_S1,
        "P1 is stored before the next S0 is read": P1_OVER_S0,
    }
    for words, numbers in places.items():
        for n, tiles in zip(numbers, ("whole", "masked"), strict=True):
            name = f"{words}, {tiles} tiles"
            if numbers is not OF_THE_SAME_TILE:
                yield name, edited(OWN_WAIT, n, PASSED), EARLY_OR_HANG
            yield f"{name}: the other parity", edited(OWN_WAIT, n, FLIPPED), EARLY_OR_HANG


def products():
    """The mma warp of CTA 0 waits for softmax of both."""
    for n, what in enumerate(AWAITED):
        passed = edited(WAIT, n, "setp.eq.u32 complete, 0, 0;")
        yield f"mma does not wait for {what}", named(CONFIG, AWAITED, WAIT, passed), EARLY
    for n, what in ((0, "S"), (4, "P V")):
        one = edited(MMA, n, r"@leader_thread \1.cta_group::1\2, \3, \4;")
        yield f"{what} of one CTA", one, (*MEMORY, "EmulatorError")


def commits():
    for n in PLANTED:
        alone = named(CONFIG, COMMITTED, COMMIT, edited(BOTH, n, "mov.b16 both_ctas, 1;"))
        yield f"{COMMITTED[n]} is committed in CTA 0 alone", alone, EARLY_OR_HANG


def halves():
    """Of the columns of V a CTA has half a line of the swizzle."""
    line = edited(HALF_OF_V, -1, r"shl.b32 \1, \2, 7;")
    yield "CTA 1 copies V from a whole line on", line, (WRONG_NUMBERS, *ORDER)
    same = edited(HALF_OF_V, -1, r"mov.b32 \1, 0;")
    yield "CTA 1 copies the columns of CTA 0", same, (WRONG_NUMBERS, *ORDER)
