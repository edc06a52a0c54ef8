"""Kernels whose CTAs are launched in clusters say so in their PTX; the others say nothing."""

import re

import pytest

from cute_fa4.aot.build import build
from cute_fa4.compiler.compiler import kernel_class
from cute_fa4.sm100.choose.choose_config import FAMILIES, config_for
from cute_fa4.sm100.kernel import ALONE, SM100Kernel
from cute_fa4.sm100.pair.kernel import PAIR

DECODE = dict(head_dim=64, family="mhaswap", rows=16, group=4, pack_gqa=True)
CASES = {
    "pair": (dict(head_dim=64, family="mhapair"), ["2, 1, 1"]),
    "decode in a cluster": (dict(cluster_parts=4, **DECODE), ["4, 1, 1"]),
    "decode": (DECODE, []),
}


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_with_clusters_says_their_shape(name):
    choices, shapes = CASES[name]
    ptx = build(config_for(qkv_dtype="bf16", **choices), "probe", "native").ptx
    assert re.findall(r"\.reqnctapercluster\s+(.*)", ptx) == shapes


@pytest.mark.parametrize("schedule", FAMILIES.values(), ids=FAMILIES)
def test_every_family_has_the_kernel_function_that_says_it(schedule):
    assert kernel_class(schedule).kernel is SM100Kernel.kernel


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_alone_or_a_pair_by_its_grouping(name):
    """Set-up, teardown and the cluster are those of one of two values; a family replaces events, queue or ring ends."""
    grouping, like = kernel_class(FAMILIES[name]).grouping, PAIR if "pair" in name else ALONE
    for part in ("cluster", "set_up", "tear_down"):
        assert getattr(grouping, part) == getattr(like, part)
