"""The cycle model follows loads whose every lane is off. They leave no event and do not wait for memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cute_fa4.emulator.model import align
from cute_fa4.emulator.model.constants import B200
from cute_fa4.emulator.model.machine import Machine
from cute_fa4.emulator.model.program import parse
from cute_fa4.emulator.model.trace import Event, Trace
from tests.benchmarks.test_model_machine import PLAIN, program


def test_a_turn_whose_loads_all_have_no_lane_is_a_turn_of_the_same_loop():
    """It leaves no event of them. Another loop has the same wait and arrival without loads."""
    loads = 70
    head = "        /*0000*/  SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R0 ;\n"
    arrives = "SYNCS.ARRIVE.TRANS64 RZ, [UR4], R0"
    last = [arrives, "@P1 BRA `(.L_x_0)", "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R0", arrives]
    rest = ["@P4 LDG.E R4, desc[UR6][R2.64]"] * loads + [*last, "EXIT"]
    text = "".join(f"        /*{16 * i:04x}*/  {line} ;\n" for i, line in enumerate(rest, 1))
    (function,) = parse(".L_x_0:\n" + head + text)
    first = [Event("wait", 1), *(Event("gload", 2 + i) for i in range(loads)), Event("arrive", 80)]
    events = [*first, Event("wait", 1), Event("arrive", 80), Event("wait", 81), Event("arrive", 82)]
    ((path,),) = [
        list(found.values()) for found in align.paths(function, "", [Trace({(0, 0): events}, {})])
    ]
    assert [step.instruction.name for step in path].count("LDG") == 2 * loads


@pytest.mark.parametrize("off", [True, False])
def test_a_load_without_a_lane_waits_for_no_memory(off):
    """Where loads have events, a guarded one without an event has every lane off."""
    load = replace(PLAIN, write=0)
    path, codes = program(
        ("@P0 LDG.E R2, desc[UR6][R2.64]", load), ("MOV R1, R2", replace(PLAIN, wait_mask=1))
    )
    loaded = Event("gload", 1)
    path = [path[0] if off else replace(path[0], event=loaded), *path[1:]]
    trace = Trace({(0, 0): [loaded]}, {})
    found = Machine(B200).run({(0, 0): path}, codes, trace).cycles
    assert (found < B200["lat_global"].value) == off
