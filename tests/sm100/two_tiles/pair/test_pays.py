"""The rule for pairs of CTAs: what it may depend on, and that it follows the modelled cycles it is made of."""

import pytest

from cute_fa4 import masks
from cute_fa4.sm100.blueprint import bands, tuning
from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.sm100.choose.pays import Asked, Lengths, modelled, pays
from cute_fa4.sm100.choose.which_kernel import Call
from cute_fa4.system.devices import ARCH_OF_COMPUTE_CAPABILITY
from tests import tuned

MODELLED = {arch: modelled(arch) for arch in ARCH_OF_COMPUTE_CAPABILITY.values()}

FULL, CAUSAL = bands.Full(), bands.Causal()
LONG = Lengths(32768, 32768, 64)


@pytest.fixture(autouse=True)
def two_percent(monkeypatch, tmp_path):
    tuned.pairs_gain_two_percent(monkeypatch, tmp_path)


def test_by_default_no_call_runs_on_pairs(monkeypatch):
    """What they save is below the error of the model on pairs (decision 0051)."""
    monkeypatch.delenv(tuning.VARIABLE)
    for arch, problems in MODELLED.items():
        for *depths, mask in problems:
            asked = Asked("bf16", *depths, mask(), arch=arch)
            assert not asked.may_pay
            assert not any(
                pays(asked, Lengths(1 << n, 1 << m, 1 << 12))
                for n in range(7, 21)
                for m in (7, 12, 20)
            )


@pytest.mark.parametrize(
    "changed",
    [
        dict(qkv_dtype="fp16"),  # exact: P waits for the maximum
        dict(qkv_dtype="e4m3"),
        dict(exact=True),
        dict(plain=False),
        dict(head_dim=64, head_dim_v=64),
        dict(head_dim=96, head_dim_v=96),
        dict(head_dim=256, head_dim_v=256),
        dict(mask=masks.window(4095, 0).mask),
        dict(mask=masks.chunked_causal(8192).mask),
    ],
    ids=str,
)
def test_what_was_not_modelled_to_gain_runs_on_ctas_alone(changed):
    asked = dict(qkv_dtype="bf16", head_dim=128, head_dim_v=128, mask=CAUSAL)
    assert pays(Asked(**asked), LONG)
    asked = Asked(**asked | changed)
    assert not asked.may_pay and not pays(asked, LONG)


def test_deep_keys_hide_the_exact_maximum():
    """192 columns: the tensor core is the bound, whatever softmax waits for; so fp16 pays, too."""
    deep = dict(head_dim=192, head_dim_v=128, mask=CAUSAL)
    found = [Asked("bf16", **deep), Asked("bf16", **deep, exact=True), Asked("fp16", **deep)]
    assert all(pays(asked, LONG) for asked in found)
    schedules = [
        choose_config(qkv_dtype="bf16", head_dim=d, head_dim_v=128, family="mhapair").schedule
        for d in (128, 192)
    ]
    assert [schedule.maximum for schedule in schedules] == ["lagged", "exact"]


@pytest.mark.parametrize(
    "arch, depths, mask", [(arch, key[:2], key[2]) for arch in MODELLED for key in MODELLED[arch]]
)
def test_once_pairs_pay_they_pay_for_longer_sequences(arch, depths, mask):
    """Of whole blocks: what is left of a block of 512 rows may cost more than pairs save."""
    asked = Asked("bf16", *depths, mask(), arch=arch)
    found = [pays(asked, Lengths(n, n, 1024)) for n in range(512, 65536, 512)]
    assert found == sorted(found) and found[-1]


def test_architectures_have_cycles_of_their_own_for_the_same_problems():
    """So that capabilities and catalogues have the same kernels; there, causal calls of 4096 rows are on both sides."""
    assert len({frozenset(of_arch) for of_arch in MODELLED.values()}) == 1
    asked = {
        arch: Asked("bf16", 128, 128, CAUSAL, arch=arch)
        for arch in ARCH_OF_COMPUTE_CAPABILITY.values()
    }
    found = {arch: pays(what, Lengths(4096, 4096, 128)) for arch, what in asked.items()}
    assert found == {"sm_100a": False, "sm_103a": True}


def test_short_launches_are_not_paired():
    """74 pairs of SMs, of which none idles; with fewer blocks keys are split."""
    full = Asked("bf16", 128, 128, FULL)
    assert [pays(full, Lengths(512, 8192, n)) for n in (73, 74)] == [False, True]
    assert [pays(full, Lengths(1024, 8192, n)) for n in (36, 37)] == [False, True]


def test_half_a_block_of_rows_costs_a_whole_one():
    """1280 rows are 5 blocks of 256, or 3 of 512; 8 more of 256 are hardly felt."""
    full = Asked("bf16", 128, 128, FULL)
    assert [pays(full, Lengths(n, 8192, 1024)) for n in (1280, 1536, 1280 + 16384)] == [
        False,
        True,
        True,
    ]
    ragged = Lengths(700.0, 700.0, 1024, equal=False)
    assert not pays(full, ragged) and pays(full, Lengths(8192.0, 8192.0, 1024, equal=False))


def test_queries_after_many_keys_see_whole_tiles():
    """A chunk of a long prompt: under the causal mask its rows see nearly all keys."""
    causal = Asked("bf16", 128, 128, CAUSAL)
    assert not pays(causal, Lengths(2048, 2048, 1024)) and pays(causal, Lengths(2048, 32768, 1024))
    assert pays(
        causal, Lengths(256, 32768, 1024, shared=8)
    )  # rows of a group count as rows of a block


def test_pairs_pay_for_some_lengths_wherever_catalogues_list_them():
    for arch, problems in MODELLED.items():
        for *depths, mask in problems:
            asked = Asked("bf16", *depths, mask(), arch=arch)
            assert pays(asked, Lengths(1 << 20, 1 << 20, 1 << 10))


def test_what_a_configuration_is_made_of_tells_its_architecture():
    choices = dict(qkv_dtype="bf16", head_dim=192, head_dim_v=128, causal=True)
    for arch in MODELLED:
        asked = Call.of_choices(choices | {"arch": arch}).asks_of_pairs
        assert asked == Asked("bf16", 192, 128, CAUSAL, arch=arch)
    assert Call.of_choices(choices).asks_of_pairs.arch == "sm_100a"
