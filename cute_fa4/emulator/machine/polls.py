"""Warps that look at global memory again and again until another CTA changes it: a spin-wait.

    while (ld.acquire(flag) == 0) {}      the second look, with nothing changed anywhere in between, is a Wait

The warp then costs nothing until something changes. Where nothing else can run, either the chip has room for another
cluster of the grid, which joins (launch.py), or the looks go on for a while and end as a deadlock, whose report says
which address holds what, and who wrote it (deadlock.py).

Where clusters still join, a warp that has looked often waits for more and more of them before it looks again: a barrier
of the grid counts every one that arrives, and n warps that look each time would look n * n times.

Strong loads only (volatile, relaxed, acquire), and atomics that change nothing: the result of a weak load may be kept
by the compiler, so no correct kernel spins on one.
"""

from dataclasses import dataclass

from cute_fa4.emulator.machine.warp import Wait


@dataclass(slots=True)
class Poll:
    """The latest look of a warp by one instruction.

    mask, addresses  lanes and what they looked at          state   of the machine then
    value            what the first of them saw             times   looks in a row that saw the same state
    parked           how often it became a Wait
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
    """Before lanes look at global addresses (uint64 array): a Wait where they have just seen what is there, or None."""
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
        warp.yield_slice = True  # others look, too
        return None
    if warp.resumed is not None:
        return None
    return _wait(machine, before, state)


def _wait(machine, poll, state):
    """Until something has changed, and more clusters have joined than last time, if any do."""
    joined = machine.joined + (1 << poll.parked >> 1)
    poll.parked += 1

    def ready():
        return machine.state() != state and (machine.joined >= joined or not machine.others_join)

    wait = Wait(ready, lambda: text(poll), timeout=0)
    wait.polls = True
    return wait


def saw(warp, ins, value, nbytes):
    """What the first lane of the look before has seen."""
    poll = warp.polls[ins]
    poll.value, poll.nbytes = int(value), nbytes


def text(poll):
    """What a spinning warp does, for a table of waits."""
    held = f", {poll.nbytes} bytes, which hold {poll.value:#x}" if poll.nbytes else ""
    return f"spins on global 0x{poll.address:x}{held}"


def of(warp):
    """The looks of a warp that have seen what is there now: of a warp that spins."""
    state = warp.cta.machine.state()
    return [poll for poll in warp.polls.values() if poll.state == state and poll.times > 1]
