"""Orders of the products: the same products and sums, so the same bits, whichever is asked for."""

import inspect

import pytest
import torch

from cute_fa4 import compile_cache, emulator
from cute_fa4.reference import allowed_error, attention_float64
from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.sm100.two_tiles.kernel import SM100MHA2Q
from tests.attention.agreement import Schedule

SCHEDULES = [Schedule(), Schedule("hostile", 1), Schedule("random", 2)]


def tensors(head_dim, heads, queries=300, keys=520):
    """Five key tiles, the last one cut; two blocks a head; scores wide enough that O is rescaled."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, n, heads, head_dim, generator=generator) for n in (queries, keys, keys)
    )
    return (4 * q).bfloat16(), k.bfloat16(), v.bfloat16()


def run(order, qkv, schedule=SCHEDULES[0], **choices):
    """(out, lse) of the kernel of two query tiles with this order."""
    q, k, v = qkv
    config = choose_config(
        qkv_dtype="bf16", head_dim=q.shape[-1], write_lse=True, order=order, **choices
    )
    assert config.refusals() == []
    out, lse = torch.full_like(q, torch.nan), torch.empty(1, q.shape[2], q.shape[1])
    arguments = dict(mQ=q, mK=k, mV=v, mO=out, mLSE=lse, max_seqlen_q=q.shape[1])
    arguments["softmax_scale"] = q.shape[-1] ** -0.5
    function = compile_cache.function_for(config, "emulator")
    names = inspect.signature(SM100MHA2Q.__call__).parameters
    checks = ("ptx", "phase_passed_twice")
    with emulator.use(mode=schedule.mode, seed=schedule.seed, checks=checks):
        function(*(arguments.get(name) for name in names if name not in ("self", "stream")))
    return out, lse


@pytest.mark.parametrize("maximum", [pytest.param("exact", marks=pytest.mark.sweep), "lagged"])
def test_crossed_p_has_the_bits_of_p_beside_s(maximum):
    """Three heads, so that a CTA goes on; under a causal mask, where work tiles have from three to five key tiles."""
    qkv = tensors(64, heads=3)
    beside = run("p_beside_s", qkv, causal=True, maximum=maximum)
    for schedule in SCHEDULES:
        crossed = run("p_crossed", qkv, schedule, causal=True, maximum=maximum)
        for a, b in zip(crossed, beside, strict=True):
            assert torch.equal(a, b), schedule


@pytest.mark.parametrize("queries, keys", [(300, 520), (256, 100)])
def test_crossed_p_where_nothing_lies_beside_s(queries, keys):
    """Head dim 128, for which it is made; one key tile: the last P of a work tile waits for no next S."""
    qkv = tensors(128, 2, queries, keys)
    results = [run("p_crossed", qkv, schedule) for schedule in SCHEDULES]
    exact, exact_lse = attention_float64(*qkv)
    allowed = allowed_error(*qkv)
    for out, lse in results:
        assert torch.equal(out, results[0][0]) and torch.equal(lse, results[0][1])
        assert (out.double() - exact).abs().max() <= allowed.out
        assert (lse.double() - exact_lse).abs().max() <= allowed.lse


@pytest.mark.parametrize(
    "maximum, late",
    [
        ("lagged", Schedule("hostile", 1)),
        pytest.param("exact", Schedule("random", 2), marks=pytest.mark.sweep),
        pytest.param("exact", Schedule("hostile", 3), marks=pytest.mark.sweep),
    ],
    ids=str,
)
def test_crossed_p_of_a_pair_has_the_bits_of_ctas_alone(maximum, late):
    """Both CTAs have rows; five key tiles, of which a causal mask leaves none out. As many powers on the FMA units."""
    qkv = tensors(128, heads=1)
    choices = dict(causal=True, maximum=maximum, exp2_emulated=24)
    alone = run("p_crossed", qkv, **choices)
    pair = run("p_crossed", qkv, late, **choices, family="mhapair")
    assert all(map(torch.equal, pair, alone))


def test_crossed_p_is_asked_for_and_has_no_lone_tiles():
    packed = dict(qkv_dtype="bf16", head_dim=128, q_layout="packed", kv_layout="packed")
    assert choose_config(**packed).schedule.order == "p_over_s"
    crossed = choose_config(**packed, order="p_crossed")
    assert crossed.refusals() == [] and not crossed.schedule.lone_tiles
    assert crossed.tmem.p == crossed.tmem.s[::-1]
    refused = choose_config(**packed, order="p_crossed", lone_tiles=True).refusals()
    assert "lone_tiles=True with order='p_crossed'" in refused[0]
