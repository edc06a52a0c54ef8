"""Scores of any size, in every family of kernels: a row is right, or NaN in out and LSE, or that of no keys.

    |c m| within the limit of P's dtype     right (c m: the largest score of the row, scaled, in units of log2)
    c m above it, or NaN                    out and LSE are NaN: never a finite LSE of a row that is NaN
    c m below minus the limit               out 0 and LSE -inf: scores as low as that weigh nothing, in any part

q is a number for each row and k a number for each key, the same in all columns: every score is exact in float32.
"""

import math

import pytest
import torch

from cute_fa4.sm100.blueprint.problem import LARGEST_SCALE, LARGEST_SCORE_LOG2
from tests.calls import shape_calls
from tests.calls.shapes import CHOSEN, LATENT, OTHERS, ROPE, Shape
from tests.calls.test_neutral_options import (
    called,
    families,
    latent_call,
    latent_called,
    splits_of,
    stored_rows,
)
from tests.serving.batches import LSE_ERROR, LSE_ERROR_OF_FP8
from tests.suite import turns

__all__ = ["families"]  # a fixture
SIZES = tuple(2.0**n for n in (-6, -3, 0, 1, 2, 5, 7, 8, 30, 60, 100, 127))
KEYS = torch.where(torch.arange(shape_calls.KEYS) % 2 == 0, 1.0, 0.5)
LOWEST = torch.finfo(torch.float32).min
HIDDEN = 130  # keys


def signed_sizes(dtype: torch.dtype) -> list:
    """Those that the dtype has."""
    return [sign * x for x in SIZES if x <= torch.finfo(dtype).max for sign in (1, -1)]


def assert_right_or_nan(shape: Shape, found, scores, v, splits: int = 1):
    """found: out and LSE of each row; scores: (rows, keys), scaled; v: (keys, depth)."""
    largest_log2 = scores.max(-1).values * math.log2(math.e)
    fp16 = shape.kv_dtype is not None and not shape.heads
    eight_bits = shape.eight_bits or shape.of_rows
    p_dtype = "fp16" if fp16 else "e4m3" if shape.eight_bits else "bf16"
    limit, v = 2.0 ** LARGEST_SCORE_LOG2[p_dtype], v.double()
    for out, lse, of_row, reach in zip(*found, scores, largest_log2, strict=True):
        case = float(reach)
        if not reach <= limit:
            assert out.isnan().all() and lse.isnan(), case
        elif reach < -limit:
            assert (out == 0).all() and lse == -math.inf, case
        else:
            exact, exact_lse = of_row.softmax(-1) @ v, of_row.logsumexp(-1)
            of_lse = exact_lse.abs() * 2.0**-22  # rounded to float32; parts are weighed by it
            of_parts = -2 * v.abs().max() * torch.expm1(-of_lse) if splits != 1 else 0.0
            assert (out.double() - exact).abs().max() < 2**-5 + of_parts, case
            noise = LSE_ERROR_OF_FP8 if eight_bits else LSE_ERROR
            assert (lse - exact_lse).abs() < of_lse + noise, case


def sized(shape: Shape, q: torch.Tensor, skipped: int) -> tuple:
    """-> (q of the next sizes, what each of its rows is)."""
    sizes = signed_sizes(q.dtype)
    number = q.shape[0] * q.shape[1]
    rows = torch.tensor([sizes[(skipped + n) % len(sizes)] for n in range(number)])
    return rows.view(*q.shape[:2], 1).expand(q.shape).to(q.dtype), rows.double()


def keys_of(shape: Shape, k: torch.Tensor) -> dict:
    """Three sequences with KEYS."""
    k = KEYS[:, None, None].expand(k.shape).to(k.dtype).repeat(3, 1, 1, 1)
    if not shape.rope_dtype:
        return {"k": k}
    k_rope = k[..., 0, -ROPE:].to(shape_calls.TORCH[shape.rope_dtype])
    return {"k": k[..., :-ROPE].contiguous(), "k_rope": k_rope}


PARTS = [(name, n) for name in OTHERS for n in sorted({1, splits_of(name)[-1]})]


@pytest.mark.parametrize("name, splits", turns.by_turns(PARTS, among=OTHERS))
def test_queries_of_any_size(name, splits, families, monkeypatch):
    shape = CHOSEN[name]
    drawn = shape_calls.batch_of(shape)
    q, given = drawn.q[0], keys_of(shape, drawn.k[0])
    for skipped in range(0, len(signed_sizes(q.dtype)), q.shape[0] * q.shape[1]):
        of_rows, rows = sized(shape, q, skipped)
        given |= {"q": of_rows.repeat(3, 1, 1, 1), "softmax_scale": LARGEST_SCALE}
        batch, out, lse = called(name, families, monkeypatch, splits=splits, **given)
        scores = rows[:, None] * KEYS.double() * LARGEST_SCALE * shape.head_dim
        found = out[0].flatten(0, 1), lse[0].T.flatten()
        assert_right_or_nan(shape, found, scores, batch.v[0][:, 0], splits)


