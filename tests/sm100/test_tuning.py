"""The tuning table: its rows are complete, a file overrules them, and what is wrong in a file is named."""

import itertools

import pytest

from cute_fa4.calls import indexer
from cute_fa4.calls.split_keys import split
from cute_fa4.emulator.model.stated_error import DIFFERENCES
from cute_fa4.sm100.backward.config import BackwardConfig
from cute_fa4.sm100.blueprint import choices, tuning
from cute_fa4.sm100.blueprint.bands import Causal, Full
from cute_fa4.sm100.blueprint.choices import CHOICES, FACTS
from cute_fa4.sm100.blueprint.tuning import MARGIN, METADATA, Row, Tuning
from cute_fa4.sm100.choose import pays
from cute_fa4.sm100.choose.choose_config import FAMILIES, choose_config, config_for
from cute_fa4.sm100.choose.pays import Lengths
from cute_fa4.sm100.choose.rows_of_tiles import tile_for
from cute_fa4.sm100.choose.which_kernel import Call, kernels_of, which_kernel
from cute_fa4.sm100.indexer.config import IndexerConfig
from cute_fa4.sm100.two_tiles.orders import ORDERS

LONG = Lengths(8192, 8192, 64)
PAIRED = tuning.shipped().changed(pairs_least_gain=0.02)
CAUSAL = dict(qkv_dtype="bf16", head_dim=128, causal=True)


def file_of(tmp_path, text: str) -> str:
    path = tmp_path / "tuning.toml"
    path.write_text(text)
    return str(path)


def test_every_choice_ends_in_a_row_for_all_facts_and_every_row_says_where_it_is_from():
    rows = tuning.shipped().rows
    assert set(rows) == set(CHOICES)
    for name, of_choice in rows.items():
        assert not of_choice[-1].facts and all(row.facts for row in of_choice[:-1]), name
        about = set(METADATA) | (set(MARGIN) if CHOICES[name].candidates else set())
        assert all(set(row.about) == about for row in of_choice), name


def default_of(name: str, row: Row):
    return pays.default_of(row.value, row.facts.get("arch", "")) if name == "pairs" else row.value


def test_no_default_that_is_not_the_simplest_is_within_the_error_of_the_model():
    """Where choices differ by less than the error recorded with them, the simplest is the default (decision 0051)."""
    for name, choice in CHOICES.items():
        if not choice.candidates:
            continue
        assert choice.accepts(choice.simplest) is None and choice.simplest in choice.candidates
        for row in tuning.shipped().rows[name]:
            assert row.about["error"] in DIFFERENCES, name
            simplest = default_of(name, row) == choice.simplest
            assert simplest or row.about["margin"] >= row.about["error"], (name, row.value)


def test_the_error_of_pairs_is_what_they_must_save():
    """And their margins are those of the cycles in the rows."""
    for row in tuning.shipped().rows["pairs"][:-1]:
        least = tuning.shipped().choose("pairs_least_gain", {"arch": row.facts["arch"]})
        assert least == row.about["error"]
        (_, alone), (_, pairs) = row.value["alone"], row.value["pairs"]
        assert row.about["margin"] == pytest.approx(1 - pairs / alone, abs=6e-4)
        assert default_of("pairs", row) == "alone"


# Columns of q and k, with the reason for each, -> pairs of 64 on the FMA units.
EMULATED = {
    64: 24,  # softmax is the bound
    112: 24,  # the last that was not counted (decision 0069)
    120: 8,  # the first with the MMAs of 128, where the tensor core is the bound
    128: 8,
    136: 16,  # an exact maximum, for which P waits
    176: 16,
    184: 0,  # the first with the MMAs of 192 (decision 0068)
}


@pytest.mark.parametrize("mask", [Full(), Causal()], ids=["full", "causal"])
def test_the_fma_units_take_fewer_exponentials_where_the_tensor_core_is_the_bound(mask):
    """In a CTA alone, in bf16, on a B200; a B300 has twice the special-function units, and needs none."""
    for depth, pairs in EMULATED.items():
        call = dict(qkv_dtype="bf16", head_dim=depth, head_dim_v=min(depth, 128), mask=mask)
        schedule = choose_config(**call).schedule
        assert (schedule.family, schedule.exp2_emulated) == ("mha2q", pairs), depth
        assert choose_config(**call, arch="sm_103a").schedule.exp2_emulated == 0


@pytest.mark.parametrize("value", ["-0.1", "'much'"])
def test_a_margin_is_a_share(tmp_path, value):
    text = f"[[claims]]\nvalue = true\nmargin = {value}\n"
    with pytest.raises(ValueError, match="margin = .*accepted: a share of the time"):
        tuning.read(file_of(tmp_path, text))


def test_the_words_of_facts_are_those_of_the_kernels():
    assert set(choices.FAMILIES) == set(FAMILIES)
    assert set(choices.ORDERS) == set(ORDERS)


def test_a_written_table_is_read_back(tmp_path):
    path = file_of(tmp_path, tuning.text(tuning.shipped()))
    assert tuning.read(path).rows == tuning.shipped().rows


