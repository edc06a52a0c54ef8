"""Extreme scores and values: every path of the online softmax, and laws that hold bit by bit."""

import math

import pytest
import torch

from cute_fa4.reference import EXP2_RELATIVE_ERROR
from tests import cases
from tests.attention.agreement import ROUNDOFF
from tests.cases import Case


@pytest.mark.parametrize("case", cases.VALUES, ids=str)
def test_distributions(case, agrees):
    agrees(case)


def test_lse_of_zero_scores_is_the_logarithm_of_the_number_of_keys(attention, device):
    case = Case(seqlen_q=150, seqlen_k=150, head_dim=64, causal=True, values="zero_queries")
    _, lse = attention(*case.tensors(device=device), causal=True, return_lse=True)
    expected = torch.log(torch.arange(1, 151, dtype=torch.float64, device=device))
    # The first 128 rows refer to the maximum of what they see, and a sum of ones is exact; the logarithm is lg2.approx
    # times ln 2: 2^-22 of log2(150) < 8. The others refer to a quarter of their first tile, and saturated exponents
    # (instructions/exp2.py) may come to the end of the polynomial's range instead of to its beginning.
    bound = torch.full_like(expected, 8 * 2.0**-22)
    bound[128:] += EXP2_RELATIVE_ERROR
    assert ((lse[0, 0].double() - expected).abs() <= bound).all()


def test_equal_keys_give_the_mean_of_v(attention, device):
    """130 weights of 1/130 each: P rounds to exactly 1, so that only the last rounding is left."""
    q, k, v = Case(seqlen_k=130, head_dim=64, values="equal_keys").tensors(device=device)
    out = attention(q, k, v)
    mean = v.double().mean(dim=1, keepdim=True).expand(q.shape)
    # Rounding out to bf16, the row sum's share of the error of 2^x, and float32 sums.
    relative = ROUNDOFF["bf16"] + EXP2_RELATIVE_ERROR
    assert torch.allclose(out.double(), mean, rtol=relative, atol=1e-6)


# Multiplying by a power of two is exact in bf16, in float32 and in the tensor core, so these laws
# hold for the bits. 300 keys: three key tiles, so that rescaling is part of it.
SCALING = Case(seqlen_q=130, seqlen_k=300, values="rising_maximum")


def test_scaling_v_scales_out(attention, device):
    q, k, v = SCALING.tensors(device=device)
    assert torch.equal(attention(q, k, v * 2.0**-6), attention(q, k, v) * 2.0**-6)


def test_scale_may_be_in_q_or_in_softmax_scale(attention, device):
    q, k, v = SCALING.tensors(device=device)
    default = 1 / math.sqrt(q.shape[-1])
    out, lse = attention(q, k, v, return_lse=True)
    scaled_out, scaled_lse = attention(q * 4, k, v, softmax_scale=default / 4, return_lse=True)
    assert torch.equal(out, scaled_out)
    assert torch.equal(lse, scaled_lse)


@pytest.mark.parametrize("head_dim, causal", [(128, False), (64, True)], ids=["full", "causal"])
def test_asking_for_lse_does_not_change_out(attention, device, head_dim, causal):
    """Kernels with and without it that other tests need, too."""
    q, k, v = Case(seqlen_q=140, seqlen_k=200, head_dim=head_dim).tensors(device=device)
    out, _ = attention(q, k, v, causal=causal, return_lse=True)
    assert torch.equal(out, attention(q, k, v, causal=causal))


def test_a_second_call_gives_the_same_bits(attention, device):
    q, k, v = Case(seqlen_q=200, seqlen_k=300, causal=True).tensors(device=device)
    first, first_lse = attention(q, k, v, causal=True, return_lse=True)
    second, second_lse = attention(q, k, v, causal=True, return_lse=True)
    assert torch.equal(first, second) and torch.equal(first_lse, second_lse)
