"""Row sums of 16 bits that the product with V makes, at head dim 64: their law, references that follow them, mistakes.

256 queries are a work tile, 300 two, the second with one query tile; 520 keys end in a fifth, masked key tile, 640
fill it.
"""

import inspect

import pytest
import torch

from cute_fa4 import compile_cache, emulator
from cute_fa4.sm100.choose_config import choose_config
from cute_fa4.sm100.mha2q.kernel import SM100MHA2Q
from cute_fa4.sm100.mha2q.p_beside_s import PBesideSCode
from cute_fa4.sm100.mha2q.p_beside_s_summed import PBesideSSummedCode, load_sum
from cute_fa4.sm100.steps import store
from tests.attention.agreement import ROUNDOFF, Schedule
from tests.attention.test_lagged import expected, tensors
from tests.emulator.mutations.quick import quick_or_sweep

SCHEDULES = [Schedule(), Schedule("hostile", 1), Schedule("random", 2)]
WHOLE_KEYS = 640
IN_THE_LAST_TILE = 600


def called(q, k, v, schedule=SCHEDULES[0], order="p_beside_s_summed", **choices):
    """The kernel with this order, which nobody gets unasked."""
    dtype = {torch.bfloat16: "bf16", torch.float16: "fp16"}[q.dtype]
    config = choose_config(qkv_dtype=dtype, head_dim=64, order=order, **choices)
    assert config.refusals() == []
    out = torch.full_like(q, torch.nan)
    arguments = dict(mQ=q, mK=k, mV=v, mO=out, max_seqlen_q=q.shape[1], softmax_scale=64**-0.5)
    function = compile_cache.function_for(config, "emulator")
    names = inspect.signature(SM100MHA2Q.__call__).parameters
    checks = ("ptx", "phase_passed_twice")
    with emulator.use(mode=schedule.mode, seed=schedule.seed, checks=checks):
        function(*(arguments.get(name) for name in names if name not in ("self", "stream")))
    return out


def is_close(out, q, k, v, causal=False) -> bool:
    """P and out are each rounded once, as test_lagged.py says."""
    visible = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool)
    if causal:
        visible = visible.tril(k.shape[1] - q.shape[1])
    exact, _ = expected(q, k, v, visible)
    noise = ROUNDOFF["bf16" if q.dtype == torch.bfloat16 else "fp16"]
    return bool((out.double() - exact).abs().max() <= 2 * noise * v.double().abs().max())


@pytest.mark.parametrize(
    "queries, keys, causal",
    [(256, WHOLE_KEYS, False), pytest.param(300, 520, True, marks=pytest.mark.sweep)],
)
def test_references_follow_sums_in_tensor_memory(queries, keys, causal):
    """Heads whose scores do not jump, jump by less than 2^64, by more: renewed, run again. In the fifth key tile."""
    qkv = tensors((None, 40, 70), queries=queries, keys=keys, at=512)
    results = [called(*qkv, schedule, causal=causal) for schedule in SCHEDULES]
    assert is_close(results[0], *qkv, causal=causal)
    for out in results:
        assert torch.equal(out, results[0])


@pytest.mark.sweep
@pytest.mark.parametrize("maximum", ["lagged", "exact"])
def test_equal_values_come_out_as_they_are(maximum):
    """Numerator and sum have the same rounded weights: with every row of V the same, the output is that row."""
    q, k, v = tensors((None,), queries=128, keys=320)
    v = v[:, :1].expand_as(v).contiguous()
    out = called(4 * q, k, v, maximum=maximum)
    assert torch.equal(out, v[:, :1].expand_as(out))


@pytest.mark.sweep
@pytest.mark.parametrize("spread", [1, 2, 6])
def test_no_spread_of_scores_is_further_off_than_by_default(spread):
    q, k, v = tensors((None,), keys=WHOLE_KEYS)
    q = spread * q
    exact, _ = expected(q, k, v)
    summed, default = (
        (called(q, k, v, order=order).double() - exact).norm()
        for order in ("p_beside_s_summed", None)
    )
    assert summed <= default


@pytest.mark.sweep
def test_fp16_has_exact_maxima():
    q, k, v = (x.half() for x in tensors((None,)))
    assert is_close(called(q, k, v), q, k, v)


def test_infinite_scores_end_as_nan():
    """A row with an infinite score has no weights, in whichever way its powers are computed."""
    q, k, v = tensors((None,), queries=128, keys=384)
    k[0, 300, 0, 0] = torch.inf
    out = called(q, k, v)
    assert out.isnan().all()


def test_who_may_have_them():
    """Where V fills a span of shared memory and nobody asks for the sum before rounding."""

    def config(**choices):
        return choose_config(
            **{"qkv_dtype": "bf16", "head_dim": 64, "order": "p_beside_s_summed", **choices}
        )

    asked = config()
    assert asked.refusals() == [] and asked.tmem.used == 512
    assert asked.schedule.exp2_emulated == 28 and not asked.schedule.lone_tiles
    assert config(order=None).tmem.sums == ()
    for other in (dict(write_lse=True), dict(head_dim=128), dict(sink=True), dict(bn_cap=64)):
        assert "order='p_beside_s_summed' with" in " ".join(config(**other).refusals())
    assert config(lone_tiles=True).refusals()


made_rescale = store.rescale
DEFECTS = {
    "the sum is not rescaled": (
        store,
        "rescale",
        lambda cfg, o, f, _=None: made_rescale(cfg, o, f),
    ),
    "s_apart is raised before the columns are read": (
        PBesideSSummedCode,
        "read_first",
        lambda self, cfg: (32, 64),
    ),
    "the sum is read while P V adds to it": (
        PBesideSSummedCode,
        "sum_so_far",
        lambda self, cfg, at, events, i, phase: load_sum(cfg, at, i),
    ),
    "P is stored over one that P V reads": (
        PBesideSSummedCode,
        "may_write_p",
        lambda self, events, i, phase: None,
    ),
    "the sum of the last tile is not looked at": (
        PBesideSSummedCode,
        "last_sum",
        lambda self, cfg, at, events, i, turns, tiles, state: state,
    ),
    "what softmax knows of the sum is added to it": (
        PBesideSSummedCode,
        "hand_over",
        PBesideSCode.hand_over,
    ),
    "the sum is that of the other query tile": (
        PBesideSSummedCode,
        "sum_at",
        lambda self, cfg, tmem, i: tmem + cfg.tmem.sums[1 - i],
    ),
}
QUICK = ()  # the whole family takes a compile each


def is_right() -> bool:
    """In the last key tile a score jumps by more than float32 takes, or a little; before it another by less."""
    q, k, v = tensors((150, 30), queries=256, keys=WHOLE_KEYS, at=IN_THE_LAST_TILE)
    k[0, 200, :, 0] = 30 * 8 / 4.0
    try:
        return is_close(called(q, k, v, Schedule("hostile", 1)), q, k, v)
    except emulator.EmulatorError:
        return False


@pytest.mark.sweep
def test_without_a_mistake_it_is_right():
    assert is_right()


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS, QUICK))
def test_a_mistake_is_noticed(own_kernels, monkeypatch, name):
    monkeypatch.setattr(*DEFECTS[name])
    assert not is_right(), "nothing noticed"
