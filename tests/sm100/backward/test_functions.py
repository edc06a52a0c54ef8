"""Gradients where scores pass through functions, masks of several bands, sinks and limits of keys, against float64.

Two schedules of the emulator: the same bits. 140 queries and 200 keys: two tiles of each side, of which one is ragged
and, under a mask, cut; two heads of a group; head dim 64, for which a tile is smallest.
"""

from dataclasses import replace

import pytest
import torch

from cute_fa4 import emulator, masks
from cute_fa4.reference import allowed_gradient_errors, gradients_float64, max_error
from cute_fa4.score_mods import alibi, alibi_slope, composed, soft_cap
from cute_fa4.sm100.blueprint.score_mods import ScoreMod
from tests.sm100.backward.problems import Problem, run
from tests.suite import turns

PROBLEM = Problem(140, 200, heads=(2, 1), depths=(64, 64))
HEAD, QUERY, KEY = torch.arange(2)[:, None, None], torch.arange(140)[:, None], torch.arange(200)
POSITION = QUERY + 200 - 140
BIAS = torch.randn(2, 200, generator=torch.Generator().manual_seed(5))


def bent(score, batch, head, q_idx, kv_idx):
    return torch.where(kv_idx > q_idx, score * 0.5, torch.sigmoid(score) * (head + 1))


def biased(score, batch, head, q_idx, kv_idx, aux):
    return score * score / 8 + aux[0][head, kv_idx] + aux.position * 0.01


def logarithm(score, batch, head, q_idx, kv_idx):
    return torch.log(abs(score))


def every_third(batch, head, q_idx, kv_idx):
    return (kv_idx + head) % 3 != 0


def in_float64(function, *aux):
    """The function of the kernel, called with all scores and indices."""
    return lambda s: function(s, 0, HEAD, QUERY, KEY, *aux)


def passed_on(grad, score, batch, head, q_idx, kv_idx, aux):
    """An override: the gradient of `bent`, but only of scores near zero and by a factor from a tensor."""
    return torch.where(abs(score) < 1, grad * aux[0][head, kv_idx], 0.0)


class Overridden(torch.autograd.Function):
    """bent with that derivative, for all scores and indices."""

    @staticmethod
    def forward(ctx, scores):
        ctx.save_for_backward(scores)
        return bent(scores, 0, HEAD, QUERY, KEY)

    @staticmethod
    def backward(ctx, grad):
        return passed_on(grad, *ctx.saved_tensors, 0, HEAD, QUERY, KEY, Facts())


class Facts:
    """aux as `biased` takes it."""

    position = POSITION

    def __getitem__(self, i):
        return BIAS.double()  # at [head, kv_idx], of all heads and keys


def soft(s, cap=2.0):
    return cap * torch.tanh(s / cap)


def with_alibi(s):
    slopes = torch.tensor([alibi_slope(h, 2) for h in range(2)]).double()
    return s - slopes[:, None, None] * (POSITION - KEY).abs()


