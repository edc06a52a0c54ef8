"""Defects planted in the sources of the backward kernels are caught.

Caught is an error of the emulator, or a gradient further from float64 than the roundings explain, under one of three
schedules. Each defect needs a separate compile: twelve commits plant all of them, `pytest -m sweep` all at once.
"""

import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
import torch

from cute_fa4 import emulator, masks
from cute_fa4.calls.backward import Scores
from cute_fa4.compiler.policy import PAIR_VARIABLE
from cute_fa4.reference import (
    allowed_gradient_errors,
    gradients_float64,
    max_error,
)
from cute_fa4.sm100.blueprint import tuning
from tests.emulator.mutations.quick import OF_SOURCES, quick_or_sweep
from tests.sm100.backward.defects import DEFECTS
from tests.sm100.backward.problems import Problem, of_kernels, packed, run
from tests.sm100.backward.test_functions import CASES
from tests.sm100.backward.test_functions import PROBLEM as FUNCTIONS
from tests.sm100.backward.test_lists import CASES as LISTS
from tests.sm100.backward.test_sums import CASES as SUMS
from tests.sm100.backward.test_sums import is_right as sums_are_right

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "verification.md"
MODES = ("in_order", "hostile", "random")
CHECKS = "ptx", "ordered_additions"
BUDGET = 20_000_000  # instructions of a launch, ten times what it needs: some defects never end

# Why each problem has its sizes.
PROBLEMS = {
    # seven tiles of keys turn the rings of four of the owner of queries, eight of queries those of the owner of keys
    "causal": Problem(200, 400, heads=(4, 2), window=(None, 0)),
    # one score, HEAVY, is cut from a tile that is otherwise whole: at the beginning of a query's keys, so at the
    # end of a key's queries; a right side would cut the same tile at its other end
    "cut by one": Problem(256, 256, window=(126, None)),
    # each side sees one score of a tile that is otherwise hidden, a HEAVY one
    "one of the next": Problem(256, 256, window=(1, 1)),
    # tiles that lie outside on either side, and a second sequence
    "window": Problem(300, 300, batch=2, window=(100, 30)),
    # the first tile of queries sees nothing, and so is passed over for each head of a group
    "unseen": Problem(330, 200, heads=(2, 1), window=(None, 0)),
    # a tile of keys that no query sees
    "unseen keys": Problem(10, 300, window=(None, -280)),
    "dlse": Problem(140, 130),
    # tiles of 128 rows on both sides, three, which are cut and whole, for four warpgroups and P in columns of its own
    "narrow": Problem(300, 290, heads=(2, 1), depths=(64, 64), window=(None, 0)),
    # a tile of keys after the last query, whose float32 zeros also take two chunks; both halves of both depths
    "float32": Problem(100, 150, window=(None, -50)),
    # V moves alone where keys are owned, and K stays; tiles are cut and whole
    "wide": Problem(300, 290, heads=(2, 1), depths=(192, 128), window=(None, 0)),
    # five tiles on each side, which are cut, whole and halves of lines of 128, for rings of two lengths; two heads
    "widest": Problem(300, 290, heads=(2, 1), depths=(256, 256), window=(None, 0)),
    # three blocks on each side, so that CTA 1 of the second pair has no rows; two heads
    "pairs": Problem(300, 290, heads=(2, 1), depths=(256, 256), window=(None, 0)),
    # own tiles move, dS has columns of its own, and rings of eight turn
    "pairs, 128": Problem(300, 1100, heads=(2, 1), window=(None, 0)),
    # no product lies between the allocation of tensor memory and its end
    "pairs that see nothing": Problem(10, 300, depths=(256, 256), window=(None, -280)),
    # float32 of dV takes 128 KiB, over the ring alone: K has moved
    "V alone": Problem(70, 70, depths=(64, 256)),
    # no exponentials on FMA units; P of scores without L
    "fp16": Problem(70, 70, dtype=torch.float16),
    # every score is -181: P of a key of zeros beyond the end would be 2^261, infinite
    "far below": Problem(130, 140, window=(None, 20)),
    # two pairs of keys, of which CTA 1 of the second has less than 128, for two tiles of queries of two heads
    "joint": Problem(200, 470, heads=(2, 1), window=(None, 0)),
    # a pair that is neither the first nor the last of a tile, of two heads
    "joint, three pairs": Problem(40, 520, heads=(2, 1)),
    # the same scores as "far below"; keys end in CTA 0, and CTA 1 has none
    "joint, far below": Problem(40, 100),
    # log-sum-exps so large that 8 of their bits are far from enough
    "3,000 nats": Problem(130, 140),
}
JOINT = "joint", "joint, three pairs", "joint, far below"  # one kernel for all gradients
PAIRED = ("pairs", "pairs, 128", "pairs that see nothing")  # on pairs of CTAs
HEAVY = {"cut by one": ((127, 0),), "one of the next": ((127, 128), (128, 127))}
"""(query, key) with a score of about 2 sqrt(128): one weight of 1/128 would drown in the roundings of the others."""
RAGGED = {
    "packed": dict(padding=0, hidden=0),
    "used": dict(padding=7, hidden=11),
    "packed, float32": dict(padding=0, hidden=0, sums=1.0),
    "used, widest": dict(padding=7, hidden=11, depths=(256, 256)),
}
FUNCTIONS_WIDEST = {"soft cap, widest": "soft cap"}  # L comes without delta, and is read after S
SUMS_WIDEST = {f"{name}, widest": name for name in SUMS}
LENGTHS = ((100, 90), (140, 130), (30, 270))  # rows of a tile are rows of the next sequence, too


