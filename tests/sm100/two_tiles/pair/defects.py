"""Defects of what crosses from one CTA of a pair to the other (tests/sm100/pairs_of_ctas.py), planted in SM100MHAPair.

The subject: 600 queries on 300 keys, causal: one pair claims a block of which CTA 1 has no row, with three key tiles,
then one of both CTAs, of whose two key tiles query tile 0 leaves out the second. What that one hands back, a further
block has to miss: there are two heads for it.
"""

from dataclasses import replace

from cute_fa4.sm100.choose.choose_config import choose_config
from tests.emulator.mutations.mutant import Subject
from tests.sm100.pairs_of_ctas import Crossings, causal_subject

NAME, TWO_HEADS = "d128_pair", "d128_pair_two_heads"
CONFIG = choose_config(
    qkv_dtype="bf16", head_dim=128, causal=True, write_lse=True, maximum="exact", family="mhapair"
)
ONE_AT_MOST = (
    "128 rows further down see one key tile of 128 more: query tile 0 never leaves out a second one"
)


def subject(level) -> Subject:
    return causal_subject(NAME, level, queries=600, head_dim=128)


def subject_of_two_heads(level) -> Subject:
    return causal_subject(TWO_HEADS, level, queries=600, head_dim=128, heads=2)


# Products as in two_tiles/uneven/over.py: of a key tile that both query tiles see, of one that the leader has alone,
# and of a further one; the leader is the warpgroup of query tile 1, the other one that of query tile 0.
CROSSINGS = Crossings(
    NAME,
    CONFIG,
    arrivals_at_0=(
        "p_ready of a whole tile", "p_last of a whole tile", "p_ready of a masked tile", "p_last of a masked tile",
        "p_ready[0] before the first tile", "p_ready[1] before the first tile",
        "p_ready of the leader after a rescale", "p_ready of the other after a rescale",
        "p_ready when O of query tile 0 is read", "p_ready when O of query tile 1 is read",
    ),
    committed=(
        "s_ready of the leader", "q_free of the leader", "o_ready of the other", "kv_empty of V",
        "s_ready of the other", "q_free of the other", "kv_empty of K", "o_ready of the leader",
        "kv_empty of V after the leader's further P", "s_ready of the leader alone", "q_free of the leader alone",
        "o_ready of the other, beside the leader alone", "kv_empty of V, beside the leader alone",
        "kv_empty of K of the leader alone", "kv_empty of the last V", "the last o_ready",
    ),
    awaited=(
        "p_ready of the other", "p_last of the other", "p_ready of the leader", "p_last of the leader",
        "p_ready of the leader's further P", "p_last of the leader's further P",
        "p_ready of the other, beside the leader alone", "p_last of the other, beside the leader alone",
        "the last p_ready", "the last p_last",
    ),
    announced=(
        "work_claimed", "q_full of the leader", "kv_full of K", "q_full of the other", "kv_full of V",
    ),
    doubled=(0, 3, 6),
    in_one=(0, 3, 7, 11),
    missing=(0, 1, 6, 9),
    flipped=(0, 3, 6, 9),
    closes=2,
    not_reached=dict.fromkeys(
        (
            "kv_empty of V after the leader's further P", "p_ready of the leader's further P",
            "p_last of the leader's further P",
        ),
        ONE_AT_MOST,
    ),
)  # fmt: skip


MISSED_LATER = "q_free of the leader alone is committed in CTA 0 alone"


def mutants() -> tuple:
    return tuple(
        replace(mutant, subject=TWO_HEADS) if mutant.name == MISSED_LATER else mutant
        for mutant in CROSSINGS.mutants()
    )
