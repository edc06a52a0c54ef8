"""Memory kept after a launch: only its results. A process may launch any number of times."""

import gc
import warnings

import pytest
import torch

from cute_fa4 import emulator, flash_attn_func
from cute_fa4.emulator.host import driver_api
from cute_fa4.emulator.machine.cta import Machine
from tests.emulator.mutations import small_kernels


def machines() -> int:
    """Machines that are still reachable, each with the registers and memories of its CTAs."""
    gc.collect()
    return sum(type(thing) is Machine for thing in gc.get_objects())


# Between them: mbarriers, bulk copies, clusters, tensor memory, cp.async groups.
@pytest.mark.parametrize("name", ["handover", "bulk", "cluster", "product", "staged"])
def test_nothing_of_a_finished_launch_is_reachable(name):
    subject = small_kernels.subjects("ptx")[name]
    before = machines()
    subject.run(None, "in_order", 0, None)
    assert machines() == before


def attend(**schedule):
    """One launch of the attention kernel, one row."""
    q = torch.ones(1, 1, 1, 64, dtype=torch.bfloat16)
    with warnings.catch_warnings(), emulator.use(**schedule):
        warnings.simplefilter("ignore")
        flash_attn_func(q, q, q)


def test_nothing_of_a_call_is_reachable():
    """The attention kernel ends while copies of its output are only read, not written: groups without a wait."""
    attend()
    before = machines()
    attend()
    assert machines() == before


def test_decoded_programs_are_bounded(monkeypatch):
    """Every edit of a kernel is a separate program: the latest ones are cached."""
    monkeypatch.setattr(driver_api, "MAX_PROGRAMS", 3)
    monkeypatch.setattr(driver_api, "_programs", {})

    def launch(number):
        attend(transform=lambda name, ptx: f"{ptx}\n// {number}")
        return list(driver_api._programs.values())[-1]

    first = [launch(number) for number in range(3)]
    assert launch(0) is first[0]  # now the latest, so that 1 is the next to go
    launch(3)
    assert len(driver_api._programs) == 3
    assert launch(0) is first[0] and launch(1) is not first[1]
