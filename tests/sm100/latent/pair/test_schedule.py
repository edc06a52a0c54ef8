"""LatentPair: what it lays out against hand-derived numbers, its tables against their documentation, its refusals."""

import pytest

from cute_fa4.sm100.blueprint.barriers import reuse_text
from cute_fa4.sm100.blueprint.chip import SMEM_CAPACITY_BYTES
from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.choose.which_kernel import Call, which_kernel
from cute_fa4.sm100.latent.pair import barriers
from cute_fa4.sm100.latent.pair.schedule import LatentPair

# Derived by hand: one announcing thread, one commit, sixteen softmax warps of both CTAs, or every thread of the role.
COUNTS = dict(
    q_full=1, q_free=1, s_ready=1, p_ready=16, pv_done=1, kv_full=1, kv_empty=1, rope_full=1, rope_empty=1,
    work_ready=1, work_read=256 + 32, work_claimed=1, claim_read=1,
)  # fmt: skip
KIB = 1024


def config(**choices) -> FA4Config:
    problem = dict(qk_depth=576, ov_depth=512, latent=True, group=128, pack_gqa=True)
    problem |= dict(kv_layout="paged", page_size=64, seqused_k=True)
    return FA4Config(**problem | choices, schedule=LatentPair())


def test_arrival_counts():
    assert {b.name: b.count for b in config().barriers.rows} == COUNTS


def test_the_table_in_the_docstring_is_the_table_in_the_code():
    assert config().barriers.text() in barriers.__doc__
    assert reuse_text(config().barriers.rows) in barriers.__doc__


def test_sizes():
    """64 rows of 1,152 bytes, K and V of a key tile in units of 16 KiB, 64 rotary columns of 64 keys, P of 128 keys;
    two S of 64 columns and two O of 128."""
    cfg = config()
    assert cfg.refusals() == []
    smem = cfg.smem
    assert (smem.q.nbytes, smem.kv.nbytes) == (64 * 1152, 8 * 16 * KIB)
    assert (smem.rope.nbytes, smem.p.nbytes) == (8 * KIB, 16 * KIB)
    assert cfg.barriers.kv_slots == cfg.tiles.units == 4 + 4
    assert (cfg.tmem.s, cfg.tmem.o, cfg.tmem.used) == ((0, 64), (128, 256), 384)
    assert all(region.offset % KIB == 0 for region in (smem.q, smem.kv, smem.rope, smem.p))
    assert smem.nbytes <= SMEM_CAPACITY_BYTES < smem.nbytes + 16 * KIB
    e4m3 = config(qkv_dtype="e4m3", o_dtype="bf16")
    assert (e4m3.smem.q.nbytes, e4m3.smem.p.nbytes) == (64 * 640, 8 * KIB)  # 576 padded to spans
    assert e4m3.smem.rope.nbytes == 3 * 8 * KIB  # 64 columns of a span of 128
    assert e4m3.smem.kv.nbytes == e4m3.barriers.kv_slots * 8 * KIB >= 2 * e4m3.tiles.units * 8 * KIB


def test_heads_share_tiles_of_128_rows():
    heads = {group: config(group=group).heads_per_tile for group in (16, 96, 128, 192, 256)}
    assert heads == {16: 16, 96: 96, 128: 128, 192: 96, 256: 128}
    tiles = config(group=96).tiles
    assert (tiles.rows_per_position, tiles.pads_groups, tiles.heads_of_box) == (128, True, 64)
    assert (config(group=16).tiles.positions_per_cta, config(group=16).tiles.heads_of_box) == (
        *(8, 16),
    )


def test_more_than_64_rows_of_a_sequence_are_those_of_a_pair():
    """Rows: queries times heads, padded to a power of two."""
    rows = {(1, 64): 64, (4, 16): 64, (1, 65): 128, (2, 64): 128, (5, 16): 80, (8, 128): 1024}
    for (queries, heads), needed in rows.items():
        call = Call("bf16", 576, 512, latent=True, group=heads, seqlen_q=queries)
        assert (which_kernel(call).family == "mla_pair") == (needed > 64), needed


@pytest.mark.parametrize(
    "choices, value, remedy",
    [
        (dict(ov_depth=256), "ov_depth=256", "ov_depth=512"),
        (dict(latent=False), "latent=False", "latent=True"),
        (dict(kv_layout="dense", page_size=0), "kv_layout='dense'", "'paged'"),
        (dict(q_layout="packed"), "q_layout='packed'", "'dense'"),
        (
            dict(qkv_dtype="e4m3", o_dtype="bf16", descales="KV"),
            "descales='KV'",
            "LatentTile(rows=64)",
        ),
    ],
    ids=str,
)
def test_a_refusal_names_the_value_and_the_remedy(choices, value, remedy):
    why = config(**choices).refusals()
    assert any(value in reason and remedy in reason for reason in why), why


def test_no_other_family_runs_its_problem():
    problem = dict(head_dim=576, head_dim_v=512, group=128, pack_gqa=True, latent=True)
    for family in ("mha2q", "mha1q", "mhapair"):
        assert choose_config(qkv_dtype="bf16", **problem, family=family).refusals()
