"""Row sums of eight bits that the product with V makes: the law of their error, what codes lost, sinks, who has them.

300 queries are two work tiles, the second with one query tile; 400 keys end in a fourth tile, and O is rescaled.
"""

import inspect
import math
from dataclasses import replace

import pytest
import torch
from cutlass import Int32

from cute_fa4 import compile_cache, emulator
from cute_fa4.reference import EXP2_RELATIVE_ERROR_OF_FP8, FLOAT32_NOISE
from cute_fa4.sm100.choose.choose_config import choose_config, split_configs
from cute_fa4.sm100.operands.kv_buffer import KVBuffer
from cute_fa4.sm100.roles import correction
from cute_fa4.sm100.steps import lost_weights, store
from cute_fa4.sm100.two_tiles import kernel
from cute_fa4.sm100.two_tiles.kernel import SM100MHA2Q
from cute_fa4.sm100.two_tiles.p_crossed import PCrossedCode
from tests.emulator.mutations.quick import OF_SOURCES, quick_or_sweep

QUERIES, KEYS = 300, 400
E = (1 + EXP2_RELATIVE_ERROR_OF_FP8) / 16 + EXP2_RELATIVE_ERROR_OF_FP8  # of a weight, relative
LOST = 2.0**-18  # of a weight, of the largest of its row


def tensors(keys=KEYS, spread=1.0, dtype=torch.float8_e4m3fn):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, n, 1, 128, generator=generator) for n in (QUERIES, keys, keys))
    return (q * spread).to(dtype), k.to(dtype), v.to(dtype)


def called(q, k, v, causal=False, learnable_sink=None, softmax_scale=128**-0.5, o_dtype="bf16"):
    """The kernel with this order."""
    config = choose_config(
        qkv_dtype={torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}[q.dtype],
        head_dim=128,
        causal=causal,
        sink=learnable_sink is not None,
        o_dtype=o_dtype,
        order="p_crossed_summed",
    )
    assert config.refusals() == []
    of_out = {"bf16": torch.bfloat16, "fp16": torch.float16}[o_dtype]
    out = torch.full(q.shape, torch.nan, dtype=of_out)
    arguments = dict(mQ=q, mK=k, mV=v, mO=out, max_seqlen_q=q.shape[1], sink=learnable_sink)
    arguments["softmax_scale"] = softmax_scale
    function = compile_cache.function_for(config, "emulator")
    names = inspect.signature(SM100MHA2Q.__call__).parameters
    with emulator.use(mode="hostile", seed=1, checks=("ptx", "phase_passed_twice")):
        function(*(arguments.get(name) for name in names if name not in ("self", "stream")))
    return out


def beyond(out, q, k, v, causal=False, sink=None) -> int:
    """Values beyond the bound of docs/numerics.md: numerator and sum have the same rounded weights, and what these lost
    is in the sum to MOST a key."""
    q, k, v = (x[0, :, 0].double() for x in (q, k, v))
    s = q @ k.T / math.sqrt(128)
    if causal:
        seen = torch.arange(len(k)) <= torch.arange(len(q))[:, None] + len(k) - len(q)
        s = s.masked_fill(~seen, -math.inf)
    columns = s if sink is None else torch.cat([s, sink.double().expand(len(q), 1)], dim=1)
    of_all = columns.softmax(1).nan_to_num(0.0)
    w, largest = of_all[:, : len(k)], of_all.amax(1, keepdim=True)
    exact = w @ v
    away = (v - exact[:, None]).abs()
    lost = LOST * largest
    estimate = lost_weights.MOST / 2.0**8 * largest * (w > 0).sum(1, keepdim=True)
    allowed = ((E * w + lost * (w > 0))[:, None] @ away)[:, 0] / (1 - E)
    allowed += estimate * exact.abs() / (1 - E)
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


@pytest.mark.sweep  # test_what_codes_lose_is_in_the_sum has some
def test_equal_values_come_out_as_they_are():
    """With every row of V the same, the output is that row, whatever the weights are rounded to."""
    q, k, v = tensors(spread=3.0)
    v = v[:, :1].expand_as(v).contiguous()
    out = called(q, k, v)
    assert torch.equal(out.float(), v[:, :1].float().expand_as(out))


HIDDEN, SINK, EARLIER = (
    1152,
    600,
    5,
)  # keys of nine tiles; the key that takes most, and one before its tile
# log2 of weights relative to the sink: of the earlier key; of the others, whose P is 2^-11
NEAR, FAR = -4.0, -19.0


