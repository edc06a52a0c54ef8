"""Mistakes of skip-softmax, planted in the kernel's sources, are noticed by the oracle and by the emulator.

The subjects: packed sequences that leave rows of warps empty, with a sink, P over S; head dim 64, P beside S.
"""

import math
from dataclasses import replace

import pytest
from cutlass import Boolean, Float32, cute

from cute_fa4 import emulator
from cute_fa4.calls import repeat
from cute_fa4.sm100.steps import skipped
from cute_fa4.sm100.two_tiles.p_beside_s import SkippingBesideS
from tests.attention.test_skip_softmax import Case, assert_follows_the_rule
from tests.emulator.mutations.quick import OF_SOURCES, quick_or_sweep

OVER = Case(layout="packed", lengths=((300, 700), (37, 300)), causal=True, heads=(2, 1), sink=True)
BESIDE = Case(layout="packed", lengths=((300, 700), (37, 300)), depth=64)


def is_right(case: Case) -> bool:
    repeat.clear()
    try:
        assert_follows_the_rule(case)
    except (AssertionError, emulator.EmulatorError):
        return False
    return True


def limits(change):
    """Another limit of a row."""
    return lambda made: lambda *given: replace(made(*given), limit=change(made(*given).limit))


def arrives_alone(made):
    """The barriers of P are raised, and P stays what it was."""

    def store_zeros(cfg, order, group, work, tile, s_address):
        order.may_store_p(group.events, work, tile.n, group.i, tile.phase)
        group.events.p_ready.arrive(tile.at)
        group.events.p_last.arrive(tile.at)

    return store_zeros


# name -> (where, what is replaced, the replacement made from it)
DEFECTS = {
    "rows beyond a sequence vote": (skipped, "with_limit", limits(lambda x: cute.arch.fmin(x, Float32(0.0)))),
    "the limit is a natural logarithm": (skipped, "with_limit", limits(lambda x: x * math.log(2))),
    "the limit of another length": (skipped, "with_limit", limits(lambda x: x + 1.0)),
    "the first key tile is skipped, too": (
        skipped, "vote", lambda made: lambda *given: made(*given[:-1], Boolean(False)),
    ),
    "nothing is skipped": (skipped, "vote", lambda made: lambda *given: made(*given[:-1], Boolean(True))),
    "a sink does not count as a score": (
        skipped, "begun",
        lambda made: lambda cfg, state: replace(made(cfg, state), highest=-Float32.inf),
    ),
    "the maximum is the one that P refers to": (
        skipped, "followed", lambda made: lambda state, highest: made(state, state.row_max),
    ),
    "the vote of one warp decides for the query tile": (skipped, "WARPS", lambda made: 1),
    "votes of the key tile before": (
        skipped, "unless_skipped",
        lambda made: lambda cfg, mma, i, phase: made(cfg, mma, i, phase ^ 1),
    ),
    "P of a skipped tile is not cleared": (skipped, "store_zeros", arrives_alone),
    "tiles that no row sees are counted": (
        skipped, "count", lambda made: lambda counts, needed, seen: made(counts, needed, Boolean(True)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS, OF_SOURCES))
def test_a_mistake_is_noticed(own_kernels, monkeypatch, name):
    where, attribute, change = DEFECTS[name]
    monkeypatch.setattr(where, attribute, change(getattr(where, attribute)))
    assert not is_right(OVER), "nothing noticed"


def test_a_factor_that_is_not_awaited_is_noticed_with_p_beside_s(own_kernels, monkeypatch):
    """Without an MMA between p_ready and pv_done, nothing else orders the factors."""
    monkeypatch.setattr(SkippingBesideS, "may_write_factor", lambda *given: None)
    assert not is_right(BESIDE), "nothing noticed"


@pytest.mark.sweep
@pytest.mark.parametrize("case", (OVER, BESIDE))
def test_without_a_mistake_the_numbers_are_right(case):
    assert is_right(case)
