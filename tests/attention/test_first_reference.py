"""first_reference="quarter": the first maximum of a row whose first key tile is whole is that of its first 32 scores.

    key tile 0      columns 0 to 31      the reference
                    columns 32 to 127    up to ln 2^64 = 44.36 nats above it: as precise. Beyond: once more

Scores of `flat` are what a test says, to 0.1 nats, the same for all rows of a head: so it is known which work tiles run
again, and the number of executed instructions tells. Two heads of one block each: one that runs again adds a half.
"""

import math
from functools import cache

import pytest
import torch

from cute_fa4 import flash_attn_func, flash_attn_varlen_func, masks
from cute_fa4.calls import repeat
from cute_fa4.compiler import policy
from cute_fa4.sm100.blueprint import tuning
from cute_fa4.sm100.choose.choose_config import choose_config
from tests.attention.test_lagged import (
    FAILS_FROM,
    assert_close,
    causal,
    expected,
    minus_infinity_first,
    run,
)

QUERIES, KEYS = 130, 270  # two query tiles; two whole key tiles and a masked one
QUARTER = 32
ASKED = tuning.shipped().changed(first_reference="quarter")


@pytest.fixture(autouse=True)
def asked():
    """No default refers to a quarter: here all kernels that can do."""
    with tuning.using(ASKED), repeat.apart(repeat.Plans()):
        yield


def flat(jumps, head_dim=64, queries=QUERIES, keys=KEYS):
    """q, k, v of one sequence. jumps: of each head, nats of a key or of a range of keys; the others have none."""
    heads, generator = len(jumps), torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, n, heads, head_dim, generator=generator) for n in (queries, keys, keys)
    )
    q, k = q / 8, k / 8
    q[..., 0], k[..., 0] = 4.0, 0.0
    for head, nats_of in enumerate(jumps):
        for at, nats in nats_of.items():
            k[0, list(at) if isinstance(at, range) else at, head, 0] = nats * head_dim**0.5 / 4.0
    return q.bfloat16(), k.bfloat16(), v.bfloat16()


@cache
def instructions_of(head_dim, heads=2, **call) -> int:
    """Executed where no key jumps."""
    qkv = flat([{}] * heads, head_dim)
    return run(lambda: flash_attn_func(*qkv, return_lse=True, **call))[1]


def work_tiles_again(instructions, usual, of=2) -> int:
    """The number of work tiles that were rerun. Work that a rerun shares with the launch is less than a fifth of it."""
    return math.ceil((instructions / usual - 1) * of - 0.25)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(
    "at, nats, again",
    [
        pytest.param(60, 43, False, marks=pytest.mark.sweep),
        (32, 44, False),  # below ln 2^64, in the first column that is not asked
        (32, 45, True),  # above
        (31, 45, False),  # in the last one that is
        pytest.param(0, 1000, False, marks=pytest.mark.sweep),
        pytest.param(60, 60, True, marks=pytest.mark.sweep),
        pytest.param(95, 70, True, marks=pytest.mark.sweep),
        (127, 1000, True),  # in the last of the tile: infinite powers
    ],
)
def test_a_jump_in_the_first_key_tile(at, nats, again, head_dim):
    """One of two heads. The reference is there to 0.1 nats, so 44 and 45 lie on either side of 44.36."""
    assert again == (at >= QUARTER and nats > FAILS_FROM)
    qkv = flat([{}, {at: nats}], head_dim)
    got, instructions = run(lambda: flash_attn_func(*qkv, return_lse=True))
    assert_close(got, expected(*qkv), qkv[2])
    assert work_tiles_again(instructions, instructions_of(head_dim)) == again


@pytest.mark.parametrize("nats, again", [(44, False), (70, True)])
def test_one_key_tile_alone(nats, again):
    """128 keys: no later tile updates the running maximum, so the verdict depends on the first one."""
    quiet, jumping = (flat([{}, at], keys=128) for at in ({}, {100: nats}))
    _, usual = run(lambda: flash_attn_func(*quiet, return_lse=True))
    got, instructions = run(lambda: flash_attn_func(*jumping, return_lse=True))
    assert_close(got, expected(*jumping), jumping[2])
    assert work_tiles_again(instructions, usual) == again


@pytest.mark.parametrize("head_dim, is_causal", [(64, True), (128, False)])
def test_rows_whose_quarters_lie_anywhere(head_dim, is_causal):
    """Each row has its own nats for each quarter of the first key tile and for the second one: -90 to 90.

    So some rows of a work tile fail and others do not, references lie far below and far above what follows, and a row
    sum is between 1 and beyond float32. Channel c is 1 for the keys of place c.
    """
    q, k, v = flat([{}, {}], head_dim, queries=300, keys=300)
    generator = torch.Generator().manual_seed(1)
    q[..., 0] = 0
    for place in range(5):
        q[..., 1 + place] = torch.randint(-90, 91, q.shape[:3], generator=generator).bfloat16()
        k[..., 1 + place] = 0
        keys = slice(QUARTER * place, QUARTER * (place + 1)) if place < 4 else slice(128, 256)
        k[:, keys, :, 1 + place] = head_dim**0.5
    q[:, ::3] /= 4  # these stay within 2^64
    got, _ = run(lambda: flash_attn_func(q, k, v, causal=is_causal, return_lse=True))
    assert_close(got, expected(q, k, v, causal(300, 300) if is_causal else None), v, 1e-2)


