"""The tables of head dims: no row is missing, and what they leave out costs what they say."""

import re
from pathlib import Path

import pytest

from benchmarks.cycle_model import depths, report, wide
from benchmarks.cycle_model.evaluate import SteadyState
from benchmarks.cycle_model.grid import CTACycles, Curve
from benchmarks.cycle_model.problems import Problem
from cute_fa4.emulator.model.constants import B200
from cute_fa4.sm100.choose.choose_config import DEPTHS, QK_DEPTHS, choose_config
from cute_fa4.sm100.choose.rows_of_tiles import is_wide

PAGE = (Path(__file__).parents[2] / "docs" / "performance" / "shapes.md").read_text()
BUSY = dict.fromkeys(("tensor", "mufu"), 0.5)


def table_of_page(name: str) -> str:
    return re.search(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", PAGE, re.DOTALL)[1]


@pytest.mark.parametrize("d", [d for d in QK_DEPTHS if d % 16])
def test_an_odd_multiple_of_8_costs_what_the_next_multiple_of_16_does(d):
    """The same MMAs, copies, places and order. Without a mask 64 has another order, in which P V computes row sums
    and which V of 64 columns alone may have (two_tiles/orders.py): it is asked for the one of 56.
    """

    def costs(d, **asked):
        depths = dict(head_dim=d, head_dim_v=min(d, DEPTHS[-1]))
        config = choose_config(qkv_dtype="bf16", **depths, **asked)
        tiles = config.tiles
        products = tiles.qk_mma_shape, tiles.pv_mma_shape
        return products, tiles.bytes_of_stages, tiles.v_bytes, config.smem, config.schedule

    assert costs(d) == (costs(64, order="p_beside_s") if d == 56 else costs(d + 8))


def test_the_rows_are_every_multiple_of_16():
    ours = [(d, min(d, DEPTHS[-1])) for d in QK_DEPTHS if d % 16 == 0]
    assert depths.depths()[: len(ours)] == ours
    assert all(is_wide(*both) for both in depths.depths()[len(ours) :])


def test_operations_are_those_of_both_products():
    """2 heads pairs (192 + 128), and half of it under a causal mask."""
    full = Problem(1, 128, 128, 2048, 192, False, head_dim_v=128)
    causal = Problem(1, 128, 128, 2048, 192, True, head_dim_v=128)
    assert full.flops == 2 * causal.flops == 2 * 128 * 2048**2 * 320
    assert full.bytes == 2 * 2048 * 2 * 128 * 320


def test_the_page_has_every_row_of_both_tables():
    steady = [depths.Depth(*d, 256, "mha2q", SteadyState(2571.0, BUSY)) for d in depths.depths()]
    fresh = depths.table(steady, B200).splitlines()
    fresh, stored = (
        [row for row in text if row[:1] == "|"]
        for text in (fresh, table_of_page("depths").splitlines())
    )
    assert [row.split("|")[1:3] for row in fresh] == [row.split("|")[1:3] for row in stored]
    [reference] = [row for row in stored if row.startswith("| 128 | 128 |")]
    assert "| 1.00 |" in reference
    curve = CTACycles(Curve(((1, 6000.0), (8, 24000.0))))
    kernels = {
        variant: report.Modelled(variant, curve, SteadyState(2571.0, BUSY), {})
        for problem in depths.latent_problems()
        for variant in depths.latent_variants(problem)
    }
    fresh = [row.split("|") for row in depths.latent_table(kernels, B200).splitlines()[2:]]
    stored = [row.split("|") for row in table_of_page("latent").splitlines() if row[:1] == "|"]
    assert [(row[1:3], row[11]) for row in fresh] == [(row[1:3], row[11]) for row in stored]


def test_the_page_has_every_row_of_head_dim_256():
    """Every length that was published, under both masks; theirs has two CTAs a tile under every mask, as ours."""
    curve = CTACycles(Curve(((1, 6000.0), (8, 24000.0))))
    asked = [variant for problem in wide.problems() for variant in wide.variants(problem)]
    assert all(variant.pair and variant.rows == 256 for variant in asked)
    modelled = {v: report.Modelled(v, curve, SteadyState(2571.0, BUSY), {}) for v in asked}
    fresh = [row.split("|") for row in wide.table(modelled, B200).splitlines()[2:]]
    stored = [row.split("|") for row in table_of_page("wide").splitlines() if row[:1] == "|"]
    assert [(row[1:3], row[8]) for row in fresh] == [(row[1:3], row[8]) for row in stored]


def test_a_second_launch_makes_s_again():
    """V of 512 columns: each launch is that of 512 columns of Q and K with 256 of V."""
    one = depths.Depth(512, 256, 128, "mhawidepair", SteadyState(3000.0, BUSY))
    two = depths.Depth(512, 512, 128, "mhawidepair", SteadyState(3000.0, BUSY))
    assert two.cycles == 2 * one.cycles
    assert two.tflops(B200) == one.tflops(B200) * (1024 / 768) / 2
