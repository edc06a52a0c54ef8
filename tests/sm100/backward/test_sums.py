"""Gradients of the tensors that a score function reads, against float64: every way in which scores share an element.

Problem, heads and schedules as in test_functions.py: tiles of both sides are ragged, and under a mask cut. 140 queries
of two heads are four CTAs, 200 keys two tiles: memory for the lines of one CTA makes four launches, otherwise one.
"""

from dataclasses import replace
from itertools import product
from unittest.mock import patch

import pytest
import torch

from cute_fa4 import emulator, masks
from cute_fa4.calls import aux_gradients
from cute_fa4.calls.aux_gradients import gradients_of_aux
from cute_fa4.calls.backward import Scores
from cute_fa4.reference import attention_of_functions_float64
from cute_fa4.score_mods import additive_bias, composed, relative_logits, soft_cap
from cute_fa4.sm100.backward.config import BackwardConfig
from cute_fa4.sm100.blueprint.chip import SMEM_CAPACITY_BYTES
from cute_fa4.sm100.blueprint.score_mods import ScoreMod
from tests.sm100.backward.exact_sums import are_within, exact_and_allowed
from tests.sm100.backward.problems import attended
from tests.sm100.backward.test_functions import HEAD, KEY, POSITION, PROBLEM, QUERY, every_third
from tests.suite import turns


