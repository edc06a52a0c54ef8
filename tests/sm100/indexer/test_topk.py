"""topk_indices and cache_indices: exact, with ties by index, whatever the logits are."""

import pytest
import torch

from cute_fa4.indexer import cache_indices, topk_indices
from tests.sm100.indexer.problems import int32

INF, NAN = torch.inf, torch.nan


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


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("k", [0, 1, 2, 3, 5, 9])
def test_a_row_has_its_best_keys(name, k):
    logits = torch.tensor([ROWS[name]])
    [row] = logits.tolist()
    found = topk_indices(logits, k)
    assert found.dtype == torch.int32
    assert found.tolist() == [by_definition(row, k, 0, len(row))]


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
        ({"k": -1}, "k: -1; accepted: a number of keys"),
        ({"k": True}, "k: True; accepted: a number of keys"),
        ({"ends": int32(1, 2, 3)}, r"ends: shape \(3,\); accepted: \(2,\)"),
        ({"starts": torch.zeros(2)}, "starts: dtype torch.float32; accepted: torch.int32"),
    ],
)
def test_arguments_that_are_refused(change, message):
    with pytest.raises((TypeError, ValueError), match=message):
        topk_indices(**{"logits": torch.zeros(2, 5), "k": 2, **change})
    with pytest.raises(ValueError, match="indices: shape .* accepted: "):
        cache_indices(int32(1, 2), int32(1, 2).view(1, 2), 64)
