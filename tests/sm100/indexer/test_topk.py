"""topk_indices and cache_indices: exact, with ties by index, whatever the logits are."""

import pytest
import torch

from cute_fa4 import indexer
from cute_fa4.calls import indexer as calls_indexer
from cute_fa4.indexer import cache_indices
from cute_fa4.sm100.blueprint import tuning
from cute_fa4.sm100.indexer.config import CTAS_OF_ROW, STRETCH
from tests.attention.agreement import IN_ORDER, Schedule, schedules
from tests.sm100.indexer.problems import emulated, int32

INF, NAN = torch.inf, torch.nan


def topk_indices(*given, schedule: Schedule = IN_ORDER, **options) -> torch.Tensor:
    return emulated(indexer.topk_indices, *given, schedule=schedule, **options)


def by_definition(row: list[float], k: int, start: int, end: int) -> list[int]:
    """The same by a sort of (is not a number, logit, -index) in Python."""
    seen = [j for j, x in enumerate(row) if start <= j < end and x != -INF]
    best = sorted(seen, key=lambda j: (row[j] == row[j], -row[j] if row[j] == row[j] else 0, j))[:k]
    return sorted(best) + [-1] * (k - len(best))


ROWS = {
    "no ties": [3.0, -1.0, 2.0, 9.0, -7.0],
    "all equal": [1.0] * 6,
    "ties at the edge": [2.0, 1.0, 1.0, 2.0, 1.0, 3.0],
    "zeros of both signs": [-0.0, 0.0, -0.0, 1.0, 0.0, -0.0],
    "some are not seen": [-INF, 1.0, -INF, 2.0, -INF],
    "none is seen": [-INF] * 4,
    "NaN comes first": [1.0, NAN, 5.0, NAN, INF],
    "negative NaN, too": [1.0, -NAN, INF, 7.0],
    "subnormal": [1e-45, -1e-45, 0.0, 2e-45, -0.0, -3e-45],
    "extremes": [3.4e38, INF, -3.4e38, 0.0, INF],
}


@pytest.mark.parametrize("k", [0, 1, 2, 3, 5, 9])
def test_a_row_has_its_best_keys(k):
    rows = edge_rows()
    found = topk_indices(rows, k)
    assert found.dtype == torch.int32
    for name, own, row in zip(ROWS, found.tolist(), rows.tolist(), strict=True):
        assert own == by_definition(row, k, 0, len(row)), name


def test_rows_see_their_own_keys():
    logits = torch.randint(-4, 4, (40, 300), generator=torch.Generator().manual_seed(0)).float()
    starts = torch.arange(40, dtype=torch.int32) * 3 - 5
    ends = starts + torch.arange(40, dtype=torch.int32) * 9
    logits[:, 290:] = NAN  # beyond every end but the last
    ends.clamp_(max=290)
    found = topk_indices(logits, 32, starts, ends)
    rows = zip(logits.tolist(), starts.tolist(), ends.tolist(), strict=True)
    assert found.tolist() == [by_definition(row, 32, start, end) for row, start, end in rows]
    assert torch.equal(topk_indices(logits, 32, ends=ends)[0], torch.full((32,), -1).int())


def edge_rows() -> torch.Tensor:
    rows = torch.full((len(ROWS), 6), -INF)  # a key of -inf is not seen
    for row, logits in zip(rows, ROWS.values(), strict=True):
        row[: len(logits)] = torch.tensor(logits)
    return rows


@pytest.mark.parametrize("ctas, k", [*((ctas, 3) for ctas in CTAS_OF_ROW[1:]), (2, 9)])
def test_ctas_that_share_a_row_find_the_same(monkeypatch, ctas, k):
    """Also where some of them have no key, or none that the row sees."""
    monkeypatch.setattr(calls_indexer, "ctas_of_row", lambda *given: ctas)
    rows = edge_rows()
    expected = [by_definition(row, k, 0, 6) for row in rows.tolist()]
    assert topk_indices(rows, k).tolist() == expected


