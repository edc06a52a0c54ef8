"""Names and texts of configurations: they tell every choice, and the text makes the configuration again."""

import re
from dataclasses import fields, replace

import pytest

from cute_fa4 import masks, score_mods
from cute_fa4.aot import read_catalogue
from cute_fa4.sm100.blueprint import spelled
from cute_fa4.sm100.blueprint.problem import Problem
from cute_fa4.sm100.blueprint.score_mods import PACKAGED, ScoreMod
from cute_fa4.sm100.blueprint.warp_roles import WarpRoles
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.few_rows.dequantized.schedule import DequantizedTile
from cute_fa4.sm100.few_rows.schedule import SwappedTile
from cute_fa4.sm100.latent.dequantized.schedule import LatentRows
from cute_fa4.sm100.latent.pair.schedule import LatentPair
from cute_fa4.sm100.latent.pair_dequantized.schedule import LatentRowsPair
from cute_fa4.sm100.latent.schedule import LatentTile
from cute_fa4.sm100.one_tile.schedule import OneTile
from cute_fa4.sm100.two_tiles.block_scaled.schedule import BlockScaled
from cute_fa4.sm100.two_tiles.dequantized.schedule import SlotTwoTiles
from cute_fa4.sm100.two_tiles.schedule import TwoTiles
from cute_fa4.sm100.wide.dequantized.schedule import SlotWideTile
from cute_fa4.sm100.wide.dequantized_rope.schedule import RopeTile
from cute_fa4.sm100.wide.schedule import WideTile

# The imports in the docstring of FA4Config.
IMPORTED = {
    "FA4Config": FA4Config,
    "TwoTiles": TwoTiles,
    "SwappedTile": SwappedTile,
    "OneTile": OneTile,
    "LatentTile": LatentTile,
    "LatentPair": LatentPair,
    "LatentRows": LatentRows,
    "LatentRowsPair": LatentRowsPair,
    "DequantizedTile": DequantizedTile,
    "SlotTwoTiles": SlotTwoTiles,
    "WideTile": WideTile,
    "RopeTile": RopeTile,
    "SlotWideTile": SlotWideTile,
    "BlockScaled": BlockScaled,
    "WarpRoles": WarpRoles,
    "range": range,
    **masks.KINDS,
    **PACKAGED,
    "composed": score_mods.composed,
}

# Another value for every field; the schedule has fields of its own below.
CHANGED = dict(
    v_block_scale_layout="interleaved4",
    qkv_dtype="e4m3", kv_dtype="e5m2", o_dtype="fp16", descales="qv", qk_depth=64, ov_depth=64, group=4,
    mask=masks.Either(masks.Window(True, False), masks.Both(masks.Causal(), masks.Chunked())),
    q_layout="packed", kv_layout="packed", seqused_q=True, seqused_k=True,
    cache_batch_idx=True, cache_leftpad=True,
    padded_keys=True, page_heads_first=True, fold_pages=False, page_size=16, pack_gqa=True, latent=True, sink=True,
    sink_dtype="bf16", score_mod=score_mods.composed(score_mods.soft_cap(30.0), score_mods.alibi(8)),
    mask_mod=score_mods.relative_logits(7), aux=(("f32", 4), ("i32", 1)), write_lse=True, write_max=True,
    split_keys=True, share_keys=True,
    rope_depth=32, rope_page_size=8, rope_dtype="bf16", scale_dtype="e4m3", q_block=256, kv_block=128, full_blocks=True,
    packed_lists=True, list_offsets=True, longest_first=True, cut_lists=True, skip_softmax=True, count_skipped=True,
    arch="sm_103a",
)  # fmt: skip
OF_SCHEDULE = dict(
    order="p_beside_s", lone_tiles=True, own_parts=True, one_query_tile=True, maximum="exact",
    first_reference="quarter", exponential="half", row_sum="rounded", rescale_log2=4.5, exp2_emulated=7, claims=False,
    dependent_launch=True,
    warps=WarpRoles(softmax_registers=184),
)  # fmt: skip
OF_SWAPPED_TILE = dict(
    rows=32,
    rescale_log2=4.5,
    claims=False,
    dependent_launch=False,
    cluster_parts=4,
)