@pytest.mark.parametrize("mode, seed", [("hostile", 1), ("random", 2)])
@pytest.mark.parametrize("head_dim", [64, pytest.param(128, marks=pytest.mark.sweep)])
def test_all_run_again_under_every_schedule(head_dim, mode, seed):
    """Three heads of which each fails, with jumps in columns of three quarters."""
    qkv = flat([{40: 70}, {70: 70}, {127: 70}], head_dim)
    got, _ = run(lambda: flash_attn_func(*qkv, return_lse=True), mode, seed)
    assert_close(got, expected(*qkv), qkv[2])


@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_sink_is_a_score_of_the_first_reference(head_dim):
    """First 32 scores 200 nats below the others: alone they are no reference for these.

    A sink of the others' height is; one of 1000 nats below is not, nor one of -inf. Of 100 nats above it takes the row.
    """
    below = {range(QUARTER): -200.0}
    quiet = instructions_of(head_dim)
    for sinks, again in (([0.0, 100.0], 0), ([-1000.0, 0.0], 1), ([-math.inf, -1000.0], 2)):
        q, k, v = flat([below, below], head_dim)
        sink = torch.tensor(sinks)
        got, instructions = run(
            lambda: flash_attn_func(q, k, v, learnable_sink=sink, return_lse=True)  # noqa: B023
        )
        assert_close(got, expected(q, k, v, sink=sink), v, 1e-3)
        assert work_tiles_again(instructions, quiet) == again


@pytest.mark.parametrize("head_dim", [64, 128])
def test_first_scores_of_minus_infinity(head_dim):
    """Keys of -inf: the reference of 32 of them is -inf, so the powers are infinite and the work tile runs again.

    A sink is a reference then. All keys of the first tile: nothing was seen, and the second one fails likewise.
    """
    quiet = instructions_of(head_dim)
    for hidden, sink, again in ((32, None, 2), (128, None, 2), (32, torch.zeros(2), 0)):
        q, k, v = flat([{range(hidden): -math.inf}] * 2, head_dim)
        got, instructions = run(
            lambda: flash_attn_func(q, k, v, learnable_sink=sink, return_lse=True)  # noqa: B023
        )
        assert_close(got, expected(q, k, v, sink=sink), v)
        assert work_tiles_again(instructions, quiet) == again


def first_32_hidden(score, batch, head, q_idx, kv_idx, aux):
    """-inf for the keys that would be asked."""
    import cutlass

    return cutlass.select_(kv_idx < 32, cutlass.Float32(-math.inf), score)


def behind_32(batch, head, q_idx, kv_idx, aux):
    return kv_idx >= 32


@pytest.mark.parametrize(
    "options",
    [
        {"score_mod": first_32_hidden},
        pytest.param({"mask_mod": behind_32}, marks=pytest.mark.sweep),
        pytest.param({"softcap": 50.0}, marks=pytest.mark.sweep),
    ],
    ids=["score_mod", "mask_mod", "softcap"],
)
def test_functions_of_scores_keep_the_maximum_of_the_first_tile(options):
    """They may hide the first 32. A jump of 70 nats in column 60 does not run a work tile again."""
    (quiet, jumping), instructions = (flat([at, at]) for at in ({}, {60: 70.0})), []
    for q, k, v in (quiet, jumping):
        got, executed = run(lambda: flash_attn_func(q, k, v, return_lse=True, **options))  # noqa: B023
        instructions.append(executed)
        capped = (lambda s: 50 * torch.tanh(s / 50)) if "softcap" in options else (lambda s: s)
        visible = (torch.arange(KEYS) >= (0 if "softcap" in options else 32)).expand(QUERIES, KEYS)
        assert_close(got, expected(q, k, v, visible, capped), v, 1e-2)
    assert work_tiles_again(instructions[1], instructions[0]) == 0


