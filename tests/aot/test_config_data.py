"""Configurations as data: what is read back is equal, and what cannot be written or read is refused by name."""

import json

import pytest

from cute_fa4 import masks, score_mods
from cute_fa4.aot import read_catalogue
from cute_fa4.aot.config_data import ConfigDataError, from_data, to_data
from cute_fa4.sm100.blueprint import score_mods as sm100_score_mods
from cute_fa4.sm100.blueprint.score_mods import ScoreMod
from cute_fa4.sm100.choose.config import SCHEDULES, FA4Config

from .conftest import EXPORTED, python


def through_json(config):
    return from_data(json.loads(json.dumps(to_data(config))))


def test_every_configuration_of_the_serving_catalogue_survives_json():
    configs = read_catalogue("serving")
    assert len(configs) > 100
    for config in configs:
        assert through_json(config) == config


@pytest.mark.parametrize(
    "config",
    [
        *EXPORTED,
        FA4Config(
            mask=masks.Either(masks.Window(True, True), masks.Both(masks.Causal(), masks.Chunked()))
        ),
        FA4Config(score_mod=score_mods.alibi(12), mask_mod=score_mods.relative_logits(7)),
        FA4Config(arch="sm_103a").with_(rescale_log2=4.5, exp2_emulated=3),
    ],
    ids=lambda c: c.name,
)
def test_what_is_read_back_is_the_same_key(config):
    again = through_json(config)
    assert again == config and hash(again) == hash(config) and again.name == config.name


def test_functions_of_the_package_come_back_by_name_and_do_the_same():
    config = FA4Config(score_mod=score_mods.soft_cap(50.0))
    again = through_json(config).score_mod.function, config.score_mod.function
    assert again[0].function.__code__ is again[1].function.__code__


def my_bias(score, batch, head, q_idx, kv_idx, aux):
    return score + 1


def of_the_compiler(score, batch, head, q_idx, kv_idx, aux):
    from cutlass import Float32, select_

    return Float32(select_(q_idx > kv_idx, score, aux[0][kv_idx].to(Float32)))


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=lambda cls: cls.__name__)
def test_every_schedule_is_read_back(schedule):
    """The parts that a family brings of its own, too: an export of it writes them."""
    config = FA4Config(schedule=schedule())
    assert from_data(to_data(config)) == config


@pytest.mark.parametrize(
    "mod",
    [
        ScoreMod.of(my_bias),
        ScoreMod.of(of_the_compiler),
        # A key that looks like the package's own does not make the function one.
        ScoreMod(my_bias, "soft_cap(50.0)"),
        score_mods.composed(score_mods.soft_cap(2.0), ScoreMod.of(my_bias)),
    ],
    ids=["function", "of the compiler", "borrowed key", "composed"],
)
def test_functions_of_the_user_come_back_as_what_they_compute(mod, monkeypatch):
    config = FA4Config(score_mod=mod)
    data = json.loads(json.dumps(to_data(config)))
    monkeypatch.setattr(sm100_score_mods, "_remembered", {})  # another process
    assert from_data(data) == config
    assert from_data(data).score_mod.parts[-1].function.data() == mod.parts[-1].function.data()


def test_what_says_nothing_about_itself_is_refused():
    mod = ScoreMod(sm100_score_mods.InKernel(my_bias), "mine")
    with pytest.raises(ConfigDataError, match="mine has no form as data.*soft_cap, alibi"):
        to_data(FA4Config(score_mod=mod))


@pytest.mark.parametrize("data", [{}, {"of": "score_mod", "reads": []}, {"of": "x", "mlir": ""}, 3])
def test_what_no_trace_has_written_is_refused(data):
    with pytest.raises(ConfigDataError, match="score_mod: no traced function"):
        from_data(
            to_data(FA4Config())
            | {"score_mod": {"kind": "score_mod", "functions": [["traced", data]]}}
        )


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda d: d.pop("qk_depth"), r"without \['qk_depth'\].*another version"),
        (lambda d: d.update(new_field=1), r"unknown \['new_field'\].*another version"),
        (lambda d: d.update(kind="Popen"), "kind 'Popen'; accepted"),
        (lambda d: d.update(mask={"kind": "FA4Config"}), "kind 'FA4Config'; accepted"),
        (lambda d: d.update(score_mod={"kind": "score_mod", "functions": [["eval", 1]]}), "eval"),
        (lambda d: d.update(score_mod={"kind": "score_mod", "functions": []}), "no score function"),
    ],
)
def test_other_data_is_refused_with_the_place(change, message):
    data = to_data(FA4Config())
    change(data)
    with pytest.raises(ConfigDataError, match=message):
        from_data(data)


def test_nothing_here_imports_the_compiler():
    code = (
        "import sys; from cute_fa4.aot import read_catalogue; from cute_fa4.aot.config_data import *\n"
        "[from_data(to_data(c)) for c in read_catalogue('serving')]; assert 'cutlass' not in sys.modules"
    )
    python(code)
