"""The indexer in the cycle model: bounds of its cycles, the page that says them, and whether they are up to date."""

import pytest

from benchmarks import model
from benchmarks.cycle_model import indexer, pages
from cute_fa4.sm100.indexer.config import CTAS_OF_ROW

MULTIPLY_ADDS = 8192  # of 8 bits and a cycle


def test_the_page_has_the_tables_of_the_recorded_cycles():
    page = (model.DOCS / "serving" / "indexer.md").read_text()
    for name, table in indexer.tables().items():
        assert pages.fill(page, name, table) == page, (
            "run: python benchmarks/model.py --indexer --docs"
        )


def test_no_tile_is_faster_than_its_product():
    products = indexer.QUERIES * indexer.HEADS * indexer.DEPTH * indexer.KEYS
    assert products / MULTIPLY_ADDS < indexer.steady(indexer.load())


@pytest.mark.parametrize("keys", indexer.TABLE_KEYS)
def test_ctas_that_share_a_row_are_faster_and_not_beyond_their_number(keys):
    alone, shared = (indexer.of_row(indexer.load(), ctas, keys) for ctas in (1, CTAS_OF_ROW[-1]))
    assert alone / CTAS_OF_ROW[-1] < shared < alone


@pytest.mark.sweep
def test_the_recorded_cycles_are_those_of_the_kernels():
    found = indexer.load()
    assert indexer.measure(indexer.logits_of, 8).cycles == pytest.approx(
        found["logits"][0]["cycles"], rel=0.01
    )
    first = found["top-k"][0]
    row = indexer.measure(indexer.row_of, first["ctas"], first["keys"])
    assert row.cycles == pytest.approx(first["cycles"], rel=0.01)
