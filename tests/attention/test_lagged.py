"""A row's reference from the key tiles before: rows made to break it, against float64 (sm100/steps/lagged.py).

A jump is a key whose score lies so many nats above all others, for every row of a head, in the third key tile: the
reference of the first two is of no use there. Up to 44 nats (2^64) the lagged order takes it; beyond, the work tile is
run again with the exact maximum, which the number of executed instructions shows.
"""

import math
import warnings

import pytest
import torch

from cute_fa4 import emulator, flash_attn_func, flash_attn_varlen_func, masks
from cute_fa4.compiler import policy
from cute_fa4.interface import EmulatorWarning
from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.sm100.steps.lagged import FAILED_FROM
from tests.attention.agreement import ROUNDOFF

FAILS_FROM = math.log(FAILED_FROM)  # nats
AT = 300  # the key that jumps
KEYS, QUERIES = (
    520,
    300,
)  # five key tiles, the last one masked; two blocks, the second with few rows


def tensors(jumps, head_dim=64, queries=QUERIES, keys=KEYS, at=AT):
    """q, k, v of one sequence; jumps: of each head, in nats; None: the key is like the others.

    Channel 0 is 4 in every query and 0 in every key except the one that jumps.
    """
    heads, generator = len(jumps), torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, n, heads, head_dim, generator=generator) for n in (queries, keys, keys)
    )
    q[..., 0], k[..., 0] = 4.0, 0.0
    for head, nats in enumerate(jumps):
        k[0, at, head, 0] = (nats or 0.0) * head_dim**0.5 / 4.0
    return q.bfloat16(), k.bfloat16(), v.bfloat16()


def run(call, mode="in_order", seed=0, checks=("ptx", "phase_passed_twice")):
    """(what the call returns, executed warp instructions)."""
    on = emulator.use(mode=mode, seed=seed, checks=checks)
    with warnings.catch_warnings(), on as counted:
        warnings.simplefilter("ignore", EmulatorWarning)
        return call(), counted.instructions


def expected(q, k, v, visible=None, scores=lambda s: s, sink=None):
    """(out, lse) in float64. visible: (queries, keys); scores: what is made of the scaled ones; sink: (heads,)."""
    q, k, v = (x[0].double().transpose(0, 1) for x in (q, k, v))
    s = scores(q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]))
    if visible is not None:
        s = s.masked_fill(~visible, -torch.inf)
    with_sink = (
        s
        if sink is None
        else torch.cat([s, sink.double()[:, None, None].expand(*s.shape[:2], 1)], 2)
    )
    lse = torch.logsumexp(with_sink, 2)
    return (torch.exp(s - lse[..., None]) @ v).transpose(0, 1)[None], lse[None]


def assert_close(got, wanted, v, lse_noise=1e-4):
    """P and out are each rounded to bf16 once: two roundings of the largest value, where few keys have all the weight.

    lse_noise: a score of 1000 nats has an ulp of 6e-5, and the products of a row are added in float32.
    """
    (out, lse), (exact, exact_lse) = got, wanted
    assert (out.double() - exact).abs().max() <= 2 * ROUNDOFF["bf16"] * v.double().abs().max()
    assert (
        lse.double() - exact_lse
    ).abs().max() <= lse_noise + 4 * 2.0**-24 * exact_lse.abs().max()


@pytest.mark.parametrize("nats", [20, 40, 60, 70, 1000])
def test_a_jump_between_two_tiles(nats):
    """One head of three jumps; the rows of the other heads have the same bits as with a head without jumps."""
    quiet, jumping = tensors([None] * 3), tensors([None, nats, None])
    (calm, _), usual = run(lambda: flash_attn_func(*quiet, return_lse=True))
    got, instructions = run(lambda: flash_attn_func(*jumping, return_lse=True))
    assert_close(got, expected(*jumping), jumping[2])
    assert torch.equal(got[0][:, :, ::2], calm[:, :, ::2])
    again = instructions / usual - 1  # a third of the work tiles once more, or a few rescales of O
    assert 0.25 < again < 0.45 if nats > FAILS_FROM + 3 else again < 0.05


