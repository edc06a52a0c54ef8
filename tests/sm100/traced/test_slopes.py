"""Derivatives of traced functions by their score: a rule for each operation, and torch.autograd as the oracle."""

import pytest
import torch

from cute_fa4.sm100.traced import evaluation, slopes
from cute_fa4.sm100.traced.trace import SCORE, traced

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


def test_every_operation_has_a_rule():
    """Or does not depend on the score: a new operation must say which."""
    every = set(evaluation._OPERATIONS) | {"cast"}
    assert set(slopes.RULES) | slopes.FLAT == every
    assert not set(slopes.RULES) & slopes.FLAT


def test_functions_of_the_table_are_what_has_a_rule():
    """The test itself: each rule is reached by some function above."""
    reached = {node[0] for function in FUNCTIONS.values() for node in traced(function, SCORE).nodes}
    assert set(slopes.RULES) | slopes.FLAT <= reached | {"le", "ge", "ne", "gt"}
