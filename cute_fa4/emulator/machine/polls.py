"""Spin-waits: warps that poll global memory until another CTA changes it.

    while (ld.acquire(flag) == 0) {}      the second poll, if nothing has changed since the first, is a Wait

The warp then costs nothing until something changes. If nothing else can run and the chip has room for another
cluster of the grid, that cluster joins (launch.py). Otherwise the polls continue for a while and end as a deadlock,
whose report has the address, its value and its last writer (deadlock.py).

While clusters still join, a warp that has polled often waits for more and more of them before it polls again. A
barrier of the grid counts every arriving cluster; n warps that poll each time would poll n * n times.

This covers only strong loads (volatile, relaxed, acquire), and atomics that change nothing. The compiler may keep
the result of a weak load, so no correct kernel spins on one.
"""

from dataclasses import dataclass

from cute_fa4.emulator.machine.warp import Wait


@dataclass(slots=True)
class Poll:
    """The latest poll of a warp by one instruction.

    mask, addresses  lanes and their addresses               state   of the machine then
    value            value of the first lane                 times   consecutive polls with the same state
    parked           number of times it became a Wait
    """

    mask: int
    addresses: bytes
    state: tuple
    address: int
    value: int = 0
    nbytes: int = 0
    times: int = 1
    parked: int = 0


def look(warp, ins, addresses):
    """Before lanes look at global addresses (uint64 array): a Wait if they have just seen the same state, or None."""
    machine = warp.cta.machine
    state, before = machine.state(), warp.polls.get(ins)
    raw = addresses.tobytes()
    if before is None or (before.mask, before.addresses) != (warp.mask, raw):
        warp.polls[ins] = Poll(warp.mask, raw, state, int(addresses[0]))
        return None
    if before.state != state:
        before.state, before.times = state, 1
        return None
    before.times += 1
    if machine.polls_freely:
        warp.yield_slice = True  # lets others run
        return None
    if warp.resumed is not None:
        return None
    return _wait(machine, before, state)


def _wait(machine, poll, state):
    """True when something has changed and, if clusters join, more have joined than last time."""
    joined = machine.joined + (1 << poll.parked >> 1)
    poll.parked += 1

    def ready():
        return machine.state() != state and (machine.joined >= joined or not machine.others_join)

    wait = Wait(ready, lambda: text(poll), timeout=0)
    wait.polls = True
    return wait


def saw(warp, ins, value, nbytes):
    """The value of the first lane of the previous poll."""
    poll = warp.polls[ins]
    poll.value, poll.nbytes = int(value), nbytes


def text(poll):
    """The description of a spinning warp, for a table of waits."""
    held = f", {poll.nbytes} bytes, which hold {poll.value:#x}" if poll.nbytes else ""
    return f"spins on global 0x{poll.address:x}{held}"


def of(warp):
    """The polls of a spinning warp that saw the present state."""
    state = warp.cta.machine.state()
    return [poll for poll in warp.polls.values() if poll.state == state and poll.times > 1]
