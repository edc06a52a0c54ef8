"""Pairs of CTAs: each gradient has the bits of CTAs alone, which other tests compare with float64.

A result adds the same products in the same order of 16 values, whether one CTA or two multiply.
"""

from dataclasses import replace

import pytest
import torch

from cute_fa4 import emulator, masks
from cute_fa4.calls.backward import Attended, Launch, Scores, gradients
from cute_fa4.compiler.policy import PAIR_VARIABLE
from cute_fa4.sm100.backward.config import BackwardConfig
from cute_fa4.sm100.blueprint import tuning
from cute_fa4.sm100.blueprint.score_mods import ScoreMod
from cute_fa4.system import devices
from tests.sm100.backward.problems import Problem, of_kernels, packed, run
from tests.sm100.backward.test_functions import CASES
from tests.sm100.backward.test_functions import PROBLEM as FUNCTIONS
from tests.suite import turns

CAUSAL = (None, 0)
WIDE = dict(depths=(256, 256))

PROBLEMS = {
    # three blocks on each side: CTA 1 of the second pair has no rows; every part of the rings turns
    "an odd number of blocks": Problem(300, 320, heads=(2, 1), window=CAUSAL, **WIDE),
    "one row and one key": Problem(1, 1, **WIDE),
    # blocks of 128 rows see tiles that their neighbours do not: whole tiles are masked in one CTA of a pair
    "a window narrower than a block": Problem(500, 500, window=(40, 0), **WIDE),
    "queries that see nothing, and keys that no query sees": Problem(
        330, 200, window=CAUSAL, **WIDE
    ),
    "sequences and groups": Problem(140, 270, heads=(4, 2), batch=2, **WIDE),
    "fp16": Problem(200, 150, dtype=torch.float16, **WIDE),
    "head dims that are padded": Problem(150, 140, depths=(200, 232), window=CAUSAL),
    # rings of eight turn twice; both own tiles of dq move, and dS has columns of its own; dK and dV on CTAs alone
    "head dim 128": Problem(300, 1100, heads=(2, 1), window=CAUSAL),
    # tiles of 128 rows; Q or K moves, dS has columns of its own, and rings of three and of two turn
    "a narrow sum of wide heads": Problem(140, 520, depths=(128, 256), window=CAUSAL),
    # all four tiles of the other side have two slots, and dO is narrow
    "a narrow dO": Problem(140, 300, depths=(256, 64)),
    # dv on pairs, dq and dk alone: half of 192 columns is no whole chunk
    "kernels of both kinds": Problem(150, 200, depths=(192, 256), window=CAUSAL),
}


def alone_and_in_pairs(monkeypatch, gradients) -> list[tuple]:
    """What `gradients` gives on CTAs alone, then in pairs; the second launch has kernels that two CTAs share."""
    out = []
    for word in ("off", "on"):
        monkeypatch.setenv(PAIR_VARIABLE, word)
        shared: list[bool] = []

        def seen(name, ptx, shared=shared):
            shared.append("tcgen05.mma.cta_group::2" in ptx)
            return ptx

        with emulator.use(transform=seen):
            out.append(gradients())
        assert any(shared) == (word == "on")
    return out


@pytest.mark.parametrize("name", turns.by_turns(PROBLEMS))
def test_pairs_have_the_bits_of_ctas_alone(name, monkeypatch):
    problem = PROBLEMS[name]
    tensors = problem.tensors()
    alone, pairs = alone_and_in_pairs(monkeypatch, lambda: run(*tensors, problem.window))
    assert all(a.equal(b) for a, b in zip(alone, pairs, strict=True))


def further() -> dict:
    """Options of a call with the sizes of FUNCTIONS, by name."""
    shape = FUNCTIONS.batch, FUNCTIONS.heads[0], FUNCTIONS.seqlen_q
    dlse = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    of_cases = "a mask_mod", "causal chunks", "sinks", "sinks of rows without keys"
    with_cases = {name: dict(scores=CASES[name][0], **CASES[name][1]) for name in of_cases}
    return {
        "float32 sums": dict(sums=1.0),
        "a gradient of the log-sum-exp": dict(dlse=dlse),
        **with_cases,
    }


@pytest.mark.parametrize("name", turns.by_turns(further()))
def test_options_keep_the_bits_in_pairs(name, monkeypatch):
    tensors, options = replace(FUNCTIONS, **WIDE).tensors(), further()[name]
    alone, pairs = alone_and_in_pairs(monkeypatch, lambda: run(*tensors, **options))
    assert all(a.equal(b) for a, b in zip(alone, pairs, strict=True))


