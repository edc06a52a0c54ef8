"""Row sums of 16 bits that the product with V makes, at head dim 64: their law, references that follow them, mistakes.

256 queries are a work tile, 300 two, the second with one query tile; 520 keys end in a fifth, masked key tile, 640
fill it.
"""

import inspect
import warnings

import cutlass
import pytest
import torch

from cute_fa4 import compile_cache, emulator, flash_attn_func
from cute_fa4.interface import EmulatorWarning
from cute_fa4.layouts.scalars import choose
from cute_fa4.score_mods import soft_cap
from cute_fa4.sm100.blueprint.entries import VERDICT_WORDS
from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.sm100.roles.order import Order
from cute_fa4.sm100.steps import lagged, store
from cute_fa4.sm100.sync.pipelines import Slot
from cute_fa4.sm100.two_tiles import p_beside_s_summed, summed_products
from cute_fa4.sm100.two_tiles.kernel import SM100MHA2Q
from cute_fa4.sm100.two_tiles.p_beside_s import PBesideSCode
from cute_fa4.sm100.two_tiles.p_beside_s_summed import PBesideSSummedCode, load_sum
from tests.attention.agreement import ROUNDOFF, Schedule
from tests.attention.test_lagged import expected, tensors
from tests.emulator.mutations.quick import OF_SOURCES, quick_or_sweep

SCHEDULES = [Schedule(), Schedule("hostile", 1), Schedule("random", 2)]
WHOLE_KEYS = 640
IN_THE_LAST_TILE = 600


def called(q, k, v, schedule=SCHEDULES[0], order="p_beside_s_summed", **choices):
    """The kernel with this order."""
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
def test_no_spread_of_scores_is_further_off_than_where_softmax_adds_up(spread):
    q, k, v = tensors((None,), keys=WHOLE_KEYS)
    q = spread * q
    exact, _ = expected(q, k, v)
    summed, added = (
        (called(q, k, v, order=order).double() - exact).norm()
        for order in ("p_beside_s_summed", "p_beside_s")
    )
    assert summed <= added


@pytest.mark.sweep
def test_fp16_has_exact_maxima():
    q, k, v = (x.half() for x in tensors((None,)))
    assert is_close(called(q, k, v), q, k, v)


def test_calls_that_see_all_keys_get_them():
    """Bit for bit what this order says, whose rounding is not that of the other one; not with an LSE."""
    qkv = tensors((None, 30), queries=256, keys=WHOLE_KEYS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmulatorWarning)
        out, (with_lse, _) = flash_attn_func(*qkv), flash_attn_func(*qkv, return_lse=True)
    assert torch.equal(out, called(*qkv)) and not torch.equal(out, with_lse)
    assert torch.equal(with_lse, called(*qkv, order="p_beside_s"))


@pytest.mark.parametrize(
    "order_of_events", [SCHEDULES[1], pytest.param(SCHEDULES[0], marks=pytest.mark.sweep)]
)
def test_rows_made_to_break_the_reference(order_of_events):
    """Heads that jump in the third key tile by what is held, renewed, run again, beside one that does not.

    One jumps twice, by 40 nats in tiles that follow each other: the reference comes a key tile late, so P passes 2^64.
    300 keys of one are invisible by a score of -inf, a whole key tile of them.
    """
    jumps = (None, 20, 40, 60, 70, 1000, 40, None)
    q, k, v = tensors(jumps, queries=256, keys=WHOLE_KEYS, at=300)
    k[0, 400, 6, 0] = 2 * k[0, 300, 6, 0]
    k[0, 200:500, 7, 0] = -torch.inf
    out = called(q, k, v, order_of_events)
    assert is_close(out, q, k, v)


def is_right_where_a_sum_would_come_down() -> bool:
    """Values of 2^20, so that O is infinite where the sum is 2^120.

    One head passes 2^64 in the key tile behind one that reached 2^60, whose factor comes then; one in its last whole
    key tile, before a masked one with a score 160 nats above all.
    """
    q, k, v = tensors((83.2, None), queries=256, keys=600, at=300)
    k[0, 200, 0, 0] = k[0, 300, 0, 0] / 2
    k[0, 500, 1, 0], k[0, 590, 1, 0] = 87 * 8 / 4.0, 160 * 8 / 4.0
    v = v * 2.0**20
    return is_close(called(q, k, v), q, k, v)


def test_a_sum_that_failed_does_not_come_down_again():
    assert is_right_where_a_sum_would_come_down()


@pytest.mark.sweep
def test_one_that_does_is_noticed(own_kernels, monkeypatch):
    monkeypatch.setattr(lagged, "kept", lambda cfg, row_sum: row_sum)
    assert not is_right_where_a_sum_would_come_down()


def test_nan_stays_in_its_row_and_head():
    q, k, v = tensors((None, None), queries=256, keys=384)
    clean = called(q, k, v)
    q[0, 7, 0, 3] = torch.nan
    out = called(q, k, v)
    assert out[0, 7, 0].isnan().all() and out.isnan().sum() == out.shape[-1]
    assert torch.equal(out[:, :, 1], clean[:, :, 1])


def test_infinite_scores_end_as_nan():
    """A row with an infinite score has no weights, in whichever way its powers are computed."""
    q, k, v = tensors((None,), queries=128, keys=384)
    k[0, 300, 0, 0] = torch.inf
    out = called(q, k, v)
    assert out.isnan().all()


