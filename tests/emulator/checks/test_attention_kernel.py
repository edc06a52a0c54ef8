"""This package's kernel at level "ptx": it passes, and single fences and waits taken out of it are missed."""

import os
import re
import warnings
from unittest.mock import patch

import pytest
import torch

from cute_fa4 import emulator, flash_attn_func
from cute_fa4.calls import repeat
from cute_fa4.interface import EmulatorWarning
from tests.emulator.mutations.attention_places import (
    AFTER,
    BEFORE,
    BUFFER_READ,
    K_EMPTY,
    K_FULL,
    MASKED_TILE,
    P_READY,
    PROXY_FENCE,
    PV_LAST,
    WAIT_LD,
    WAIT_ST,
    WHOLE_TILE,
    o_ready,
    wait,
)
from tests.emulator.mutations.edits import ALWAYS_TRUE, delete, lines, replace

# The smallest problem in which every role works: two query tiles, three key tiles with a masked one, and
# scores large enough that the correction warps rescale O.
SEQLEN = 300
GAIN = 8

SCHEDULES = [
    ("in_order", 0), ("random", 0), ("random", 1), ("random", 2), ("hostile", 0), ("hostile", 1),
    ("hostile", 2), ("hostile", 3),
]  # fmt: skip


def attention(head_dim=128, causal=True, seqlen=SEQLEN, maximum="exact", **schedule):
    """(out, lse, Run) of the same problem every time.

    maximum: defects are planted in the steps of the exact one; lagged ones have separate defects in
    mutations/.
    """
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, seqlen, 1, head_dim, generator=generator) for _ in "qkv")
    q, k, v = ((x * gain).bfloat16() for x, gain in ((q, GAIN), (k, 1), (v, 1)))
    repeat.clear()  # a call like an earlier one would not read the variable
    with (
        patch.dict(os.environ, {"CUTE_FA4_MAXIMUM": maximum}),
        warnings.catch_warnings(),
        emulator.use(**schedule) as run,
    ):
        warnings.simplefilter("ignore", EmulatorWarning)
        out, lse = flash_attn_func(q, k, v, causal=causal, return_lse=True)
    repeat.clear()
    return out, lse, run


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_every_schedule_passes_and_gives_the_same_bits(head_dim, causal):
    first = None
    for mode, seed in SCHEDULES:
        out, lse, _ = attention(
            head_dim, causal, maximum="auto", mode=mode, seed=seed, checks="ptx"
        )
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
        attention(causal=False, transform=planted(delete(lines("correction", PROXY_FENCE).first)))


def planted(edit):
    """An edit as a transform of emulator.use."""
    return lambda name, ptx: edit(ptx)


def passing(place):
    """A transform that lets a role pass a wait."""
    return planted(replace(place, ALWAYS_TRUE))


softmax = lambda pattern: lines("softmax", pattern)
READ_IN_TIME = lines("correction", BUFFER_READ)  # a chunk's buffer is free again


# Of softmax: in a whole tile.
@pytest.mark.parametrize(
    "edit, error",
    [
        (delete(softmax(WAIT_LD).after(WHOLE_TILE).first), emulator.RegisterHazard),
        (delete(softmax(WAIT_ST).ahead_of(P_READY).last), emulator.RaceError),
        (delete(softmax(BEFORE).ahead_of(P_READY).last), emulator.TensorOrderError),
        (delete(softmax(AFTER).after(WHOLE_TILE).first), emulator.TensorOrderError),
        (delete(lines("prologue", r"fence\.mbarrier_init\S*;")), emulator.BarrierError),
        # The first chunk of O1 is the first that finds its buffer in use.
        (delete(READ_IN_TIME.after(o_ready(1)).first), emulator.RaceError),
        (replace(wait("mma", "q_full[0]"), ALWAYS_TRUE), emulator.RaceError),
        (replace(K_FULL, ALWAYS_TRUE), emulator.RaceError),
        (replace(PV_LAST["O0"], ALWAYS_TRUE), emulator.RaceError),
    ],
)
def test_what_is_taken_out_is_missed(edit, error):
    with pytest.raises(error):
        attention(causal=False, transform=planted(edit), checks="ptx")


def test_the_cta_ends_while_the_output_is_copied():
    """256 queries: the last chunk has rows."""
    edit = delete(lines("correction", r"cp\.async\.bulk\.wait_group\.read\s+0;"))
    with pytest.raises(emulator.InFlightError):
        attention(causal=False, seqlen=256, transform=planted(edit), checks="ptx")


def test_a_slot_is_loaded_again_before_it_is_free():
    """The load warp does not wait for kv_empty: three key tiles are six tiles for a ring of four."""
    with pytest.raises(emulator.RaceError, match=r"kv\[\d\].*TMA load .* which (read|wrote) it"):
        attention(causal=False, transform=passing(K_EMPTY), checks="ptx")


def test_scores_are_read_before_the_product_is_complete():
    """Softmax does not wait for s_ready of a masked tile: the commit after the MMA does not reach it."""
    with pytest.raises(emulator.RaceError, match="S0.*MMA|row_scale"):
        attention(causal=False, transform=passing(MASKED_TILE), checks="ptx")


def test_the_next_work_tile_overwrites_what_the_last_one_still_reads():
    """The second work tile of a CTA is where Q is loaded again; 300 queries are two tiles, which one CTA claims."""
    edit = passing(wait("load", "q_free[1]"))
    with pytest.raises(emulator.RaceError, match=r"Q1.*TMA load"):
        attention(causal=False, transform=edit, checks="ptx", claims=1)
    attention(causal=False, transform=edit, checks="ptx", claims=0)


@pytest.mark.parametrize("pattern", [WAIT_LD, AFTER], ids=["wait::ld", "fence::after"])
def test_what_only_ptx_asks_for_is_not_missed_by_hardware(pattern):
    edit = delete(softmax(pattern).after(WHOLE_TILE).first)
    out, _, _ = attention(causal=False, transform=planted(edit), checks="hardware")
    assert torch.equal(out, attention(causal=False, checks=None)[0])


def test_a_try_wait_whose_result_nobody_looks_at():
    """PTX leaves the time limit of try_wait to the system: some give up at once."""
    ignore = lambda name, ptx: re.sub(r"@P1 bra\.uni DONE;", "bra.uni DONE;", ptx)
    with pytest.raises(emulator.EmulatorError):
        attention(transform=ignore, mode="hostile", checks="ptx")
