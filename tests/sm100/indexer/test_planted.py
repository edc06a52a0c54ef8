"""Planted defects of the indexer kernel: what is deleted from its PTX, or changed in its sources, is noticed."""

import warnings

import pytest
import torch

from cute_fa4 import EmulatorWarning, emulator
from cute_fa4.calls import indexer
from cute_fa4.emulator import EmulatorError
from cute_fa4.indexer import fp8_paged_mqa_logits, topk_indices
from cute_fa4.sm100.indexer import roles, work
from tests.emulator.mutations.quick import OF_SOURCES, quick_or_sweep
from tests.sm100.backward.test_planted import missed, planted
from tests.sm100.indexer.problems import Problem, assert_agrees, cache_of, draw, int32

# Six key tiles of a CTA: each slot of the ring and each buffer of S is used again.
LENGTHS = [700, 1]
PTX = {
    "tensor memory is read before a barrier orders it": r"tcgen05\.fence::after_thread_sync;",
    "S is given back before it has been read": r"tcgen05\.fence::before_thread_sync;",
    "S is used before it has come": r"tcgen05\.wait::ld\.sync\.aligned;",
    "a product or a slot is never announced": r"@\S+ tcgen05\.commit[^;]*;",
    "mbarriers are used before their set-up is seen": r"fence\.mbarrier_init[^;]*;",
    "threads do not meet": r"\bbar\.sync[^;]*;",
    "an mbarrier misses its arrivals": r"mbarrier\.arrive(?!\.expect)[^;]*;",
    "an mbarrier is not awaited": r"LAB_WAIT:(?:(?!DONE:)[\s\S])*?bra\.uni\s+LAB_WAIT;",
}


def problem() -> Problem:
    found = draw(64, 2, LENGTHS)
    ends = torch.tensor(LENGTHS)[:, None] - torch.tensor([1, 0])
    found.sees = found.sees & (torch.arange(700) < ends[..., None])
    return found


PROBLEM = problem()
CACHE, TABLE = cache_of(PROBLEM, 64)


def attempt() -> torch.Tensor:
    """One call, under the schedule and with the transform in force."""
    given = PROBLEM.q, CACHE, PROBLEM.weights.flatten(0, 1), int32(*LENGTHS), TABLE, None, 700, True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmulatorWarning)
        return fp8_paged_mqa_logits(*given)


@pytest.fixture(autouse=True)
def many_tiles(monkeypatch):
    monkeypatch.setattr(indexer, "tiles_each", lambda *given: 6)


@pytest.mark.parametrize("name", quick_or_sweep(PTX))
def test_what_is_deleted_is_noticed(name):
    places = planted(PTX[name], 0)
    with pytest.raises(EmulatorError), emulator.use(transform=places):
        attempt()
    assert places.count > 0
    found, unnoticed = missed(PTX[name], attempt)
    assert found == places.count and not unnoticed, unnoticed


def other_page(made):
    return lambda cfg, args, at, key, end: made(cfg, args, at, key + cfg.page_size, end)


def one_more(made):
    def seen(*given):
        start, end = made(*given)
        return start, end + 1

    return seen


# name -> (module, what is replaced, the replacement made from it)
SOURCES = {
    "weights of other heads": (roles, "weights_at", lambda made: lambda *given: made(*given)[::-1]),
    "the next page": (roles, "page_of", other_page),
    "a query sees one key more": (work, "seen", one_more),
    "the first query's sum for all": (roles, "sum_of_query", lambda made: lambda *given: made(*given[:3], 0)),
    "even heads twice": (roles, "weights_at", lambda made: lambda *given: [x for x in made(*given)[::2] for _ in "12"]),
}  # fmt: skip


@pytest.mark.parametrize("name", quick_or_sweep(SOURCES, OF_SOURCES))
def test_a_mistake_in_the_sources_is_noticed(own_kernels, monkeypatch, name):
    module, attribute, change = SOURCES[name]
    monkeypatch.setattr(module, attribute, change(getattr(module, attribute)))
    with pytest.raises((AssertionError, EmulatorError)):
        assert_agrees(PROBLEM, attempt())


# All begin with the same two bytes, so every warp counts in every pass.
LOGITS = (
    0x3F800000 + torch.randint(700, (1, 1100), generator=torch.Generator().manual_seed(0))
).int()


def attempt_topk(repeats: int = 1) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmulatorWarning)
        return topk_indices(LOGITS.view(torch.float32).repeat(1, repeats), 200)


def test_threads_of_a_row_that_do_not_meet_are_noticed():
    places = planted(PTX["threads do not meet"], 0)
    with pytest.raises(EmulatorError), emulator.use(transform=places):
        attempt_topk()
    found, unnoticed = missed(PTX["threads do not meet"], attempt_topk)
    assert found == places.count == 15 and unnoticed == [WHOLE], unnoticed
    with (
        pytest.raises(EmulatorError),
        emulator.use(transform=planted(PTX["threads do not meet"], WHOLE)),
    ):
        attempt_topk(8)


WHOLE = 13  # the barrier of whole stretches, of which a short row has none
CLUSTERS = {
    "counts of others are read too early": r"barrier\.cluster\.arrive;[\s\S]*?barrier\.cluster\.wait;",
    "a CTA never says that it has read": r"barrier\.cluster\.arrive\.relaxed;",
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_ctas_of_a_row_that_do_not_meet_are_noticed(monkeypatch, name):
    monkeypatch.setattr(indexer, "ctas_of_row", lambda *given: 2)
    places = planted(CLUSTERS[name], 0)
    with pytest.raises(EmulatorError), emulator.use(transform=places):
        attempt_topk()
    assert places.count > 0


def test_the_unchanged_kernel_is_right():
    assert_agrees(PROBLEM, attempt())
