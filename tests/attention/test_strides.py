"""Tensors that lie in memory in any of the usual ways give the result of contiguous ones."""

from dataclasses import replace

import pytest
import torch

from tests import cases
from tests.cases import Case


@pytest.mark.parametrize("case", cases.STRIDES, ids=str)
def test_layouts(case, agrees):
    agrees(case)


@pytest.mark.parametrize("case", cases.STRIDES, ids=str)
def test_bits_do_not_depend_on_where_tensors_lie(case, attention, device):
    tensors = case.tensors(device=device)
    contiguous = [t.contiguous() for t in tensors]
    assert any(t.stride() != c.stride() for t, c in zip(tensors, contiguous, strict=True))
    # With the LSE, as test_layouts asks for it: the same kernels.
    expected = attention(*contiguous, **case.options, return_lse=True)
    found = attention(*tensors, **case.options, return_lse=True)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_only_out_is_written(attention, device, causal):
    """out= inside a larger tensor: rows, heads and columns around it keep their NaN.

    130 rows: the second query tile has two, its other 126 must not be stored. 72 columns: TMA pads
    them to 128. With causal and 40 keys most rows are zeros that the kernel writes.
    """
    case = Case(batch=2, heads_q=2, heads_kv=1, seqlen_q=130, seqlen_k=40, head_dim=72)
    q, k, v = replace(case, causal=causal).tensors(device=device)
    outer = torch.full((2, 140, 4, 80), torch.nan, dtype=q.dtype, device=device)
    out = outer[:, 4:134, 1:3, :72]
    found, _ = attention(q, k, v, causal=causal, out=out, return_lse=True)
    assert found is out
    assert torch.equal(out, attention(q, k, v, causal=causal, return_lse=True)[0])
    out.fill_(torch.nan)
    assert outer.isnan().all()


def test_out_may_have_heads_outside_of_rows(attention, device):
    q, k, v = Case(heads_q=2, heads_kv=2, seqlen_q=130, seqlen_k=70).tensors(device=device)
    out = q.new_empty(1, 2, 130, 128).transpose(1, 2)
    assert out.stride() != q.stride()
    attention(q, k, v, out=out)
    assert torch.equal(out, attention(q, k, v))
