"""Latent caches of eight bits with a scale, or one a row, by one CTA and by pairs, against float64 over what is stored.

The stored numbers stand for scale * number; the reference has the same numbers, so that what differs is the rounding of
P to three bits of mantissa (docs/numerics.md), and of q where it comes with 16 bits. Where q keeps them, the CTA
dequantizes the cache (latent/dequantized/), and nothing is rounded to fewer.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cute_fa4 import emulator, flash_mla_with_kvcache
from cute_fa4.calls.latent import is_by_row
from tests.serving.test_token_scales import as_stored
from tests.serving.test_token_scales import draw as draw_scales
from tests.sm100.latent.latent_batches import LATENT, call_of, draw, stored

OF_Q, OF_K = 0.5, 2.0
# rms of rounding to three bits of mantissa is 2^-4 / sqrt(3) of a number's power of two; averaged over them 2.6 %.
BOUND = 0.03
BOUND_OF_16_BITS = 4e-3  # of every row
NEVER = {"wide": True, "q_quantize": "never"}

# heads, queries, page size, keys, options: what each is for
CALLS = {
    "a scale for each row, shared keys": (16, 1, 16, (1030, 5, 0), {"of_rows": True}, "hostile"),
    "pairs, half of the queries each": (48, 2, 64, (300, 129), {"causal": True}, "random"),
    "q stays, shared keys": (16, 1, 64, (300, 5, 0), NEVER, "hostile"),
    "q stays, pairs": (128, 1, 64, (200,), NEVER | {"num_splits": 1}, "in_order"),
}
FURTHER = {
    "64 rows, gathered": (64, 1, 5, (300,), {"num_splits": 2}, "hostile"),
    "pairs, half of the heads each, gathered": (128, 1, 5, (300,), {"num_splits": 2}, "hostile"),
    "e5m2": (16, 1, 64, (200,), {"num_splits": 1, "dtype": torch.float8_e5m2}, "in_order"),
    "queries of 16 bits": (16, 2, 64, (200,), {"num_splits": 1, "wide": True}, "in_order"),
    "16 heads, shared keys, a scale for each sequence": (16, 1, 16, (1030, 5, 0), {}, "hostile"),
    "a scale for each row": (16, 1, 16, (300, 5), {"of_rows": True, "num_splits": 1}, "random"),
    "a scale for each row, 128 heads, gathered": (
        128,
        1,
        5,
        (300,),
        {"of_rows": True, "num_splits": 2},
        "hostile",
    ),
    "a scale for each row, rows of 2 queries": (
        48,
        2,
        64,
        (300, 129),
        {"of_rows": True, "causal": True, "wide": True},
        "in_order",
    ),
    "queries of 16 bits, pairs": (128, 1, 64, (200,), {"num_splits": 1, "wide": True}, "in_order"),
    "q stays, tiles of 32 rows, a scale for each row": (
        48,
        2,
        64,
        (200, 129),
        NEVER | {"of_rows": True, "causal": True},
        "random",
    ),
    "q stays, gathered, fp16": (
        16,
        1,
        5,
        (300, 7),
        NEVER | {"num_splits": 2, "q_dtype": torch.float16},
        "hostile",
    ),
    "q stays, e5m2, pages of a tile": (
        8,
        1,
        128,
        (260,),
        NEVER | {"dtype": torch.float8_e5m2},
        "random",
    ),
    "q stays, pairs, half of the queries each": (
        48,
        2,
        64,
        (400, 129, 0),
        NEVER | {"causal": True},
        "hostile",
    ),
    "q stays, pairs, gathered, fp16": (
        128,
        1,
        5,
        (600, 7),
        NEVER | {"num_splits": 2, "q_dtype": torch.float16},
        "random",
    ),
}


def of_8_bits(heads, queries, page_size, keys, dtype, wide, of_rows):
    """-> (a batch of numbers that eight bits hold, times their scales; the call over the stored numbers)."""
    batch = draw(queries, keys, heads=heads)
    scales = draw_scales(batch, "k")["k"] if of_rows else [torch.full((n, 1), OF_K) for n in keys]
    q = [(x.float() / OF_Q).to(dtype).float() * OF_Q for x in batch.q]
    numbers = [
        (x.float() / s[..., None]).to(dtype).float() for x, s in zip(batch.k, scales, strict=True)
    ]
    batch = replace(batch, q=[x.bfloat16() for x in q], k=[x.bfloat16() for x in numbers])
    call = stored(batch, page_size)
    call["k_cache"] = call["k_cache"].to(dtype)
    call["descale_k"] = torch.full((len(keys),), OF_K)
    if of_rows:
        call["descale_k"] = as_stored("k", scales, page_size, "NHD", batch)[..., 0]
    k = [x.double() * s.double()[..., None] for x, s in zip(numbers, scales, strict=True)]
    batch = replace(batch, k=k, v=[x[..., :LATENT] for x in k])
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
    given = {"dtype": torch.float8_e4m3fn, "wide": False, "of_rows": False} | options
    dtype, wide, of_rows = (given.pop(name) for name in ("dtype", "wide", "of_rows"))
    q_dtype, stays = given.pop("q_dtype", torch.bfloat16), given.get("q_quantize") == "never"
    batch, call = of_8_bits(heads, queries, page_size, keys, dtype, wide, of_rows)
    call["q"] = call["q"].to(q_dtype) if wide else call["q"]
    with emulator.use(mode=mode, seed=1, checks=("ptx", "phase_passed_twice")):
        out, lse = call_of(call, **given)
    assert out.dtype is q_dtype
    for i, number in enumerate(keys):
        if number == 0:
            assert (out[i] == 0).all() and (lse[i] == -torch.inf).all()
            continue
        exact, sums = expected_of(batch, i, given.get("causal", False))
        off = out[i].double() - exact
        if stays:
            worst = (off.norm(dim=-1) / exact.norm(dim=-1)).max().item()
            assert worst < BOUND_OF_16_BITS, worst
            assert (lse[i].double() - sums).abs().max() < 1e-5
            continue
        error = (off.norm() / exact.norm()).item()
        assert error < (2 * BOUND if wide else BOUND), error
        assert (lse[i].double() - sums).abs().max() < (0.1 if wide else 1e-2)


@pytest.mark.parametrize("name", CALLS)
def test_calls_agree_with_float64(name):
    check(*CALLS[name])


@pytest.mark.sweep
@pytest.mark.parametrize("name", FURTHER)
def test_further_calls_agree_with_float64(name):
    check(*FURTHER[name])


@pytest.mark.sweep
@pytest.mark.parametrize("stays", [False, True])
def test_listed_keys_have_the_scales_of_their_rows(stays):
    """All keys of a sequence, in another order: sums in another order, P rounded in other units."""
    _, call = of_8_bits(16, 1, 16, (200,), torch.float8_e4m3fn, stays, of_rows=True)
    options = dict(num_splits=1, q_quantize="never" if stays else None)
    expected, _ = call_of(call, **options)
    table = call.pop("block_table")[0, : -(-200 // 16)].long()
    keys = (table[:, None] * 16 + torch.arange(16)).flatten()[:200].flip(0).int()
    del call["cache_seqlens"]
    found, _ = call_of(
        call | {"block_table": None, "cache_seqlens": None},
        indices=keys.view(1, 1, -1),
        **options,
    )
    bound = BOUND_OF_16_BITS if stays else BOUND
    assert (found.double() - expected.double()).norm() < bound * expected.double().norm()


def test_a_scale_of_each_row_has_the_shape_of_the_rows():
    """(n, 1) is one for each sequence, unless the cache has n pages of one row; a page too few is refused."""
    q = torch.zeros(2, 1, 16, 576).to(torch.float8_e4m3fn)
    cache = torch.zeros(6, 16, 1, 576).to(torch.float8_e4m3fn)
    lengths, table = torch.tensor([0, 3], dtype=torch.int32), torch.zeros(2, 1, dtype=torch.int32)
    for shape in ((5, 16), (6, 15), (6, 16, 2), (96,)):
        with pytest.raises(
            ValueError, match="descale_k: shape .* accepted: one number, or .*, or "
        ):
            flash_mla_with_kvcache(q, cache, table, lengths, descale_k=torch.ones(shape))
    for shape, by_row in (
        ((6, 16), True),
        ((6, 16, 1), True),
        ((2,), False),
        ((2, 1), False),
        ((), False),
    ):
        assert is_by_row(torch.ones(shape), cache, 2) == by_row
    rows = cache.view(-1, 1, 1, 576)
    for shape, pages, by_row in (((7, 1), 7, True), ((2, 1), 7, False), ((2, 1, 1), 2, True)):
        assert is_by_row(torch.ones(shape), rows[:pages], 2) == by_row
    given = dict(indices=torch.zeros(2, 1, 4, dtype=torch.int32))
    for by in (
        given | dict(block_table=None, cache_seqlens=None),
        dict(block_table=table, cache_seqlens=lengths),
    ):
        with pytest.raises(
            ValueError, match=r"descale_k: shape \(2, 1\) over 2 pages of one row, of 2 sequences; "
        ):
            flash_mla_with_kvcache(q=q, k_cache=rows[:2], descale_k=torch.ones(2, 1), **by)
