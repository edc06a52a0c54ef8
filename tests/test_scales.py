"""Scales and the letters that spell them in names, options, catalogues and manifests, converted both ways."""

import itertools

import pytest

from cute_fa4 import masks
from cute_fa4.aot.config_data import ConfigDataError, from_data, to_data
from cute_fa4.scales import LETTERS, SPELLING, TENSORS, Scales
from cute_fa4.sm100.append.config import AppendConfig
from cute_fa4.sm100.choose.config import FA4Config

KINDS = {x: [None, *(kind for tensor, kind in SPELLING if tensor == x)] for x in TENSORS}
EVERY = [Scales(*kinds) for kinds in itertools.product(*KINDS.values())]


def test_every_combination_has_letters_of_its_own():
    assert len({scales.letters for scales in EVERY}) == len(EVERY) == 4 * 4 * 3 * 2


@pytest.mark.parametrize("scales", EVERY, ids=lambda scales: scales.letters or "none")
def test_letters_and_scales_say_the_same(scales):
    assert Scales.of(scales.letters) == scales == Scales.of(scales)
    assert eval(repr(scales)) == scales.letters and bool(scales) == bool(scales.letters)
    assert [scales.place(tensor) for tensor, _ in scales.given] == list(range(len(scales.letters)))
    assert scales.only(*TENSORS) == scales and not scales.only()


def accepted(letters: str) -> bool:
    try:
        return Scales.of(letters).letters == letters
    except ValueError:
        return False


def test_the_letters_that_are_accepted_are_those_of_every_combination():
    texts = ("".join(x) for n in range(5) for x in itertools.permutations(LETTERS, n))
    assert {text for text in texts if accepted(text)} == {scales.letters for scales in EVERY}


@pytest.mark.parametrize("scales", EVERY, ids=lambda scales: scales.letters or "none")
def test_a_configuration_takes_either_and_is_written_with_letters(scales):
    config = FA4Config(qkv_dtype="e4m3", descales=scales)
    assert config == FA4Config(qkv_dtype="e4m3", descales=scales.letters)
    assert to_data(config)["descales"] == scales.letters and from_data(to_data(config)) == config
    if scales:
        assert f"_scale_{scales.letters}_" in config.name
        assert f"descales={scales.letters!r}" in repr(config)
    else:
        assert "scale_" not in config.name and "descales" not in repr(config)


@pytest.mark.parametrize(
    "letters, why",
    [
        ("vk", "descales='vk': use letters of 'qQxkKyvVo', each once and in this order"),
        ("kk", "descales='kk': .*once"),
        ("kK", "descales='kK': a tensor has scales of one kind.*x of Q and y of K"),
        ("z", "descales='z': use letters of"),
    ],
)
def test_other_letters_are_refused(letters, why):
    for make in (
        lambda: Scales.of(letters),
        lambda: FA4Config(qkv_dtype="e4m3", descales=letters, mask=masks.Causal()),
        lambda: AppendConfig("e4m3", 128, 128, new_dtype="bf16", descales=letters),
    ):
        with pytest.raises(ValueError, match=why):
            make()
    data = to_data(FA4Config(qkv_dtype="e4m3")) | {"descales": letters}
    with pytest.raises(ConfigDataError, match=f"FA4Config with {why}"):
        from_data(data)


def test_a_kind_that_a_tensor_does_not_have_is_refused():
    with pytest.raises(ValueError, match="v='block': .*None or 'head' or 'row'"):
        Scales(v="block")


def test_scales_of_other_tensors_have_no_append_kernel():
    for letters in ("q", "o", "xy", "kvo"):
        config = AppendConfig("e4m3", 128, 128, new_dtype="bf16", descales=letters)
        (why,) = config.contradictions()
        assert f"descales={letters!r}" in why
    assert not AppendConfig("e4m3", 128, 128, new_dtype="bf16", descales="kV").contradictions()
