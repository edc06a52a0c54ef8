"""Accesses of memory that were executed are on the paths of the model, or a record is refused."""

from collections import Counter

import pytest

from benchmarks.cycle_model import followed, recorded
from cute_fa4 import emulator
from cute_fa4.emulator.model import align, trace, uncounted
from cute_fa4.emulator.model.program import parse
from cute_fa4.emulator.model.trace import Event, Trace
from tests.emulator.model.kernels import guarded_loads

# A loop with one wait a turn; a branch skips two loads of global memory.
GUARDED_LOADS = """
        /*0000*/                   NOP ;
.L_x_0:
        /*0010*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R0 ;
        /*0020*/             @!P1  BRA `(.L_x_1) ;
        /*0030*/                   LDG.E R1, desc[UR4][R2.64] ;
        /*0040*/                   LDG.E R3, desc[UR4][R4.64] ;
.L_x_1:
        /*0050*/                   SYNCS.ARRIVE.TRANS64 RZ, [UR4], R0 ;
        /*0060*/              @P2  BRA `(.L_x_0) ;
        /*0070*/                   EXIT ;
"""
GUARDED_PTX = "wait\nld.global.b32 %r1, [%rd1];\nld.global.b32 %r3, [%rd2];\narrive\n"


def of_guarded_loads(turns: int, recorded: bool) -> tuple:
    """(function, traces) of a warp that loads twice in every turn; recorded: its loads are events."""
    (function,) = parse(GUARDED_LOADS)
    loads = [Event("gload", 2), Event("gload", 3)] * recorded
    turn = [Event("wait", 1), *loads, Event("arrive", 4)]
    executed = Counter({("gload", 2): turns, ("gload", 3): turns})
    return function, [Trace({(0, 0): turn * turns}, {}, {(0, 0): executed})]


def test_accesses_that_were_executed_and_are_on_no_path_are_found_unless_they_are_few():
    """Without events the walk skips the branch: it is the shorter way."""
    few = uncounted.FEW // 2
    for turns, found in ((few, 0), (few + 1, 2 * few + 2)):
        function, traces = of_guarded_loads(turns, recorded=False)
        paths = align.paths(function, "", traces)
        assert 0x30 not in [step.instruction.address for step in paths[0][0, 0]]
        assert sum(lack.missing for lack in uncounted.lacks(traces, paths)) == found


def test_accesses_with_events_are_on_the_path():
    function, traces = of_guarded_loads(8, recorded=True)
    paths = align.paths(function, "", traces)
    assert [step.instruction.address for step in paths[0][0, 0]].count(0x30) == 8
    assert not uncounted.lacks(traces, paths, few=0)


def test_a_record_of_a_kernel_without_its_loads_is_refused(monkeypatch):
    function, traces = of_guarded_loads(8, recorded=False)
    said = r"cute_fa4 d1: warp \(0, 0\): 16 loads of global memory were executed, 0 are on its path; PTX line 2: ld"
    with pytest.raises(followed.UncountedError, match=said):
        followed.paths("cute_fa4 d1", function, GUARDED_PTX, traces)
    monkeypatch.setitem(followed.EXCEPTIONS, ("d1", "gload"), "of this test")
    assert followed.paths("cute_fa4 d1", function, GUARDED_PTX, traces)
    with pytest.raises(followed.UncountedError):
        followed.paths("cute_fa4 d2", function, GUARDED_PTX, traces)


def test_every_exception_is_of_a_recorded_kernel_and_has_a_reason():
    names = [*recorded.subjects(), *(one.kernel for one in recorded.subjects().values())]
    for (words, kind), reason in followed.EXCEPTIONS.items():
        assert kind in uncounted.KINDS and len(reason) > 20
        assert any(followed.excepted(name, kind, [(words, kind)]) for name in names)


def test_loads_in_a_branch_are_counted(monkeypatch):
    """A load of global memory is an event: without it the walk would pass the branch, and the profile says so."""
    (one,) = emulator.profile(guarded_loads, 8).kernels
    assert one.uncounted == {} and not one.notes
    monkeypatch.setattr(trace, "ALWAYS", frozenset())
    (other,) = emulator.profile(guarded_loads, 8).kernels
    assert list(other.uncounted) == ["gload"] and other.cycles < one.cycles / 2
    assert "16 loads of global memory were executed, 0 are on its path" in other.notes[0]
