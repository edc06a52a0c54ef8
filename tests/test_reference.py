"""The two oracles against the definition written by hand, the tolerance against known errors."""

import math

import pytest
import torch

from cute_fa4 import reference
from cute_fa4.reference import (
    allowed_error,
    attention_float64,
    attention_with_kernel_roundings,
    max_error,
)


def tensors(
    batch, seqlen_q, seqlen_k, num_q_heads, num_kv_heads, head_dim, dtype=torch.bfloat16, seed=0
):
    generator = torch.Generator().manual_seed(seed)

    def normal(seqlen, heads):
        return torch.randn(batch, seqlen, heads, head_dim, generator=generator).to(dtype)

    return (
        normal(seqlen_q, num_q_heads),
        normal(seqlen_k, num_kv_heads),
        normal(seqlen_k, num_kv_heads),
    )


def by_definition(q, k, v, scale, causal, window_size=(None, None)):
    """One Python loop per index, float arithmetic, nothing shared with the code under test."""
    batch, seqlen_q, num_q_heads, _ = q.shape
    _, seqlen_k, num_kv_heads, head_dim_v = v.shape
    out = torch.zeros(batch, seqlen_q, num_q_heads, head_dim_v, dtype=torch.float64)
    lse = torch.full((batch, num_q_heads, seqlen_q), -math.inf, dtype=torch.float64)
    for b in range(batch):
        for h in range(num_q_heads):
            g = h // (num_q_heads // num_kv_heads)
            for i in range(seqlen_q):
                p = i + seqlen_k - seqlen_q
                seen = [
                    j
                    for j in range(seqlen_k)
                    if (not causal or j <= p)
                    and (window_size[0] is None or p - window_size[0] <= j)
                    and (window_size[1] is None or j <= p + window_size[1])
                ]
                if not seen:
                    continue
                weights = [
                    math.exp(scale * float(q[b, i, h].double() @ k[b, j, g].double())) for j in seen
                ]
                for w, j in zip(weights, seen, strict=True):
                    out[b, i, h] += w / sum(weights) * v[b, j, g].double()
                lse[b, h, i] = math.log(sum(weights))
    return out, lse


# Small on purpose (the definition is four nested loops); each keeps one property apart.
SHAPES = {
    "one query, one key": (1, 1, 1, 1, 1, 4),
    "groups of three": (2, 5, 7, 6, 2, 4),
    "more queries than keys: rows without keys when causal": (1, 7, 3, 2, 1, 8),
    "more keys than queries": (1, 3, 7, 2, 2, 8),
}


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_float64_is_the_definition(shape, causal):
    q, k, v = tensors(*shape)
    out, lse = attention_float64(q, k, v, softmax_scale=0.3, causal=causal)
    expected_out, expected_lse = by_definition(q, k, v, 0.3, causal)
    assert max_error(out, expected_out) < 1e-13
    assert max_error(lse, expected_lse) < 1e-13


# A side that is open, both closed, and causal that is narrower than the window's right side.
@pytest.mark.parametrize(
    "causal, window_size", [(False, (1, None)), (False, (2, 1)), (True, (1, 3))], ids=str
)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_float64_sees_through_windows(shape, causal, window_size):
    q, k, v = tensors(*shape)
    out, lse = attention_float64(q, k, v, softmax_scale=0.3, causal=causal, window_size=window_size)
    expected_out, expected_lse = by_definition(q, k, v, 0.3, causal, window_size)
    assert max_error(out, expected_out) < 1e-13
    assert max_error(lse, expected_lse) < 1e-13


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_chunks_of_query_rows_change_nothing(causal, monkeypatch):
    q, k, v = tensors(2, 37, 23, 4, 2, 8)
    whole = attention_float64(q, k, v, causal=causal)
    monkeypatch.setattr(reference, "SCORES_PER_CHUNK", 4 * 23 * 5)  # five rows: 37 = 7 * 5 + 2
    chunked = attention_float64(q, k, v, causal=causal)
    for a, b in zip(whole, chunked, strict=True):
        assert max_error(a, b) < 1e-14


def test_the_default_scale_is_one_over_root_of_head_dim():
    q, k, v = tensors(1, 4, 4, 1, 1, 64)
    default, explicit = attention_float64(q, k, v), attention_float64(q, k, v, softmax_scale=1 / 8)
    assert torch.equal(default[0], explicit[0])


@pytest.mark.parametrize("function", [attention_float64, attention_with_kernel_roundings])
def test_rows_without_keys_are_zero_with_lse_minus_infinity(function):
    q, k, v = tensors(1, 5, 2, 2, 1, 8)
    out, lse = function(q, k, v, causal=True)
    assert (out[:, :3] == 0).all() and (lse[:, :, :3] == -math.inf).all()
    assert (out[:, 3:] != 0).any() and lse[:, :, 3:].isfinite().all()
    out, lse = function(q, k[:, :0], v[:, :0])
    assert (out == 0).all() and (lse == -math.inf).all()


