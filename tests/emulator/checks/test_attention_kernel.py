"""This package's kernel at level "ptx": it passes, and single fences and waits taken out of it are missed."""

import re
import warnings

import pytest
import torch

from cute_fa4 import emulator, flash_attn_func
from cute_fa4.interface import EmulatorWarning

# The smallest problem in which every role works: two query tiles, three key tiles with a masked one, and
# scores large enough that the correction warps rescale O.
SEQLEN = 300
GAIN = 8

SCHEDULES = [
    ("in_order", 0), ("random", 0), ("random", 1), ("random", 2), ("hostile", 0), ("hostile", 1),
    ("hostile", 2), ("hostile", 3),
]  # fmt: skip


def attention(head_dim=128, causal=True, seqlen=SEQLEN, **schedule):
    """(out, lse, Run) of the same problem every time."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, seqlen, 1, head_dim, generator=generator) for _ in "qkv")
    q, k, v = ((x * gain).bfloat16() for x, gain in ((q, GAIN), (k, 1), (v, 1)))
    with warnings.catch_warnings(), emulator.use(**schedule) as run:
        warnings.simplefilter("ignore", EmulatorWarning)
        out, lse = flash_attn_func(q, k, v, causal=causal, return_lse=True)
    return out, lse, run


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_every_schedule_passes_and_gives_the_same_bits(head_dim, causal):
    first = None
    for mode, seed in SCHEDULES:
        out, lse, _ = attention(head_dim, causal, mode=mode, seed=seed, checks="ptx")
        first = first or (out, lse)
        assert torch.equal(out, first[0]) and torch.equal(lse, first[1]), (mode, seed)


@pytest.mark.parametrize("mode", ["random", "hostile"])
def test_a_seed_replays_exactly_and_another_one_does_not(mode):
    """try_waits that give up make the number of instructions depend on the order of everything."""
    counts = [attention(mode=mode, seed=seed)[2].instructions for seed in (5, 5, 6, 7)]
    assert counts[0] == counts[1]
    assert len(set(counts)) > 1


def test_ptx_is_what_calls_of_the_package_are_checked_with():
    """Without checks=, as users call it: a removed fence is an error."""
    with pytest.raises(emulator.ProxyError):
        attention(transform=without("fence.proxy.async", 0))


def without(opcode, which):
    """A transform that takes out the which-th instruction of an opcode."""

    def transform(name, ptx):
        lines = ptx.split("\n")
        found = [i for i, line in enumerate(lines) if re.match(rf"\s*{re.escape(opcode)}", line)]
        assert which < len(found), f"{opcode} {which}: the kernel has {len(found)}"
        lines[found[which]] = ""
        return "\n".join(lines)

    return transform


def without_wait(which):
    """A transform that takes out the which-th loop around mbarrier.try_wait."""

    def transform(name, ptx):
        loops = list(re.finditer(r"LAB_WAIT:.*?bra\.uni\s+LAB_WAIT;", ptx, re.S))
        assert which < len(loops), f"the kernel has {len(loops)} waits"
        return ptx[: loops[which].start()] + ptx[loops[which].end() :]

    return transform


# Numbers count in the order of the PTX text: softmax (whole tiles, masked tiles), store, correction, mma, load.
@pytest.mark.parametrize(
    "edit, error",
    [
        (without("tcgen05.wait::ld", 0), emulator.RegisterHazard),
        (without("tcgen05.wait::st", 0), emulator.RaceError),
        (without("tcgen05.fence::before_thread_sync", 0), emulator.TensorOrderError),
        (without("tcgen05.fence::after_thread_sync", 0), emulator.TensorOrderError),
        (without("fence.mbarrier_init", 0), emulator.BarrierError),
        (without("cp.async.bulk.wait_group", 0), emulator.InFlightError),
        (without_wait(9), emulator.RaceError),  # mma does not wait for Q0
        (without_wait(10), emulator.RaceError),  # mma does not wait for K0
        (without_wait(14), emulator.RaceError),  # mma does not wait for the last part of P
    ],
)
def test_what_is_taken_out_is_missed(edit, error):
    with pytest.raises(error):
        attention(causal=False, transform=edit, checks="ptx")


def test_a_slot_is_loaded_again_before_it_is_free():
    """The load warp does not wait for kv_empty: five key tiles, so that the ring of five goes round twice."""
    with pytest.raises(emulator.RaceError, match=r"kv\[\d\].*TMA load .* which (read|wrote) it"):
        attention(causal=False, seqlen=600, transform=without_wait(23), checks="ptx")


def test_scores_are_read_before_the_product_is_complete():
    """Softmax does not wait for s_ready of a masked tile: the commit behind the product does not reach it."""
    with pytest.raises(emulator.RaceError, match="S0.*MMA|row_scale"):
        attention(causal=False, transform=without_wait(3), checks="ptx")


@pytest.mark.parametrize("opcode", ["tcgen05.wait::ld", "tcgen05.fence::after_thread_sync"])
def test_what_only_ptx_asks_for_is_not_missed_by_hardware(opcode):
    out, _, _ = attention(transform=without(opcode, 0), checks="hardware")
    assert torch.equal(out, attention(checks=None)[0])


def test_a_try_wait_whose_result_nobody_looks_at():
    """PTX leaves the time limit of try_wait to the system: some give up at once."""
    ignore = lambda name, ptx: re.sub(r"@P1 bra\.uni DONE;", "bra.uni DONE;", ptx)
    with pytest.raises(emulator.EmulatorError):
        attention(transform=ignore, mode="hostile", checks="ptx")
