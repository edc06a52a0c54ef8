"""Planted defects of the backward kernels: each fence, wait or arrival that is deleted from their PTX is noticed."""

import re

import pytest
import torch

from cute_fa4 import emulator
from cute_fa4.calls.aux_gradients import gradients_of_aux
from cute_fa4.calls.backward import Scores
from cute_fa4.compiler.policy import PAIR_VARIABLE
from cute_fa4.emulator import EmulatorError
from cute_fa4.sm100.blueprint.score_mods import ScoreMod
from tests.emulator.mutations.quick import quick_or_sweep
from tests.sm100.backward.problems import Problem, attended, run

# Three tiles of queries of two heads and four of keys: slots of every ring are used again, tiles are cut and whole.
PROBLEM = Problem(300, 400, heads=(2, 1), window=(None, 0))
DEFECTS = {
    "tensor memory is read before a barrier orders it": r"tcgen05\.fence::after_thread_sync;",
    "a barrier is raised before tensor memory was read or written": r"tcgen05\.fence::before_thread_sync;",
    "P or dS is announced before it is stored": r"tcgen05\.wait::st\.sync\.aligned;",
    "S, dP or a result is used before it has come": r"tcgen05\.wait::ld\.sync\.aligned;",
    "TMA stores what it may not see yet": r"fence\.proxy\.async\.shared::cta;",
    "a product, a slot or a sum is never announced": r"@\S+ tcgen05\.commit[^;]*;",
    "a CTA ends before its stores have read": r"cp\.async\.bulk\.wait_group\.read\s+0;",
    "mbarriers are used before their set-up is seen": r"fence\.mbarrier_init[^;]*;",
    "threads do not meet": r"\bbar\.sync[^;]*;",
    "an mbarrier misses its arrivals": r"mbarrier\.arrive(?!\.expect)[^;]*;",
    "an mbarrier is not awaited": r"LAB_WAIT:(?:(?!DONE:)[\s\S])*?bra\.uni\s+LAB_WAIT;",
}
# How many change nothing here: the load warps wait for the room of K or Q, and then for that of V or dO, which was free
# before it, because both rings have four slots. In dkv the proxy fence after the constant operand of the subtraction
# orders the set-up of mbarriers, too.
EQUIVALENT = {"an mbarrier is not awaited": 2, "mbarriers are used before their set-up is seen": 1}


def planted(pattern: str, number: int, by: str = ""):
    """A transform that replaces the match of this number, or deletes it; .count is how many there are."""

    def transform(name, ptx):
        places = list(re.finditer(pattern, ptx))
        transform.count = len(places)
        if number >= len(places):
            return ptx
        place = places[number]
        return ptx[: place.start()] + place.expand(by) + ptx[place.end() :]

    transform.count = 0
    return transform


def missed(pattern: str, attempt, by: str = "", **schedule) -> tuple[int, list]:
    """-> (how many there are, the numbers of those that attempt() does not notice)."""
    number, unnoticed = 0, []
    while True:
        transform = planted(pattern, number, by)
        try:
            with emulator.use(transform=transform, instruction_budget=3_000_000, **schedule):
                attempt()
            if number < transform.count:
                unnoticed.append(number)
        except EmulatorError:
            pass
        number += 1
        if number >= transform.count:
            return number, unnoticed


@pytest.mark.parametrize("defect", quick_or_sweep(DEFECTS))
def test_every_one_is_noticed(defect):
    tensors = PROBLEM.tensors()
    number, unnoticed = missed(DEFECTS[defect], lambda: run(*tensors, PROBLEM.window))
    assert number > 1 and len(unnoticed) == EQUIVALENT.get(defect, 0), unnoticed


# The kernel for aux tensors stores no tensor memory, and stores its sums without TMA.
OF_SUMS = {
    name: pattern
    for name, pattern in DEFECTS.items()
    if "wait::st" not in pattern and "wait_group" not in pattern and "fence\\.proxy" not in pattern
}


