"""The order of lists in the backward pass: the schedule is the kernel's, and records are those of the code."""

import pytest

from benchmarks.cycle_model import listed_backward, profiled
from benchmarks.cycle_model.grid import Curve
from benchmarks.cycle_model.listed_backward import Found
from cute_fa4.emulator.model.constants import fitted_b200

# A tile takes a thousand cycles, an empty list none; sorting takes nothing.
EACH = Curve(tuple((n, 1000.0 * n) for n in listed_backward.LENGTHS))
VALUES = {"clock_ghz": 1.0, "kernel_start_us": 0.0}
TILES = 8


def us(pattern: str, at: int, sms: int) -> tuple[float, float]:
    pairs = listed_backward.visible(pattern, TILES, 0.5)
    found = Found((EACH, EACH), {TILES * listed_backward.HEADS: 0.0})
    return found.us(at, pairs, VALUES | {"sms": sms})


@pytest.mark.parametrize("pattern", listed_backward.PATTERNS)
@pytest.mark.parametrize("at", (0, 1))
def test_no_order_loses_a_tile(pattern, at):
    """One SM takes as long as all pairs of tiles, in any order; several no longer than a share and one list."""
    pairs = int(listed_backward.visible(pattern, TILES, 0.5).sum()) * listed_backward.HEADS
    assert us(pattern, at, 1) == (pairs, pairs)
    assert all(pairs / 5 <= x <= pairs / 5 + TILES for x in us(pattern, at, 5))


@pytest.mark.parametrize(("pattern", "at"), [("long first", 0), ("sinks last", 1)])
def test_the_longest_first_saves_the_wait_for_lists_that_the_grid_begins_last(pattern, at):
    """On so many SMs that little more is waited for than the longest list, which has every tile."""
    grid, longest = us(pattern, at, TILES * listed_backward.HEADS // 2)
    assert TILES <= longest <= TILES + 1 < grid


def test_the_grid_already_begins_with_some_long_lists():
    """The last tiles of queries, and the first tiles of keys."""
    for pattern, at in (("long last", 0), ("sinks", 1)):
        grid, longest = us(pattern, at, TILES * listed_backward.HEADS // 2)
        assert grid == longest


def recorded() -> Found:
    costs = {one: profiled.recorded(one) for one in listed_backward.launches()}
    if any(one.state == "missing" for one in costs.values()):
        pytest.fail("not recorded: python benchmarks/model.py --record")
    return listed_backward.found_by(costs)


def test_what_is_recorded_is_no_faster_than_its_products():
    """Three and four products of 128 x 128 x 128 at 8,192 FLOPs a cycle."""
    for cycles, products in zip(recorded().cycles, (3, 4), strict=True):
        assert cycles.per_tile >= products * 2 * 128**3 / 8192


def test_sorting_is_recorded_for_every_size():
    tiles = {n // listed_backward.ROWS * listed_backward.HEADS for n in listed_backward.SEQLENS}
    assert set(recorded().sorting) == tiles and fitted_b200()["sms"].value == 148


@pytest.mark.sweep
@pytest.mark.parametrize("owner", listed_backward.OWNERS)
def test_the_records_are_up_to_date(owner):
    one = listed_backward.launch(owner, 4)
    assert one.figures()["cycles"] == pytest.approx(profiled.recorded(one).cycles, rel=0.01)
