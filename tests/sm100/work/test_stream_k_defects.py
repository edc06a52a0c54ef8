"""Mistakes planted in the order of shared keys and in the kernel that merges its pieces are noticed.

Twenty sequences on four CTAs, more than half of the lanes of a warp: most of 5 keys, one of none, two of several
tiles, with a sink, which counts once. Noticed is an error of the emulator, or a number that differs from the same call
without a split. The workspace holds NaN before.
"""

from dataclasses import replace

import cutlass.cute as cute
import pytest
import torch

from cute_fa4 import emulator, flash_attn_varlen_func
from cute_fa4.calls.split_keys import split, workspace
from cute_fa4.layouts.scalars import choose, maximum, minimum
from cute_fa4.sm100.combine import kernel as combine
from cute_fa4.sm100.steps import part_sums
from cute_fa4.sm100.work import line, results, stream_k
from tests.calls.simulated_device import full_of_nan
from tests.emulator.mutations.quick import OF_SOURCES, quick_or_sweep
from tests.tuned import changed

LENGTHS = [5] * 10 + [700] + [5] * 7 + [0, 300]
CTAS = 4
BUDGET = 5_000_000  # instructions of a launch, ten times what it needs: some mistakes never end

pytestmark = pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")


def call(num_splits):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(len(LENGTHS), 1, 2, 64, generator=generator).bfloat16()
    k, v = torch.randn(2, len(LENGTHS), 1100, 1, 64, generator=generator).bfloat16()
    used, sink = torch.tensor(LENGTHS, dtype=torch.int32), torch.tensor([1.0, 2.0])
    return flash_attn_varlen_func(
        q, k, v, seqused_k=used, learnable_sink=sink, num_splits=num_splits, return_lse=True
    )


@pytest.fixture(scope="module")
def expected():
    return call(num_splits=1)


@pytest.fixture
def on_four_ctas(monkeypatch):
    monkeypatch.setattr(split, "num_sms", lambda device: CTAS)
    changed(monkeypatch, split_least_keys=256)
    monkeypatch.setattr(workspace, "_allocated", full_of_nan)


def is_right(expected, mode="in_order") -> bool:
    with emulator.use(mode=mode, seed=1, instruction_budget=BUDGET):
        found = call(num_splits=0)
    limits = (2e-2, 1e-4)
    return all(
        torch.allclose(ours, theirs, rtol=0, atol=limit)
        for ours, theirs, limit in zip(found, expected, limits, strict=True)
    )


def summed_over_half(number):
    """sum_up_to, up to a distance of 8."""
    lane = cute.arch.lane_idx()
    for distance in (1, 2, 4, 8):
        other = cute.arch.shuffle_sync_up(number, distance)
        number = number + choose(lane >= distance, other, 0)
    return number


def short_of_a_part(made):
    def parts_of_row(*given):
        found = made(*given)
        return replace(found, end=found.end - choose(found.end - found.begin > 1, 1, 0))

    return parts_of_row


def from_the_next_slot(made):
    def parts_of_row(*given):
        found = made(*given)
        return replace(found, begin=found.begin + 1, end=found.end + 1)

    return parts_of_row


def stretch(change):
    def changed(made):
        def stretch_of(cfg, args, cta):
            found = made(cfg, args, cta)
            return replace(found, **change(found, cta))

        return stretch_of

    return changed


# name -> (module, what is replaced, the replacement made from it)
DEFECTS = {
    "a block without keys is on no CTA's stretch": (
        stream_k, "tiles_of_block", lambda made: lambda seen: seen.count,
    ),
    "the share is rounded down": (
        stream_k, "share_of", lambda made: lambda total, ctas, least: maximum(total // ctas, least),
    ),
    "a stretch goes on for a tile": (
        stream_k, "stretch_of", stretch(lambda found, cta: {"end": found.end + 1}),
    ),
    "a stretch begins a tile late": (
        stream_k, "stretch_of", stretch(lambda found, cta: {"at": minimum(found.at + 1, found.end)}),
    ),
    "the last tile of a stretch is left out": (
        stream_k, "stretch_of", stretch(lambda found, cta: {"end": maximum(found.end - 1, found.at)}),
    ),
    "half of the warp is added up": (line, "sum_up_to", lambda made: summed_over_half),
    "every piece begins its block: the sink counts often": (
        stream_k, "begins_block", lambda made: lambda part: part >= 0,
    ),
    "no piece begins its block: the sink is lost": (
        stream_k, "begins_block", lambda made: lambda part: part < 0,
    ),
    "pieces lie in the slot of their block": (
        stream_k, "part_of", lambda made: lambda slot, begins: slot * 0 + choose(begins, 0, 1),
    ),
    "O goes to the next slot": (
        results, "row_place", lambda made: lambda *given: (made(*given)[0] + 1, *made(*given)[1:]),
    ),
    "a part is not merged": (combine, "parts_of_row", short_of_a_part),
    "the parts of the next block are merged": (combine, "parts_of_row", from_the_next_slot),
    "parts are added up without weights": (
        part_sums, "weight", lambda made: lambda lse, largest: made(lse, lse),
    ),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["in_order", "random", "hostile"])
def test_without_a_mistake_the_numbers_are_right(expected, on_four_ctas, mode):
    assert is_right(expected, mode)


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS, OF_SOURCES))
def test_a_mistake_is_noticed(expected, on_four_ctas, own_kernels, monkeypatch, name):
    module, attribute, change = DEFECTS[name]
    monkeypatch.setattr(module, attribute, change(getattr(module, attribute)))
    try:
        right = is_right(expected)
    except (emulator.EmulatorError, RuntimeError):
        return
    assert not right, "nothing noticed"
