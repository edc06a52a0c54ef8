"""FA4Config: the arithmetic of the design table, and a refusal for everything that cannot run."""

import dataclasses
from pathlib import Path

import pytest

import cute_fa4
from cute_fa4 import masks
from cute_fa4.sm100.blueprint.chip import SMEM_CAPACITY_BYTES, TMEM_COLUMNS
from cute_fa4.sm100.blueprint.problem import Problem
from cute_fa4.sm100.blueprint.reach import DEPTHS
from cute_fa4.sm100.blueprint.score_mods import soft_cap
from cute_fa4.sm100.blueprint.tiles import Tiles
from cute_fa4.sm100.choose.choose_config import SCHEDULE_CHOICES, choose_config
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.two_tiles.orders import ORDERS, best_order
from cute_fa4.sm100.two_tiles.schedule import TwoTiles, layout

# The design's table of configurations: (choices) -> BN, ring slots, tensor-memory columns used. Slots are counted
# over K and V together. Rows that this kernel refuses are in it too: the arithmetic holds before the code exists.
# In the design O leaves through the bytes of Q. Here it has two chunks of 128 rows x 128 bytes of its own, because the
# next queries come meanwhile: as many slots fewer as these bytes (half of them for 8-bit types) take.
# Where the design leaves columns free (384 and 192 used), P takes them: see two_tiles/orders.py.
# num_q and cta_group are those of families to come: tiles, maps and tables take them already.
DESIGN_TABLE = [
    (dict(qk_depth=64), 128, 12 - 2, 384 + 2 * 64),
    (dict(qk_depth=64, kv_layout="paged", page_size=72), 128, 12 - 2, 384 + 2 * 64),
    (dict(qk_depth=64, num_q=1, kv_layout="paged", page_size=72), 128, 13 - 2, 192 + 64),
    (dict(qk_depth=72), 128, 5 - 1, 512),
    (dict(qk_depth=80), 128, 5 - 1, 512),
    (dict(qk_depth=96), 128, 5 - 1, 512),
    (dict(qk_depth=128), 128, 5 - 1, 512),
    (dict(qk_depth=128, kv_layout="paged", page_size=64), 128, 5 - 1, 512),
    (dict(qk_depth=192), 64, 5 - 1, 512),
    (dict(qk_depth=128, cta_group=2), 128, 10 - 2, 512),
]


def config(**choices) -> FA4Config:
    """A configuration by the fields of its problem and of its schedule."""
    of_schedule = {name: choices.pop(name) for name in SCHEDULE_CHOICES & set(choices)}
    return FA4Config(schedule=TwoTiles(**of_schedule), **choices)


@pytest.mark.parametrize("choices, bn, slots, columns", DESIGN_TABLE, ids=lambda v: str(v))
def test_the_design_table_is_reproduced(choices, bn, slots, columns):
    shape = {"num_q": 2, "cta_group": 1}
    shape |= {name: value for name, value in choices.items() if name in shape}
    problem = Problem(**{name: value for name, value in choices.items() if name not in shape})
    tiles = Tiles.cut(problem, **shape)
    two_tiles = TwoTiles(order=best_order(TwoTiles.family, tiles))
    table, _ = layout(two_tiles, tiles)
    assert (tiles.BN, table.kv_slots) == (bn, slots)
    assert ORDERS[two_tiles.order].tmem(tiles).used == columns


@pytest.mark.parametrize("head_dim", DEPTHS)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_every_chosen_config_fits_the_chip_and_wastes_less_than_a_slot(head_dim, dtype):
    cfg = choose_config(qkv_dtype=dtype, head_dim=head_dim)
    assert cfg.refusals() == []
    assert cfg.smem.nbytes <= SMEM_CAPACITY_BYTES < cfg.smem.nbytes + cfg.tiles.kv_slot_bytes + 16
    assert cfg.tmem.used <= cfg.tmem.columns <= TMEM_COLUMNS
    assert cfg.schedule.warps.registers <= 65536


@pytest.mark.parametrize("head_dim", DEPTHS)
def test_s_and_o_do_not_overlap_and_p_lies_in_its_own_s_or_apart_from_all(head_dim):
    """Where softmax adds P up, as it does where an LSE is wanted."""
    cfg = choose_config(qkv_dtype="bf16", head_dim=head_dim, write_lse=True)
    spans = [range(c, c + cfg.tiles.BN) for c in cfg.tmem.s]
    spans += [range(c, c + cfg.tiles.pv_mma_shape[1]) for c in cfg.tmem.o]
    columns = [column for span in spans for column in span]
    assert len(columns) == len(set(columns))
    assert max(columns) < cfg.tmem.used
    for s, p in zip(cfg.tmem.s, cfg.tmem.p, strict=True):
        place = set(range(p, p + cfg.tiles.p_columns))
        assert (
            place.isdisjoint(columns)
            if cfg.tmem.p_apart
            else place <= set(range(s, s + cfg.tiles.BN))
        )
    assert cfg.tmem.p_apart == (head_dim <= 64), (
        "512 columns hold S, P and O of two tiles up to depth 64 only"
    )