def test_the_tables_have_every_field():
    for schedule in (SwappedTile, LatentTile, DequantizedTile):
        assert set(OF_SWAPPED_TILE) == {f.name for f in fields(schedule)}
    assert set(CHANGED) == {f.name for f in fields(Problem)}
    assert set(OF_SCHEDULE) == {f.name for f in fields(TwoTiles)}


def one_choice_each():
    for name, value in CHANGED.items():
        yield replace(FA4Config(), **{name: value})
    for name, value in OF_SCHEDULE.items():
        yield FA4Config(schedule=TwoTiles(**{name: value}))
    for name, value in OF_SWAPPED_TILE.items():
        yield FA4Config(schedule=SwappedTile(**{name: value}))


def words(config) -> str:
    """A name without its hash."""
    return config.name.rpartition("_")[0]


def test_names_that_differ_in_one_choice_differ_before_the_hash():
    names = [words(config) for config in (FA4Config(), *one_choice_each())]
    assert len(set(names)) == len(names)
    # Each is an identifier of C and a name of a file.
    assert all(re.fullmatch(r"\w{1,200}", name) for name in names)


def test_no_two_kernels_of_the_catalogue_differ_in_their_hash_alone():
    configs = read_catalogue("serving")
    assert len({words(config) for config in configs}) == len(configs)


def test_functions_of_the_user_are_in_the_name():
    def my_bias(score, batch, head, q_idx, kv_idx, aux):
        return score + 1

    config = FA4Config(score_mod=ScoreMod.of(my_bias))
    assert f"_score_{config.score_mod.key.partition(':')[2]}" in config.name
    with pytest.raises(SyntaxError):
        eval(repr(config), {})  # it says so, and makes no other function


def all_choices():
    yield from one_choice_each()
    problem = CHANGED | {"ov_depth": 128, "qk_depth": 128, "kv_layout": "paged", "o_dtype": "f32"}
    yield FA4Config(**problem, schedule=TwoTiles(**OF_SCHEDULE))
    yield FA4Config(**problem, schedule=SwappedTile(**OF_SWAPPED_TILE))
    yield FA4Config(qk_depth=64, schedule=TwoTiles(order="p_over_s"))  # not the one that it chooses
    yield FA4Config(schedule=OneTile())
    yield FA4Config(**problem, schedule=LatentTile(**OF_SWAPPED_TILE))
    yield FA4Config(qk_depth=256, schedule=WideTile(claims=False))
    of_rope = dict(qk_depth=192, ov_depth=128, rope_depth=64, rope_page_size=16, rope_dtype="e4m3")
    yield FA4Config(**of_rope, schedule=RopeTile(claims=False))
    yield FA4Config(kv_dtype="e4m3", schedule=SlotTwoTiles(claims=False))
    yield FA4Config(qk_depth=256, kv_dtype="e4m3", schedule=SlotWideTile(claims=False))
    yield FA4Config(qkv_dtype="e4m3", descales="xyv", schedule=BlockScaled(claims=False))
    yield FA4Config(mask=masks.Causal(), schedule=OneTile(claims=False))
    yield FA4Config(qk_depth=0)  # contradicts itself, which a message must be able to show


@pytest.mark.parametrize("config", list(all_choices()), ids=lambda c: c.name[:60])
def test_the_text_evaluates_to_the_configuration(config):
    assert eval(repr(config), dict(IMPORTED)) == config
    assert spelled.value_of(repr(config), IMPORTED) == config


def test_the_text_says_only_what_is_not_the_default():
    config = FA4Config(mask=masks.Causal())
    assert repr(config) == "FA4Config(qkv_dtype='bf16', qk_depth=128, mask=Causal())"


@pytest.mark.parametrize(
    "text",
    ["Causal", "__import__('os')", "Both(Causal(), open('x'))", "Window(1, 2, 3)", "f(", "a.b()"],
)
def test_text_that_is_something_else_is_refused(text):
    with pytest.raises(ValueError, match="accepted: calls of Both, Causal"):
        spelled.value_of(text, masks.KINDS)