def test_rows_are_shared_where_ctas_are_few_and_keys_many(monkeypatch):
    """The chosen kernel is the one that runs, and its result is that of a CTA alone."""
    chosen = []
    made = calls_indexer.TopKConfig
    shared_from = tuning.shipped().changed(topk_shared_keys=1000)
    monkeypatch.setattr(
        calls_indexer, "TopKConfig", lambda *given: chosen.append(made(*given)) or chosen[-1]
    )
    logits = torch.randint(-9, 9, (2, 1000), generator=torch.Generator().manual_seed(0)).float()
    with tuning.using(shared_from):
        shared = topk_indices(logits, 99)
        alone = topk_indices(logits[:, :999], 99, ends=int32(999, 990))
    assert [config.ctas for config in chosen] == [8, 1]
    assert shared.tolist() == [by_definition(row, 99, 0, 1000) for row in logits.tolist()]
    assert alone.tolist() == [
        by_definition(row, 99, 0, end) for row, end in zip(logits.tolist(), (999, 990), strict=True)
    ]


@pytest.mark.parametrize(
    "schedule, ctas",
    [
        *((schedule, 1) for schedule in schedules(3)),
        *((schedule, 2) for schedule in schedules(3)[1:]),
    ],
    ids=str,
)
def test_long_rows_agree_under_every_schedule(monkeypatch, schedule, ctas):
    """Logits that agree in 0 to 4 of their bytes, more keys than threads, and more ties than are taken."""
    monkeypatch.setattr(calls_indexer, "ctas_of_row", lambda *given: ctas)
    generator = torch.Generator().manual_seed(3)
    bits = torch.randint(-(2**31), 2**31 - 1, (3, 1040), generator=generator, dtype=torch.int64)
    bits[1] = 0x3F800000 + bits[1] % 3  # differ in the last byte alone
    bits[2, ::2] = bits[2, 0]
    logits = bits.int().view(torch.float32)
    starts, ends = int32(0, 1, 3), int32(1040, 1030, 2000)
    found = topk_indices(logits, 250, starts, ends, schedule=schedule)
    rows = zip(logits.tolist(), starts.tolist(), ends.tolist(), strict=True)
    assert found.tolist() == [by_definition(row, 250, start, end) for row, start, end in rows]


def test_a_row_of_two_stretches_and_a_rest():
    """Whole stretches are read without a bound, the rest with one; both buffers of sums are used again."""
    logits = torch.randn(1, 2 * STRETCH + 77, generator=torch.Generator().manual_seed(1))
    expected = logits[0].topk(2048).indices.sort().values
    assert torch.equal(emulated(indexer.topk_indices, logits, 2048)[0], expected.int())


def test_a_call_without_keys():
    assert topk_indices(torch.zeros(2, 0), 3).tolist() == [[-1] * 3] * 2
    assert topk_indices(torch.zeros(0, 4), 3).shape == (0, 3)


def test_rows_of_a_cache():
    table = int32(7, 2, 9, 4, 0, 1).view(2, 3)
    keys = int32(0, 63, 64, 191, -1, 5, -1, -1, 130, 128).view(2, 1, 5)
    assert cache_indices(keys, table, 64).tolist() == [
        [[448, 511, 128, 639, -1]],
        [[261, -1, -1, 66, 64]],
    ]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"logits": torch.zeros(5)}, r"logits: shape \(5,\) has 1 dimensions; accepted: 2, \(rows"),
        ({"logits": torch.zeros(2, 5).half()}, "logits: dtype torch.float16; accepted: torch.floa"),
        ({"k": -1}, "k: -1; accepted: 0 to"),
        ({"k": True}, "k: a bool; accepted: an int"),
        ({"k": None}, "k: None; accepted: a number of keys"),
        ({"logits": torch.zeros(5, 2).T}, "logits: strides .*; accepted: the keys of a row contig"),
        ({"ends": int32(1, 2, 3)}, r"ends: shape \(3,\); accepted: \(2,\)"),
        ({"starts": torch.zeros(2)}, "starts: dtype torch.float32; accepted: torch.int32"),
    ],
)
def test_arguments_that_are_refused(change, message):
    with pytest.raises((TypeError, ValueError), match=message):
        topk_indices(**{"logits": torch.zeros(2, 5), "k": 2, **change})
    with pytest.raises(ValueError, match="indices: shape .* accepted: "):
        cache_indices(int32(1, 2), int32(1, 2).view(1, 2), 64)