def test_masks_with_a_lower_bound_keep_it_too():
    """A window of 300 keys: rows from 300 on have a masked key tile first, then a whole one, where a key jumps.

    Its maximum is asked, so that 70 nats in its column 60 do not run it again. At head dim 64 masked tiles have theirs.
    """
    rows, instructions = 520, []
    window = torch.arange(rows) > torch.arange(rows)[:, None] - 300
    for at in ({}, {128 + 60: 70.0}):
        qkv = flat([at], 64, rows, rows)
        got, executed = run(
            lambda: flash_attn_func(*qkv, window_size=(299, 0), return_lse=True)  # noqa: B023
        )
        assert_close(got, expected(*qkv, window & causal(rows, rows)), qkv[2])
        instructions.append(executed)
    assert work_tiles_again(instructions[1], instructions[0], of=3) == 0


def test_a_first_tile_with_a_mask_has_its_maximum():
    """Causal, 520 rows: query tile 0 sees a masked tile first, the others a whole one.

    Key 60 jumps: of query tile 0 it is no reason to run again, of query tile 1, in the same work tile, it is.
    """
    usual = None
    for rows, at, again in ((520, {}, 0), (520, {60: 70.0}, 3), (128, {}, 0), (128, {60: 70.0}, 0)):
        qkv = flat([at], 64, rows, rows)
        got, executed = run(lambda: flash_attn_func(*qkv, causal=True, return_lse=True))  # noqa: B023
        assert_close(got, expected(*qkv, causal(rows, rows)), qkv[2])
        usual = usual if at else executed
        assert work_tiles_again(executed, usual, of=3) == again


def test_packed_sequences_and_single_query_tiles():
    """Single query tiles (100 rows): either warpgroup has a first tile of its own, tile 0 and tile 1; both jump.

    600 keys are four whole tiles and a masked one, 260 two whole ones, 100 none.
    """
    queries, keys = (300, 100, 20, 100), (300, 600, 100, 260)
    q, k, v = flat([{}], 64, sum(queries), sum(keys))
    cu_q, cu_k = (torch.tensor([0, *n]).cumsum(0).int() for n in (queries, keys))
    for begin, jumps in ((0, (60,)), (300, (190,)), (900, (40,)), (1000, (60, 190))):
        for key in jumps:
            k[0, begin + key, :, 0] = 70.0 * 8 / 4
    (out, lse), _ = run(
        lambda: flash_attn_varlen_func(
            *(x[0] for x in (q, k, v)), cu_q, cu_k, max(queries), max(keys), return_lse=True
        ),
        "hostile",
        1,
    )
    for i in range(len(queries)):
        rows, columns = (slice(int(cu[i]), int(cu[i + 1])) for cu in (cu_q, cu_k))
        wanted = expected(q[:, rows], k[:, columns], v[:, columns])
        assert_close((out[None, rows], lse[None, :, rows]), wanted, v)


@pytest.mark.sweep
def test_the_first_tile_of_a_part():
    """Two parts of 800 keys: that of the second one is key tile 3 or 4, where a key jumps; the first is not touched."""
    q, k, v = flat([{3 * 128 + 60: 70.0, 4 * 128 + 60: 70.0}, {}], keys=800)
    got, _ = run(lambda: flash_attn_func(q, k, v, num_splits=2, return_lse=True))
    assert_close(got, expected(q, k, v), v)


def test_what_failed_is_not_forgotten_under_a_larger_maximum():
    """Head dim 64, where masked tiles have their maximum: 87 nats in a whole tile, 160 in the following masked one.

    P is 2^125.5 and finite, P times v of 64 is not. Under the new maximum the row sum would be 2^20 again, and O
    infinity.
    """
    # The whole tile is the first one, and one that lags.
    for at, above, keys in ((60, 135, 140), (200, 265, 270)):
        q, k, v = flat([{at: 87.0, above: 160.0}], keys=keys)
        v[0, at] = 64.0
        got, _ = run(lambda: flash_attn_func(q, k, v, return_lse=True))  # noqa: B023
        assert_close(got, expected(q, k, v), v)


def test_who_asks_a_quarter():
    """Where a table asks: kernels that lag, without functions of scores and lower bounds."""

    def asks(**choices):
        return choose_config(**{"qkv_dtype": "bf16", "head_dim": 64, **choices}).refers_to_quarter

    assert (
        asks()
        and asks(write_lse=True)
        and asks(causal=True)
        and asks(head_dim=128)
        and asks(sink=True)
    )
    assert asks(head_dim=128, family="mhapair", causal=True) and asks(
        maximum="lagged", arch="sm_103a"
    )
    assert not any(
        (
            asks(maximum="exact"),
            asks(qkv_dtype="fp16"),
            asks(arch="sm_103a"),
            asks(head_dim=192, head_dim_v=128),
            asks(mask=masks.window(128, 0).mask),
            asks(mask=masks.chunked(256).mask),
            asks(score_mod=minus_infinity_first),
            asks(mask_mod=behind_32, maximum="lagged"),
        )
    )
    assert policy.maximum() is None  # as the problem allows
    with tuning.using(tuning.shipped()):
        assert not asks() and not asks(head_dim=128, family="mhapair", causal=True)
