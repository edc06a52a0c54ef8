"""Query heads that share key/value heads, and batches: every head reads its own."""

import pytest
import torch

from tests import cases
from tests.cases import Case


@pytest.mark.parametrize("case", cases.GROUPS, ids=str)
def test_groups_and_batches(case, agrees):
    agrees(case)


def test_a_head_does_not_see_its_neighbours(attention, device):
    """Each (batch, query head) alone gives the bits that it gives in company."""
    case = Case(batch=2, heads_q=4, heads_kv=2, seqlen_q=130, seqlen_k=40, head_dim=64, causal=True)
    q, k, v = case.tensors(device=device)
    out = attention(q, k, v, causal=True)
    for batch, head in ((0, 0), (0, 3), (1, 2)):
        group = slice(head // 2, head // 2 + 1)
        b = slice(batch, batch + 1)
        alone = attention(q[b, :, head : head + 1], k[b, :, group], v[b, :, group], causal=True)
        assert torch.equal(alone, out[b, :, head : head + 1])
