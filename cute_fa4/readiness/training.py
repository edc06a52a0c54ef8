"""Gradients: right at each kind of head dim, and with the same bits in many launches."""

from __future__ import annotations

import torch

from cute_fa4 import flash_attn_func
from cute_fa4.readiness.basics import NO_CLAIMS
from cute_fa4.readiness.stage import Context, Stage, require, same_bits
from cute_fa4.reference import allowed_gradient_errors, gradients_float64, max_error

# Two owners; one kernel for all gradients; wider q and k; pairs of CTAs and a kernel for each of dK and dV.
DEPTHS = (64, 64), (128, 128), (192, 128), (256, 256)
LAUNCHES, LAUNCHES_ON_CPU = 1000, 2


def tensors(context: Context, length: int, heads: tuple[int, int], depths: tuple[int, int]) -> list:
    """q, k, v and the gradient of out."""
    (heads_q, heads_kv), (depth, depth_v) = heads, depths
    shapes = (heads_q, depth), (heads_kv, depth), (heads_kv, depth_v), (heads_q, depth_v)
    return [context.random(1, length, *shape, seed=seed) for seed, shape in enumerate(shapes)]


def backward(q, k, v, dout, **options) -> tuple[torch.Tensor, ...]:
    """dq, dk, dv of a call."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    return torch.autograd.grad(flash_attn_func(*leaves, **options), leaves, dout)


def error_of(found, given, what: str, **options) -> float:
    """The largest error, as a share of what is allowed; raises Wrong beyond it."""
    given = [x.cpu() for x in given]
    exact = gradients_float64(*given, **options)
    allowed = allowed_gradient_errors(*given, **options)
    shares = {
        name: max_error(a.cpu(), b) / most
        for name, a, b, most in zip(("dq", "dk", "dv"), found, exact, allowed, strict=True)
    }
    name = max(shares, key=shares.__getitem__)
    require(shares[name] <= 1.0, f"{what}: {name} is off by {shares[name]:.2f} of what is allowed")
    return shares[name]


def gradients(context: Context) -> dict:
    """A group of two heads, rows that no tile divides, with and without a causal mask."""
    errors = {}
    for depths in context.size(DEPTHS, DEPTHS[1:2]):
        for causal in context.size((False, True), (True,)):
            given = tensors(context, context.size(700, 300), (2, 1), depths)
            what = f"head dims {depths[0]} and {depths[1]}, causal={causal}"
            found = backward(*given, causal=causal)
            errors[what] = error_of(found, given, what, causal=causal)
    return {"errors": errors}


def identical_gradients(context: Context) -> dict:
    """Pairs of CTAs add dQ in turns: more of them than run at a time, and of a head as many as can wait in a row."""
    launches = context.size(LAUNCHES, LAUNCHES_ON_CPU)
    length, heads = context.size((4096, (16, 16)), (300, (1, 1)))
    given = tensors(context, length, heads, (128, 128))
    first = backward(*given, causal=True)
    differing = 0
    for _ in range(launches - 1):
        found = backward(*given, causal=True)
        differing += not all(same_bits(a, b) for a, b in zip(found, first, strict=True))
    require(differing == 0, f"{differing} of {launches} backward passes differ from the first one")
    return {"launches": launches}


STAGES = (
    Stage(
        "gradients",
        "are gradients right, of two kernels, of one for all, and on pairs of CTAs?",
        gradients,
        "sm100/backward/; CUTE_FA4_PAIR=off has no pairs and no turns (docs/backward.md)",
        seconds=300,
        environment=NO_CLAIMS,
    ),
    Stage(
        "identical gradients",
        f"do {LAUNCHES} backward passes of one problem give the same bits?",
        identical_gradients,
        "sm100/backward/joint_dq.py and instructions/turns.py: turns of pairs of CTAs; CUTE_FA4_PAIR=off has none",
        seconds=600,
        environment=NO_CLAIMS,
    ),
)