OF_KEYS = [name for name in OTHERS if OTHERS[name].eight_bits and not OTHERS[name].rope_dtype]


@pytest.mark.parametrize("at", [3, 140])  # in either key tile
@pytest.mark.parametrize("name", turns.by_turns(OF_KEYS))
def test_scales_of_keys_and_blocks_of_any_size(name, at, families, monkeypatch):
    """A key whose scale is 1e30, or 2^120 of blocks: it takes all weight, has none, or makes NaN of the row."""
    shape = CHOSEN[name]
    drawn = shape_calls.batch_of(shape)
    q, given = drawn.q[0], keys_of(shape, drawn.k[0])
    scales = torch.ones(shape_calls.KEYS, dtype=torch.float64)
    if shape.blocks:
        scales[at] = 2.0**120
        bytes_of = torch.full(
            (3, shape_calls.KEYS, 1, shape.head_dim // 32), 127, dtype=torch.uint8
        )
        bytes_of[:, at] = 127 + 120
        given["k_descale"] = bytes_of.view(torch.float8_e8m0fnu)
    else:
        scales[at] = 1e30
        given["k_descale"] = scales.float()[None, :, None].repeat(3, 1, 1)
    for skipped in range(0, len(signed_sizes(q.dtype)), q.shape[0] * q.shape[1]):
        of_rows, rows = sized(shape, q, skipped)
        given |= {"q": of_rows.repeat(3, 1, 1, 1), "softmax_scale": 2.0**-9}
        batch, out, lse = called(name, families, monkeypatch, **given)
        scores = rows[:, None] * (KEYS.double() * scales) * 2.0**-9 * shape.head_dim
        found = out[0].flatten(0, 1), lse[0].T.flatten()
        assert_right_or_nan(shape, found, scores, batch.v[0][:, 0])


def hidden_by_bias(score, batch, head, q_idx, kv_idx, aux):
    from cutlass import Float32, select_

    return select_((kv_idx < HIDDEN) | (head == 0), score + Float32(LOWEST), score)


def parts_of_functions() -> list:
    """A function costs a compile of three to six seconds where 128 scores of a row are in one thread: the sweep's."""
    cheap = [name for name in OTHERS if OTHERS[name].queries == 1]
    dear = [pytest.param(*part, marks=pytest.mark.sweep) for part in PARTS if part[0] not in cheap]
    return turns.by_turns([part for part in PARTS if part[0] in cheap], among=cheap) + dear


@pytest.mark.parametrize("name, splits", parts_of_functions())
def test_the_lowest_number_as_a_bias_hides_keys(name, splits, families, monkeypatch):
    """All but the last keys, which are another key tile or part, and of the first head all keys."""
    shape = CHOSEN[name]
    batch, out, lse = called(name, families, monkeypatch, splits=splits, score_mod=hidden_by_bias)
    assert (out[:, :, 0] == 0).all() and (lse[:, 0] == -math.inf).all()
    q, k, v = (x[0].double() for x in (batch.q, batch.k, batch.v))
    scores = torch.einsum("qd,kd->qk", q[:, 1], k[HIDDEN:, 0]) * shape.head_dim**-0.5
    exact = scores.softmax(-1) @ v[HIDDEN:, 0]
    assert (out[0, :, 1].double() - exact).norm() < 2**-5 * exact.norm()
    assert (lse[0, 1] - scores.logsumexp(-1)).abs().max() < LSE_ERROR_OF_FP8


@pytest.mark.parametrize("name", turns.by_turns(LATENT))
def test_queries_of_any_size_over_latent_caches(name, families):
    shape = LATENT[name]
    given, _ = latent_call(shape)
    number = given["k_cache"].shape[0] * given["k_cache"].shape[1]
    k = KEYS.repeat(-(-number // len(KEYS)))[:number, None].expand(number, 576)
    rows_of = stored_rows(shape, k)
    given |= {"k_cache": rows_of.view(given["k_cache"].shape), "softmax_scale": LARGEST_SCALE}
    q = given["q"][0]
    for skipped in range(0, len(signed_sizes(q.dtype)), q.shape[0] * q.shape[1]):
        of_rows, rows = sized(shape, q, skipped)
        given["q"] = of_rows.repeat(2, 1, 1, 1)
        out, lse = latent_called(name, families, **given)
        scores = rows[:, None] * KEYS.double() * LARGEST_SCALE * 576
        found = out[0].flatten(0, 1), lse[0].T.flatten()
        assert_right_or_nan(shape, found, scores, k[: len(KEYS), :512])