@pytest.mark.parametrize(
    "head_dim, qk_k, pv_n",
    [(64, 64, 64), (72, 80, 80), (80, 80, 80), (96, 96, 96), (128, 128, 128)],
)
def test_padding_of_the_depth_is_loaded_but_not_multiplied(head_dim, qk_k, pv_n):
    cfg = choose_config(qkv_dtype="bf16", head_dim=head_dim)
    assert cfg.tiles.qk_mma_shape == (128, cfg.tiles.BN, qk_k)
    assert cfg.tiles.pv_mma_shape == (128, pv_n, cfg.tiles.BN)


def test_expected_bytes_are_the_bytes_of_the_boxes():
    cfg = FA4Config(qk_depth=72)  # padded to 128: TMA counts the padding it fills
    assert cfg.tiles.q_tile_bytes == 128 * 128 * 2
    assert cfg.tiles.k_stage_bytes * cfg.tiles.qk_stages == cfg.tiles.v_bytes == 128 * 128 * 2


REFUSED = [
    (dict(qkv_dtype="e4m3", o_dtype="e5m2"), "o_dtype='e5m2'", "'bf16' or 'fp16' or 'e4m3'"),
    (dict(qkv_dtype="e4m3", qk_depth=24), "qk_depth=24", "a multiple of 16 up to 256"),
    (dict(qkv_dtype="e4m3", rescale_log2=9.0), "rescale_log2=9.0", "fit e4m3: use 0 to 8"),
    (dict(qkv_dtype="f32"), "qkv_dtype='f32'", "bf16, fp16, e4m3, e5m2"),
    (
        dict(descales="k"),
        "descales='k' with qkv_dtype='bf16'",
        "use '' or 'o', or one of e4m3, e5m2",
    ),
    (dict(qkv_dtype="int8"), "qkv_dtype='int8'", "bf16"),
    (dict(o_dtype="f32"), "o_dtype='f32'", "use 'bf16'"),
    (dict(qk_depth=256), "qk_depth=256", "use a multiple of 8 up to 192"),
    (dict(qk_depth=200, ov_depth=128), "qk_depth=200", "192"),
    (dict(qk_depth=192), "ov_depth=192", "128"),
    (dict(qk_depth=52), "qk_depth=52", "a multiple of 8 up to 192"),
    (dict(qk_depth=0), "qk_depth=0", "at least 1"),
    (dict(qk_depth=128, ov_depth=12), "ov_depth=12", "a multiple of 8 up to 128"),
    (dict(group=0), "group=0", "at least 1"),
    (dict(page_size=64), "page_size=64", "kv_layout='dense'"),
    (dict(kv_layout="paged"), "page_size=0", "kv_layout='paged'"),
    (dict(kv_layout="paged", page_size=64), "seqused_k=False", "use seqused_k=True"),
    (dict(kv_layout="sparse"), "kv_layout='sparse'", "'paged'"),
    (dict(q_layout="paged"), "q_layout='paged'", "'packed'"),
    (dict(cache_batch_idx=True), "cache_batch_idx=True", "seqused_k=True"),
    (dict(cache_leftpad=True, kv_layout="packed"), "cache_leftpad=True", "'dense' or 'paged'"),
    (dict(pack_gqa=True, group=3), "group=3", "divides 128"),
    (dict(page_size=-1), "page_size=-1", "not be negative"),
    (dict(exponential="fast"), "exponential='fast'", "exact or half"),
    (dict(exponential="half"), "exponential='half' with qkv_dtype='bf16'", "'exact'"),
    (dict(qkv_dtype="e4m3", exponential="half", exp2_emulated=57), "exp2_emulated=57", "up to 56"),
    (dict(order="p_nowhere"), "order='p_nowhere'", "p_beside_s or p_crossed"),
    (dict(order="p_crossed"), "order='p_crossed' with qkv_dtype='bf16'", "p_over_s or p_beside_s"),
    (dict(order="p_beside_s"), "640 tensor-memory columns", "order='p_over_s'"),
    (dict(rope_dtype="bf16"), "rope_dtype='bf16'", "use None"),
    (dict(scale_dtype="f32"), "scale_dtype='f32'", "use None"),
    (dict(rope_dtype="complex"), "rope_dtype='complex'", "use None"),
    (
        dict(write_max=True),
        "write_max=True",
        "use latent=True, write_lse=True and split_keys=False",
    ),
    (dict(arch="sm_90a"), "arch='sm_90a'", "sm_100a"),
    (dict(exp2_emulated=65), "exp2_emulated=65", "0 to 64"),
    (dict(rescale_log2=20.0), "rescale_log2=20.0", "0 to 15"),
]