@cache
def given(name) -> tuple:
    """((tensors, gradient of the log-sum-exp), exact gradients, allowed errors)."""
    problem = PROBLEMS[name]
    tensors, dlse = problem.tensors(), None
    if name == "dlse":
        shape = problem.batch, problem.heads[0], problem.seqlen_q
        dlse = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    if name.endswith("far below"):
        tensors[0][:], tensors[1][:] = 4.0, -4.0
    if name == "3,000 nats":
        tensors[0].mul_(1000.0)
    for query, key in HEAVY.get(name, ()):
        tensors[1][:, key] = 2 * tensors[0][:, query]
    options = dict(window_size=problem.window)
    exact = gradients_float64(*tensors, dlse, **options)
    return (tensors, dlse), exact, allowed_gradient_errors(*tensors, dlse, **options)


def is_right(name) -> bool:
    if name in JOINT:
        return joint_is_right(name)
    with tuning.using(tuning.shipped().changed(backward_joint=False)):
        return owners_are_right(name)


def owners_are_right(name) -> bool:
    """Of kernels of two owners."""
    if name in PAIRED:
        with mock.patch.dict(os.environ, {PAIR_VARIABLE: "on"}):
            return dense_is_right(name)
    if name in CASES:
        return of_functions(name)
    if name in FUNCTIONS_WIDEST:
        return of_functions(FUNCTIONS_WIDEST[name], (256, 256))
    if name in SUMS_WIDEST:
        return sums_are_right(SUMS_WIDEST[name], (256, 256))
    if name in SUMS:
        return sums_are_right(name)
    if name in LISTS:
        return LISTS[name]()
    if name in RAGGED:
        return ragged_is_right(**RAGGED[name])
    return dense_is_right(name)


def joint_is_right(name) -> bool:
    (tensors, _), exact, allowed = given(name)
    window = PROBLEMS[name].window
    scores = dict(mask=masks.causal() if window == (None, 0) else masks.full())
    with tuning.using(tuning.shipped().changed(backward_joint=True)):
        return within(run(*tensors, window, scores=scores), exact, allowed)


def dense_is_right(name) -> bool:
    (tensors, dlse), exact, allowed = given(name)
    sums = 1.0 if name in ("float32", "V alone") else None
    return within(run(*tensors, PROBLEMS[name].window, dlse, sums=sums), exact, allowed)


def within(found, exact, allowed) -> bool:
    return all(max_error(a, b) <= most for a, b, most in zip(found, exact, allowed, strict=True))


def of_functions(name, depths: tuple[int, int] = FUNCTIONS.depths) -> bool:
    scores, options = CASES[name]
    tensors = replace(FUNCTIONS, depths=depths).tensors()
    exact = gradients_float64(*tensors, **options)
    allowed = allowed_gradient_errors(*tensors, **options)
    return within(run(*tensors, scores=scores, **options), exact, allowed)


def ragged_is_right(
    padding: int, hidden: int, sums: float | None = None, depths: tuple[int, int] = (128, 128)
) -> bool:
    """Sequences of a packed call, each against float64 alone.

    padding: NaN rows after each sequence, which lengths leave out; hidden: keys at its end that a limit hides
    """
    alone = [
        Problem(*lengths, heads=(2, 1), depths=depths).tensors(n)
        for n, lengths in enumerate(LENGTHS)
    ]
    options = [
        dict(window_size=(None, 0), visible=torch.arange(keys) < keys - hidden)
        for _, keys in LENGTHS
    ]
    attended, dout, counts = packed(alone, options, padding, hidden)
    scores = Scores(depths[0] ** -0.5, masks.causal())
    found = of_kernels(attended, dout, None, scores, sums)[:3]
    parts = [x.split([int(n) + padding for n in counts[i > 0]]) for i, x in enumerate(found)]
    return all(
        within(
            [part[n][None, : of[i].shape[1]] for i, part in enumerate(parts)],
            gradients_float64(*of, **own),
            allowed_gradient_errors(*of, **own),
        )
        for n, (of, own) in enumerate(zip(alone, options, strict=True))
    )


@pytest.mark.parametrize("name", [*PROBLEMS, *RAGGED])
def test_without_a_defect_nothing_is_caught(name):
    with emulator.use(checks=CHECKS, instruction_budget=BUDGET):
        assert is_right(name)


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS, OF_SOURCES))
def test_a_defect_is_caught(own_kernels, monkeypatch, tmp_path, name):
    defect = DEFECTS[name]
    defect.plant(monkeypatch, tmp_path)
    for mode in MODES:
        try:
            with emulator.use(mode, seed=1, checks=CHECKS, instruction_budget=BUDGET):
                right = is_right(defect.problem)
        except emulator.EmulatorError:
            return
        if not right:
            return
    pytest.fail("nothing noticed")


def test_the_page_says_how_many_there_are():
    row = next(line for line in DOCUMENT.read_text().splitlines() if "sm100/backward/" in line)
    assert row.endswith(f"| {len(DEFECTS)}, all caught |")


def test_every_text_is_there_once():
    """Also of the defects that this commit does not plant."""
    for name, defect in DEFECTS.items():
        assert defect.damaged(), name
        known = (*PROBLEMS, *RAGGED, *CASES, *FUNCTIONS_WIDEST, *SUMS, *SUMS_WIDEST, *LISTS)
        assert defect.problem in known, name