FAR_BELOW = torch.tensor([-2e38, -1e9])
CASES = {
    # saturated: the slope goes from 1 to 0
    "soft cap": (dict(score_mod=soft_cap(2.0)), dict(score_mod=soft)),
    "soft cap, then ALiBi": (
        dict(score_mod=composed(soft_cap(2.0), alibi(2))), dict(score_mod=lambda s: with_alibi(soft(s))),
    ),
    "a function of two branches": (dict(score_mod=ScoreMod.of(bent)), dict(score_mod=in_float64(bent))),
    "a function that reads a tensor": (
        dict(score_mod=ScoreMod.of(biased), aux=(BIAS,)), dict(score_mod=in_float64(biased, Facts())),
    ),
    "a function whose backward is overridden": (
        dict(score_mod=ScoreMod.of(bent, backward=passed_on), aux=(BIAS,)), dict(score_mod=Overridden.apply),
    ),
    # zeros that stand in the place of queries beyond the end have a slope that is infinite
    "a function without a value at zero": (
        dict(score_mod=ScoreMod.of(logarithm)), dict(score_mod=in_float64(logarithm)),
    ),
    "a mask_mod": (
        dict(mask_mod=ScoreMod.of(every_third)), dict(visible=every_third(0, HEAD, QUERY, KEY)),
    ),
    "both, under a causal mask": (
        dict(score_mod=ScoreMod.of(bent), mask_mod=ScoreMod.of(every_third), mask=masks.causal()),
        dict(score_mod=in_float64(bent), visible=every_third(0, HEAD, QUERY, KEY) & (KEY <= POSITION)),
    ),
    # tiles of both sides that see nothing of each other, chunks that end within a tile
    "chunks": (dict(mask=masks.chunked(50)), dict(visible=POSITION // 50 == KEY // 50)),
    "causal chunks": (
        dict(mask=masks.chunked_causal(90)), dict(visible=(POSITION // 90 == KEY // 90) & (KEY <= POSITION)),
    ),
    "both of two masks": (
        dict(mask=masks.both(masks.causal(), masks.chunked(64))),
        dict(visible=(POSITION // 64 == KEY // 64) & (KEY <= POSITION)),
    ),
    # the second tile of queries sees the first one of keys through chunks alone
    "either of two masks": (
        dict(mask=masks.either(masks.window(20, 0), masks.chunked(195))),
        dict(visible=(POSITION // 195 == KEY // 195) | ((KEY <= POSITION) & (KEY >= POSITION - 20))),
    ),
    # one head has no sink; rows that see nothing but theirs
    "sinks": (dict(sink=torch.tensor([1.0, -torch.inf])), dict(sink=torch.tensor([1.0, -torch.inf]))),
    "sinks of rows without keys": (
        dict(sink=torch.tensor([1.0, 0.5]), mask=masks.window(None, -70)),
        dict(sink=torch.tensor([1.0, 0.5]), visible=KEY <= POSITION - 70),
    ),
    # log-sum-exps of -2e38 and -1e9: divided by the scale, the first is no float32
    "sinks far below the scores": (
        dict(sink=FAR_BELOW, mask=masks.window(None, -70)), dict(sink=FAR_BELOW, visible=KEY <= POSITION - 70),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", turns.by_turns(CASES))
def test_gradients_are_those_of_float64_within_their_roundings(name):
    scores, options = CASES[name]
    tensors = PROBLEM.tensors()
    dlse = torch.randn(1, 2, 140, generator=torch.Generator().manual_seed(1))
    exact = gradients_float64(*tensors, dlse, **options)
    allowed = allowed_gradient_errors(*tensors, dlse, **options)
    found = run(*tensors, dlse=dlse, scores=scores, **options)
    for which, got, wanted, most in zip(
        ("dq", "dk", "dv", "dsink"), found, exact, allowed, strict=False
    ):
        assert max_error(got, wanted) <= most, which
    assert len(found) == len(exact)
    with emulator.use(mode="hostile", seed=3):
        again = run(*tensors, dlse=dlse, scores=scores, **options)
    assert all(a.equal(b) for a, b in zip(found, again, strict=True))


@pytest.mark.parametrize("depths", [(192, 128), (256, 256)])
def test_functions_have_the_same_scores_beyond_head_dim_128(depths):
    """Tiles have 64 columns there; functions of cut tiles and of whole ones write P."""
    scores, options = CASES["both, under a causal mask"]
    tensors = replace(PROBLEM, depths=depths).tensors()
    exact = gradients_float64(*tensors, **options)
    allowed = allowed_gradient_errors(*tensors, **options)
    found = run(*tensors, scores=scores, **options)
    for got, wanted, most in zip(found, exact, allowed, strict=True):
        assert max_error(got, wanted) <= most


def test_the_oracle_of_sinks_and_functions_is_the_derivative():
    """gradients_float64 against torch's autograd of the definition."""
    q, k, v, dout = (x.double() for x in Problem(6, 9, heads=(2, 2), depths=(8, 16)).tensors())
    sink = torch.tensor([0.3, -0.7], dtype=torch.float64)
    wanted = [x.clone().requires_grad_() for x in (q, k, v, sink)]
    s = soft(torch.einsum("bihd,bjhd->bhij", wanted[0], wanted[1]) * 8**-0.5)
    column = wanted[3][:, None, None].expand(1, 2, 6, 1)
    lse = torch.cat([s, column], -1).logsumexp(-1)
    out = torch.einsum("bhij,bjhd->bihd", torch.exp(s - lse[..., None]), wanted[2])
    dlse = torch.randn(1, 2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    by_torch = torch.autograd.grad((out, lse), wanted, (dout, dlse))
    found = gradients_float64(q, k, v, dout, dlse, score_mod=soft, sink=sink)
    for a, b in zip(found, by_torch, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