def numbers(*shape, seed=5, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def one_of_each(score, batch, head, q_idx, kv_idx, aux):
    """Factors of heads, two tables of distances, biases of keys; the factor's slope is the score."""
    near = torch.clamp(aux.position - kv_idx, -31, 32) + 31
    ahead = torch.clamp(kv_idx - q_idx, 0, 99)
    return score * aux[0][head] + aux[1][head, near] + aux[2][head, kv_idx] / 2 + aux[3][ahead] * 2


def of_rows(score, batch, head, q_idx, kv_idx, aux):
    """A temperature for each query, below a function: its slope depends on the score and the element."""
    return torch.tanh(score * aux[0][q_idx, head]) + aux[1][head] * 3


def undefined_at_zero(score, batch, head, q_idx, kv_idx, aux):
    """No value for zeros in the place of queries beyond the end, and an infinite slope by elements of hidden keys."""
    return abs(score) * torch.log(abs(score) * aux[0][head]) + torch.log(aux[1][head, kv_idx])


class Aux:
    """aux as functions take it, of all scores at once."""

    position = POSITION
    q_row = QUERY

    def __init__(self, tensors):
        self.tensors = tensors

    def __getitem__(self, i):
        return self.tensors[i]


def bias_of(score, *rest):
    return score + rest[-1][0][0, HEAD, QUERY, KEY]


def capped_bias_of(score, *rest):
    return bias_of(2 * torch.tanh(score / 2), *rest)


def logits_of(score, *rest):
    distance = POSITION - KEY
    near = (distance >= 0) & (distance < 16)
    bias = rest[-1][0][QUERY, HEAD, torch.where(near, distance, 0)]
    return score + torch.where(near, bias, 0.0)


CAUSAL = dict(mask=masks.causal()), KEY <= POSITION
THIRD = (
    dict(mask=masks.window(30, 20), mask_mod=ScoreMod.of(every_third)),
    every_third(0, HEAD, QUERY, KEY) & (KEY <= POSITION + 20) & (KEY >= POSITION - 30),
)
# (score_mod, the same of all scores, aux tensors, (options that hide keys, what they show))
CASES = {
    "one of each": (
        ScoreMod.of(one_of_each), one_of_each,
        (numbers(2) / 4 + 1, numbers(2, 64), numbers(2, 200), numbers(100)), CAUSAL,
    ),
    "rows": (ScoreMod.of(of_rows), of_rows, (numbers(140, 2, dtype=torch.bfloat16), numbers(2)), THIRD),
    "a function undefined at zero": (
        ScoreMod.of(undefined_at_zero), undefined_at_zero,
        (numbers(2).abs(), numbers(2, 200).abs() * every_third(0, HEAD[:, 0], 0, KEY)), THIRD,
    ),
    "soft cap, then a bias": (
        composed(soft_cap(2.0), additive_bias()), capped_bias_of,
        (numbers(1, 2, 140, 200, dtype=torch.float16),), THIRD,
    ),
    "relative logits": (relative_logits(16), logits_of, (numbers(140, 2, 16),), CAUSAL),
}  # fmt: skip
CASES["four launches"] = CASES["one of each"]
DLSE = numbers(1, 2, 140, seed=1)


# Tiles of keys have 128 rows at the first two, and 64 at the others, with one slot for each where distances are summed.
DEPTHS = (64, 64), (192, 128), (256, 256), (200, 40), (40, 200)


def exact(name, depths=DEPTHS[0]) -> tuple[list, list]:
    """Exact gradients, and allowed errors."""
    _, function, aux, (_, visible) = CASES[name]
    tensors = replace(PROBLEM, depths=depths).tensors()
    return exact_and_allowed(tensors, of_all(function), aux, visible, DLSE)


def of_all(function):
    """The function of all scores of the problem and aux tensors."""
    return lambda s, aux: function(s, 0, HEAD, QUERY, KEY, Aux(aux))


def found(name, depths=DEPTHS[0]) -> list:
    mod, function, aux, (hides, visible) = CASES[name]
    *qkv, dout = replace(PROBLEM, depths=depths).tensors()
    in_float64 = [x.double() for x in aux]
    of = attended(*qkv, score_mod=lambda s: of_all(function)(s, in_float64), visible=visible)
    scores = Scores(depths[0] ** -0.5, score_mod=mod, aux=aux)._replace(**hides)
    lines = 1 if name == "four launches" else aux_gradients.LINES
    with patch.object(aux_gradients, "LINES", lines):
        return gradients_of_aux(of, dout, DLSE, scores, tuple(range(len(aux))))


def is_right(name, depths=DEPTHS[0]) -> bool:
    return are_within(found(name, depths), *exact(name, depths))


@pytest.mark.parametrize("name, depths", turns.by_turns(product(CASES, DEPTHS)))
def test_gradients_are_those_of_float64_within_their_roundings(name, depths):
    assert is_right(name, depths)


@pytest.mark.parametrize("depths", [DEPTHS[0], (256, 256)])
def test_no_schedule_and_no_number_of_launches_changes_a_bit(depths):
    first = found("one of each", depths)
    with emulator.use(mode="hostile", seed=3):
        again = found("one of each", depths)
    apart = found("four launches", depths)
    for a, b, c in zip(first, again, apart, strict=True):
        assert a.equal(b) and a.equal(c)


@pytest.mark.parametrize("depths", DEPTHS)
def test_as_many_distances_are_summed_at_a_time_as_shared_memory_holds(depths):
    """One more is refused, with the remedy; tables are named by the tensors that have them."""

    def config(count):
        def of_tables(score, batch, head, q_idx, kv_idx, aux):
            return sum((aux[i][q_idx - kv_idx + 200] for i in range(count)), score)

        wanted, aux = tuple(range(count)), (("f32", 1),) * count
        mod = ScoreMod.of(of_tables)
        return BackwardConfig("bf16", *depths, score_mod=mod, aux=aux, wanted=wanted)

    most = next(n for n in range(1, 99) if config(n + 1).refusals())
    assert most >= 8 and not config(most).refusals()
    (why,) = config(most + 1).refusals()
    assert f"score_mod reads {most + 1} elements of them by distance" in why and "fewer" in why
    owner = config(most).owner("scores")
    assert (
        owner.smem.nbytes
        <= SMEM_CAPACITY_BYTES
        < owner.smem.nbytes + owner.smem.distances.nbytes // most
    )


def test_the_oracle_is_the_derivative():
    """Exact gradients against differences of a loss: dout . out + dlse . lse, along one direction of the tensors."""
    _, function, aux, (_, visible) = CASES["one of each"]
    gradients, _ = exact("one of each")
    *qkv, dout = (x.double() for x in PROBLEM.tensors())
    along = [numbers(*x.shape, seed=9).double() for x in aux]

    def loss(step):
        moved = [x.double() + step * d for x, d in zip(aux, along, strict=True)]
        of_scores = dict(score_mod=lambda s: of_all(function)(s, moved), visible=visible)
        out, lse = attention_of_functions_float64(*qkv, **of_scores)
        return float((dout * out).sum() + (DLSE * lse).sum())

    wanted = sum(float((g * d).sum()) for g, d in zip(gradients, along, strict=True))
    assert abs((loss(1e-5) - loss(-1e-5)) / 2e-5 - wanted) < 1e-5 * abs(wanted)
