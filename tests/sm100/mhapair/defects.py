"""Defects of what crosses from one CTA of a pair to the other (tests/sm100/pairs_of_ctas.py), planted in SM100MHAPair.

The subject: 600 queries on 300 keys, causal: a block of both CTAs and one of which CTA 1 has no row, three key tiles
each, which one pair claims one after the other.
"""

from tests.emulator.mutations.mutant import Subject
from tests.sm100.pairs_of_ctas import Crossings, causal_subject

NAME = "d128_pair"


def subject(level) -> Subject:
    return causal_subject(NAME, level, queries=600, head_dim=128)


CROSSINGS = Crossings(
    NAME,
    arrivals_at_0=(
        "p_ready of a whole tile", "p_last of a whole tile", "p_ready of a masked tile", "p_last of a masked tile",
        "p_ready[0] before the first tile", "p_ready[1] before the first tile", "p_ready[0] behind a rescale",
        "p_ready[1] behind a rescale", "p_ready[0] when O is read", "p_ready[1] when O is read",
    ),
    committed=(
        "s_ready[0]", "q_free[0]", "o_ready[1]", "kv_empty of V", "s_ready[1]", "q_free[1]", "kv_empty of K",
        "o_ready[0]", "kv_empty of the last V", "the last o_ready[1]",
    ),
    awaited=(
        "p_ready[1]", "p_last[1]", "p_ready[0]", "p_last[0]", "the last p_ready[1]", "the last p_last[1]",
    ),
    announced=((1, "Q0"), (2, "K"), (3, "Q1"), (4, "V")),
    doubled=(0, 3, 6),
    in_one=(0, 3, 7),
    missing=(0, 1, 6),
    flipped=(0, 3),
    closes=2,
)  # fmt: skip


def mutants() -> tuple:
    return tuple(CROSSINGS.mutants())
