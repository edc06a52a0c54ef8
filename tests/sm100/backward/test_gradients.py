"""Gradients of the kernels against float64: shapes, masks, groups, dtypes, and what must not change a bit."""

import pytest
import torch

from cute_fa4 import emulator
from cute_fa4.reference import allowed_gradient_errors, gradients_float64, max_error
from tests.sm100.backward.problems import Problem, run
from tests.suite import turns

CAUSAL = (None, 0)

PROBLEMS = {
    "one tile": Problem(128, 128),
    "ragged ends: two and a bit tiles of each side": Problem(300, 270),
    "one row and one key": Problem(1, 1),
    "rings of four turn three times": Problem(100, 800),
    "ring of the owner of keys turns twice": Problem(600, 100),
    "causal, square": Problem(300, 300, window=CAUSAL),
    "causal, more keys: the last query sees all": Problem(140, 400, window=CAUSAL),
    "causal, more queries: the first 130 see nothing, a whole tile": Problem(
        330, 200, window=CAUSAL
    ),
    "causal, a key tile that no query sees": Problem(10, 300, window=(None, -280)),
    "group of four": Problem(150, 150, heads=(4, 1), window=CAUSAL),
    "two groups, batch of two": Problem(130, 140, heads=(4, 2), batch=2),
    "window, both sides cut within a tile": Problem(400, 400, window=(100, 30)),
    "window open to the right": Problem(300, 300, window=(50, None)),
    "window before the query": Problem(300, 300, window=(150, -40)),
    "fp16": Problem(200, 200, dtype=torch.float16, window=CAUSAL),
    "head dim 64": Problem(200, 200, depths=(64, 64), heads=(2, 1)),
    "head dims that are padded": Problem(130, 150, depths=(40, 72)),
    "the smallest head dim": Problem(130, 150, depths=(8, 8)),
    "V wider than K": Problem(130, 150, depths=(64, 128), window=CAUSAL),
    "K wider than V": Problem(130, 150, depths=(128, 64)),
    # where keys are owned, V moves to tensor memory and K stays; both move with a narrow V
    "DeepSeek's head dims": Problem(200, 300, heads=(2, 1), depths=(192, 128), window=CAUSAL),
    "K wider than 128, V as narrow as dK needs": Problem(150, 150, depths=(136, 64)),
    # tiles of 64 rows on the other side: odd and even ones, cut and whole; kernels of their own for dK and dV
    "Gemma's head dim": Problem(140, 200, heads=(2, 1), depths=(256, 256), window=CAUSAL),
    "K just wider than 192, a tile of 64 keys that ends early": Problem(
        70, 170, depths=(200, 40), window=(60, 20)
    ),
    "V just wider than 128": Problem(200, 65, depths=(64, 136), dtype=torch.float16),
}


@pytest.mark.parametrize("name", turns.by_turns(PROBLEMS))
def test_gradients_are_those_of_float64_within_their_roundings(name):
    problem = PROBLEMS[name]
    tensors = problem.tensors()
    exact = gradients_float64(*tensors, window_size=problem.window)
    allowed = allowed_gradient_errors(*tensors, window_size=problem.window)
    for which, found, wanted, most in zip(
        ("dq", "dk", "dv"), run(*tensors, problem.window), exact, allowed, strict=True
    ):
        assert max_error(found, wanted) <= most, which


IN_FLOAT32 = (
    "ragged ends: two and a bit tiles of each side",
    "causal, more queries: the first 130 see nothing, a whole tile",
    "fp16",
    "head dim 64",
    "head dims that are padded",
    "the smallest head dim",
    "DeepSeek's head dims",
)


@pytest.mark.parametrize("name", turns.by_turns(IN_FLOAT32))
def test_gradients_in_float32_are_those_before_they_are_rounded(name):
    """Head dims of 8, 40 and 72 end in the first and in the second half of 64 columns, each of them a store."""
    problem = PROBLEMS[name]
    tensors = problem.tensors()
    rounded = run(*tensors, problem.window)
    for found, expected in zip(run(*tensors, problem.window, sums=0.0), rounded, strict=True):
        assert found.dtype is torch.float32 and found.to(problem.dtype).equal(expected)
        assert not found.equal(expected.float())


def test_the_gradient_of_the_log_sum_exp_is_part_of_it():
    """delta less dlse is all that changes; the first rows of this problem have lse -inf and see nothing."""
    problem = Problem(200, 150, heads=(2, 1), window=CAUSAL)
    tensors = problem.tensors()
    dlse = torch.randn(1, 2, 200, generator=torch.Generator().manual_seed(1))
    exact = gradients_float64(*tensors, dlse, window_size=CAUSAL)
    allowed = allowed_gradient_errors(*tensors, dlse, window_size=CAUSAL)
    for found, wanted, most in zip(run(*tensors, CAUSAL, dlse), exact, allowed, strict=True):
        assert max_error(found, wanted) <= most


def test_the_oracle_is_the_derivative():
    """gradients_float64 against torch's autograd of the definition; two rows of these see no key."""
    q, k, v, dout = (x.double() for x in Problem(6, 4, heads=(2, 1), depths=(8, 16)).tensors())
    wanted = [x.clone().requires_grad_() for x in (q, k, v)]
    s = torch.einsum("bihd,bjhd->bhij", wanted[0], wanted[1].expand(-1, -1, 2, -1)) * 8**-0.5
    hidden = torch.arange(4) > torch.arange(6)[:, None] - 2
    p = s.masked_fill(hidden, -1e300).softmax(-1).masked_fill(hidden, 0.0)
    out = torch.einsum("bhij,bjhd->bihd", p, wanted[2].expand(-1, -1, 2, -1))
    wanted = torch.autograd.grad(out, wanted, dout)
    for found, by_torch in zip(gradients_float64(q, k, v, dout, causal=True), wanted, strict=True):
        torch.testing.assert_close(found, by_torch, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", ["hostile", "random", "together"])
def test_no_schedule_changes_a_bit(mode):
    """Deterministic by construction: three tiles of both sides, two heads of a group, cut tiles among them."""
    tensors = Problem(300, 280, heads=(2, 1), window=CAUSAL).tensors()
    first = run(*tensors, CAUSAL)
    with emulator.use(mode=mode, seed=7):
        again = run(*tensors, CAUSAL)
    for a, b in zip(first, again, strict=True):
        assert a.equal(b)


def test_a_sequence_has_the_gradients_that_it_has_alone():
    tensors = Problem(150, 200, heads=(2, 1), batch=3, window=CAUSAL).tensors()
    together = run(*tensors, CAUSAL)
    alone = run(*(x[1:2] for x in tensors), CAUSAL)
    for a, b in zip(together, alone, strict=True):
        assert a[1:2].equal(b)
