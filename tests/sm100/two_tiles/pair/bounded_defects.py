"""The defects of defects.py under masks that begin: a window, and chunks. Query tile 1 begins later than query tile 0.

So the mma warp of CTA 0 has key tiles of query tile 0 alone first, of both, and of query tile 1 alone, each with waits,
arrivals, commits and bytes that cross, and softmax has masked tiles on both sides of the whole ones. Products as in
two_tiles/uneven/over.py: the leader is the warpgroup of query tile 1, the other one that of query tile 0.

    window (260, 10)    600 queries on 976 keys: a block of 8 key tiles of which either query tile leaves one out, and
                        one of 4, in which CTA 1 has no row. Rows of a query tile see 144 keys together: a whole tile
    chunks of 250       700 queries on 812 keys: of the first block query tile 0 leaves out two key tiles at the end, of
                        the second one query tile 1 leaves out two at the beginning

Two heads, so that one pair claims each kind of block behind the other.
"""

from dataclasses import replace

from cute_fa4 import masks
from cute_fa4.sm100.choose.choose_config import choose_config
from tests.emulator.mutations.mutant import Mutant, Subject
from tests.sm100.pairs_of_ctas import Crossings, subject_of

WINDOW, CHUNKS = "d128_pair_window", "d128_pair_chunks"
MASKS = {WINDOW: masks.window(260, 10), CHUNKS: masks.chunked(250)}
SIZES = {WINDOW: (600, 976), CHUNKS: (700, 812)}
FURTHER_V = (
    "kv_empty of V behind the other's further P",
    "kv_empty of V behind the leader's further P",
)
FURTHER_P = (
    "p_ready of the other's further P", "p_last of the other's further P",
    "p_ready of the leader's further P", "p_last of the leader's further P",
)  # fmt: skip
NEVER = {
    "q_free of the other alone": "query tile 0 has rows behind the first of query tile 1, which has begun when it ends:"
    " its last S is not made alone"
}
ONE_AT_MOST = "128 rows further down a window is one key tile of 128 further: nobody leaves two out"


def subject(name: str, level) -> Subject:
    return subject_of(name, level, MASKS[name], *SIZES[name], heads=2)


def config_of(name: str):
    choices = dict(qkv_dtype="bf16", head_dim=128, write_lse=True, maximum="exact")
    return choose_config(**choices, mask=MASKS[name].mask, family="mhapair")


OF_WINDOW = Crossings(
    WINDOW,
    config_of(WINDOW),
    arrivals_at_0=(
        "p_ready of a masked tile before the whole ones", "p_last of a masked tile before the whole ones",
        "p_ready of a whole tile", "p_last of a whole tile",
        "p_ready of a masked tile behind the whole ones", "p_last of a masked tile behind the whole ones",
        "p_ready[0] before the first tile", "p_ready[1] before the first tile",
        "p_ready of the leader behind a rescale", "p_ready of the other behind a rescale",
        "p_ready when O of query tile 0 is read", "p_ready when O of query tile 1 is read",
    ),
    committed=(
        FURTHER_V[0], "s_ready of the other alone", "q_free of the other alone",
        "o_ready of the work tile before, beside the other alone",
        "kv_empty of V of the work tile before, beside the other alone", "kv_empty of K of the other alone",
        "s_ready of the leader", "q_free of the leader", "o_ready of the other", "kv_empty of V",
        "s_ready of the other", "q_free of the other", "kv_empty of K", "o_ready of the leader",
        FURTHER_V[1], "s_ready of the leader alone", "q_free of the leader alone",
        "o_ready of the other, beside the leader alone", "kv_empty of V, beside the leader alone",
        "kv_empty of K of the leader alone", "kv_empty of the last V", "the last o_ready",
    ),
    awaited=(
        *FURTHER_P[:2], "p_ready of the work tile before", "p_last of the work tile before",
        "p_ready of the other", "p_last of the other", "p_ready of the leader", "p_last of the leader",
        *FURTHER_P[2:],
        "p_ready of the other, beside the leader alone", "p_last of the other, beside the leader alone",
        "the last p_ready", "the last p_last",
    ),
    announced=(
        "work_claimed", "q_full of the leader", "kv_full of K", "q_full of the other", "kv_full of V",
    ),
    doubled=(0, 5, 8),
    in_one=(1, 5, 6, 13, 17),
    missing=(1, 5, 6, 15),
    flipped=(2, 5, 10, 13),
    closes=2,
    of_p=6,
    product=8,  # the first S; P V of a further key tile of one query tile comes before it
    not_reached={**dict.fromkeys((*FURTHER_V, *FURTHER_P), ONE_AT_MOST), **NEVER},
)  # fmt: skip
OF_CHUNKS = replace(OF_WINDOW, name=CHUNKS, config=config_of(CHUNKS), not_reached=NEVER)


def mutants() -> tuple[Mutant, ...]:
    return (*OF_WINDOW.mutants(), *OF_CHUNKS.mutants())
