"""SwappedTile: what it lays out against hand-derived numbers, its tables against their documentation, its refusals."""

import pytest

from cute_fa4.layouts.swizzle import SWIZZLE_32B, SWIZZLE_64B, SWIZZLE_128B
from cute_fa4.sm100.blueprint.barriers import reuse_text
from cute_fa4.sm100.blueprint.chip import SMEM_CAPACITY_BYTES, TMEM_COLUMNS
from cute_fa4.sm100.blueprint.reach import DEPTHS
from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.few_rows import barriers
from cute_fa4.sm100.few_rows.schedule import SwappedTile
from cute_fa4.sm100.few_rows.tiles import ROWS

# Derived by hand from who calls what: one announcing thread, one commit, or every thread of the role.
COUNTS = dict(
    q_full=1, q_free=1, s_ready=1, p_ready=128, pv_done=1, kv_full=1, kv_empty=1, work_ready=1, work_read=128 + 32,
    work_claimed=1,
)  # fmt: skip

# rows -> N of the products, columns used, span of P's lines, ring slots at depth 128 and 64.
BY_ROWS = {
    8: (16, 48, SWIZZLE_32B, 6, 13),
    16: (16, 48, SWIZZLE_32B, 6, 13),
    32: (32, 96, SWIZZLE_64B, 6, 13),
    64: (64, 192, SWIZZLE_128B, 5, 12),
}


def config(rows=16, rescale_log2=None, **choices) -> FA4Config:
    return FA4Config(schedule=SwappedTile(rows=rows, rescale_log2=rescale_log2), **choices)


def test_arrival_counts():
    assert {b.name: b.count for b in config().barriers.rows} == COUNTS


def test_the_table_in_the_docstring_is_the_table_in_the_code():
    assert config().barriers.text() in barriers.__doc__
    assert reuse_text(config().barriers.rows) in barriers.__doc__


@pytest.mark.parametrize("rows", ROWS)
def test_a_cta_of_a_cluster_has_a_place_and_a_barrier_for_what_others_send(rows):
    """A maximum, a sum and 128 numbers of each row, as many as a tile has; the ring has what they leave."""
    alone, shared = config(rows), config(rows).with_(cluster_parts=8)
    assert alone.smem.parts.nbytes == 0 and "parts_in" not in alone.barriers
    assert shared.smem.parts.nbytes == rows * (128 + 2) * 4
    assert {b.name: b.count for b in shared.barriers.rows} == {**COUNTS, "parts_in": 1}
    assert shared.refusals() == []
    assert shared.barriers.kv_slots == {64: 4}.get(rows, alone.barriers.kv_slots)


@pytest.mark.parametrize("rows", ROWS)
def test_sizes_by_rows(rows):
    n, columns, span, *slots = BY_ROWS[rows]
    for depth, ring in zip((128, 64), slots, strict=True):
        cfg = config(rows, qk_depth=depth)
        assert cfg.refusals() == []
        assert cfg.tiles.qk_mma_shape == (128, n, depth) and cfg.tiles.pv_mma_shape == (
            depth,
            n,
            128,
        )
        assert (cfg.tmem.used, cfg.tiles.p_tile.swizzle) == (columns, span)
        assert cfg.barriers.kv_slots == ring
        # As many slots as fit: one more would not.
        more = cfg.tiles.kv_slot_bytes + 16
        assert cfg.smem.nbytes <= SMEM_CAPACITY_BYTES < cfg.smem.nbytes + more
        assert cfg.tmem.columns <= TMEM_COLUMNS


@pytest.mark.parametrize("rows", ROWS)
def test_8_bits_take_half_of_a_slot_and_p_a_line_of_32_bytes(rows):
    """So N is at least 32, and rows of 128 bytes hold any depth; a maximum does not lag."""
    cfg = config(rows, qkv_dtype="e4m3", qk_depth=64)
    n = max(rows, 32)
    assert cfg.refusals() == [] and cfg.tiles.qk_mma_shape == (128, n, 64)
    assert cfg.tiles.pv_mma_shape == (128, n, 128) and cfg.tiles.p_tile.swizzle.span_bytes == n
    assert cfg.tiles.kv_slot_bytes == 128 * 128 and cfg.barriers.kv_slots == {64: 12}.get(rows, 13)
    assert (cfg.schedule.rescale_log2, cfg.p_lift_log2) == (0.0, 8.0)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("rows", ROWS)
def test_tiles_start_on_a_swizzle_period_and_barriers_fill_their_region(depth, rows):
    cfg = config(rows, qk_depth=depth)
    regions = cfg.smem.regions
    assert regions[0].offset == 0 and regions[-1].end == cfg.smem.nbytes
    assert cfg.smem.kv.offset % 1024 == cfg.smem.p.offset % 1024 == 0
    assert cfg.tiles.kv_slot_bytes % 1024 == 0
    assert cfg.smem.mbarriers.offset % 8 == cfg.smem.work_queue.offset % 16 == 0
    assert cfg.smem.mbarriers.nbytes == 8 * cfg.barriers.total


@pytest.mark.parametrize(
    "choices, value, remedy",
    [
        (dict(rows=24), "rows=24", "8, 16, 32, 64"),
        (dict(rows=8, group=16, pack_gqa=True), "group=16", "rows of at least 16"),
        (dict(rows=8, group=9, pack_gqa=True), "group=9", "rows of at least 16"),
        (dict(qk_depth=200), "qk_depth=200", "192"),
        (dict(qk_depth=128, ov_depth=60), "ov_depth=60", "multiple of 8"),
        (dict(qkv_dtype="e4m3", qk_depth=136), "qk_depth=136", "multiple of 16"),
        (dict(qkv_dtype="e4m3", rescale_log2=9.0), "rescale_log2=9.0", "0 to 8"),
        (dict(o_dtype="f32"), "o_dtype='f32'", "use 'bf16'"),
        (dict(scale_dtype="f32"), "scale_dtype='f32'", "None"),
    ],
    ids=str,
)
def test_a_refusal_names_the_value_and_the_remedy(choices, value, remedy):
    why = config(**choices).refusals()
    assert any(value in reason and remedy in reason for reason in why), why


def test_rows_choose_the_schedule_and_choices_of_another_are_refused():
    cfg = choose_config(qkv_dtype="bf16", head_dim=64, rows=32, claims=False)
    chosen = dict(rescale_log2=8.0, claims=False, dependent_launch=True)
    assert cfg.schedule == SwappedTile(rows=32, **chosen)
    with pytest.raises(ValueError, match="family='mhaswap' with order: choices of another"):
        choose_config(qkv_dtype="bf16", head_dim=64, rows=32, order="p_over_s")
