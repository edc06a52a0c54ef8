"""DequantizedTile: its layout against hand-derived numbers, its tables against their documentation, its refusals."""

from dataclasses import replace

import pytest

from cute_fa4.sm100.blueprint.barriers import reuse_text
from cute_fa4.sm100.blueprint.chip import SMEM_CAPACITY_BYTES
from cute_fa4.sm100.choose.choose_config import choose_config, config_for
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.few_rows.dequantized import barriers
from cute_fa4.sm100.few_rows.dequantized.schedule import DequantizedTile

# Derived by hand from who calls what: one announcing thread, one commit, or every thread of the role.
COUNTS = dict(
    q_full=1, q_free=1, s_ready=1, p_ready=128, pv_done=1, kv_full=1, kv_empty=128, q_wide=128, q_taken=128,
    q_ready=128, k_wide=128, k_free=1, v_wide=128, v_free=1, work_ready=1, work_read=128 + 32 + 256 + 32,
    work_claimed=1,
)  # fmt: skip


def config(rows=16, **choices) -> FA4Config:
    return FA4Config(**{"kv_dtype": "e4m3"} | choices, schedule=DequantizedTile(rows=rows))


def test_arrival_counts_and_the_tables_of_the_docstring():
    assert {b.name: b.count for b in config().barriers.rows} == COUNTS
    alone = replace(config().warps, values=range(0))  # as the docstring says
    assert barriers.table(alone, config().barriers.kv_slots).text() in barriers.__doc__
    scales = {b.name: b.count for b in config(kv_dtype="e2m1").barriers.rows}
    assert scales == COUNTS | dict(
        scales_full=32, scales_empty=128, work_read=COUNTS["work_read"] + 32
    )
    assert reuse_text(config().barriers.rows) in barriers.__doc__


# rows -> columns used and ring slots at depth 128, and at 64.
@pytest.mark.parametrize(
    "rows, columns, slots", [(8, (304, 240), (13, 26)), (16, (304, 240), (13, 26)), (32, (352, 288), (12, 25))]
)  # fmt: skip
def test_sizes_by_rows(rows, columns, slots):
    for depth, used, ring in zip((128, 64), columns, slots, strict=True):
        cfg = config(rows, qk_depth=depth)
        n = max(rows, 16)
        assert cfg.refusals() == [] and cfg.tmem.used == used and cfg.barriers.kv_slots == ring
        assert cfg.tiles.qk_mma_shape == (128, n, depth)
        assert cfg.tiles.pv_mma_shape == (128, n, 128)
        # A key's row of the ring has as many bytes as it has columns.
        assert cfg.tiles.kv_slot_bytes == 128 * depth
        assert cfg.smem.kv.offset % 1024 == cfg.smem.p.offset % 1024 == 0
        assert cfg.smem.work_queue.offset % 16 == cfg.smem.mbarriers.offset % 8 == 0
        # As many slots as fit: one more would not.
        assert (
            cfg.smem.nbytes <= SMEM_CAPACITY_BYTES < cfg.smem.nbytes + cfg.tiles.kv_slot_bytes + 16
        )
        first, second = cfg.schedule.k_columns(cfg)
        assert (first, second - first) == (3 * n, depth // 2)
        assert cfg.schedule.v_columns(cfg) == (3 * n + depth, 3 * n + depth + 64)


# Depth, slots of the ring and bytes of a slot: a row of the ring has half a byte for each column.
@pytest.mark.parametrize("depth, slots, slot_bytes", [(128, 25, 8192), (64, 52, 4096)])
def test_a_ring_of_4_bits_has_rows_of_as_many_bytes(depth, slots, slot_bytes):
    cfg = config(8, kv_dtype="e2m1", qk_depth=depth)
    assert cfg.refusals() == []
    assert (cfg.barriers.kv_slots, cfg.tiles.kv_slot_bytes) == (slots, slot_bytes)
    assert cfg.smem.block_scales.nbytes == 4 * 128 * 2 * depth // 16


def test_a_lane_of_o_is_a_column_of_v():
    """Of 4 bits ldmatrix leaves four columns in four groups of eight lanes; a permutation within each warp's 32."""
    for kv_dtype, first in (("e4m3", [0, 1, 2, 8, 16]), ("e2m1", [0, 4, 8, 1, 2])):
        depths = [config(kv_dtype=kv_dtype).tiles.depth_of_lane(lane) for lane in range(128)]
        assert [depths[lane] for lane in (0, 1, 2, 8, 16)] == first
        assert all(sorted(depths[i : i + 32]) == list(range(i, i + 32)) for i in (0, 32, 64, 96))


def test_p_is_fp16_and_bf16_rows_have_scales_that_come_with_q():
    assert {config(qkv_dtype=dtype).p_dtype for dtype in ("bf16", "fp16")} == {"fp16"}
    assert [config(qkv_dtype=dtype).tiles.row_values for dtype in ("bf16", "fp16")] == [3, 2]


@pytest.mark.parametrize(
    "choices, value, remedy",
    [
        (dict(rows=64), "rows=64", "8, 16, 32"),
        (dict(kv_dtype=None), "kv_dtype=None", "schedule=SwappedTile()"),
        (dict(kv_dtype="bf16"), "kv_dtype='bf16'", "e4m3, e5m2"),
        (dict(qkv_dtype="e4m3"), "qkv_dtype='e4m3'", "with 'bf16' or 'fp16'"),
        (dict(qk_depth=136), "qk_depth=136", "multiple of 16"),
        (dict(descales="qk"), "descales='qk'", "letters of 'kvo'"),
    ],
    ids=str,
)
def test_a_refusal_names_the_value_and_the_remedy(choices, value, remedy):
    why = config(**choices).refusals()
    assert any(value in reason and remedy in reason for reason in why), why


def test_what_calls_ask_for_and_who_refuses_it():
    asked = dict(qkv_dtype="bf16", kv_dtype="e4m3", head_dim=128, descales="kv")
    assert choose_config(**asked, rows=32).schedule == DequantizedTile(
        rows=32, rescale_log2=8.0, claims=True, dependent_launch=True
    )
    for family in ("mha2q", "mha1q", "mhaswap", "mhapair", "mhawide"):
        with pytest.raises(ValueError, match="this family multiplies K as it is stored"):
            config_for(**asked, family=family)
