"""The tables of block sparsity: work tiles are the lists, the law is one for the dense call, no row is missing."""

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.cycle_model import block_sparse, flash_attn_4, report, schedules, workloads
from benchmarks.cycle_model.evaluate import SteadyState
from benchmarks.cycle_model.grid import CTACycles, Curve
from benchmarks.cycle_model.kernels import OURS, THEIRS
from benchmarks.cycle_model.modelled import MARK
from benchmarks.cycle_model.profiled import Cycles
from cute_fa4.emulator.model.constants import B200
from cute_fa4.sm100.work.lists.config import bin_of
from cute_fa4.system.gains import AS_FAST

PAGE = (Path(__file__).parents[2] / "docs" / "performance" / "block_sparsity.md").read_text()
CURVE = Curve(((1, 2000.0), (2, 4000.0)))  # proportional to the key tiles
BUSY = dict.fromkeys(("tensor", "mufu"), 0.5)
KERNELS = {
    variant: report.Modelled(variant, CTACycles(CURVE, CURVE), SteadyState(2000.0, BUSY), {})
    for variant in block_sparse.variants((OURS, THEIRS))
}
LAUNCHES = {launch: Cycles(3000.0, {}) for launch in block_sparse.launches(B200)}


def number(cell: str) -> float:
    return float(cell.removesuffix(MARK))


def rows_of(table: str) -> list[list[str]]:
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]


def stored(name: str) -> str:
    return re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", PAGE, re.DOTALL)[1]


@pytest.mark.parametrize("variant", block_sparse.TIMED, ids=str)
@pytest.mark.parametrize("pattern", block_sparse.PATTERNS)
@pytest.mark.parametrize("density", block_sparse.DENSITIES)
def test_work_tiles_are_the_lists_of_every_head(variant, pattern, density):
    """Ours take the longest first; in the order of the grid the last query blocks first, of all heads, as under a mask.

    flash-attn-4 has a head after the other.
    """
    problem = block_sparse.listed(pattern, 4096, variant.q_block, density)
    heads = block_sparse.HEADS
    found = schedules.work_tiles(variant, problem)
    if variant.maker == OURS:
        in_order = schedules.work_tiles(replace(variant, choices=()), problem)
        assert in_order == [count for count in problem.counts[::-1] for _ in range(heads)]
        assert sorted(found) == sorted(in_order)
        assert all(bin_of(a) >= bin_of(b) for a, b in pairwise(found))
    else:
        assert found == list(problem.counts) * heads
    assert problem.density == pytest.approx(density, rel=0.25)


def test_the_call_of_flash_attn_4_has_a_list_of_every_key_tile():
    """Full blocks after no partial ones, for each head."""
    given = []
    captured = SimpleNamespace(kernel=lambda *arguments: given.extend(arguments))
    flash_attn_4.launch(captured, workloads.workload(block_sparse.PEER, 3))
    [lists] = [x for x in given if isinstance(x, tuple) and len(x) == 8]
    none, _, counts, entries, *_ = lists
    assert none.sum() == 0 and counts.flatten().tolist() == [3]
    assert entries.flatten().tolist() == [0, 1, 2]


def test_the_law_is_one_for_the_dense_call_and_for_a_kernel_that_costs_what_is_listed():
    """A chip of one SM has no tail, so the time of the SMs is proportional to the listed blocks."""
    one = B200 | {"sms": B200["sms"].__class__(1, "SMs", "")}
    dense_problem = block_sparse._dense(4096)
    dense = block_sparse._time(KERNELS, block_sparse.ALONE, dense_problem, one)
    assert block_sparse.law(dense, 1.0, dense) == 1.0
    problem = block_sparse.listed("random", 4096, 256, 0.25)
    time = block_sparse._time(KERNELS, block_sparse.LARGE, problem, one)
    assert block_sparse.law(time, problem.density, dense) == pytest.approx(1.0)


def test_the_page_has_every_row_of_every_table():
    fresh = rows_of(block_sparse.table(KERNELS, LAUNCHES, B200))
    assert [row[:3] for row in rows_of(stored("block_sparse"))] == [row[:3] for row in fresh]
    names = [row[0] for row in rows_of(block_sparse.steady_table(KERNELS))]
    assert [row[0] for row in rows_of(stored("block_sparse_steady"))] == names
    sorting = rows_of(block_sparse.sorting_table(LAUNCHES, B200))
    assert [row[:3] for row in rows_of(stored("block_sparse_sorting"))] == [
        row[:3] for row in sorting
    ]
    assert rows_of(stored("block_sparse_published")) == rows_of(block_sparse.published_table())


def test_no_row_of_the_page_is_slower_than_flash_attn_4():
    ratios = [row[-1] for row in rows_of(stored("block_sparse"))]
    assert ratios and all(ratio == AS_FAST or float(ratio) > 1 for ratio in ratios)


def test_sorting_takes_a_fiftieth_of_a_call_or_three_microseconds():
    calls = {}
    for row in rows_of(stored("block_sparse")):
        for blocks, us in zip(("128 x 128", "256 x 128"), (row[3], row[7]), strict=True):
            calls.setdefault((row[0], blocks), []).append(number(us))
    sorting = rows_of(stored("block_sparse_sorting"))
    assert {row[0] for row in sorting} == {"16384", "65536"} and len(sorting) == 4
    assert all(float(row[4]) <= max(3, min(calls[row[0], row[1]]) / 50) for row in sorting)
