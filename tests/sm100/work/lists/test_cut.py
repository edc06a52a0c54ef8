"""Lists that are cut and sorted: Python's own sort and parts, for every way in which counts are given."""

from dataclasses import replace

import pytest
import torch

from cute_fa4 import emulator
from cute_fa4.sm100.work.lists.config import (
    MOST_CUT_TILES,
    cut_in_order,
    most_cut,
    most_slots,
    parts_of,
    share_of,
)
from tests.attention.listed import numbers
from tests.sm100.work.lists import sorted_tiles
from tests.sm100.work.lists.sorted_tiles import Launch, cut, cuts_right, drawn

LAUNCHES = {
    "padded": (sorted_tiles.PADDED, 3000, 8),
    "parts as long as they must be": (sorted_tiles.PADDED, 3000, 150),
    "no list is longer than a share": (sorted_tiles.PADDED, 148, 8),
    "shared": (sorted_tiles.SHARED, 2000, 1),
    "packed": (sorted_tiles.PACKED, 600, 1),
    "wrong counts": (sorted_tiles.WRONG, 7, 1),
    "one work tile": (Launch((numbers([[[9]]]),), (1, 1, 1, 1)), 4, 1),
    "nothing listed": (Launch((numbers([[[0, -3]]]),), (2, 1, 1, 1)), 4, 1),
    "as many work tiles as fit": (Launch((drawn(1, 1, MOST_CUT_TILES),), (MOST_CUT_TILES, 1, 1, 1)), 9999, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", LAUNCHES)
def test_long_lists_are_cut_and_the_longest_parts_come_first(name):
    assert cuts_right(*LAUNCHES[name])


def test_bits_do_not_depend_on_the_order_of_warps():
    launch = sorted_tiles.PADDED, 148, 8
    found = cut(*launch)
    with emulator.use(mode="hostile", seed=3):
        assert cut(*launch) == found


def test_lists_that_have_another_order_are_cut_alike():
    """Parts of a list follow from lengths alone."""
    launch = Launch((numbers([[[3, 90, 5, 40]]]),), (4, 1, 1, 1))
    turned = replace(launch, counts=(launch.counts[0].flip(-1),))
    parts = [
        sorted((launch.lengths()[tile], part, number) for tile, part, number, _ in entries)
        for launch, entries in ((x, cut_in_order(x.lengths(), 5, 1)) for x in (launch, turned))
    ]
    assert parts[0] == parts[1]


@pytest.mark.parametrize("shares", (1, 2, 3, 7, 148))
@pytest.mark.parametrize("least", (1, 8))
def test_the_results_have_room_for_any_lists(shares, least):
    """Lists as short as they may be to be cut, alone and among others, and drawn ones."""
    random = torch.Generator().manual_seed(shares)
    for lengths in (
        *([n] * m + [1] * rest for n in (2, 3, 16, 31) for m in (1, 9, 200) for rest in (0, 50)),
        *(torch.randint(0, most, (60,), generator=random).tolist() for most in (2, 9, 5000)),
    ):
        share = share_of(sum(lengths), shares, least)
        parts = [n for n in (parts_of(length, share) for length in lengths) if n > 1]
        assert len(parts) <= most_cut(shares) and sum(parts) <= most_slots(shares)
        assert sum(parts) - len(parts) <= shares
