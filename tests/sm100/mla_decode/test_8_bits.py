"""Latent caches of eight bits with one scale, by one CTA and by pairs, against float64 over what was stored.

The stored numbers stand for scale * number; the reference has the same numbers, so that what differs is the rounding of
P to three bits of mantissa (docs/numerics.md), and of q where it comes with 16 bits.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cute_fa4 import emulator
from tests.sm100.mla_decode.latent_batches import LATENT, call_of, draw, stored

OF_Q, OF_K = 0.5, 2.0
# rms of rounding to three bits of mantissa is 2^-4 / sqrt(3) of a number's power of two; averaged over them 2.6 %.
BOUND = 0.03

# heads, queries, page size, keys, options: what each is for
CALLS = {
    "16 heads, shared keys, a scale for each sequence": (16, 1, 16, (1030, 5, 0), {}, "hostile"),
    "pairs, half of the queries each": (48, 2, 64, (300, 129), {"causal": True}, "random"),
}
FURTHER = {
    "64 rows, gathered": (64, 1, 5, (300,), {"num_splits": 2}, "hostile"),
    "pairs, half of the heads each, gathered": (128, 1, 5, (300,), {"num_splits": 2}, "hostile"),
    "e5m2": (16, 1, 64, (200,), {"num_splits": 1, "dtype": torch.float8_e5m2}, "in_order"),
    "queries of 16 bits": (16, 2, 64, (200,), {"num_splits": 1, "wide": True}, "in_order"),
    "queries of 16 bits, pairs": (128, 1, 64, (200,), {"num_splits": 1, "wide": True}, "in_order"),
}


def of_8_bits(heads, queries, page_size, keys, dtype, wide):
    """-> (a batch of numbers that eight bits hold, times their scales; the call over the stored numbers)."""
    batch = draw(queries, keys, heads=heads)
    q = [(x.float() / OF_Q).to(dtype).float() * OF_Q for x in batch.q]
    k = [(x.float() / OF_K).to(dtype).float() * OF_K for x in batch.k]
    batch = replace(batch, q=[x.bfloat16() for x in q], k=[x.bfloat16() for x in k])
    batch = replace(batch, v=[x[..., :LATENT] for x in batch.k])
    call = stored(batch, page_size)
    call["k_cache"] = (call["k_cache"].float() / OF_K).to(dtype)
    call["descale_k"] = torch.full((len(keys),), OF_K)
    if not wide:
        call["q"] = (call["q"].float() / OF_Q).to(dtype)
        call["descale_q"] = torch.tensor([OF_Q])
    return batch, call


def expected_of(batch, i: int, causal: bool):
    """(out, lse) of a sequence in float64."""
    q, k = batch.q[i].double(), batch.k[i][:, 0].double()
    scores = torch.einsum("qhd,kd->hqk", q, k) * 576**-0.5
    if causal:
        places = torch.arange(len(q))[:, None] + len(k) - len(q)
        scores = scores.masked_fill(torch.arange(len(k)) > places, -torch.inf)
    out = torch.einsum("hqk,kd->qhd", scores.softmax(-1), k[:, :LATENT])
    return out, scores.logsumexp(-1)


def check(heads, queries, page_size, keys, options, mode):
    given = {"dtype": torch.float8_e4m3fn, "wide": False} | options
    dtype, wide = given.pop("dtype"), given.pop("wide")
    batch, call = of_8_bits(heads, queries, page_size, keys, dtype, wide)
    with emulator.use(mode=mode, seed=1, checks=("ptx", "phase_passed_twice")):
        out, lse = call_of(call, **given)
    assert out.dtype is torch.bfloat16
    for i, number in enumerate(keys):
        if number == 0:
            assert (out[i] == 0).all() and (lse[i] == -torch.inf).all()
            continue
        exact, of_rows = expected_of(batch, i, given.get("causal", False))
        error = ((out[i].double() - exact).norm() / exact.norm()).item()
        assert error < (2 * BOUND if wide else BOUND), error
        assert (lse[i].double() - of_rows).abs().max() < (0.1 if wide else 1e-2)


@pytest.mark.parametrize("name", CALLS)
def test_calls_agree_with_float64(name):
    check(*CALLS[name])


@pytest.mark.sweep
@pytest.mark.parametrize("name", FURTHER)
def test_further_calls_agree_with_float64(name):
    check(*FURTHER[name])
