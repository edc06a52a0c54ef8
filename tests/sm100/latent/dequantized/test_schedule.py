"""LatentRows: what it lays out against hand-derived numbers, its tables against their documentation, its refusals."""

import pytest

from cute_fa4.sm100.blueprint.barriers import reuse_text
from cute_fa4.sm100.blueprint.chip import SMEM_CAPACITY_BYTES
from cute_fa4.sm100.choose.choose_config import (
    LATENT_BYTES_IN_PAGE,
    LATENT_ROW_BYTES,
    choose_config,
)
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.latent.dequantized import barriers
from cute_fa4.sm100.latent.dequantized.schedule import STORED, STORED_IN_PAGES, LatentRows

# Derived by hand from who calls what: one announcing thread, one commit, or every thread of the role.
COUNTS = dict(
    q_full=1, q_free=1, s_ready=1, p_ready=128, pv_done=1, kv_full=1, kv_empty=256, rope_full=1, rope_empty=1,
    slab_wide=256, slab_free=1, k_free=1, work_ready=1, work_read=128 + 32 + 256, work_claimed=1,
)  # fmt: skip
KIB = 1024

# rows -> bytes of Q, slots of stored slabs of 16 KiB, bytes of P, columns of S, S, four O and two slabs of K.
BY_ROWS = {
    8: (16 * 1152, 3, 4 * KIB, 6 * 16 + 2 * 64),
    16: (16 * 1152, 3, 4 * KIB, 6 * 16 + 2 * 64),
    32: (32 * 1152, 2, 8 * KIB, 6 * 32 + 2 * 64),
}
PROBLEM = dict(
    qk_depth=576, ov_depth=512, latent=True, group=8, pack_gqa=True, kv_layout="paged", page_size=64,
    seqused_k=True, **STORED,
)  # fmt: skip


OF_576 = dict(rope_dtype=None, scale_dtype=None)  # of the fields of STORED
OF_584 = STORED_IN_PAGES | dict(qk_depth=512, page_size=1)


def config(rows=16, **choices) -> FA4Config:
    return FA4Config(**PROBLEM | choices, schedule=LatentRows(rows=rows))


def test_arrival_counts():
    assert {b.name: b.count for b in config().barriers.rows} == COUNTS


def test_the_table_in_the_docstring_is_the_table_in_the_code():
    assert config().barriers.text() in barriers.__doc__
    assert reuse_text(config().barriers.rows) in barriers.__doc__


@pytest.mark.parametrize("rows", BY_ROWS)
def test_sizes_by_rows(rows):
    q, slots, p, columns = BY_ROWS[rows]
    cfg = config(rows)
    assert cfg.refusals() == []
    smem = cfg.smem
    assert (smem.q.nbytes, smem.kv.nbytes, smem.v.nbytes) == (q, slots * 16 * KIB, 4 * 32 * KIB)
    assert (cfg.barriers.kv_slots, smem.p.nbytes, cfg.tmem.used) == (slots, p, columns)
    assert (smem.p.offset == smem.rope.offset) == (rows == 32)
    tiles = (smem.q, smem.kv, smem.v, smem.rope, smem.p, smem.lines)
    assert all(region.offset % KIB == 0 for region in tiles)
    # The scales of a key tile are read before its first slab is freed: no slot more than a key tile has slabs.
    assert slots <= 4 and smem.nbytes <= SMEM_CAPACITY_BYTES < smem.nbytes + 16 * KIB


@pytest.mark.parametrize("rows", BY_ROWS)
def test_rows_of_576_bytes_have_no_scales_and_a_fifth_slab(rows):
    """The dequantize warps write the rotary columns; the rest is as for rows of 656 bytes."""
    cfg, other = config(rows, **OF_576), config(rows)
    assert cfg.refusals() == [] and cfg.stored_depth == cfg.tiles.row.nbytes == 576
    assert (cfg.tiles.stored_slabs, other.tiles.stored_slabs) == (5, 4)
    assert (cfg.smem.lines.nbytes, other.smem.lines.nbytes) == (0, 128 * 32)
    assert cfg.barriers.kv_slots == other.barriers.kv_slots
    assert {b.name: b.count for b in cfg.barriers.rows} == COUNTS | dict(rope_full=256)
    by_name = {
        b.name: (str(*b.raised_by), b.awaited_by) for b in cfg.barriers.rows if b.per == "rope_slot"
    }
    assert by_name == {
        "rope_full": ("dequantize 256", "mma"), "rope_empty": ("mma 1 (commit)", "dequantize")
    }  # fmt: skip
    unlike = [a.name for a, b in zip(cfg.barriers.rows, other.barriers.rows, strict=True) if a != b]
    assert unlike == list(by_name)


