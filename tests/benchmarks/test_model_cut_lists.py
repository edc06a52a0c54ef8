"""The table of lists that are cut: its rows, and times that follow from the kernels' own rules."""

import re
from pathlib import Path

import pytest

from benchmarks.cycle_model import cut_lists, report
from benchmarks.cycle_model.evaluate import SteadyState
from benchmarks.cycle_model.grid import CTACycles, Curve
from benchmarks.cycle_model.profiled import Cycles
from cute_fa4.emulator.model.constants import B200
from tests.benchmarks.test_model_block_sparse import rows_of

PAGE = (Path(__file__).parents[2] / "docs" / "performance" / "block_sparsity.md").read_text()
CURVE = Curve(((1, 2000.0), (2, 4000.0)))  # proportional to the key tiles
STEADY = SteadyState(2000.0, dict.fromkeys(("tensor", "mufu"), 0.5))
KERNELS = {
    variant: report.Modelled(variant, CTACycles(CURVE, CURVE), STEADY, {})
    for variant in cut_lists.variants()
}


LAUNCHES = {launch: Cycles(3000.0, {}) for launch in cut_lists.launches(B200)}


def test_the_page_has_every_row():
    stored = re.search(r"<!-- cut_lists -->\n(.*?)<!-- /cut_lists -->", PAGE, re.DOTALL)[1]
    fresh = rows_of(cut_lists.table(KERNELS, LAUNCHES, B200))
    assert [row[:4] for row in rows_of(stored)] == [row[:4] for row in fresh]
    assert [row[7::4] for row in rows_of(stored)] == [row[7::4] for row in fresh]


@pytest.mark.parametrize("q_block", cut_lists.GRID)
def test_one_list_of_all_keys_does_not_decide_a_launch(q_block):
    """Among lists of a tenth: in parts, within a quarter of an equal share for each SM."""
    of = cut_lists.problem("global", 16384, 2, q_block, 0.1)
    found = cut_lists.times(KERNELS, LAUNCHES, q_block, of, B200)
    share = sum(of.counts) * 2 / B200["sms"].value * 2000 / B200["clock_ghz"].value * 1e-3
    alone = max(of.counts) * 2000 / B200["clock_ghz"].value * 1e-3
    assert found.before > alone > 4 * share
    assert found.cut < 1.25 * share + 12 and found.lists == 2