@pytest.mark.parametrize(
    "failing, mode, seed",
    [("first", "hostile", 1), ("last", "random", 2), ("all", "in_order", 0), ("all", "hostile", 1)],
)
def test_whatever_is_run_again_under_every_schedule(failing, mode, seed):
    """The first work tiles fail while others are left, the last ones when none is, and all: two are due at once."""
    jumps = {"first": [70, None, None], "last": [None, None, 70], "all": [70, 70, 70]}[failing]
    qkv = tensors(jumps)
    got, _ = run(lambda: flash_attn_func(*qkv, return_lse=True), mode, seed)
    assert_close(got, expected(*qkv), qkv[2])


def test_a_climb_is_followed_without_a_rerun():
    """30 nats more in every tile: the reference moves each time, and no tile fails."""
    q, k, v = tensors([None])
    k[0, :, 0, 0] = torch.arange(KEYS) // 128 * 30.0 * 64**0.5 / 4.0
    (calm, _), usual = run(lambda: flash_attn_func(*tensors([None]), return_lse=True))
    got, instructions = run(lambda: flash_attn_func(q, k, v, return_lse=True))
    assert_close(got, expected(q, k, v), v)
    assert instructions < 1.1 * usual  # rescales of O, and nothing twice


def minus_infinity_first(score, batch, head, q_idx, kv_idx, aux):
    """No key of the first two tiles is seen, which no mask says."""
    import cutlass

    return cutlass.select_(kv_idx < 256, cutlass.Float32(-math.inf), score)


def causal(queries=QUERIES, keys=KEYS):
    return torch.arange(keys) <= torch.arange(queries)[:, None] + keys - queries


def test_sink_and_causal_mask():
    """The sink is the reference that rows begin with: far below, and 100 nats above the scores."""
    q, k, v = tensors([70, 70, None])
    sink = torch.tensor([-30.0, 0.0, 100.0])
    call = lambda: flash_attn_func(q, k, v, causal=True, learnable_sink=sink, return_lse=True)
    got, _ = run(call)
    assert_close(got, expected(q, k, v, causal(), sink=sink), v)


@pytest.mark.sweep
def test_soft_cap():
    """Scores between -50 and 50: from the lowest to the highest are 100 nats."""
    q, k, v = tensors([None, None])
    k[..., 0] = -300.0
    k[0, AT, 0, 0], k[0, AT, 1, 0] = 300.0, 100.0
    got, _ = run(lambda: flash_attn_func(q, k, v, softcap=50.0, return_lse=True))
    assert_close(got, expected(q, k, v, scores=lambda s: 50 * torch.tanh(s / 50)), v, 1e-2)


def even_keys(batch, head, q_idx, kv_idx, aux):
    return kv_idx % 2 == 0


def test_the_first_tiles_have_nothing_to_see():
    """-inf from a score_mod in two tiles: no reference when the lagged order begins, scores of 200 nats and of -200."""
    q, k, v = tensors([200, None])
    k[0, :, 1, 0] = -200 * 64**0.5 / 4.0
    got, _ = run(lambda: flash_attn_func(q, k, v, score_mod=minus_infinity_first, return_lse=True))
    visible = (torch.arange(KEYS) >= 256).expand(QUERIES, KEYS)
    assert_close(got, expected(q, k, v, visible), v)


def test_a_window_whose_first_tile_is_masked():
    """Packed sequences, of which one jumps, and a window: masked tiles at both ends of what a row sees."""
    lengths, (q, k, v) = (300, 200, 20), tensors([70], queries=KEYS)
    cu = torch.tensor([0, 300, 500, 520], dtype=torch.int32)
    (out, lse), _ = run(
        lambda: flash_attn_varlen_func(
            *(x[0] for x in (q, k, v)), cu, cu, 300, 300, window_size=(250, 130), return_lse=True
        )
    )
    for i, length in enumerate(lengths):
        rows = slice(int(cu[i]), int(cu[i + 1]))
        at = torch.arange(length)
        visible = (at >= at[:, None] - 250) & (at <= at[:, None] + 130)
        wanted = expected(*(x[:, rows] for x in (q, k, v)), visible)
        assert_close((out[None, rows], lse[None, :, rows]), wanted, v)


@pytest.mark.sweep
def test_parts_of_the_keys():
    """The part that jumps is run again into its workspace; the other is not touched."""
    q, k, v = tensors([70, None], keys=800)
    got, _ = run(lambda: flash_attn_func(q, k, v, num_splits=2, return_lse=True))
    assert_close(got, expected(q, k, v), v)


