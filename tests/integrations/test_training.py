"""Training through other packages' calls: scaled_dot_product_attention, models of transformers, checkpointing."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import cute_fa4
import cute_fa4.integrations.transformers as ours
from cute_fa4 import EmulatorWarning, flash_attn_func
from cute_fa4.reference import allowed_gradient_errors, gradients_float64, max_error
from tests.integrations import tiny_models as tiny
from tests.suite import turns

ours.register()
SEQLEN, KEYS = 40, 50  # one tile of each side, ragged: what is new here are masks and layouts
ALLOWED = torch.rand(2, 1, SEQLEN, KEYS, generator=torch.Generator().manual_seed(3)) < 0.7
BIAS = torch.randn(4, SEQLEN, KEYS, generator=torch.Generator().manual_seed(4))


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmulatorWarning)
        yield


def draw(depth=64) -> list[torch.Tensor]:
    """query, key and value (batch, heads, rows, depth) that want gradients, and the gradient of out."""
    random = torch.Generator().manual_seed(0)
    shapes = [
        (2, SEQLEN, 4, depth),
        (2, KEYS, 2, depth),
        (2, KEYS, 2, depth),
        (2, SEQLEN, 4, depth),
    ]
    found = [torch.randn(s, generator=random).bfloat16().transpose(1, 2) for s in shapes]
    return [x.requires_grad_() for x in found[:3]] + found[3:]


# name -> (head dim, arguments, what the oracle is told)
CALLS = {
    "causal from the top left": (
        64, dict(is_causal=True), dict(visible=torch.arange(KEYS) <= torch.arange(SEQLEN)[:, None]),
    ),
    "a mask of booleans": (64, dict(attn_mask=ALLOWED), dict(visible=ALLOWED)),
    "a bias": (64, dict(attn_mask=BIAS), dict(score_mod=lambda s: s + BIAS)),
    "a head dim without a kernel": (20, {}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", turns.by_turns(CALLS))
def test_scaled_dot_product_attention_has_gradients(name):
    depth, options, of_oracle = CALLS[name]
    *tensors, dout = draw(depth)
    out = cute_fa4.scaled_dot_product_attention(*tensors, enable_gqa=True, **options)
    found = torch.autograd.grad(out, tensors, dout)
    given = [x.detach().transpose(1, 2) for x in (*tensors, dout)]
    exact = gradients_float64(*given, **of_oracle)
    allowed = allowed_gradient_errors(*given, **of_oracle)
    for a, b, most in zip(found, exact, allowed, strict=True):
        assert max_error(a.transpose(1, 2), b) <= most


def test_a_mask_of_transformers_has_the_gradient_of_the_other_functions():
    """For every batch and head; test_aux_gradients.py compares that with float64."""
    *tensors, dout = draw()
    found = []
    for by_transformers in (False, True):
        bias = BIAS[None].clone().requires_grad_()
        if by_transformers:
            out, _ = ours.attention(torch.nn.Module(), *tensors, bias)
            out = out.transpose(1, 2)
        else:
            options = dict(attn_mask=bias, enable_gqa=True)
            out = cute_fa4.scaled_dot_product_attention(*tensors, **options)
        found += torch.autograd.grad(out, bias, dout)
    assert found[0].equal(found[1]) and found[0].any()


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_gives_the_same_bits(use_reentrant):
    """The forward pass runs again in the backward pass; out and lse are the same."""
    *tensors, dout = draw()
    tensors = [x.detach().transpose(1, 2).requires_grad_() for x in tensors]
    wanted = torch.autograd.grad(flash_attn_func(*tensors), tensors, dout.transpose(1, 2))
    out = checkpoint(flash_attn_func, *tensors, use_reentrant=use_reentrant)
    out.backward(dout.transpose(1, 2))
    for x, gradient in zip(tensors, wanted, strict=True):
        assert x.grad.equal(gradient)


# --- models


LENGTH, RATE = 40, 0.05
# Steps on one batch -> how much they take off a loss of 4.6 to 5, at least: what attention learns is part of it. After
# 50 the model knows the batch by heart.
LEARNT = {4: 0.3, 50: 4.0}
MODELS = ("llama", "gpt-oss, sinks, windows and none", "deepseek v3, 96/64")


def losses(name: str, attention: str, steps: int, dtype=torch.bfloat16) -> list[float]:
    """Losses of a few steps on one batch, of weights in float32 that the model has in its dtype."""
    model = tiny.build(name, attention, dtype).train()
    weights = [p.detach().float().clone().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.SGD(weights, lr=RATE, momentum=0.9)
    tokens = tiny.tokens(2, LENGTH)
    found = []
    for _ in range(steps):
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        found.append(float(loss.detach()))
        model.zero_grad()
        loss.backward()
        for weight, p in zip(weights, model.parameters(), strict=True):
            weight.grad = None if p.grad is None else p.grad.float()
        optimizer.step()
        with torch.no_grad():
            for weight, p in zip(weights, model.parameters(), strict=True):
                p.copy_(weight)
    return found


@pytest.mark.parametrize("steps", [4, pytest.param(50, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_learns_as_with_eager_attention(name, steps):
    """Losses are those of float32 within what eager attention in bf16 is off, at any step."""
    exact = losses(name, "eager", steps, torch.float32)
    of_eager, found = losses(name, "eager", steps), losses(name, "cute_fa4", steps)
    off = [max(abs(a - b) for a, b in zip(x, exact, strict=True)) for x in (found, of_eager)]
    assert exact[0] - exact[-1] > LEARNT[steps]
    assert off[0] <= tiny.RATIO * off[1]