LENGTHS = (100, 90), (300, 260), (30, 270)  # of queries and keys: pairs end in each of their CTAs


@pytest.mark.parametrize("padding", [0, 7])
def test_packed_sequences_have_the_bits_of_ctas_alone(padding, monkeypatch):
    """padding: rows of NaN after each sequence, which lengths of their own leave out."""
    parts = [
        Problem(*lengths, heads=(2, 1), **WIDE).tensors(n) for n, lengths in enumerate(LENGTHS)
    ]
    options = [dict(window_size=CAUSAL)] * len(parts)
    attended, dout, _ = packed(parts, options, padding, hidden=11 if padding else 0)
    scores = Scores(attended.q.shape[-1] ** -0.5, masks.causal())
    alone, pairs = alone_and_in_pairs(
        monkeypatch, lambda: of_kernels(attended, dout, None, scores)[:3]
    )
    assert all(a.equal(b) for a, b in zip(alone, pairs, strict=True))


@pytest.mark.parametrize("mode", ["hostile", "random", "together"])
def test_no_schedule_changes_a_bit_in_pairs(mode, monkeypatch):
    monkeypatch.setenv(PAIR_VARIABLE, "on")
    tensors = Problem(300, 280, window=CAUSAL, **WIDE).tensors()
    first = run(*tensors, CAUSAL)
    with emulator.use(mode=mode, seed=7):
        again = run(*tensors, CAUSAL)
    assert all(a.equal(b) for a, b in zip(first, again, strict=True))


def test_pairs_of_a_b300_have_the_bits_of_its_ctas_alone(monkeypatch):
    monkeypatch.setattr(devices, "EMULATED_ARCH", "sm_103a")
    tensors = Problem(140, 150, window=CAUSAL, **WIDE).tensors()
    alone, pairs = alone_and_in_pairs(monkeypatch, lambda: run(*tensors, CAUSAL))
    assert all(a.equal(b) for a, b in zip(alone, pairs, strict=True))


def test_a_grid_of_pairs_counts_both_ctas_of_the_last_one():
    """2^30 heads of one query are 2^30 CTAs alone, and 2^31 in pairs: one more than a grid has."""
    q, k, v, dout = (
        torch.zeros(1, 1, 1, 256, dtype=torch.bfloat16).expand(1 << 22, 1, 1 << 8, 256)
        for _ in range(4)
    )
    of = Attended(q, k, v, dout, torch.zeros(1, 1, 1).expand(1 << 22, 1 << 8, 1))
    call = Launch.of(of, dout, None, Scores(1.0))
    call.require_grid(1)
    with pytest.raises(ValueError, match=f"a grid of {1 << 31} CTAs of 128 rows"):
        gradients(of, dout, None, Scores(1.0))


def kernels_on_pairs(*args, **options) -> list[bool]:
    cfg = BackwardConfig(*args, **options)
    return [owner.ctas > 1 for owner in (cfg.owner("queries"), *cfg.owners_of_keys)]


def test_which_kernels_run_on_pairs():
    """Full and causal calls of wide heads by default; where asked, those whose results halve into whole chunks."""
    causal, window = masks.causal().mask, masks.window(64, 0).mask
    wide = ("bf16", 256, 256)
    assert all(kernels_on_pairs(*wide) + kernels_on_pairs(*wide, mask=causal))
    assert all(kernels_on_pairs(*wide, arch="sm_103a"))
    assert not any(kernels_on_pairs(*wide, mask=window) + kernels_on_pairs("bf16", 128, 128))
    assert all(kernels_on_pairs(*wide, mask=window, pairs=True))
    assert kernels_on_pairs("bf16", 192, 256, pairs=True) == [False, False, True]
    assert kernels_on_pairs("bf16", 128, 128, mask=window, pairs=True) == [True, False]
    with tuning.using(tuning.shipped().changed(backward_pairs=False)):
        assert not any(kernels_on_pairs(*wide))


def twice(score, batch, head, q_idx, kv_idx):
    return score * 2


def test_what_pairs_do_not_run_is_the_kernel_of_ctas_alone():
    """One kernel, one name, whether pairs are asked for or not."""
    for further in (dict(listed=True), dict(score_mod=ScoreMod.of(twice))):
        asked, other = (
            BackwardConfig("bf16", 256, 256, pairs=on, **further) for on in (True, False)
        )
        assert asked == other and asked.name == other.name
    assert BackwardConfig("bf16", 64, 64, pairs=True) == BackwardConfig("bf16", 64, 64)