def test_the_first_row_whose_facts_hold_decides(tmp_path):
    path = file_of(
        tmp_path,
        "[[parts]]\nkeys_to = 4096\nblocks = 8\nvalue = 3\n[[parts]]\nkeys_from = 8192\nvalue = 5\n",
    )
    table = tuning.load(path)
    found = [
        table.choose("parts", {"blocks": blocks, "keys": keys})
        for blocks, keys in itertools.product((8, 9), (4096, 4097, 8192))
    ]
    assert found == [3, "rule", 5, "rule", "rule", 5]


@pytest.mark.parametrize(
    "text, named",
    [
        ("[[claim]]\nvalue = true", "[[claim]]; did you mean 'claims'?"),
        ("claims = true", "claims; accepted: rows, each under [[claims]]"),
        ("[[claims]]\nclass = 'other'\nvalue = true", "[[claims]]: class; did you mean 'calls'?"),
        ("[[claims]]\ncalls = 'othr'\nvalue = true", "did you mean 'other'?"),
        ("[[claims]]\nvalue = 1", "[[claims]]: value = 1; accepted: true, false"),
        ("[[claims]]\ncalls = 'other'", "a row without `value`"),
        ("[[pairs]]\nhead_dim = 'wide'\nvalue = 'alone'", 'head_dim = "wide"; accepted: a number'),
        ("[[pairs]]\nvalue = 'pair'", "accepted: 'alone', 'pairs', or"),
        ("[[pairs]]\nvalue = { alone = [1, 2] }", "accepted: 'alone', 'pairs', or"),
        ("[[exp2_emulated]]\nvalue = 65", "value = 65; accepted: a number from 0 to 64"),
        ("[[order]]\nvalue = ['p_over_s']", "accepted: a list of p_crossed_summed"),
        ("[[cluster_tiles]]\nvalue = [[0.5, 4]]", "the last share 1"),
        ("[[cluster_parts]]\nvalue = 3", "value = 3; accepted"),
        ("[[claims]]\nvalue = true\nevidence = 'felt'", "evidence = 'felt'; accepted: modelled"),
        ("[[claims]\n", "tuning.toml"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_named(tmp_path, monkeypatch, text, named):
    monkeypatch.setenv(tuning.VARIABLE, file_of(tmp_path, text))
    with pytest.raises(ValueError) as raised:
        config_for(**CAUSAL)
    assert str(raised.value).startswith("CUTE_FA4_TUNING: ") and named in str(raised.value)


OTHERS = {
    "claims": (False, "claims"),
    "exp2_emulated": (12, "exp2_emulated"),
    "first_reference": ("quarter", "first_reference"),
    "maximum": ("exact", "maximum"),
    "dependent_launch": (True, "dependent_launch"),
    "order": (["p_over_s", "p_crossed", "p_beside_s", "p_crossed_summed"], "order"),
}
"""Another value for a kernel of head dim 64, and the field of its schedule that it decides."""


@pytest.mark.parametrize("name", OTHERS)
def test_a_row_changes_a_kernel_its_name_and_its_key(name, tmp_path, monkeypatch):
    """Names and hashes are those of the package's table: one name never stands for two kernels."""
    from cute_fa4.aot.disk_cache import key_of

    value, field = OTHERS[name]
    asked = CAUSAL | {"head_dim": 64}
    before = config_for(**asked)
    table = Tuning({name: (Row({}, value),)})
    monkeypatch.setenv(tuning.VARIABLE, file_of(tmp_path, tuning.text(table)))
    after = config_for(**asked)
    assert getattr(before.schedule, field) != getattr(after.schedule, field)
    assert key_of(before, "emulator") != key_of(after, "emulator")
    in_the_table = before.name, after.name, repr(after)
    monkeypatch.delenv(tuning.VARIABLE)
    assert before == config_for(**asked) and before.name == in_the_table[0] != in_the_table[1]
    assert after.name == in_the_table[1]
    assert all(other in (after.name, before.name) for other in in_the_table[:2])


def test_a_repr_evaluates_under_either_table():
    """The text has every choice that the active table or the package's would make otherwise."""
    from cute_fa4 import masks
    from cute_fa4.sm100.choose.config import FA4Config, TwoTiles

    names = {"FA4Config": FA4Config, "TwoTiles": TwoTiles, "Causal": masks.Causal}
    default = config_for(**CAUSAL)
    table = tuning.shipped().changed(claims=False)
    with tuning.using(table):
        changed = config_for(**CAUSAL)
        assert "claims=False" in repr(changed) and "claims=True" in repr(default)
        assert eval(repr(changed), names) == changed and eval(repr(default), names) == default
    assert eval(repr(changed), names) == changed and eval(repr(default), names) == default


def test_pairs_follow_the_table_and_lists_of_kernels_with_them():
    call = Call("bf16", 128, 128, seqlen_q=8192)
    for alone in (tuning.shipped(), PAIRED.changed(pairs="alone")):
        with tuning.using(alone):
            assert which_kernel(call, LONG).family == "mha2q"
            assert "mhapair" not in [kernel.family for kernel in kernels_of(call)]
    with tuning.using(PAIRED):
        assert which_kernel(call, LONG).family == "mhapair"
    rows = (Row({"keys_to": 9000, "keys_from": 8000}, "alone"),)
    with tuning.using(Tuning({"pairs": rows}).before(PAIRED)):
        longer = Lengths(16384, 16384, 64)
        found = [which_kernel(call, lengths).family for lengths in (LONG, longer)]
        assert found == ["mha2q", "mhapair"]
        assert "mhapair" in [kernel.family for kernel in kernels_of(call)]
    with tuning.using(tuning.shipped().changed(wide_pairs=False)):
        assert which_kernel(Call("bf16", 256, 256, seqlen_q=512)).family == "mhawide"


def test_splits_follow_the_table():
    """8 blocks of 2048 keys: 8 CTAs of a cluster, unless a row says otherwise; more clusters than fit are refused."""
    assert split.cluster_parts(8, 2048, 148) == 8
    for value, expected in ((2, 2), (1, 1), (0, None)):
        with tuning.using(tuning.shipped().changed(cluster_parts=value)):
            assert split.cluster_parts(8, 2048, 148) == expected
            assert split.cluster_parts(149, 2048, 148) is None
    with tuning.using(tuning.shipped().changed(merged_a_tile=40)):
        assert split.even_parts(148, 4096) == 2 * 17 - 0 or split.even_parts(148, 4096) == 32


def test_what_a_call_asks_is_recorded():
    with tuning.recording() as found:
        choose_config(**CAUSAL)
    asked = {name for name, _ in found}
    assert {"claims", "exp2_emulated", "maximum", "first_reference", "order"} <= asked
    for name, facts in found:
        assert {fact for fact, _ in facts} <= set(CHOICES[name].facts) <= set(FACTS)


def test_candidates_are_values_of_their_choice():
    for name, choice in CHOICES.items():
        assert all(choice.accepts(value) is None for value in choice.candidates), name


def test_lists_of_a_models_kernels_take_a_file(tmp_path, capsys):
    """The kernels of the file's table, by the argument and by the flag; afterwards those of the package again."""
    from cute_fa4.__main__ import main
    from cute_fa4.aot.models import configs_for_model

    model = dict(head_dim=128, heads_q=8, heads_kv=8, calls=("dense",), splits=False)
    before = configs_for_model(**model)
    path = file_of(tmp_path, "[[claims]]\nvalue = false\n")
    tuned = configs_for_model(**model, tuning=path)
    assert all(config.schedule.claims is False for config in tuned)
    assert configs_for_model(**model) == before != tuned
    flags = "export --list --head-dim 128 --heads-q 8 --heads-kv 8 --calls dense --no-splits"
    assert main([*flags.split(), "--tuning", path]) == 0
    assert capsys.readouterr().out.split() == [config.name for config in tuned]


# Choice and another value of it -> what follows, a number of a rule in each.
RULES = {
    ("few_rows", 8): lambda: [tile_for(queries, 8)[1] for queries in (1, 2)],
    ("run_tiles", 4): lambda: split.parts_of_run(split.Split(16, 4), 64, 148),
    ("run_start_tiles", 8): lambda: split.parts_of_run(split.Split(16, 4), 40, 148),
    ("shared_parts", 3): lambda: [split.shared_parts(65, latent) for latent in (True, False)],
    ("topk_shared_keys", 32768): lambda: indexer.ctas_of_row(1, 16384, 148, split._EMULATED),
    ("logits_tiles", 8): lambda: indexer.tiles_each(IndexerConfig(64, 2), 4096, 8192, 148),
    ("logits_ctas", 8): lambda: indexer.tiles_each(IndexerConfig(64, 2), 64, 8192, 148),
    ("exp2_emulated", 8): lambda: BackwardConfig("bf16", 128, 128).exp2_emulated,
}
SHIPPED = [[8, 32], 4, 1, [1024, 25], 8, 32, 6, 16]
CHANGED = [[8, None], 1, 3, [3, 3], 1, 8, 3, 8]


@pytest.mark.parametrize("rule, now, then", zip(RULES, SHIPPED, CHANGED, strict=True), ids=str)
def test_a_number_of_a_rule_is_the_tables(rule, now, then):
    name, value = rule
    assert RULES[rule]() == now
    with tuning.using(tuning.shipped().changed(**{name: value})):
        assert RULES[rule]() == then


def test_the_exponentials_of_the_backward_pass_are_of_the_configuration():
    """So caches never mix kernels of two tables; fp16 has none on the FMA units."""
    shipped = BackwardConfig("bf16", 64, 64)
    with tuning.using(tuning.shipped().changed(exp2_emulated=8)):
        changed = BackwardConfig("bf16", 64, 64)
        assert BackwardConfig("fp16", 64, 64).exp2_emulated == 0
    assert shipped != changed and shipped.name != changed.name
