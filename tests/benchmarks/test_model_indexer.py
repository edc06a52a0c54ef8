"""The indexer in the cycle model: bounds of its cycles, and whether its records are those of the kernels."""

import pytest

from benchmarks.cycle_model import indexer, profiled
from cute_fa4.sm100.indexer.config import CTAS_OF_ROW

MULTIPLY_ADDS = 8192  # of 8 bits and a cycle
FOUND = {launch: profiled.recorded(launch) for launch in indexer.launches()}
ROWS = {one: FOUND[indexer.row(*one)].cycles for one in indexer.ROWS}


def known(*launches) -> None:
    """Fail a test of what no record says."""
    if any(FOUND[launch].state == "missing" for launch in launches):
        pytest.fail("not recorded: python benchmarks/model.py --record")


def test_no_tile_is_faster_than_its_product():
    both = [indexer.logits(tiles) for tiles in indexer.TILES]
    known(*both)
    products = indexer.QUERIES * indexer.HEADS * indexer.DEPTH * indexer.KEYS
    assert products / MULTIPLY_ADDS < indexer.steady(*(FOUND[one] for one in both))


@pytest.mark.parametrize("keys", indexer.TABLE_KEYS)
def test_ctas_that_share_a_row_are_faster_and_not_beyond_their_number(keys):
    known(*(indexer.row(*one) for one in indexer.ROWS))
    alone, shared = (indexer.of_row(ROWS, ctas, keys) for ctas in (1, CTAS_OF_ROW[-1]))
    assert alone / CTAS_OF_ROW[-1] < shared < alone


@pytest.mark.sweep
@pytest.mark.parametrize("launch", [indexer.logits(8), indexer.row(*indexer.ROWS[0])])
def test_the_recorded_cycles_are_those_of_the_kernels(launch):
    known(launch)
    assert launch.figures()["cycles"] == pytest.approx(FOUND[launch].cycles, rel=0.01)
