"""Peers on the same calls: the tables follow from recorded and published data, and bytes from the tiles."""

import pytest

from benchmarks.cycle_model import hopper_energy, peers, plots, power, recorded
from benchmarks.cycle_model.kernels import FROST, OURS, THEIRS
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


def test_energy_of_a_pair_has_half_of_the_bytes_of_k_and_v():
    """A CTA alone, head dim 128, reads Q, K and V for each of two query tiles: 2 x 96 KiB; a pair's 2 x 64 KiB."""
    of = hopper_energy.energies(hopper_energy.load())
    flops = 4 * 256 * 128 * 128
    name = f"{OURS} d128 full"
    alone, pair = (peers.energy(peers.Kernel(name, 128, paired), PAGES) for paired in (False, True))
    for parts, read, loaded in ((alone, 2 * 96, 64), (pair, 2 * 64, 32)):
        assert parts[2] == pytest.approx(read * 1024 * of["shared memory, read"] / flops)
        assert parts[3] == pytest.approx(loaded * 1024 * of["L2, read"] / flops)
    assert alone[:2] == pair[:2]


def test_exponentials_on_the_special_function_unit_are_at_most_those_of_the_tile():
    """256 x 128 of 4 x 256 x 128 d FLOPs; some more for factors and row sums."""
    of = hopper_energy.energies(hopper_energy.load())
    for kernel in peers.KERNELS:
        all_of_them = of["EX2"] / (4 * kernel.head_dim)
        assert 0.5 * all_of_them < peers.energy(kernel, PAGES)[0] < 1.1 * all_of_them