# How many change nothing: tensor memory is read before the last threads meet, and given back after that.
EQUIVALENT_SUMS = {"threads do not meet": 1}


KEYS = 1000  # eight tiles: rings have at most four slots


def table(score, batch, head, q_idx, kv_idx, aux):
    """Sums over distances, whose warps meet."""
    return score + aux[0][q_idx - kv_idx + KEYS]


@pytest.mark.parametrize("defect", quick_or_sweep(OF_SUMS))
def test_every_one_of_sums_is_noticed(defect):
    """Every slot of the rings is used again. Commits come late, so that a CTA could end before."""
    *qkv, dout = Problem(100, KEYS, depths=(64, 64)).tensors()
    scores = Scores(0.125, score_mod=ScoreMod.of(table), aux=(torch.zeros(KEYS + 100),))
    of = attended(*qkv)
    number, unnoticed = missed(
        OF_SUMS[defect],
        lambda: gradients_of_aux(of, dout, None, scores, (0,)),
        mode="hostile",
        seed=1,  # of those whose last commit comes after the threads have ended
    )
    assert number > 0 and len(unnoticed) == EQUIVALENT_SUMS.get(defect, 0), unnoticed


# Pairs of CTAs: three blocks of queries, so that CTA 1 of the second pair has no rows; seven tiles of keys, and ten of
# queries of both heads, turn every ring. Head dim 256 has all three kernels on pairs. (pattern, what takes its place)
PAIRS = Problem(300, 400, heads=(2, 1), depths=(256, 256), window=(None, 0))
OF_PAIRS = {
    "the CTAs do not meet": (r"barrier\.cluster\.(?:arrive|wait)[^;]*;", ""),
    "CTA 0 misses a warp": (r"mbarrier\.arrive\.relaxed\.cluster[^;]*;", ""),
    "CTA 1 is told what CTA 0 waits for": (
        r"mapa\.shared::cluster\.u32\s+(%r\d+), (%r\d+), 0;",
        r"mapa.shared::cluster.u32 \1, \2, 1;",
    ),
    "a commit reaches CTA 0 alone": (r"mov\.b16 both_ctas, 3;", "mov.b16 both_ctas, 1;"),
    "a commit reaches CTA 1 alone": (r"mov\.b16 both_ctas, 3;", "mov.b16 both_ctas, 2;"),
    "the MMA warp does not wait": (
        r"mbarrier\.try_wait\.parity\.relaxed\.cluster[^;]*;",
        "setp.eq.u32 complete, 0, 0;",
    ),
    "a copy counts in its own CTA": (
        r"(cp\.async\.bulk\.tensor\.\dd\.shared::cluster\S*)\.cta_group::2 ",
        r"\1 ",
    ),
    "half of the bytes are announced": (
        r"mbarrier\.arrive\.expect_tx\.shared\.b64 (%rd\d+), (\[\S+\]), (%r\d+);",
        r"{.reg .b32 half; shr.u32 half, \3, 1; mbarrier.arrive.expect_tx.shared.b64 \1, \2, half;}",
    ),
    "tensor memory is allocated for one CTA": (r"(tcgen05\.alloc\.cta_group::)2", r"\g<1>1"),
    "tensor memory is freed for one CTA": (r"(tcgen05\.dealloc\.cta_group::)2", r"\g<1>1"),
    "one CTA gives up further tensor memory": (
        r"(tcgen05\.relinquish_alloc_permit\.cta_group::)2",
        r"\g<1>1",
    ),
}


@pytest.mark.parametrize("defect", quick_or_sweep(OF_PAIRS))
def test_every_one_of_pairs_is_noticed(defect, monkeypatch):
    monkeypatch.setenv(PAIR_VARIABLE, "on")
    tensors, (pattern, by) = PAIRS.tensors(), OF_PAIRS[defect]
    number, unnoticed = missed(
        pattern, lambda: run(*tensors, PAIRS.window), by, mode="hostile", seed=1
    )
    assert number >= 3 and not unnoticed, unnoticed