@pytest.mark.parametrize(
    "choices, value, remedy", REFUSED, ids=lambda v: str(v) if isinstance(v, dict) else ""
)
def test_a_refusal_names_the_value_and_the_remedy(choices, value, remedy):
    why = config(**choices).refusals()
    assert any(value in reason and remedy in reason for reason in why), why


def test_every_reason_is_given_not_only_the_first():
    why = config(
        qk_depth=64, ov_depth=12, scale_dtype="f32", rope_depth=40, rope_dtype="bf16"
    ).refusals()
    assert len(why) >= 4


def test_the_config_is_the_whole_compile_key():
    """Hashable, and a change of any field is another key and another kernel name."""
    base = FA4Config()
    other = dict(
        qkv_dtype="fp16", kv_dtype="e4m3", v_block_scale_layout="interleaved4",
        o_dtype="f32", descales="k", qk_depth=64, ov_depth=64,
        group=2,
        mask=masks.Causal(), write_lse=True, write_max=True, split_keys=True, share_keys=True,
        q_layout="packed", kv_layout="packed", seqused_q=True, seqused_k=True,
        cache_batch_idx=True, cache_leftpad=True,
        padded_keys=True, page_heads_first=True, fold_pages=False, pack_gqa=True, latent=True, sink=True,
        sink_dtype="bf16", score_mod=soft_cap(30.0), mask_mod=soft_cap(31.0), aux=(("f32", 1),),
        arch="sm_103a", page_size=16, rope_depth=32, rope_page_size=8, rope_dtype="bf16", scale_dtype="f32",
        q_block=256, kv_block=128, full_blocks=True, packed_lists=True, list_offsets=True,
        longest_first=True, cut_lists=True, skip_softmax=True, count_skipped=True,
    )  # fmt: skip
    of_schedule = dict(
        order="p_beside_s", lone_tiles=True, own_parts=True, one_query_tile=True, maximum="exact",
        first_reference="quarter", exponential="half", row_sum="rounded", rescale_log2=0.0, exp2_emulated=3,
        claims=False, dependent_launch=True,
        warps=dataclasses.replace(base.schedule.warps, other_registers=24),
    )  # fmt: skip
    assert set(other) | {"schedule"} == {field.name for field in dataclasses.fields(base)}
    assert set(of_schedule) == {field.name for field in dataclasses.fields(base.schedule)}
    other |= of_schedule
    for name, value in other.items():
        changed = base.with_(**{name: value})
        assert changed != base and changed.name != base.name, name
    assert len({base, FA4Config()}) == 1


SUMS_OF_8_BITS = FA4Config(qkv_dtype="e4m3")


@pytest.mark.parametrize(
    "change",
    [dict(write_lse=True), dict(ov_depth=64), dict(qkv_dtype="bf16", exponential="exact")],
    ids=str,
)
def test_a_change_that_p_v_cannot_add_up_beside_lets_softmax_add_up(change):
    """with_ gives what the same choices give from the beginning: nothing that contradicts itself."""
    base = SUMS_OF_8_BITS
    assert base.tmem.sums and base.refusals() == []
    changed = base.with_(**change)
    assert changed.refusals() == [] and changed.tmem.sums == ()
    again = dataclasses.replace(changed.schedule, order=None, exp2_emulated=None)
    assert changed == dataclasses.replace(changed, schedule=again)
    assert base.with_(exp2_emulated=3, **change).schedule.exp2_emulated == 3
    # An order that is named is the caller's: it stays, and the refusal says what to use.
    named = base.with_(order=base.schedule.order, **change)
    assert named.schedule.order == base.schedule.order
    assert f"order={base.schedule.order!r} with" in " ".join(named.refusals())


def test_b300_computes_every_exponential_in_hardware():
    assert (
        FA4Config(arch="sm_103a").schedule.exp2_emulated
        == 0
        < FA4Config(arch="sm_100a").schedule.exp2_emulated
    )


def test_kernels_ask_the_configuration_for_their_warps():
    """Not the schedule, whose warps lack the one that copies V where rows are gathered."""
    package = Path(cute_fa4.__file__).parent / "sm100"
    asks = [path for path in package.rglob("*.py") if "cfg.schedule.warps" in path.read_text()]
    assert not asks
