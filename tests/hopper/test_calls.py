"""Calls of the problems: the kernels they ask for, and where their tensors lie."""

import itertools

import pytest

from cute_fa4.calls.split_keys import split
from cute_fa4.calls.split_keys.split import EMULATED_SMS, cluster_parts
from cute_fa4.hopper import check
from cute_fa4.hopper.calls import SMS, call, cluster_counts, configurations
from cute_fa4.hopper.variant import Variant, decode, dense

pytestmark = pytest.mark.filterwarnings("ignore")


def test_configurations_asks_for_kernels_and_leaves_nothing_after():
    variants = (Variant(64), Variant(64, keys="pages", page_size=16))
    found = configurations(variants, "quick")
    # Prefill of dense keys and of pages, decode of pages.
    assert [(c.page_size, c.schedule.family) for c in found] == [
        *((0, "mha2q"), (16, "mha2q"), (16, "mhaswap"))
    ]
    # A call afterwards runs the kernel, not what stood in for it.
    made = call(variants[0], dense(1, 3, 5), "cpu")
    check.measure(made, *made.launch(), check.Row({}, "", "", {}))


def test_kernels_are_those_of_any_chip_that_may_run_them():
    """64 blocks of 1000 keys: a chip of 66 clusters of two CTAs has room for each block, one of 57 has not."""
    assert cluster_parts(64, 1000, EMULATED_SMS) == 2 and cluster_parts(64, 1000, SMS) == 1
    found = configurations((decode(group=16, page_size=128, num_splits=0),), "most")
    parts = {config.cluster_parts for config in found if hasattr(config, "cluster_parts")}
    assert parts == {1, 2, 4, 8}


H100 = {2: 66, 4: 30, 8: 15}
"""What the driver of an H100 was seen to report."""


def test_cluster_counts_give_every_outcome_of_any_chip(monkeypatch):
    """Every number of clusters between 7/8 and all of the SMs: the part counts of each are among those built."""

    def parts_of(counts: dict) -> dict:
        monkeypatch.setattr(split, "most_clusters", lambda device, ctas, sms: counts[ctas])
        return {
            (blocks, keys): cluster_parts(blocks, keys, SMS)
            for blocks in range(1, SMS + 1)
            for keys in (100, 200, 500, 1000, 2000, 8000)
        }

    built = [parts_of(counts) for counts in cluster_counts()]
    ranges = [range(min(c[n] for c in cluster_counts()), SMS // n + 1) for n in (2, 4, 8)]
    assert all(H100[n] in numbers for n, numbers in zip((2, 4, 8), ranges, strict=True))
    for counts in itertools.product(*ranges):
        for what, parts in parts_of(dict(zip((2, 4, 8), counts, strict=True))).items():
            assert parts in {each[what] for each in built}, (counts, what)


def test_tensors_are_placed_at_the_edges_of_their_memory():
    placed = []

    def place(tensor, at_the_end):
        placed.append((tuple(tensor.shape), at_the_end))
        return tensor

    for variant in (
        Variant(64, keys="packed"),
        Variant(64, keys="pages", page_size=16),
        Variant(64),
    ):
        for seed, ends in ((0, [False, False, True]), (1, [True, True, False])):
            placed.clear()
            call(variant, dense(1, 20, 40), "cpu", seed, place)
            assert [end for _, end in placed] == ends
            q, k, v = (shape for shape, _ in placed)
            assert q[-2] == 2 and k == v and k[-2] == 1
