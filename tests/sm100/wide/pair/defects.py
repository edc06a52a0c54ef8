"""Defects of what crosses the border of a CTA of SM100MHAWidePair (tests/sm100/pairs_of_ctas.py).

The subject: 300 queries on 300 keys, causal, head dim 256: a block of both CTAs and one of which CTA 1 has no row,
three key tiles each, which one pair claims one after the other. Rows are rescaled in most tiles.
"""

import re

from cute_fa4.sm100.choose.choose_config import choose_config
from tests.emulator.mutations.mutant import HANG, Mutant, Subject
from tests.sm100.pairs_of_ctas import REMOTE, Crossings, causal_subject

NAME = "d256_pair"
CONFIG = choose_config(
    qkv_dtype="bf16", head_dim=256, causal=True, write_lse=True, family="mhawidepair"
)
ARRIVAL = "mbarrier.arrive.shared.b64"


def subject(level) -> Subject:
    return causal_subject(NAME, level, queries=300, head_dim=256)


CROSSINGS = Crossings(
    NAME,
    CONFIG,
    arrivals_at_0=(
        "p_ready of a whole tile", "p_last of a whole tile", "p_ready of a masked tile", "p_last of a masked tile",
        "p_ready before the first tile", "p_ready after a rescale", "p_ready when O is read",
    ),
    committed=(
        "kv_empty of a unit of K", "kv_empty of the last unit of K", "s_ready", "q_free", "kv_empty of a unit of V",
        "kv_empty of the last unit of V", "pv_done", "kv_empty of the last V", "kv_empty of the end",
        "the last pv_done",
    ),
    awaited=("p_ready", "p_last", "the last p_ready", "the last p_last"),
    announced=(
        "work_claimed", "q_full", "kv_full of a unit of K", "kv_full of the last unit of K", "kv_full of a unit of V",
        "kv_full of the last unit of V", "kv_full of the last V", "kv_full of the end",
    ),
    doubled=(0, 3, 5),
    in_one=(0, 2, 6),
    missing=(2, 4, 6),
    flipped=(0, 3),
    closes=1,
)  # fmt: skip


def without_arrival(number: int):
    """Edit: the arrival in the own CTA that comes first after arrival `number` in CTA 0 is gone."""

    def edit(ptx):
        text = ptx.split("\n")
        at = [n for n, line in enumerate(text) if re.search(REMOTE, line)][number]
        own = next(n for n in range(at, at + 20) if ARRIVAL in text[n])
        return "\n".join(text[:own] + text[own + 1 :])

    return edit


def mutants() -> tuple:
    """Also factor_read: correction raises it after each of its arrivals on p_ready."""
    after = ("before the first tile", "after a rescale", "when O is read")
    unread = (
        Mutant(f"no arrival on factor_read {when}", NAME, without_arrival(4 + n), HANG)
        for n, when in enumerate(after)
    )
    return (*CROSSINGS.mutants(), *unread)
