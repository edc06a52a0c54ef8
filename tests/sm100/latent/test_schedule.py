"""LatentTile: what it lays out against hand-derived numbers, its tables against their documentation, its refusals."""

import pytest

from cute_fa4.sm100.blueprint.barriers import reuse_text
from cute_fa4.sm100.blueprint.chip import SMEM_CAPACITY_BYTES
from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.choose.rows_of_tiles import latent_rows
from cute_fa4.sm100.latent import barriers
from cute_fa4.sm100.latent.schedule import LatentTile

# Derived by hand from who calls what: one announcing thread, one commit, or every thread of the role.
COUNTS = dict(
    q_full=1, q_free=1, s_ready=1, p_ready=128, pv_done=1, kv_full=1, kv_empty=1, rope_full=1, rope_empty=1,
    work_ready=1, work_read=128 + 32, work_claimed=1,
)  # fmt: skip
KIB = 1024

# rows -> bytes of Q, slots of slabs of 32 KiB, of rotary columns of 16 KiB, bytes of P, columns of S, S and four O.
BY_ROWS = {
    8: (16 * 1152, 5, 2, 4 * KIB, 6 * 16),
    16: (16 * 1152, 5, 2, 4 * KIB, 6 * 16),
    32: (32 * 1152, 5, 1, 8 * KIB, 6 * 32),
    64: (64 * 1152, 4, 1, 16 * KIB, 6 * 64),
}


def config(rows=16, **choices) -> FA4Config:
    problem = dict(qk_depth=576, ov_depth=512, latent=True, group=8, pack_gqa=True)
    return FA4Config(**problem | choices, schedule=LatentTile(rows=rows))


def test_arrival_counts():
    assert {b.name: b.count for b in config().barriers.rows} == COUNTS


def test_the_table_in_the_docstring_is_the_table_in_the_code():
    assert config().barriers.text() in barriers.__doc__
    assert reuse_text(config().barriers.rows) in barriers.__doc__


@pytest.mark.parametrize("rows", BY_ROWS)
def test_sizes_by_rows(rows):
    q, slabs, rope_slots, p, columns = BY_ROWS[rows]
    cfg = config(rows)
    assert cfg.refusals() == []
    smem = cfg.smem
    assert (smem.q.nbytes, smem.kv.nbytes, smem.rope.nbytes) == (
        *(q, slabs * 32 * KIB, rope_slots * 16 * KIB),
    )
    assert (cfg.barriers.kv_slots, cfg.barriers.numbers[barriers.ROPE_SLOT]) == (slabs, rope_slots)
    assert (smem.p.nbytes, cfg.tmem.used) == (p, columns)
    assert (smem.p.offset == smem.rope.offset) == (rows == 64)
    assert all(region.offset % KIB == 0 for region in (smem.q, smem.kv, smem.rope, smem.p))
    assert smem.mbarriers.nbytes == 8 * cfg.barriers.total
    # A key tile has four slabs; one more slot would not fit.
    assert slabs >= 4 and smem.nbytes <= SMEM_CAPACITY_BYTES < smem.nbytes + 32 * KIB


def test_heads_share_tiles_of_64_rows():
    heads = {group: config(64, group=group).heads_per_tile for group in (16, 64, 96, 128)}
    assert heads == {16: 16, 64: 64, 96: 48, 128: 64}
    cfg = config(64, group=96)
    assert (cfg.tiles.rows_per_position, cfg.tiles.pads_groups) == (64, True)
    assert [latent_rows(q, 16) for q in (1, 2, 3, 8)] == [16, 32, 64, None]


@pytest.mark.parametrize(
    "choices, value, remedy",
    [
        (dict(rows=16, group=32), "group=32", "rows of at least 32"),
        (dict(ov_depth=256), "ov_depth=256", "ov_depth=512"),
        (dict(pack_gqa=False), "pack_gqa=False", "pack_gqa=True"),
        (dict(latent=False), "latent=False", "latent=True"),
        (dict(qkv_dtype="e4m3", o_dtype="e4m3"), "o_dtype='e4m3'", "'bf16' or 'fp16'"),
        (dict(o_dtype="fp16"), "o_dtype='fp16'", "'bf16'"),
        (dict(scale_dtype="f32"), "scale_dtype='f32'", "None"),
    ],
    ids=str,
)
def test_a_refusal_names_the_value_and_the_remedy(choices, value, remedy):
    why = config(**choices).refusals()
    assert any(value in reason and remedy in reason for reason in why), why


def test_clusters_are_refused():
    problem = dict(qk_depth=576, ov_depth=512, latent=True, group=8, pack_gqa=True)
    [why] = FA4Config(**problem, schedule=LatentTile(cluster_parts=2)).refusals()
    assert "cluster_parts=2" in why and "use 1" in why


def test_latent_chooses_the_schedule_and_no_other_family_runs_it():
    problem = dict(head_dim=576, head_dim_v=512, group=16, pack_gqa=True, latent=True)
    assert isinstance(choose_config(qkv_dtype="bf16", **problem, rows=16).schedule, LatentTile)
    for family in ("mha2q", "mha1q", "mhaswap"):
        assert choose_config(qkv_dtype="bf16", **problem, family=family).refusals()
