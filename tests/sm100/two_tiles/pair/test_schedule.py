"""The resources of a CTA pair: halves of K and V, barriers counted over both, and idle warps."""

import pytest

from cute_fa4 import masks
from cute_fa4.compiler import policy
from cute_fa4.sm100.blueprint.chip import SMEM_CAPACITY_BYTES
from cute_fa4.sm100.choose.choose_config import choose_config, split_configs
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.choose.which_kernel import Call, which_kernel
from cute_fa4.sm100.two_tiles.pair import barriers
from cute_fa4.sm100.two_tiles.pair.schedule import Pair

PAIR, ALONE = FA4Config(schedule=Pair()), FA4Config()
STEP_OF_N = 32  # PTX ISA, "matrix shape": cta_group::2, M = 256

# By hand: a warp each of both CTAs, one announcement, one commit, or every thread of the own CTA.
COUNTS = dict(
    q_full=1, q_free=1, s_ready=1, row_scale=128, p_ready=2 * (4 + 4), p_last=2 * 4, factor_read=4, o_ready=1,
    kv_full=1, kv_empty=1, work_ready=1, work_read=256 + 128 + 32, work_claimed=1, claim_read=1, work_checked=256,
    verdict=1,
)  # fmt: skip


def test_arrival_counts():
    assert {b.name: b.count for b in PAIR.barriers.rows} == COUNTS


def test_the_table_in_the_docstring_is_that_in_the_code():
    assert PAIR.barriers.text() in barriers.__doc__


@pytest.mark.parametrize("depth_v", [8, 64, 72, 96, 112, 128])
@pytest.mark.parametrize("depth", [64, 72, 128, 136, 192])
def test_the_halves_of_both_ctas_make_a_tile(depth, depth_v):
    """A CTA loads half of the rows of K and half of the columns of V; whole swizzle spans fit its slot."""
    pair = choose_config(qkv_dtype="bf16", head_dim=depth, head_dim_v=depth_v, family="mhapair")
    tiles, per_cta = pair.tiles, pair.tiles.BN // 2
    assert pair.refusals() == [] and tiles.k_rows_per_cta == per_cta == 64
    n = tiles.pv_mma_shape[1]
    assert (
        tiles.qk_mma_shape[:2] == (256, 128) and n % STEP_OF_N == 0 and depth_v <= n < depth_v + 32
    )
    assert tiles.v_cols_of_mma * 2 == n and tiles.v_cols_of_mma <= tiles.v_cols_per_cta == 64
    assert tiles.k_stage_bytes == per_cta * tiles.padded_qk_depth * 2 <= tiles.kv_slot_bytes
    assert tiles.v_bytes == tiles.BN * 64 * 2 <= tiles.kv_slot_bytes
    assert tiles.rest_qk_depth == 0
    assert pair.smem.nbytes <= SMEM_CAPACITY_BYTES < pair.smem.nbytes + tiles.kv_slot_bytes + 16
    same = dict(qkv_dtype="bf16", head_dim=depth, head_dim_v=depth_v, order=pair.schedule.order)
    assert pair.tmem == choose_config(**same).tmem


def test_twice_the_tiles_are_on_their_way_and_half_of_the_bytes_are_loaded():
    assert PAIR.barriers.kv_slots == 2 * ALONE.barriers.kv_slots
    assert PAIR.tiles.k_stage_bytes * 2 == ALONE.tiles.k_stage_bytes
    assert PAIR.tiles.v_bytes * 2 == ALONE.tiles.v_bytes
    assert PAIR.tiles.positions_per_block == 2 * PAIR.tiles.positions_per_cta == 512


def test_pairs_are_asked_for_by_calls_of_more_rows_than_a_tile_has():
    calls = [Call("bf16", 128, 128, seqlen_q=queries, pairs=True) for queries in (128, 129, 5000)]
    assert [which_kernel(call).family for call in calls] == ["mha1q", "mhapair", "mhapair"]
    assert which_kernel(Call("bf16", 128, 128, seqlen_q=5000)).family == "mha2q"


@pytest.mark.parametrize("word, meaning", [("on", True), ("off", False), ("auto", None)])
def test_the_environment_overrides_the_rule(monkeypatch, word, meaning):
    monkeypatch.setenv("CUTE_FA4_PAIR", word)
    assert policy.pairs() is meaning
    monkeypatch.setenv("CUTE_FA4_PAIR", "two")
    with pytest.raises(ValueError, match="CUTE_FA4_PAIR='two'; accepted: auto, on, off"):
        policy.pairs()


def test_keys_are_split_by_ctas_alone():
    assert split_configs(PAIR, write_lse=True) == split_configs(ALONE, write_lse=True)
    ragged = dict(qkv_dtype="fp16", head_dim=128, q_layout="packed")
    pair, alone = (choose_config(**ragged, family=family) for family in ("mhapair", None))
    assert split_configs(pair, write_lse=True) == split_configs(alone, write_lse=True)
    [why] = PAIR.with_(split_keys=True, write_lse=True, o_dtype="f32").refusals()
    assert why.startswith("split_keys=True") and "use TwoTiles()" in why


@pytest.mark.parametrize(
    "problem, schedule, value",
    [
        ({}, dict(lone_tiles=True), "lone_tiles=True"),
        ({}, dict(order="p_beside_s"), "order='p_beside_s'"),
        (dict(qkv_dtype="e4m3"), {}, "qkv_dtype='e4m3'"),
        (dict(mask=masks.Window()), {}, "mask=Window"),
        (dict(mask=masks.Both(masks.Causal(), masks.Chunked())), {}, "mask=Both"),
    ],
    ids=str,
)
def test_what_is_not_built_is_refused_with_what_to_use(problem, schedule, value):
    why = FA4Config(**problem, schedule=Pair(**schedule)).refusals()
    assert any(value in reason and ": use " in reason and "TwoTiles()" in reason for reason in why)


@pytest.mark.parametrize("depth", [64, 128, 192])
def test_pairs_store_p_over_s(depth):
    pair = choose_config(qkv_dtype="bf16", head_dim=depth, head_dim_v=64, family="mhapair")
    assert pair.refusals() == [] and pair.schedule.order == "p_over_s"
