"""Planted defects of a first key tile with a reference from its first quarter are caught: in PTX, and in the sources.

The subject of those in the sources: tests/attention/test_first_reference.py, in one launch each.
"""

import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from cutlass import Boolean, Float32

from cute_fa4 import emulator, flash_attn_func
from cute_fa4.calls import repeat
from cute_fa4.sm100.blueprint import tuning
from cute_fa4.sm100.instructions.exp2 import emulated_pairs
from cute_fa4.sm100.steps import lagged, row_math
from tests.attention.test_first_reference import ASKED, flat, work_tiles_again
from tests.attention.test_lagged import assert_close, causal, expected, run
from tests.emulator.mutations.attention_kernel import subjects
from tests.emulator.mutations.attention_places import CONFIGS, LAGGED
from tests.emulator.mutations.everything import LEVEL
from tests.emulator.mutations.mutant import assert_caught
from tests.emulator.mutations.quick import OF_SOURCES, quick_or_sweep
from tests.sm100.two_tiles import first_tile_defects, quarter_defects
from tests.sm100.two_tiles.quarter_defects import CONFIG

MUTANTS = first_tile_defects.mutants()


@cache
def subject(name):
    if name == quarter_defects.NAME:
        return quarter_defects.subject(LEVEL)
    return subjects(LEVEL)[name]


def test_the_subjects_refer_to_a_quarter():
    assert CONFIG.refers_to_quarter and CONFIGS[LAGGED].refers_to_quarter
    pairs, per_64 = CONFIGS[LAGGED].tiles.BN // 2, CONFIGS[LAGGED].schedule.exp2_emulated
    assert {at // 2 for at in FAILING} <= emulated_pairs(pairs, per_64, 0)


@pytest.mark.parametrize("mutant", quick_or_sweep(MUTANTS))
def test_a_defect_in_ptx_is_caught_by_a_check_meant_for_it(mutant):
    assert_caught(mutant, subject(mutant.subject))


def test_there_are_enough_of_them_and_none_survives():
    """What docs/verification.md says."""
    assert len(MUTANTS) >= 11
    assert not any(mutant.survives or mutant.equivalent for mutant in MUTANTS)


# --- in the sources

FAILING = {34: 1000.0}  # in a column whose power the FMA units compute
TOO_LARGE = {200: 87.0, 265: 160.0}  # the second in the masked tile


def is_right(heads, again, sink=None, is_causal=False) -> bool:
    """Heads against float64, and as many of them as should be run again are."""
    try:
        (_, usual), _ = executed([{}] * len(heads), sink, is_causal)
        (got, instructions), (q, k, v) = executed(heads, sink, is_causal)
        seen = causal(q.shape[1], k.shape[1]) if is_causal else None
        assert_close(got, expected(q, k, v, seen, sink=sink), v, 1e-3)
        assert work_tiles_again(instructions, usual, len(heads)) == again
    except (AssertionError, emulator.EmulatorError):
        return False
    return True


def executed(heads, sink, is_causal) -> tuple:
    """((results, instructions), (q, k, v)) of a call with these jumps; v is large where a key jumps."""
    q, k, v = flat(heads)
    for head, at in enumerate(heads):
        v[0, list(at), head] *= 64
    options = dict(causal=is_causal, learnable_sink=sink, return_lse=True)
    with tuning.using(ASKED), repeat.apart(repeat.Plans()):
        return run(lambda: flash_attn_func(q, k, v, **options)), (q, k, v)


def of_another_quarter(made):
    """The largest of columns 1 to 31 and one that is not there: what column 0 has is not asked."""
    return lambda cfg, state, scores, scale: made(cfg, state, scores[1:] + scores[1:2], scale)


def without_the_sink(made):
    def begun(cfg, state, scores, scale):
        return made(cfg, replace(state, row_max=-Float32.inf), scores, scale)

    return begun


def at_its_own_weight(made):
    """The sink's weight in the row sum is not rescaled."""
    return lambda cfg, state, *more: replace(made(cfg, state, *more), row_sum=state.row_sum)


# name -> (what is changed, the attribute, the change, heads, how many run again, the sink)
DEFECTS = {
    "powers are not saturated": (row_math, "saturated_powers", lambda made: row_math.powers, [FAILING, {}], 1, None),
    "nothing is too large": (lagged, "FAILED_FROM", lambda made: math.inf, [FAILING, {}], 1, None),
    "no work tile fails": (lagged, "failed", lambda made: lambda *_: Boolean(False), [FAILING, {}], 1, None),
    "what failed is forgotten": (lagged, "checked", lambda made: lambda cfg, state: state, [TOO_LARGE, {}], 1, None),
    "of another quarter": (lagged, "begun", of_another_quarter, [{0: 70.0}, {}], 0, None),
    "without the sink": (lagged, "begun", without_the_sink, [{}, {}], 0, [0.0, 3.0]),
    "the sink is not rescaled": (lagged, "begun", at_its_own_weight, [{}, {}], 0, [-3.0, 0.0]),
    "in a second run, too": (
        lagged, "begins_here", lambda made: lambda work, first, end: first < end, [FAILING, {}], 1, None,
    ),
    "where all tiles are masked, too": (
        lagged, "begins_here", lambda made: lambda work, first, end: work.again == 0, [{}, {}], 0, "causal",
    ),
}  # fmt: skip


def given(heads, again, sink) -> tuple:
    is_causal = sink == "causal"
    sink = None if sink is None or is_causal else torch.tensor(sink)
    return heads, again, sink, is_causal


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS, OF_SOURCES))
def test_a_defect_in_the_sources_is_noticed(own_kernels, monkeypatch, name):
    owner, attribute, change, *of_call = DEFECTS[name]
    monkeypatch.setattr(owner, attribute, change(getattr(owner, attribute)))
    assert not is_right(*given(*of_call)), "nothing noticed"


@pytest.mark.sweep
@pytest.mark.parametrize("name", DEFECTS)
def test_without_one_nothing_is(own_kernels, name):
    assert is_right(*given(*DEFECTS[name][3:]))
