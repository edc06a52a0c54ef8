"""LatentRowsPair: what it lays out against hand-derived numbers, its tables against their docstrings, its refusals."""

import pytest

from cute_fa4.sm100.blueprint.barriers import reuse_text
from cute_fa4.sm100.blueprint.chip import SMEM_CAPACITY_BYTES
from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.choose.which_kernel import Call, which_kernel
from cute_fa4.sm100.latent.dequantized.schedule import STORED, STORED_IN_PAGES
from cute_fa4.sm100.latent.pair_dequantized import barriers
from cute_fa4.sm100.latent.pair_dequantized.schedule import LatentRowsPair

# Derived by hand: one announcing thread, one commit, sixteen softmax warps or eight dequantizing ones of both CTAs,
# or every thread of a role.
COUNTS = dict(
    q_full=1, q_free=1, s_ready=1, p_ready=16, pv_done=1, kv_full=8, kv_empty=1, stored_full=1, stored_empty=4,
    rope_full=1, rope_empty=1, work_ready=1, work_read=256 + 32 + 256, work_claimed=1, claim_read=1,
)  # fmt: skip
KIB = 1024
PROBLEM = dict(
    qk_depth=576, ov_depth=512, latent=True, group=128, pack_gqa=True, kv_layout="paged", page_size=64,
    seqused_k=True, **STORED,
)  # fmt: skip

OF_576 = dict(rope_dtype=None, scale_dtype=None)  # of the fields of STORED


def config(**choices) -> FA4Config:
    return FA4Config(**PROBLEM | choices, schedule=LatentRowsPair())


def test_arrival_counts():
    assert {b.name: b.count for b in config().barriers.rows} == COUNTS


def test_the_table_in_the_docstring_is_the_table_in_the_code():
    assert config().barriers.text() in barriers.__doc__
    assert reuse_text(config().barriers.rows) in barriers.__doc__


def test_sizes():
    """Units of 64 keys: 128 bytes and 32 of scales as they are stored, 128 numbers of two bytes as multiplied."""
    cfg = config()
    assert cfg.refusals() == []
    smem, numbers = cfg.smem, cfg.barriers.numbers
    assert smem.kv.nbytes == cfg.barriers.kv_slots * 64 * 128 * 2
    assert smem.stored.nbytes == numbers["stored_slot"] * 64 * (128 + 32)
    assert (smem.q.nbytes, smem.p.nbytes) == (64 * 1152, 16 * KIB)
    assert (cfg.tmem.s, cfg.tmem.o, cfg.tmem.used) == ((0, 64), (128, 256), 384)
    tiles = (smem.q, smem.kv, smem.stored, smem.rope, smem.p)
    assert all(region.offset % KIB == 0 for region in tiles)
    assert cfg.tiles.stored_bytes % KIB == 0
    assert smem.nbytes <= SMEM_CAPACITY_BYTES < smem.nbytes + 10 * KIB


def test_rows_of_576_bytes_have_no_scales_and_a_place_for_stored_rotary_columns():
    cfg, other = config(**OF_576), config()
    assert cfg.refusals() == []
    smem, numbers = cfg.smem, cfg.barriers.numbers
    assert smem.stored.nbytes == numbers["stored_slot"] * 64 * 128
    assert (smem.stored_rope.nbytes, other.smem.stored_rope.nbytes) == (64 * 128, 0)
    assert smem.stored_rope.offset % KIB == 0 and smem.nbytes <= SMEM_CAPACITY_BYTES
    more = dict(stored_rope_full=1, stored_rope_empty=4, rope_full=8)
    assert {b.name: b.count for b in cfg.barriers.rows} == COUNTS | more
    by_name = {b.name: (str(b.raised_by[0]), b.awaited_by) for b in cfg.barriers.rows}
    assert by_name["rope_full"] == ("dequantize 8 (at 0)", "mma")
    assert by_name["rope_empty"] == ("mma 1 (commit)", "dequantize")
    assert by_name["stored_rope_full"] == ("load 1 (+ bytes)", "dequantize")
    assert by_name["stored_rope_empty"] == ("dequantize 4", "load")


def test_rows_of_584_bytes_have_their_rotary_columns_in_a_unit():
    """Units have room for lines of 64 bytes, which come with the last block of K and the second output of V."""
    cfg = config(**STORED_IN_PAGES, qk_depth=512, page_size=1)
    assert cfg.refusals() == []
    smem, numbers = cfg.smem, cfg.barriers.numbers
    assert smem.stored.nbytes == numbers["stored_slot"] * 64 * (128 + 64)
    assert (smem.q.nbytes, smem.rope.nbytes, numbers["rope_slot"]) == (64 * 1024, 0, 0)
    assert cfg.tiles.stored_bytes % KIB == 0 and smem.nbytes <= SMEM_CAPACITY_BYTES
    assert [cfg.tiles.lines_with_k(i) for i in range(4)] == [False, False, False, True]
    assert [cfg.tiles.lines_with_v(i) for i in range(2)] == [False, True]
    other = config().tiles
    assert [other.lines_with_k(i) for i in range(4)] == [True, True, False, False]
    assert [other.lines_with_v(i) for i in range(2)] == [True, False]


def test_scales_of_each_key_are_those_of_tiles_of_32_rows():
    [why] = config(**OF_576, descales="KV").refusals()
    assert "descales='KV'" in why and "schedule=LatentRows(rows=32)" in why
    call = Call("bf16", 576, 512, kv_dtype="e4m3", latent=True, group=128, descales="KV")
    assert which_kernel(call)[::2] == ("mla_widen", 32)


@pytest.mark.parametrize("stored", [dict(of_rows=True), dict(kv_dtype="e4m3")], ids=str)
def test_more_than_32_rows_of_a_sequence_are_those_of_a_pair(stored):
    """Rows: queries times heads, padded to a power of two."""
    rows = {(1, 32): 32, (2, 16): 32, (1, 33): 64, (3, 16): 48, (1, 128): 128, (8, 128): 1024}
    for (queries, heads), needed in rows.items():
        call = Call("bf16", 576, 512, latent=True, **stored, group=heads, seqlen_q=queries)
        assert (which_kernel(call).family == "mla_widenpair") == (needed > 32), needed


@pytest.mark.parametrize(
    "choices, value, remedy",
    [
        (dict(ov_depth=256), "ov_depth=256", "ov_depth=512"),
        (dict(qkv_dtype="fp16"), "qkv_dtype='fp16'", "use 'bf16'"),
        (dict(kv_dtype="e5m2"), "kv_dtype='e5m2'", "'e4m3'"),
        (dict(descales="k"), "descales='k'", "''"),
        (dict(q_layout="packed"), "q_layout='packed'", "'dense'"),
    ],
    ids=str,
)
def test_a_refusal_names_the_value_and_the_remedy(choices, value, remedy):
    why = config(**choices).refusals()
    assert any(value in reason and remedy in reason for reason in why), why


def test_no_other_pair_runs_it():
    problem = {name: value for name, value in PROBLEM.items() if "depth" not in name}
    for family in ("mla_pair", "mhapair", "mhawidepair"):
        chosen = choose_config(
            **dict(qkv_dtype="bf16", head_dim=576, head_dim_v=512, family=family), **problem
        )
        assert chosen.refusals()
