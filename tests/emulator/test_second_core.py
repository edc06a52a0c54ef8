"""A grid whose second half runs in a separate process is identical to one that runs on one core."""

import os
import time

import numpy as np
import pytest
import torch

from cute_fa4 import emulator, flash_attn_func
from cute_fa4.emulator.ptx.errors import EmulatorError
from cute_fa4.emulator.run import second_core
from cute_fa4.emulator.run.schedules import MODES
from tests import pairwise
from tests.emulator.core.ptx_bench import run_ptx, store

GRID = 6  # halves of more than one cluster
# Thread t of CTA b: y[32 b + t] = 2 x[32 b + t], x: p0, y: p1.
DOUBLE = """
    ld.param.b64 %rd1, [p0]; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; mad.lo.s32 %r3, %r1, 32, %r2;
    mul.wide.u32 %rd2, %r3, 4; add.s64 %rd1, %rd1, %rd2; ld.global.b32 %r4, [%rd1]; add.u32 %r4, %r4, %r4;
""" + store("%r4", "p1", "%r3")
# CTA b reads x[b - 1], which CTA b - 1 has written.
CHAIN = """
    ld.param.b64 %rd1, [p0]; mov.u32 %r1, %ctaid.x; mov.u32 %r2, 0; setp.eq.u32 %p1, %r1, 0; @%p1 bra FIRST;
    mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2; ld.global.b32 %r2, [%rd1 + -4];
    FIRST: add.u32 %r2, %r2, 5;
""" + store("%r2", index="%r1")
COUNT = "ld.param.b64 %rd1, [p0]; atom.global.add.u32 %r1, [%rd1], 1;"
# Two warps of each CTA write the same row.
SAME = """
    mov.u32 %r4, %laneid; mov.u32 %r2, %ctaid.x; mad.lo.s32 %r3, %r2, 32, %r4; mov.u32 %r1, 7;
""" + store("%r1", index="%r3")
FAULT = """
    mov.u32 %r1, %ctaid.x; setp.lt.u32 %p1, %r1, 4; @%p1 bra GOOD; trap; GOOD:
"""


@pytest.fixture
def taken(monkeypatch):
    """What became of each second half: True, the child's work was taken, or False."""
    found = []
    take = second_core.SecondHalf._take
    monkeypatch.setattr(
        second_core.SecondHalf, "_take", lambda *a: found.append(take(*a)) or found[-1]
    )
    return found


def outcome(body, cores, size=32 * GRID, second=False, **launch):
    """Everything that a launch says: its tensors, counts, notes and what it touched, or its error."""
    arrays = [np.arange(size, dtype=np.uint32), np.zeros(size, np.uint32)][: 1 + second]
    launch = dict(grid=(GRID, 1, 1), checks="ptx") | launch
    try:
        result = run_ptx(body, *arrays, cores=cores, **launch)
    except EmulatorError as error:
        return type(error), str(error).split("0x")[0], [a.tolist() for a in arrays]
    ranges = [
        sorted((at - a.ctypes.data, n) for r in result.regions for at, n in getattr(r, what)()
               if 0 <= at - a.ctypes.data < a.nbytes)
        for what in ("read", "written") for a in arrays
    ]  # fmt: skip
    joined = [
        np.unique(np.concatenate([np.arange(a, a + n) for a, n in r] or [[]])) for r in ranges
    ]
    return (
        [a.tolist() for a in arrays], result.instructions, result.opcodes, result.counters, list(result.notes),
        [r.tolist() for r in joined],
    )  # fmt: skip


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("mode", ["in_order", "together"])
def test_independent_halves_are_taken(taken, mode, cluster):
    launch = dict(second=True, mode=mode, cluster=(cluster, 1, 1))
    one, two = (outcome(DOUBLE, cores, **launch) for cores in (1, 2))
    assert one == two and taken == [True]
    assert one[0][1] == (2 * np.arange(32 * GRID)).tolist()


@pytest.mark.parametrize(
    "body",
    [CHAIN, COUNT, FAULT],
    ids=["reads the first half", "an atomic", "a fault in the second"],
)
def test_what_is_not_independent_is_done_here(taken, body):
    """Its error, value and count are those of one core."""
    one, two = (outcome(body, cores) for cores in (1, 2))
    assert one == two and taken in ([False], [])


def test_a_note_of_both_halves_is_there_once(taken):
    one, two = (outcome(SAME, cores, threads=64) for cores in (1, 2))
    assert one == two and len(one[4]) == 1 and taken == [True]


@pytest.mark.parametrize("end", [lambda: os._exit(3), lambda: time.sleep(60)])
def test_a_child_that_dies_or_hangs_costs_time_alone(monkeypatch, taken, end):
    expected = outcome(DOUBLE, 1, second=True)
    monkeypatch.setattr(second_core, "PATIENCE", 0.0)
    monkeypatch.setattr(second_core, "GRACE", 0.2)
    monkeypatch.setattr(second_core.SecondHalf, "_be_the_child", lambda self, to: end())
    assert outcome(DOUBLE, 2, second=True) == expected and not taken


def test_a_budget_is_that_of_both_halves(taken):
    enough = outcome(DOUBLE, 1, second=True)[1]
    for budget in (enough, enough - 20):
        one, two = (outcome(DOUBLE, cores, second=True, budget=budget) for cores in (1, 2))
        assert one == two
    assert taken == [True, False]


@pytest.mark.parametrize(
    "launch", [{"checks": None}, *({"mode": mode} for mode in MODES[2:]), {"grid": (1, 1, 1)}]
)
def test_one_core_where_it_cannot_be_known(monkeypatch, launch):
    monkeypatch.setattr(os, "fork", None)
    outcome(DOUBLE, 2, second=True, **launch)


def test_kernels_that_may_cancel_clusters_split_with_claims_0_alone(monkeypatch):
    cancels = """
        mov.b32 %r1, dyn; setp.ne.b32 %p1, %r1, %r1; add.s32 %r2, %r1, 16;
        @%p1 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r1], [%r2];
    """
    forks, fork = [], os.fork
    monkeypatch.setattr(os, "fork", lambda: forks.append(1) or fork())
    outcome(cancels, 2, shared=64)
    assert not forks
    outcome(cancels, 2, shared=64, claims=0)
    assert forks


@pytest.mark.parametrize(
    "written, others, meet",
    [
        ([], [(0, 9)], False),
        ([(4, 4)], [(0, 4), (8, 4)], False),
        ([(4, 4), (20, 1)], [(0, 5)], True),
        ([(4, 4), (20, 1)], [(7, 1)], True),
        ([(4, 4), (20, 1)], [(8, 12)], False),
        ([(4, 4), (20, 1)], [(8, 13)], True),
        ([(4, 40)], [(10, 1)], True),
    ],
)
def test_ranges_meet_where_they_have_a_byte_in_common(written, others, meet):
    ranges = second_core._sorted
    assert second_core._overlap(ranges(written), ranges(others)) is meet


@pairwise.sweep_only("two cores", seconds=15)
def test_attention_on_two_cores(taken):
    q, k, v = (torch.randn(1, 512, 2, 128).bfloat16() for _ in "qkv")
    found = []
    for cores in (1, 2):
        with emulator.use(cores=cores, claims=0) as run:
            out = flash_attn_func(q, k, v, causal=True)
        found.append(
            (out.view(torch.int16).tolist(), run.instructions, run.opcodes, run.counters, run.notes)
        )
    assert found[0] == found[1] and taken == [True]
