"""Mistakes with sinks, planted in the sources of kernels, are noticed by their numbers.

The subjects: a latent cache on a CTA alone, on a pair of CTAs, and in parts that are merged; decode from another cache
in two parts, of which the first counts the sink. Sinks are below the scores, among them, far above and +inf; or far
below.
"""

import math

import pytest
import torch

from cute_fa4.calls import repeat
from cute_fa4.sm100.combine.kernel import CombineKernel
from cute_fa4.sm100.steps import part_sums, sinks
from tests.emulator.mutations.quick import OF_SOURCES, quick_or_sweep
from tests.serving.batches import Batch, assert_agrees, packed_q, paged_kv
from tests.serving.batches import run as run_kv
from tests.sm100.latent.latent_batches import agree, draw, run, stored

ALONE, PAIR = 12, 80  # heads
SINKS = [-9.0, 5.0, 80.0, math.inf]  # the second has about half of the weight


def of_heads(heads: int) -> torch.Tensor:
    return torch.tensor(SINKS).repeat(heads // len(SINKS))


def over_latent(heads: int, **options) -> None:
    """A tile and a part of one; a sequence without keys."""
    batch, sink = draw(1, [133, 0], heads=heads), of_heads(heads)
    out, lse = run(stored(batch, 64), **options, attn_sink=sink)
    agree(batch, out, torch.logaddexp(lse, sink[:, None].expand_as(lse)), False, sink=sink)
    assert lse[0].isfinite().all()


def alone() -> None:
    over_latent(ALONE, num_splits=1)


def pair() -> None:
    over_latent(PAIR, num_splits=1)


def merged() -> None:
    over_latent(ALONE, num_splits=2)


FAR_BELOW = [-3e38, -1e9, -1e9, -3e38]  # below the negative limit of scores, -2^30 ln 2


def over_keys(sinks=SINKS) -> None:
    batch, sink = Batch.draw([1, 1], [300, 0], heads=(4, 2)), torch.tensor(sinks)
    out, lse = run_kv(packed_q(batch), paged_kv(batch, 64), num_splits=2, learnable_sink=sink)
    assert_agrees(batch, out, lse, sink=sink)


def far_below() -> None:
    over_keys(FAR_BELOW)


def far_above() -> None:
    """Two are between the limit of scores and twice of it."""
    over_keys([-sink for sink in FAR_BELOW])


# name -> (subject, where, what is replaced, the replacement made from it)
DEFECTS = {
    "the weight is not relative to the maximum": (
        alone, sinks, "ended",
        lambda made: lambda cfg, sink, row_max, *given: made(cfg, sink, row_max * 0.0, *given),
    ),
    "the sink is taken for a power of two": (alone, sinks, "LOG2_E", lambda made: 1.0),
    "the sink of another head": (
        alone, sinks, "of_head", lambda made: lambda args, head: made(args, head ^ 1),
    ),
    "no sink": (alone, sinks, "ended", lambda made: lambda cfg, sink, row_max, row_sum, scale: row_sum),
    "a pair has the sink of another head": (
        pair, sinks, "of_head", lambda made: lambda args, head: made(args, head ^ 1),
    ),
    "a pair has no sink": (
        pair, sinks, "ended", lambda made: lambda cfg, sink, row_max, row_sum, scale: row_sum,
    ),
    "the merge has no sink": (merged, CombineKernel, "of_sink", lambda made: lambda *given: None),
    "the merge has the sink of another row": (
        merged, CombineKernel, "of_sink",
        lambda made: lambda self, to, row, state: part_sums.weight(to.sink[row.head ^ 1], state.largest),
    ),
    "the merge has a weight in other units": (
        merged, CombineKernel, "of_sink",
        lambda made: lambda self, to, row, state: part_sums.weight(to.sink[row.head], state.largest * 0.0),
    ),
    "a row begins with +inf": (over_keys, sinks, "FIRST", lambda made: math.inf),
    "the log-sum-exp is the limit of scores": (far_above, sinks, "AT_LIMIT", lambda made: 2.0),
    "a sink far below is as no sink": (
        far_below, sinks, "in_lse", lambda made: lambda cfg, args, work, head, lse: lse,
    ),
    "only sinks below twice the limit are the log-sum-exp": (far_below, sinks, "AT_LIMIT", lambda made: 2.0),
    "parts of +inf have no weight": (
        over_keys, part_sums, "weight",
        lambda made: lambda lse, largest: made(lse, largest) * ((lse - largest) * 0.0 + 1.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS, OF_SOURCES))
def test_a_mistake_is_noticed(own_kernels, monkeypatch, name):
    subject, where, attribute, change = DEFECTS[name]
    monkeypatch.setattr(where, attribute, change(getattr(where, attribute)))
    repeat.clear()
    with pytest.raises(AssertionError):
        subject()


@pytest.mark.sweep
@pytest.mark.parametrize(
    "subject",
    [alone, pair, merged, over_keys, far_below, far_above],
    ids=lambda f: f.__name__,
)
def test_without_a_mistake_the_numbers_are_right(subject):
    subject()
