"""Orders of the products: the same products and sums, so the same bits, whichever is asked for."""

import inspect

import pytest
import torch

from cute_fa4 import compile_cache, emulator
from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.sm100.two_tiles.kernel import SM100MHA2Q
from tests.attention.agreement import Schedule

SCHEDULES = [Schedule(), Schedule("hostile", 1), Schedule("random", 2)]
# Orders emulate other pairs of exponentials on the FMA units: with none they compute the same.
SAME = dict(exponential="exact", exp2_emulated=0)


def tensors(head_dim, heads, queries=300, keys=520):
    """Tensors of 8 bits: five key tiles, the last one cut; two blocks a head; scores wide enough that O is rescaled."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, n, heads, head_dim, generator=generator) for n in (queries, keys, keys)
    )
    return [x.to(torch.float8_e4m3fn) for x in (4 * q, k, v)]


def run(order, qkv, schedule=SCHEDULES[0], **choices):
    """(out, lse) of the kernel of two query tiles with this order."""
    q, k, v = qkv
    config = choose_config(
        qkv_dtype="e4m3", head_dim=q.shape[-1], write_lse=True, order=order, **choices
    )
    assert config.refusals() == []
    out = torch.full(q.shape, torch.nan, dtype=torch.bfloat16)
    lse = torch.empty(1, q.shape[2], q.shape[1])
    arguments = dict(mQ=q, mK=k, mV=v, mO=out, mLSE=lse, max_seqlen_q=q.shape[1])
    arguments["softmax_scale"] = q.shape[-1] ** -0.5
    function = compile_cache.function_for(config, "emulator")
    names = inspect.signature(SM100MHA2Q.__call__).parameters
    checks = ("ptx", "phase_passed_twice")
    with emulator.use(mode=schedule.mode, seed=schedule.seed, checks=checks):
        function(*(arguments.get(name) for name in names if name not in ("self", "stream")))
    return out, lse


@pytest.mark.parametrize(
    "head_dim, causal, queries, keys",
    [
        (128, True, 300, 520),
        pytest.param(64, True, 300, 520, marks=pytest.mark.sweep),
        (128, False, 256, 100),
    ],
)
def test_crossed_p_has_the_bits_of_p_over_s(head_dim, causal, queries, keys):
    """Three heads, so that a CTA goes on; work tiles of three to five key tiles, or of one, whose P waits for no S."""
    qkv = tensors(head_dim, 3, queries, keys)
    over = run("p_over_s", qkv, causal=causal, **SAME)
    for schedule in SCHEDULES:
        crossed = run("p_crossed", qkv, schedule, causal=causal, **SAME)
        for a, b in zip(crossed, over, strict=True):
            assert torch.equal(a, b), schedule


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_crossed_p_is_of_8_bits_and_has_no_lone_tiles(dtype):
    packed = dict(head_dim=128, q_layout="packed", kv_layout="packed")
    assert choose_config(qkv_dtype="e4m3", **packed).schedule.order == "p_over_s"
    crossed = choose_config(qkv_dtype="e4m3", order="p_crossed", **packed)
    assert crossed.refusals() == [] and not crossed.schedule.lone_tiles
    assert crossed.tmem.p == crossed.tmem.s[::-1]
    refused = choose_config(qkv_dtype="e4m3", order="p_crossed", lone_tiles=True, **packed)
    assert "lone_tiles=True with order='p_crossed'" in refused.refusals()[0]
    for order in ("p_crossed", "p_crossed_summed"):
        [why] = choose_config(qkv_dtype=dtype, order=order, **packed).refusals()
        assert why.startswith(f"order={order!r} with qkv_dtype={dtype!r}")