# rows -> bytes of Q, slots of stored slabs, bytes of P, which has its own place.
OF_584_BY_ROWS = {16: (16 * 1024, 4, 4 * KIB), 32: (32 * 1024, 3, 8 * KIB)}


@pytest.mark.parametrize("rows", OF_584_BY_ROWS)
def test_rows_of_584_bytes_have_their_rotary_columns_in_a_slab(rows):
    """There is no ring of rotary columns; lines hold the 64 values before them."""
    q, slots, p = OF_584_BY_ROWS[rows]
    cfg = config(rows, **OF_584)
    assert cfg.refusals() == [] and cfg.stored_depth == cfg.tiles.row.nbytes == 448 + 2 * 64
    assert LATENT_BYTES_IN_PAGE == 448 + 2 * 64 + 8
    smem = cfg.smem
    assert (smem.q.nbytes, cfg.barriers.kv_slots, smem.p.nbytes) == (q, slots, p)
    assert (smem.rope.nbytes, smem.lines.nbytes) == (0, 128 * 64)
    assert smem.lines.offset % KIB == 0 and smem.nbytes <= SMEM_CAPACITY_BYTES
    assert [cfg.tiles.row.first_byte(i) for i in range(4)] == [0, 128, 256, 448]
    counts = {b.name: cfg.barriers.number(b) for b in cfg.barriers.rows}
    assert (counts["rope_full"], counts["rope_empty"]) == (0, 0)


def test_a_row_is_what_the_layout_adds_up_to():
    assert config().stored_depth == LATENT_ROW_BYTES == 512 + 4 * 4 + 64 * 2


def test_heads_share_tiles_of_32_rows():
    heads = {group: config(32, group=group).heads_per_tile for group in (16, 32, 48, 128)}
    assert heads == {16: 16, 32: 32, 48: 24, 128: 32}
    chosen = choose_config(
        **dict(qkv_dtype="bf16", head_dim=576, head_dim_v=512, group=32, pack_gqa=True),
        **dict(latent=True, kv_layout="paged", page_size=1, seqused_k=True, **STORED),
    )
    assert chosen.schedule == LatentRows(rows=32).resolved(chosen) and not chosen.refusals()


@pytest.mark.parametrize(
    "choices, value, remedy",
    [
        (dict(rows=64), "rows=64", "use 8, 16, 32"),
        (dict(qkv_dtype="fp16"), "qkv_dtype='fp16' over rows of 656 bytes", "use 'bf16'"),
        (dict(kv_dtype="e5m2"), "kv_dtype='e5m2'", "'e4m3'"),
        (dict(rope_dtype=None), "rope_dtype=None over rows of 656 bytes", "'bf16'"),
        (OF_576 | dict(kv_dtype=None), "kv_dtype=None over rows of 576 bytes", "'e4m3' or 'e5m2'"),
        (OF_576 | dict(o_dtype="e4m3"), "o_dtype='e4m3'", "'bf16'"),
        (OF_576 | dict(kv_layout="packed", page_size=0), "rows of 576 bytes", "'paged'"),
        (OF_584 | dict(page_size=64), "page_size=64 over rows of 584 bytes", "use 1"),
        (OF_584 | dict(qk_depth=576), "qk_depth=576", "qk_depth=512"),
        (OF_584 | dict(descales="k"), "descales='k': rows of 584 bytes", "''"),
        (dict(kv_layout="packed", page_size=0), "kv_layout='packed'", "'paged'"),
        (dict(descales="k"), "descales='k'", "''"),
        (dict(ov_depth=256), "ov_depth=256", "ov_depth=512"),
        (dict(o_dtype="fp16"), "o_dtype='fp16'", "'bf16'"),
        (dict(page_heads_first=True), "page_heads_first=True", "False"),
    ],
    ids=str,
)
def test_a_refusal_names_the_value_and_the_remedy(choices, value, remedy):
    why = config(**choices).refusals()
    assert any(value in reason and remedy in reason for reason in why), why


@pytest.mark.parametrize(
    "stored", [STORED, OF_576, OF_584], ids=["656 bytes", "576 bytes", "584 bytes"]
)
def test_no_other_family_runs_it(stored):
    for family in ("mla_decode", "mla_pair", "mhaswap", "mhawiden"):
        problem = {name: value for name, value in PROBLEM.items() if "depth" not in name} | stored
        depth = problem.pop("qk_depth", 576)
        chosen = choose_config(
            **dict(qkv_dtype="bf16", head_dim=depth, head_dim_v=512, family=family), **problem
        )
        assert chosen.refusals()