def test_infinite_and_undefined_scores_end_as_in_the_exact_order(monkeypatch):
    """They cannot be told from an overflow: the rows are run again, once."""
    q, k, v = tensors([None])
    q[0, 5], q[0, 7] = torch.nan, torch.inf
    results = []
    for maximum in ("auto", "exact"):
        monkeypatch.setenv(policy.MAXIMUM_VARIABLE, maximum)
        repeat_call = run(lambda: flash_attn_func(q, k, v, return_lse=True))
        results.append(repeat_call[0])
        from cute_fa4.calls import repeat

        repeat.clear()
    for a, b in zip(*results, strict=True):
        assert torch.equal(a.isnan(), b.isnan())


@pytest.mark.sweep
def test_p_over_s_lags_likewise():
    """Beyond head dim 64, where P is made from the first quarter of the scores on."""
    qkv = tensors([20, 70], head_dim=96)
    got, _ = run(lambda: flash_attn_func(*qkv, return_lse=True), "hostile", 1)
    assert_close(got, expected(*qkv), qkv[2])


def test_the_diagonal_lags():
    """300 rows of 200 keys: 100 rows see none, all key tiles are masked, and the second one lags.

    Key 150 jumps, which the last 50 rows see: their block alone is run again. Rows without keys have no reference, and
    are no reason to run a work tile again: with no jump as many instructions as with one of 20 nats.
    """
    executed = []
    for nats in (None, 20, 70):
        q, k, v = tensors([nats], 128, keys=200, at=150)
        call = lambda: flash_attn_func(q, k, v, causal=True, return_lse=True)  # noqa: B023
        (out, lse), instructions = run(call)
        executed.append(instructions)
        assert (out[0, :100] == 0).all() and (lse[0, :, :100] == -torch.inf).all()
        seen = causal(300, 200)[100:]
        wanted = expected(q[:, 100:], k, v, seen)
        assert_close((out[:, 100:], lse[..., 100:]), wanted, v)
    none, some, again = executed
    assert abs(some - none) < 0.05 * none and again > 1.2 * none


def test_a_function_that_hides_keys_is_asked_in_every_tile():
    """Four whole key tiles and a masked one."""
    q, k, v = tensors([20])
    call = lambda: flash_attn_func(q, k, v, mask_mod=even_keys, return_lse=True)
    got, _ = run(call)
    visible = (torch.arange(KEYS) % 2 == 0).expand(QUERIES, KEYS)
    assert_close(got, expected(q, k, v, visible), v)


def test_who_lags():
    """bf16 up to head dim 128, two query tiles, masks with whole tiles; a schedule may say otherwise."""

    def maximum(**choices):
        return choose_config(**{"qkv_dtype": "bf16", "head_dim": 64, **choices}).schedule.maximum

    assert maximum() == maximum(causal=True) == "lagged"
    assert maximum(head_dim=72) == maximum(head_dim=128) == maximum(head_dim_v=128) == "lagged"
    assert (
        maximum(qkv_dtype="fp16") == maximum(maximum="exact") == maximum(arch="sm_103a") == "exact"
    )
    assert maximum(head_dim=192, head_dim_v=128) == "exact"  # the tensor core is the bound
    assert maximum(mask_mod=even_keys) == "exact"
    assert maximum(mask=masks.either(masks.causal(), masks.window(8, 8)).mask) == "exact"
    assert maximum(head_dim=192, head_dim_v=128, maximum="lagged") == "lagged"
    refused = choose_config(qkv_dtype="fp16", head_dim=64, maximum="lagged").refusals()
    assert "qkv_dtype='fp16'" in refused[0] and "use 'exact'" in refused[0]
    assert (
        "maximum='late'"
        in choose_config(qkv_dtype="bf16", head_dim=64, maximum="late").refusals()[0]
    )


def test_the_environment_asks_for_the_exact_maximum(monkeypatch):
    for word, wanted in (("auto", None), ("exact", "exact")):
        monkeypatch.setenv(policy.MAXIMUM_VARIABLE, word)
        assert policy.maximum() == wanted
    monkeypatch.setenv(policy.MAXIMUM_VARIABLE, "lagged")
    with pytest.raises(ValueError, match="CUTE_FA4_MAXIMUM='lagged'; accepted: auto, exact"):
        policy.maximum()
    # A schedule that has no other is asked for nothing.
    assert (
        choose_config(qkv_dtype="bf16", head_dim=64, family="mha1q", maximum="exact").refusals()
        == []
    )
