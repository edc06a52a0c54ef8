"""The causal mask, aligned to the bottom right, agrees with float64; rows without keys are 0 and -inf."""

import pytest
import torch

from tests import cases
from tests.attention.agreement import ROUNDOFF
from tests.attention.chosen import HEAD_DIMS, causal_of
from tests.cases import Case


def causal(named: list) -> list:
    return [case for case in named if case.causal]


@pytest.mark.parametrize("case", causal_of(HEAD_DIMS))
def test_head_dims_and_dtypes(case, agrees):
    agrees(case)


@pytest.mark.parametrize("case", causal(cases.LENGTHS), ids=str)
def test_lengths(case, agrees):
    agrees(case)


@pytest.mark.parametrize("case", causal(cases.CROSS), ids=str)
def test_more_keys_or_more_queries(case, agrees):
    """agrees() also compares rows that see no key: Sq > Sk has Sq - Sk of them."""
    agrees(case)


def test_one_query_sees_every_key(attention, device):
    """The last query's mask is empty, so that causal and full are the same attention."""
    q, k, v = Case(seqlen_q=1, seqlen_k=200, head_dim=64).tensors(device=device)
    masked, masked_lse = attention(q, k, v, causal=True, return_lse=True)
    full, full_lse = attention(q, k, v, return_lse=True)
    # Not bit by bit: the two kernels may add the same numbers in another order.
    assert torch.allclose(masked_lse, full_lse, rtol=0, atol=1e-5)
    assert torch.allclose(masked.float(), full.float(), rtol=2 * ROUNDOFF["bf16"], atol=1e-5)


@pytest.mark.parametrize("seen", [127, 128, 129], ids=lambda n: f"sees{n}")
def test_keys_after_the_diagonal_are_not_looked_at(attention, device, seen):
    """Row r of S queries on S keys is the same row when later keys and values are anything finite.

    Around 128 the first unseen key lies in the row's last tile or in one that is skipped.
    """
    q, k, v = Case(seqlen_q=140, seqlen_k=140, head_dim=64).tensors(device=device)
    before = attention(q, k, v, causal=True)[:, :seen]
    k[:, seen:] = 1000.0
    v[:, seen:] = -1000.0
    after = attention(q, k, v, causal=True)[:, :seen]
    assert torch.equal(before, after)
