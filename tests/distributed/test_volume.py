"""The bytes sent match the formulas of docs/distributed.md, and the page's tables match the data."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import context_parallel as benchmark
from cute_fa4.distributed.volume import (
    rows_that_hide_a_hop,
    sent_per_query,
    sent_per_row,
)
from tests.distributed import cases

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "distributed.md").read_text()
REPORT = json.loads((ROOT / "benchmarks" / "context_parallel_h200x2.json").read_text())


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("layout", ["ring", "all_gather", "all_to_all"])
@pytest.mark.parametrize("heads_kv", [8, 2])
def test_a_rank_sends_what_the_formula_says(pool, layout, ranks, heads_kv):
    """24 rows of 8 heads; with 2 key/value heads on 4 ranks, all_to_all sends each twice."""
    shapes = (1, 24 * ranks, 8, 64), (1, 24 * ranks, heads_kv, 64)
    options = {"layout": layout, "backend": "sdpa", "causal": True, "head_dim_v": 48}
    arguments = *shapes, torch.float32, options
    expected = 24 * sent_per_row(layout, ranks, 8, heads_kv, 64, itemsize=4, head_dim_v=48)
    assert [sent for _, _, sent in pool.run(cases.attend, arguments, ranks)] == [expected] * ranks


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("layout", ["ring", "all_gather", "all_to_all"])
@pytest.mark.parametrize("heads_kv", [8, 2])
def test_a_rank_sends_what_the_formula_says_backward(pool, layout, ranks, heads_kv):
    """As above, in bf16: with 2 key/value heads on 4 ranks, all_to_all sends parts of sums, which are float32."""
    shapes = (1, 24 * ranks, 8, 64), (1, 24 * ranks, heads_kv, 64)
    options = {"layout": layout, "backend": "sdpa", "causal": True, "head_dim_v": 48}
    arguments = *shapes, torch.bfloat16, options
    expected = 24 * sent_per_row(layout, ranks, 8, heads_kv, 64, head_dim_v=48, backward=True)
    sent = [result[-1] for result in pool.run(cases.differentiate, arguments, ranks)]
    assert sent == [expected] * ranks


def test_a_window_sends_its_own_rows_alone(pool):
    """A window of 9 keys before each query, contiguous: 9 rows of K and V go to the neighbour, once.

    Backward they go once more, and their gradients return in float32.
    """
    shape = (1, 96, 4, 64)
    options = dict(backend="sdpa", causal=True, window_size=(9, None), order="contiguous")
    results = pool.run(cases.attend, (shape, shape, torch.float32, options), 4)
    assert [sent for _, _, sent in results] == [9 * 2 * 4 * 64 * 4] * 4
    results = pool.run(cases.differentiate, (shape, shape, torch.float32, options), 4)
    assert [result[-1] for result in results] == [9 * 2 * 4 * 64 * (4 + 4)] * 4


def test_a_decode_step_sends_what_the_formula_says(pool):
    form = dict(queries=1, heads_q=8, heads_kv=2, rows=160, page=16)
    sent = pool.run(cases.sent_by_decode, ([5, 40], form, torch.float32, {"backend": "sdpa"}), 4)
    assert sent == [2 * sent_per_query(4, 2, 64, itemsize=4)] * 4


def test_the_measured_volume_is_that_of_the_formula():
    for row in REPORT["rows"]:
        rows = row["tokens"] // REPORT["ranks"]
        each = sent_per_row(row["layout"], REPORT["ranks"], 32, 8, 128)
        assert row["megabytes"] == pytest.approx(rows * each / 1e6, rel=1e-3)


def test_the_page_has_the_tables_of_the_data():
    assert benchmark.table(REPORT) in PAGE
    assert benchmark.decode_table(REPORT) in PAGE
    assert benchmark.paper() in PAGE
    assert f"{REPORT['GB/s']:.0f} GB/s" in PAGE and REPORT["device"] in PAGE


def test_the_ratio_of_a_hop_is_that_of_its_messages_and_operations():
    rows, group = rows_that_hide_a_hop(1e15, 900e9, 8), 8
    sent = sent_per_row("ring", 2, 8 * group, 8, 128) * rows
    operations = 2 * rows**2 * 8 * group * 128
    assert operations / 1e15 == pytest.approx(sent / 900e9, rel=0.01)