def test_who_may_have_them():
    """Where V fills a span of shared memory and nobody asks for the sum before rounding; unasked, where it pays."""

    def config(**choices):
        return choose_config(
            **{"qkv_dtype": "bf16", "head_dim": 64, "order": "p_beside_s_summed", **choices}
        )

    asked = config()
    assert asked.refusals() == [] and asked.tmem.used == 512
    assert asked.schedule.exp2_emulated == 30 and not asked.schedule.lone_tiles
    assert config(order=None) == asked
    packed = dict(q_layout="packed", kv_layout="packed")
    for other in (
        *(dict(causal=True), dict(write_lse=True), dict(sink=True), packed, dict(seqused_k=True)),
        *(
            dict(qkv_dtype="fp16"),
            dict(maximum="exact"),
            dict(arch="sm_103a", maximum="lagged"),
            dict(head_dim=56),
        ),
        *(dict(head_dim=48, head_dim_v=64), dict(lone_tiles=True), dict(bn_cap=64)),
        dict(score_mod=soft_cap(30.0)),
    ):
        assert config(order=None, **other).tmem.sums == (), other
    for other in (dict(write_lse=True), dict(head_dim=128), dict(sink=True), dict(bn_cap=64)):
        assert "order='p_beside_s_summed' with" in " ".join(config(**other).refusals())
    assert config(lone_tiles=True).refusals()


made_rescale, made_two_further = store.rescale, summed_products.two_further
finish_tile = p_beside_s_summed.finish_tile


def judging_one(q_tile):
    """finish_tile, whose verdict counts for one query tile."""

    def finish(cfg, order, args, smem, tmem, events, work, i, of, *place):
        failed = finish_tile(cfg, order, args, smem, tmem, events, work, i, of, *place)
        return failed if of == q_tile else cutlass.Boolean(False)

    return finish


DEFECTS = {
    "the sum is not rescaled": (
        store,
        "rescale",
        lambda cfg, o, f, _=None: made_rescale(cfg, o, f),
    ),
    "S is given back before the columns that both have are read": (
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
    "correction does not look at the sums": (
        PBesideSSummedCode,
        "sum_complete",
        lambda self, cfg, args, work, q_tile, row_sum: cutlass.Boolean(False),
    ),
    "query tile 0 is not judged": (p_beside_s_summed, "finish_tile", judging_one(1)),
    "query tile 1 is not judged": (p_beside_s_summed, "finish_tile", judging_one(0)),
    "softmax judges, too": (PBesideSSummedCode, "judge", Order.judge),
    "nobody judges": (
        PBesideSSummedCode,
        "judge_corrected",
        lambda self, cfg, queue, work, number, now: None,
    ),
    "the verdict is that of the next work tile": (
        PBesideSSummedCode,
        "judge_corrected",
        lambda self, cfg, queue, work, number, now: queue.judge(
            number + 1, now.failed, words=p_beside_s_summed.rows_of_both
        ),
    ),
    "verdicts are written behind their entry": (
        p_beside_s_summed,
        "rows_of_both",
        lambda warp: (warp % 4 + VERDICT_WORDS, warp % 4 + VERDICT_WORDS + 4),
    ),
    "a slot is free when query tile 0 has been multiplied": (
        summed_products,
        "frees_slot",
        lambda cfg, i: i == 0,
    ),
    "a slot is free twice": (summed_products, "frees_slot", lambda cfg, i: True),
    "S1 does not wait for S0 of the same key tile": (
        summed_products,
        "read_parity",
        lambda phase, i: phase,
    ),
    "softmax 1 does not say that there is no S1 before the first": (
        PBesideSSummedCode,
        "begin",
        lambda self, events, i: None,
    ),
    "a warpgroup says of its own S twice that it is read": (
        PBesideSSummedCode,
        "first_read",
        lambda self, events, i: events.s_free.arrive(i),
    ),
    "V is taken from the slot of K": (summed_products, "one_before", lambda slot, slots: slot),
    "V before slot 0 has the parity of the K there": (
        summed_products,
        "one_before",
        lambda slot, slots: Slot(choose(slot.index == 0, slots - 1, slot.index - 1), slot.phase),
    ),
    "the ring has one slot more than there are": (
        summed_products,
        "two_further",
        lambda slot, slots: made_two_further(slot, slots + 1),
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


def is_right() -> bool:
    """In the last key tile a score jumps by more than float32 takes, or a little; before it another by less.

    The large jump is seen by query tile 0 of one head and by query tile 1 of another; a head that is run again follows
    one that is not.
    """
    q, k, v = tensors((150, 30, 150), queries=256, keys=WHOLE_KEYS, at=IN_THE_LAST_TILE)
    k[0, 200, :, 0] = 30 * 8 / 4.0
    q[0, 128:, 0, 0], q[0, :128, 2, 0] = 0.0, 0.0
    try:
        return is_close(called(q, k, v, Schedule("hostile", 1)), q, k, v)
    except emulator.EmulatorError:
        return False


@pytest.mark.sweep
def test_without_a_mistake_it_is_right():
    assert is_right()


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS, OF_SOURCES))
def test_a_mistake_is_noticed(own_kernels, monkeypatch, name):
    monkeypatch.setattr(*DEFECTS[name])
    assert not is_right(), "nothing noticed"