def hidden_weights() -> tuple:
    """q, k, v = 1 and what each row's codes lose: log2 of a row's weights are sums of two numbers of e4m3.

    Rows of query tile 0 see a sink in the first tile, or one after a smaller one, whose tiles lose less in the end;
    rows of query tile 1 see equal weights, and lose nothing.
    """
    log2 = torch.full((2, HIDDEN), FAR)
    log2[0, 0] = log2[1, SINK] = 0.0
    log2[1, :512] += NEAR
    log2[1, EARLIER] = NEAR
    q, k = torch.zeros(1, 256, 1, 128), torch.zeros(1, HIDDEN, 1, 128)
    for kind, rows in ((0, slice(0, 128, 2)), (1, slice(1, 128, 2))):
        q[0, rows, 0, 2 * kind : 2 * kind + 2] = 1.0
        k[0, :, 0, 2 * kind] = log2[kind].clamp(min=-16.0)
        k[0, :, 0, 2 * kind + 1] = log2[kind] - log2[kind].clamp(min=-16.0)
    small = torch.where(log2 < NEAR, log2.double().exp2(), 0.0).sum(1)
    lost = torch.zeros(256, dtype=torch.float64)
    lost[:128] = small.repeat(64)
    e4m3 = torch.float8_e4m3fn
    return q.to(e4m3), k.to(e4m3), torch.ones(1, HIDDEN, 1, 128).to(e4m3), lost


def finds_what_is_lost() -> bool:
    """With all values 1 the output is 1 less what is lost, to f16 and to the estimate's tenth."""
    q, k, v, lost = hidden_weights()
    try:
        out = called(q, k, v, softmax_scale=math.log(2), o_dtype="fp16")
    except emulator.EmulatorError:
        return False
    off = (out[0, :, 0].double() - (1 - lost)[:, None]).abs()
    return bool((off <= 2.0**-12 + 0.1 * lost[:, None]).all())


def test_what_codes_lose_is_in_the_sum():
    """1 in 500 to 1 in 1000 of the weights, all of them codes of 0."""
    assert finds_what_is_lost()


def test_who_gets_them():
    """If V fills a span of shared memory, no LSE is requested, and exponentials are in f16."""

    def config(**choices):
        return choose_config(**{"qkv_dtype": "e4m3", "head_dim": 128, **choices})

    chosen = config()
    assert (chosen.schedule.order, chosen.schedule.exp2_emulated) == ("p_crossed_summed", 40)
    assert chosen.refusals() == [] and chosen.tmem.used == 512 and chosen.smem.ones.nbytes == 4096
    for unfit in (dict(write_lse=True), dict(head_dim=64), dict(qkv_dtype="bf16")):
        assert config(**unfit).refusals() == [] and config(**unfit).tmem.sums == ()
        refused = config(order="p_crossed_summed", **unfit).refusals()
        assert "order='p_crossed_summed' with" in " ".join(refused)
    for other in (dict(exponential="exact"), dict(arch="sm_103a")):
        assert config(**other).schedule.order == "p_crossed"
    partial, _ = split_configs(chosen, write_lse=False)  # merged by LSE
    assert (partial.schedule.order, partial.schedule.exp2_emulated) == ("p_crossed", 32)
    assert partial.refusals() == []


made_rescale, made_tile = store.rescale, KVBuffer.get_mma_tile_before
made_store_piece = kernel.store_piece
DEFECTS = {
    "the sum is not rescaled": (
        store,
        "rescale",
        lambda cfg, o, f, _=None: made_rescale(cfg, o, f),
    ),
    "some ones are twos": (
        kernel,
        "store_piece",  # one byte of four is 2.0 in e4m3
        lambda at, words: made_store_piece(at, [Int32(0x38383840)] * len(words)),
    ),
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
        "first_columns",
        lambda self, cfg: (32, 64) if cfg.tmem.sums else (),
    ),
    "the sum is read one column before": (
        correction.store,
        "row_sum",
        lambda address, made=store.row_sum: made(address - 1),
    ),
}


made_ended, made_hand_over = lost_weights.ended, PCrossedCode.hand_over
DEFECTS_OF_THE_ESTIMATE = {
    "it has half the scale": (lost_weights, "RATIO", lost_weights.RATIO / 2),
    "it is not rescaled": (lost_weights, "before", lambda state, factor: state.lost),
    "it begins anew in each tile": (lost_weights, "before", lambda state, factor: Int32(0)),
    "it is added twice": (
        lost_weights,
        "ended",
        lambda cfg, state: made_ended(cfg, replace(state, row_sum=made_ended(cfg, state).row_sum)),
    ),
    "it is that of the other query tile": (
        PCrossedCode,
        "hand_over",
        lambda self, cfg, smem, work, row, state: made_hand_over(
            self, cfg, smem, work, row ^ 128, state
        ),
    ),
    "it counts what is not lost": (
        lost_weights,
        "ADD_LOST",
        lost_weights.ADD_LOST.replace("fma.rn.sat.f16x2 s, i, down, from;", "mov.b32 s, from;"),
    ),
}


def is_right() -> bool:
    q, k, v = tensors(spread=2.0)
    try:
        return beyond(called(q, k, v, causal=True), q, k, v, causal=True) == 0
    except emulator.EmulatorError:
        return False


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS, OF_SOURCES))
def test_a_mistake_is_noticed(own_kernels, monkeypatch, name):
    monkeypatch.setattr(*DEFECTS[name])
    assert not is_right(), "nothing noticed"


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS_OF_THE_ESTIMATE, OF_SOURCES))
def test_a_mistake_of_the_estimate_is_noticed(own_kernels, monkeypatch, name):
    monkeypatch.setattr(*DEFECTS_OF_THE_ESTIMATE[name])
    assert not finds_what_is_lost(), "nothing noticed"
