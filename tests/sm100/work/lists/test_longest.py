"""Work tiles sorted by the lengths of their lists: Python's sort by bins, for every way in which counts are given."""

import pytest

from cute_fa4 import emulator
from cute_fa4.sm100.work.lists import config
from tests.sm100.work.lists import sorted_tiles
from tests.sm100.work.lists.sorted_tiles import Launch, drawn

LAUNCHES = {
    name: getattr(sorted_tiles, name) for name in ("PADDED", "SHARED", "PACKED", "WRONG", "QUERIES")
} | {
    "one work tile": Launch((drawn(1, 1, 1),), (1, 1, 1, 1)),
    "equal lists": Launch((drawn(1, 1, 1),), (100, 13, 1, 1)),
    "every stretch of a warp in two parts": Launch((drawn(1, 1, 9000),), (9000, 1, 1, 1)),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_the_longest_lists_come_first_and_equal_ones_by_number(name):
    assert LAUNCHES[name].is_right()


def test_lists_of_a_bin_differ_by_less_than_a_quarter():
    """Every length up to the last bin, which has all longer ones."""
    longest_of = {}
    for length in range(1, 5000):
        longest_of.setdefault(config.bin_of(length), length)
        assert length < 1.25 * longest_of[config.bin_of(length)] or length < 4
    assert list(longest_of) == sorted(longest_of)
    assert config.bin_of(config.MOST) == config.bin_of(2**40) == config.BINS - 1


def test_windows_are_sorted_one_by_one(own_kernels, monkeypatch):
    """3 windows of 334, 333 and 333 work tiles."""
    monkeypatch.setattr(config, "WINDOW", 400)
    launch = Launch((drawn(1, 1, 1000),), (1000, 1, 1, 1))
    assert launch.is_right()
    assert {tile // 334 for tile in launch.order()[:334]} == {0}


def test_bits_do_not_depend_on_the_order_of_warps():
    found = sorted_tiles.PADDED.order()
    with emulator.use(mode="hostile", seed=3):
        assert sorted_tiles.PADDED.order() == found
