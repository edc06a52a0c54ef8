"""Derivatives of traced functions by their score: a rule for each operation, and torch.autograd as the oracle."""

import re

import pytest
import torch

from cute_fa4.score_mods import ScoreMod, soft_cap
from cute_fa4.sm100.traced import evaluation, slopes
from cute_fa4.sm100.traced.expressions import CAPTURED
from cute_fa4.sm100.traced.read_tensors import Recorder
from cute_fa4.sm100.traced.trace import SCORE, Traced, traced

# (function of a score, scores that are no tie of it): each operation with a rule once, alone.
FUNCTIONS = {
    "add": lambda s, b, h, i, j: s + s + j,
    "sub": lambda s, b, h, i, j: j - s,
    "mul": lambda s, b, h, i, j: s * (s + j),
    "div": lambda s, b, h, i, j: (s + 1) / (s * s + 2),
    "div by the score": lambda s, b, h, i, j: j / (s + 9),
    "neg": lambda s, b, h, i, j: -s,
    "abs": lambda s, b, h, i, j: abs(s - 0.3),
    "where": lambda s, b, h, i, j: torch.where(s > 0.2, s * 3, 5.0),
    "where, of indices": lambda s, b, h, i, j: torch.where(i < j, s * s, j),
    "minimum": lambda s, b, h, i, j: torch.minimum(s * 2, s * s),
    "maximum": lambda s, b, h, i, j: torch.maximum(s * 2, j),
    "clamp": lambda s, b, h, i, j: torch.clamp(s, -1.0, 1.5),
    "cast": lambda s, b, h, i, j: (s * s).to(torch.float32) * (s * 4).to(torch.int32),
    "exp": lambda s, b, h, i, j: torch.exp(s),
    "exp2": lambda s, b, h, i, j: torch.exp2(s * 2),
    "log": lambda s, b, h, i, j: torch.log(s + 9),
    "log2": lambda s, b, h, i, j: torch.log2(s + 9),
    "sqrt": lambda s, b, h, i, j: torch.sqrt(s + 9),
    "rsqrt": lambda s, b, h, i, j: torch.rsqrt(s + 9),
    "tanh": lambda s, b, h, i, j: torch.tanh(s),
    "sigmoid": lambda s, b, h, i, j: torch.sigmoid(s * 2),
    "powers": lambda s, b, h, i, j: s**3 + (s + 9) ** 0.5 + (s + 9) ** -0.5 + (s + 9) ** -1,
    "the score itself": lambda s, b, h, i, j: s,
    "a number": lambda s, b, h, i, j: j * 2,
    "integers and conditions": lambda s, b, h, i, j: (
        s * (((i // 3) ^ 1) % 4) + ((j << 1) >> 2 & 3 | 4) + s * (~(i < j) & (h == 0))
    ),
}
SCORES = torch.tensor([-2.0, -0.7, -0.25, 0.1, 0.9, 1.75, 3.0], dtype=torch.float64)
INDICES = (
    torch.tensor(0), torch.tensor(1), torch.arange(2, 5)[:, None, None], torch.arange(4)[:, None],
)  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_slope_is_that_of_autograd(name):
    function = FUNCTIONS[name]
    scores = SCORES.expand(3, 4, -1).clone().requires_grad_()
    value = function(scores, *INDICES)
    by_torch = torch.zeros_like(scores)
    if isinstance(value, torch.Tensor) and value.requires_grad:
        (by_torch,) = torch.autograd.grad(value.sum(), scores)
    slope = traced(function, SCORE).slope.on_tensors(SCORES, *INDICES)
    torch.testing.assert_close(slope.double().expand_as(by_torch), by_torch, rtol=1e-6, atol=0)


def test_at_a_tie_the_first_operand_counts():
    clamped = traced(lambda s, b, h, i, j: torch.clamp(s, 0.0, 1.0), SCORE).slope
    at = torch.tensor([-0.5, 0.0, 0.5, 1.0, 1.5], dtype=torch.float64)
    assert clamped.on_tensors(at, *INDICES[:2], *INDICES[:2]).tolist() == [0, 1, 1, 1, 0]


# (grad, score, indices) -> what is proportional to grad: each operation that may be, once
OVERRIDES = {
    "grad": lambda g, s, b, h, i, j: g,
    "nothing": lambda g, s, b, h, i, j: 0.0,
    "a product": lambda g, s, b, h, i, j: 2 * (g * torch.tanh(s)) * j,
    "a quotient": lambda g, s, b, h, i, j: -g / (s * s + 1),
    "a sum": lambda g, s, b, h, i, j: g * s - (0.5 * g + 0.0),
    "chosen": lambda g, s, b, h, i, j: torch.where(abs(s) < 1, torch.where(i < j, g, 0.0), g * 2),
    "cast": lambda g, s, b, h, i, j: g.to(torch.bfloat16) * s,
}  # fmt: skip
DISPROPORTIONATE = {
    "a constant is added": lambda g, s, b, h, i, j: g + 1,
    "the score alone": lambda g, s, b, h, i, j: s,
    "clamped": lambda g, s, b, h, i, j: torch.clamp(g, -1.0, 1.0),
    "squared": lambda g, s, b, h, i, j: g * g,
    "the inverse": lambda g, s, b, h, i, j: 1 / g,
    "a choice by grad": lambda g, s, b, h, i, j: torch.where(g > 0, g, 0.0),
    "another constant in a branch": lambda g, s, b, h, i, j: torch.where(i < j, g, 1.0),
    "rounded": lambda g, s, b, h, i, j: g.to(torch.int32) * s,
    "a function of it": lambda g, s, b, h, i, j: torch.exp(g),
}


@pytest.mark.parametrize("name", OVERRIDES)
def test_an_override_is_the_factor_of_grad(name):
    function, recorder = OVERRIDES[name], Recorder()
    mod = traced(FUNCTIONS["tanh"], SCORE, recorder).with_factor(function, recorder)
    for grad in (1.0, -2.0):  # powers of two: bfloat16 has them
        expected = function(torch.tensor(grad, dtype=torch.float64), SCORES, *INDICES)
        expected = torch.as_tensor(expected, dtype=torch.float64).expand(3, 4, 7)
        got = mod.slope.on_tensors(SCORES, *INDICES).double() * grad
        torch.testing.assert_close(got.expand(3, 4, 7), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", DISPROPORTIONATE)
def test_an_override_that_is_not_proportional_to_grad_is_refused(name):
    """Its gradients would be others than those of the function that it stands for."""
    with pytest.raises(TypeError, match=r"backward: .* is not grad times a factor .*; accepted: "):
        ScoreMod.of(FUNCTIONS["tanh"], backward=DISPROPORTIONATE[name])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (dict(function=FUNCTIONS["tanh"], backward=3), "3 is not a function"),
        (dict(function=FUNCTIONS["tanh"], backward=FUNCTIONS["tanh"]), "backward(grad, score, batch"),
        (dict(function=soft_cap(3.0), backward=OVERRIDES["grad"]), "accepted: for a function that is a"),
        (dict(function=None, backward=OVERRIDES["grad"]), "accepted: for a function that is a score_mod"),
    ],
)  # fmt: skip
def test_a_wrong_override_is_refused_by_name(given, told):
    with pytest.raises(TypeError, match=rf"^backward: .*{re.escape(told)}"):
        ScoreMod.of(**given)


def test_an_override_is_part_of_the_key_and_of_the_data():
    """Another factor is another kernel, in this process and in the one that loads it; none keeps the key it had."""
    plain, captured = ScoreMod.of(FUNCTIONS["tanh"]), torch.arange(4.0)
    halved, also, doubled = (
        ScoreMod.of(FUNCTIONS["tanh"], backward=lambda g, s, b, h, i, j, by=by: g * by)
        for by in (0.5, 0.5, 2)
    )
    assert len({plain.key, halved.key, doubled.key}) == 3
    assert halved.key == also.key and plain.key == ScoreMod.of(FUNCTIONS["tanh"]).key
    assert Traced.of_data(halved.function.data()).key == halved.function.key
    reads = ScoreMod.of(FUNCTIONS["tanh"], backward=lambda g, s, b, h, i, j: g * captured[h])
    assert [tensor is captured for tensor, _ in reads.captured] == [True]
    assert reads.function.reads == ((CAPTURED, 1),)


def test_every_operation_has_a_rule():
    """Or does not depend on the score: a new operation must say which."""
    every = set(evaluation._OPERATIONS) | {"cast"}
    assert set(slopes.RULES) | slopes.FLAT == every
    assert not set(slopes.RULES) & slopes.FLAT


def test_functions_of_the_table_are_what_has_a_rule():
    """The test itself: each rule is reached by some function above."""
    reached = {node[0] for function in FUNCTIONS.values() for node in traced(function, SCORE).nodes}
    assert set(slopes.RULES) | slopes.FLAT <= reached | {"le", "ge", "ne", "gt"}