def test_kernel_roundings_round_p_before_it_is_normalised():
    # Two keys with weights 1 and p = 1 - 2^-10, which bf16 rounds to 1 (its spacing below 1 is
    # 2^-8). The row sum keeps p. k is float32 here to hold the score; P is rounded to q.dtype.
    p = 1 - 2.0**-10
    q = torch.ones(1, 1, 1, 1, dtype=torch.bfloat16)
    k = torch.tensor([0.0, math.log(p)]).view(1, 2, 1, 1)
    v = torch.tensor([0.0, 1.0]).view(1, 2, 1, 1).bfloat16()
    out, lse = attention_with_kernel_roundings(q, k, v, softmax_scale=1.0, round_output=False)
    assert out.item() == pytest.approx(1 / (1 + p), rel=1e-6)
    assert lse.item() == pytest.approx(math.log(1 + p), rel=1e-6)


def test_a_lagging_maximum_changes_roundings_only_and_not_by_powers_of_two():
    q, k, v = tensors(1, 40, 60, 1, 1, 64)
    exact, exact_lse = attention_float64(q, k, v)

    def lagging(lag_log2):
        return attention_with_kernel_roundings(q, k, v, lag_log2=lag_log2, round_output=False)

    (now, _), (by_half, lse), (by_four, _) = lagging(0.0), lagging(0.5), lagging(4.0)
    assert max_error(now, by_four) < 1e-6  # float32 noise
    assert max_error(now, by_half) > 1e-4
    assert max_error(by_half, exact) < 1e-2
    assert max_error(lse, exact_lse) < 1e-5


def test_a_single_row_is_allowed_what_its_kind_may_need():
    # One query, two keys of equal score: both weights are exactly 1 and no lag by a power of two
    # costs anything. Scores that differ a little cost half an ulp each. The tolerance is not left
    # to luck.
    q, k, v = tensors(1, 1, 2, 1, 1, 64)
    for keys in (k, k[:, :1].expand_as(k)):
        exact, _ = attention_float64(q, keys, v)
        assert allowed_error(q, keys, v).out >= 2.0**-8 * exact.abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_allowed_error_admits_the_roundings_and_rejects_a_lost_key(dtype):
    q, k, v = tensors(1, 64, 200, 2, 1, 64, dtype)
    exact, exact_lse = attention_float64(q, k, v)
    allowed = allowed_error(q, k, v)

    rounded, rounded_lse = attention_with_kernel_roundings(q, k, v)
    assert max_error(rounded, exact) <= allowed.out
    assert max_error(rounded_lse, exact_lse) <= allowed.lse

    lost, lost_lse = attention_float64(q, k[:, :-1], v[:, :-1])
    assert max_error(lost, exact) > 3 * allowed.out
    assert max_error(lost_lse, exact_lse) > 3 * allowed.lse


def test_rounding_p_to_fp16_is_eight_times_finer_than_to_bf16():
    # fp16 keeps 11 significant bits, bf16 8; values that both hold exactly, so that only P differs.
    q, k, v = (t.to(torch.float8_e4m3fn) for t in tensors(1, 64, 256, 1, 1, 64))
    error = {}
    for dtype in (torch.bfloat16, torch.float16):
        inputs = [t.to(dtype) for t in (q, k, v)]
        rounded, _ = attention_with_kernel_roundings(*inputs, round_output=False)
        error[dtype] = max_error(rounded, attention_float64(*inputs)[0])
    assert 4 < error[torch.bfloat16] / error[torch.float16] < 16


def test_max_error_sees_nan_and_infinities():
    inf, nan = torch.tensor([math.inf]), torch.tensor([math.nan])
    assert max_error(inf, inf) == 0
    assert max_error(-inf, inf) == math.inf
    assert max_error(nan, nan) == math.inf
    assert max_error(nan, inf) == math.inf
    assert max_error(torch.empty(0), torch.empty(0)) == 0


@pytest.mark.parametrize("options", [{"causal": True}, {"window_size": (3, 0)}], ids=str)
def test_gradients_by_heads_are_those_of_all_heads(options):
    """Two sequences, two key heads of three query heads: the same sums, added in another order."""
    q, k, v = tensors(2, 9, 12, 6, 2, 16)
    dout = torch.randn(q.shape, generator=torch.Generator().manual_seed(1)).to(q.dtype)
    found, allowed = reference.gradients_by_heads(q, k, v, dout, **options)
    exact = reference.gradients_float64(q, k, v, dout, **options)
    for one, whole in zip(found, exact, strict=True):
        assert max_error(one, whole) < 1e-12
    assert allowed == pytest.approx(
        reference.allowed_gradient_errors(q, k, v, dout, **options), rel=1e-3
    )
