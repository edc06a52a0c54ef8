"""Peers on the same calls: the tables follow from recorded and published data, and bytes from the tiles."""

import re
from dataclasses import replace

import pytest

from benchmarks.cycle_model import hopper_energy, pages, peers, plots, power, recorded
from benchmarks.cycle_model.evaluate import SteadyState
from benchmarks.cycle_model.kernels import FROST, OURS, THEIRS, Variant
from benchmarks.cycle_model.modelled import BUSY, Modelled, unknown
from cute_fa4.emulator.model.constants import fitted_b200

PAGES = plots.text_of_pages()


@pytest.mark.parametrize("call", peers.CALLS, ids=lambda call: call.what)
def test_every_call_has_all_makers_published_and_ours_beside_flash_attn_4_modelled(call):
    for maker in (peers.CUDNN, FROST, THEIRS):
        short, long = peers.published(call.what, maker)
        assert 0 < long and 0 < short < power.chips()[peers.DEVICE].peak("bf16")
    found = peers.modelled(call, PAGES, recorded.recorded)
    assert set(found) - {FROST} == {OURS, THEIRS}
    assert (FROST in found) == ("window" not in call.what)
    known = [row for row in found.values() if row[2] != "missing"]
    speeds = [speed for short, long, _ in known for speed in (short, long)]
    assert all(0 < speed < power.chips()[peers.DEVICE].peak("bf16") for speed in speeds)
    p = call.problem
    assert call.short == str(p.seqlen) and call.mask.startswith("full") != p.causal


def test_modelled_speeds_are_those_of_the_page_for_the_device():
    """TFLOPS are proportional to SMs and clock."""
    call, b200, chip = peers.CALLS[0], fitted_b200(), power.chips()[peers.DEVICE]
    page = float(call.row(PAGES, call.short)[OURS])
    a_sm = page / (b200["sms"].value * b200["clock_ghz"].value)
    assert peers.modelled(call, PAGES, recorded.recorded)[OURS][0] == pytest.approx(
        a_sm * chip.sms * chip.boost_ghz
    )


def test_a_call_takes_the_speed_of_the_kernel_that_it_runs():
    """At 192/128 the page has CTAs alone and pairs, and bold is what runs."""
    call = peers.CALLS[2]
    row = call.row(PAGES, call.short)
    [bold] = [row[name] for name in ("alone", "on pairs") if row[name].startswith("**")]
    found = peers.modelled(call, PAGES, recorded.recorded)
    ours, theirs = (found[maker][0] for maker in (OURS, THEIRS))
    page = float(bold.strip("*")) / float(row[THEIRS])
    assert ours / theirs == pytest.approx(page)


def steady(variant: Variant) -> Modelled:
    """Invented: the special-function units are busy as long as all exponentials of a key tile take them."""
    kernel, tiles = unknown(variant, ""), variant.rows // 128 // (2 if variant.pair else 1)
    cycles = tiles * 128 * 128 / fitted_b200()["rate_mufu"].value
    kernel.steady = SteadyState(cycles, dict.fromkeys(BUSY, 1.0))
    return kernel


def test_energy_of_a_pair_has_half_of_the_bytes_of_k_and_v():
    """A CTA alone, head dim 128, reads Q, K and V for each of two query tiles: 2 x 96 KiB; a pair's 2 x 64 KiB."""
    of = hopper_energy.energies(hopper_energy.load())
    flops = 4 * 256 * 128 * 128
    kernels = (steady(Variant(OURS, 128, pairs=paired)) for paired in (False, True))
    alone, pair = map(peers.energy, kernels)
    for parts, read, loaded in ((alone, 2 * 96, 64), (pair, 2 * 64, 32)):
        assert parts[2] == pytest.approx(read * 1024 * of["shared memory, read"] / flops)
        assert parts[3] == pytest.approx(loaded * 1024 * of["L2, read"] / flops)
    assert alone[:2] == pair[:2]


@pytest.mark.parametrize("variant", peers.KERNELS, ids=str)
def test_energy_of_all_exponentials_is_that_of_one_for_each_score(variant):
    """2 (d + d of V) FLOPs a score, with one or two query tiles a CTA; all rows of 8 bits have half of the bytes."""
    of = hopper_energy.energies(hopper_energy.load())
    depths = variant.head_dim + (variant.head_dim_v or variant.head_dim)
    found = peers.energy(steady(variant))
    assert found[0] == pytest.approx(of["EX2"] / (2 * depths))
    if variant.dtype == "e4m3":
        wider = peers.energy(steady(replace(variant, dtype="bf16")))
        assert (found[2], found[3]) == pytest.approx((wider[2] / 2, wider[3] / 2))


def test_exponentials_on_the_special_function_unit_are_at_most_those_of_the_tile():
    """256 x 128 of 4 x 256 x 128 d FLOPs; some more for factors and row sums. With 8 bits most are on the FMA units."""
    of = hopper_energy.energies(hopper_energy.load())
    for variant in peers.KERNELS:
        kernel = recorded.recorded(variant, fitted_b200())
        if kernel.state == "missing" or variant.dtype == "e4m3":
            continue
        depths = variant.head_dim + (variant.head_dim_v or variant.head_dim)
        all_of_them = of["EX2"] / (2 * depths)
        assert 0.5 * all_of_them < peers.energy(kernel)[0] < 1.1 * all_of_them


def said(pattern: str) -> tuple[str, ...]:
    """Figures that the page states where a peer is ahead."""
    return re.search(pattern, (pages.FOLDER / "peers.md").read_text()).groups()


def slower(rows: list[dict], column: str) -> list[float]:
    """By how much the peer of a ratio is ahead, of the rows in which it is."""
    return [
        1 / float(r[column])
        for r in rows
        if r[column] not in ("", "as fast", "-") and float(r[column]) < 1
    ]


def test_the_page_says_by_how_much_others_are_ahead_in_the_tables():
    """Two decimals of a printed ratio: 0.5 % around them."""
    decode = [r for r in plots.read_table(PAGES, "decode_modelled") if r["over it"]]
    behind = slower(decode, "over it")
    number, of, most = said(r"cute-dsl, (\w+) rows? of (\d+) by (\d) %")
    assert (number, int(of)) == ({1: "one", 2: "two"}[len(behind)], len(decode))
    assert int(most) == round(100 * max(behind) - 100)
    latent = slower([r for r in plots.read_table(PAGES, "latent") if r["mask"] == "full"], "ratio")
    b300 = [r for r in plots.read_table(PAGES, "b300") if r["d"] == "128" and "full" in r["mask"]]
    b300 = slower([r for r in b300 if int(r["S"]) >= 4096], "ratio")
    for found, call in (
        (latent, r"192/128, full"),
        (b300, r"d=128, full, on a B300, from 4K keys"),
    ):
        least, most = map(float, said(rf"\| {call} \| flash-attn-4 modeled (1\.\d\d) to (1\.\d\d)"))
        assert least == pytest.approx(min(found), abs=0.01)
        assert most == pytest.approx(max(found), abs=0.01)
