"""Attention without a mask agrees with float64: head dims, dtypes, lengths, scales."""

import pytest

from tests import cases
from tests.attention.chosen import HEAD_DIMS, full_of


def full(named: list) -> list:
    return [case for case in named if not case.causal]


@pytest.mark.parametrize("case", full_of(HEAD_DIMS))
def test_head_dims_and_dtypes(case, agrees):
    agrees(case)


@pytest.mark.parametrize("case", full(cases.LENGTHS), ids=str)
def test_lengths(case, agrees):
    agrees(case)


@pytest.mark.parametrize("case", full(cases.CROSS), ids=str)
def test_more_keys_or_more_queries(case, agrees):
    agrees(case)


@pytest.mark.parametrize("case", cases.SCALES, ids=str)
def test_softmax_scale(case, agrees):
    agrees(case)
