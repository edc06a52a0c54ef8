"""The resources of a CTA pair for a wide head: halves of K and V, barriers counted over both, and its calls."""

import pytest

from cute_fa4.sm100.blueprint.chip import SMEM_CAPACITY_BYTES, TMEM_COLUMNS
from cute_fa4.sm100.choose.choose_config import choose_config, split_configs
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.choose.which_kernel import Call, which_kernel
from cute_fa4.sm100.wide.pair import barriers
from cute_fa4.sm100.wide.pair.schedule import WidePair
from cute_fa4.sm100.wide.schedule import WideTile

PAIR, ALONE = (FA4Config(qk_depth=256, schedule=cls()) for cls in (WidePair, WideTile))
STEP_OF_N = 32  # PTX ISA, "matrix shape": cta_group::2, M = 256

# By hand: a warp each of both CTAs, one announcement, one commit, or every thread of the own CTA.
COUNTS = dict(
    q_full=1, q_free=1, s_ready=1, row_scale=128, p_ready=2 * (4 + 4), p_last=2 * 4, factor_read=4, pv_done=1,
    kv_full=1, kv_empty=1, work_ready=1, work_read=128 + 128 + 32, work_claimed=1, claim_read=1,
)  # fmt: skip


def test_arrival_counts_and_the_table_of_the_docstring():
    assert {b.name: b.count for b in PAIR.barriers.rows} == COUNTS
    assert PAIR.barriers.text() in barriers.__doc__


@pytest.mark.parametrize("depth_v", [8, 64, 136, 192, 248, 256])
@pytest.mark.parametrize("depth", [64, 72, 200, 256, 512])
def test_the_halves_of_both_ctas_make_a_tile(depth, depth_v):
    """A CTA loads half of the rows of K and half of the columns of V; either fills a slot."""
    cfg = FA4Config(qk_depth=depth, ov_depth=depth_v, schedule=WidePair())
    tiles, n = cfg.tiles, cfg.tiles.pv_mma_shape[1]
    assert cfg.refusals() == [] and tiles.qk_mma_shape[:2] == (256, 128)
    assert tiles.k_rows_per_cta * tiles.BK0 * 2 == tiles.BN * tiles.v_cols_per_cta * 2 == 16384
    columns = [tiles.v_columns(unit) for unit in range(tiles.v_units)]
    assert sum(columns) == n and all(c % STEP_OF_N == 0 for c in columns)
    assert depth_v <= n < depth_v + STEP_OF_N and cfg.tmem.used <= TMEM_COLUMNS
    assert sum(map(tiles.k_columns, range(tiles.k_units))) == -(-depth // 16) * 16
    assert cfg.smem.nbytes <= SMEM_CAPACITY_BYTES < cfg.smem.nbytes + tiles.kv_slot_bytes + 16


def test_half_of_the_bytes_are_loaded():
    units = PAIR.tiles.k_units + PAIR.tiles.v_units
    assert 2 * units == ALONE.tiles.k_units + ALONE.tiles.v_units
    assert PAIR.tiles.kv_slot_bytes == ALONE.tiles.kv_slot_bytes
    assert PAIR.tiles.positions_per_block == 2 * ALONE.tiles.positions_per_block == 256


def test_more_rows_than_a_tile_has_run_in_pairs_unless_keys_are_split():
    """As many CTAs have rows either way, and each loads half: there is no length from which on pairs begin to pay."""
    calls = [Call("bf16", 256, 256, seqlen_q=n) for n in (128, 129)]
    assert [which_kernel(call).family for call in calls] == ["mhawide", "mhawidepair"]
    assert which_kernel(Call("bf16", 256, 256, seqlen_q=1000, pairs=False)).family == "mhawide"
    partial, _ = split_configs(PAIR, write_lse=True)
    assert isinstance(partial.schedule, WideTile) and not isinstance(partial.schedule, WidePair)
    assert FA4Config(qk_depth=256, split_keys=True, o_dtype="f32", schedule=WidePair()).refusals()
    assert choose_config(qkv_dtype="bf16", head_dim=256).schedule.family == "mhawide"
