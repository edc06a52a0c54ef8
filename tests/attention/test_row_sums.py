"""Row sums of eight bits that the product with V makes: the law of their error, sinks, rows without keys, who has them.

300 queries are two work tiles, the second with one query tile; 400 keys end in a fourth tile, and O is rescaled.
"""

import inspect
import math

import pytest
import torch

from cute_fa4 import compile_cache, emulator
from cute_fa4.reference import EXP2_RELATIVE_ERROR_OF_FP8, FLOAT32_NOISE
from cute_fa4.sm100.choose_config import choose_config
from cute_fa4.sm100.mha2q import kernel
from cute_fa4.sm100.mha2q.kernel import SM100MHA2Q
from cute_fa4.sm100.mha2q.p_crossed import PCrossedCode
from cute_fa4.sm100.operands.kv_buffer import KVBuffer
from cute_fa4.sm100.roles import correction
from cute_fa4.sm100.steps import store
from tests.emulator.mutations.quick import quick_or_sweep

QUERIES, KEYS = 300, 400
E = (1 + EXP2_RELATIVE_ERROR_OF_FP8) / 16 + EXP2_RELATIVE_ERROR_OF_FP8  # of a weight, relative
LOST = 2.0**-18  # of a weight, of the largest of its row


def tensors(keys=KEYS, spread=1.0, dtype=torch.float8_e4m3fn):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, n, 1, 128, generator=generator) for n in (QUERIES, keys, keys))
    return (q * spread).to(dtype), k.to(dtype), v.to(dtype)


def called(q, k, v, causal=False, learnable_sink=None):
    """The kernel with this order, which nobody gets unasked."""
    config = choose_config(
        qkv_dtype={torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}[q.dtype],
        head_dim=128,
        causal=causal,
        sink=learnable_sink is not None,
        order="p_crossed_summed",
    )
    assert config.refusals() == []
    out = torch.full(q.shape, torch.nan, dtype=torch.bfloat16)
    arguments = dict(mQ=q, mK=k, mV=v, mO=out, max_seqlen_q=q.shape[1], sink=learnable_sink)
    arguments["softmax_scale"] = 128**-0.5
    function = compile_cache.function_for(config, "emulator")
    names = inspect.signature(SM100MHA2Q.__call__).parameters
    with emulator.use(mode="hostile", seed=1, checks=("ptx", "phase_passed_twice")):
        function(*(arguments.get(name) for name in names if name not in ("self", "stream")))
    return out


def beyond(out, q, k, v, causal=False, sink=None) -> int:
    """Values beyond the bound of docs/numerics.md: numerator and sum have the same rounded weights."""
    q, k, v = (x[0, :, 0].double() for x in (q, k, v))
    s = q @ k.T / math.sqrt(128)
    if causal:
        seen = torch.arange(len(k)) <= torch.arange(len(q))[:, None] + len(k) - len(q)
        s = s.masked_fill(~seen, -math.inf)
    columns = s if sink is None else torch.cat([s, sink.double().expand(len(q), 1)], dim=1)
    w = columns.softmax(1)[:, : len(k)].nan_to_num(0.0)
    exact = w @ v
    away = (v - exact[:, None]).abs()
    lost = LOST * w.amax(1, keepdim=True)
    allowed = ((E * w + lost * (w > 0))[:, None] @ away)[:, 0] / (1 - E)
    allowed += 2.0**-9 * exact.abs() + FLOAT32_NOISE
    return int((~((out[0, :, 0].double() - exact).abs() <= allowed)).sum())


@pytest.mark.parametrize(
    "keys, spread, dtype, options",
    [
        pytest.param(*(KEYS, 1.0, torch.float8_e4m3fn, {"causal": True}), marks=pytest.mark.sweep),
        pytest.param(
            *(KEYS, 3.0, torch.float8_e5m2, {"learnable_sink": torch.tensor([2.0])}),
            marks=pytest.mark.sweep,
        ),
        (200, 1.0, torch.float8_e4m3fn, {"causal": True, "learnable_sink": torch.tensor([-1.0])}),
    ],
)
def test_weights_and_their_sum_are_rounded_alike(keys, spread, dtype, options):
    """So an error of a weight counts times how far V's row is from the output, not from 0; without keys it is 0."""
    q, k, v = tensors(keys, spread, dtype)
    out = called(q, k, v, **options)
    assert beyond(out, q, k, v, options.get("causal", False), options.get("learnable_sink")) == 0
    if keys < QUERIES and options.get("causal"):
        assert (out[0, : QUERIES - keys] == 0).all()


def test_equal_values_come_out_as_they_are():
    """With every row of V the same, the output is that row, whatever the weights are rounded to."""
    q, k, v = tensors(spread=3.0)
    v = v[:, :1].expand_as(v).contiguous()
    out = called(q, k, v)
    assert torch.equal(out.float(), v[:, :1].float().expand_as(out))


def test_who_may_have_them():
    """Where V fills a span of shared memory and nobody asks for the sum before rounding."""

    def config(**choices):
        return choose_config(
            **{"qkv_dtype": "e4m3", "head_dim": 128, "order": "p_crossed_summed", **choices}
        )

    asked = config()
    assert asked.refusals() == [] and asked.tmem.used == 512 and asked.smem.ones.nbytes == 4096
    assert config(order=None).tmem.sums == ()
    for other in (dict(write_lse=True), dict(head_dim=64), dict(qkv_dtype="bf16"), dict(bn_cap=64)):
        assert "order='p_crossed_summed' with" in " ".join(config(**other).refusals())


made_rescale, made_tile = store.rescale, KVBuffer.get_mma_tile_before
DEFECTS = {
    "the sum is not rescaled": (
        store,
        "rescale",
        lambda cfg, o, f, _=None: made_rescale(cfg, o, f),
    ),
    "some ones are twos": (kernel, "ONES", {"e4m3": 0x38383840}),
    "the ones are a slot further": (
        KVBuffer,
        "get_mma_tile_before",
        lambda self, slot, at: made_tile(self, slot, at + 16384),
    ),
    "the steps of V keep their distance of spans": (
        KVBuffer,
        "get_mma_tile_before",
        lambda self, slot, at: (*made_tile(self, slot, at)[:2], self.get_mma_tile(slot)[2]),
    ),
    "s_apart is raised before the columns are read": (
        PCrossedCode,
        "read_first",
        lambda self, cfg: (32, 64) if cfg.tmem.sums else (),
    ),
    "the sum is read one column before": (
        correction.store,
        "row_sum",
        lambda address, made=store.row_sum: made(address - 1),
    ),
}


def is_right() -> bool:
    q, k, v = tensors(spread=2.0)
    try:
        return beyond(called(q, k, v, causal=True), q, k, v, causal=True) == 0
    except emulator.EmulatorError:
        return False


QUICK = ("s_apart is raised before the columns are read",)


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS, QUICK))
def test_a_mistake_is_noticed(own_kernels, monkeypatch, name):
    monkeypatch.setattr(*DEFECTS[name])
    assert not is_right(), "nothing noticed"
