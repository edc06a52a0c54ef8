"""Observers of a running kernel: the basis of trace.py and coverage.py, and of your own tools.

    class Waits(Observer):
        def wait(self, warp, wait): print(warp.role, "waits for", wait.barrier.name)

    with observing(Waits()):
        attention(q, k, v, out)

    launch -> instruction, wait, resume, submit, complete, arrive, bytes, tested, phase ... -> finished, roles

Observers see every launch of the process while the context is open, regardless of emulator.use(). They must not
modify what they see. Without an observer, a launch only pays for comparisons with None.
"""

import contextlib


class Observer:
    """The callbacks, in call order. Override the ones that you need."""

    def launch(self, machine, program):
        """A grid begins: machine.grid, machine.labels, program.kernel."""

    def instruction(self, warp, ins):
        """A warp executes an instruction that is more than register arithmetic; once, before its wait."""

    def wait(self, warp, wait):
        """Lanes of a warp begin to wait (wait.barrier: the MBarrier, or None; wait.ins)."""

    def resume(self, warp, wait):
        """The wait is over."""

    def submit(self, operation):
        """An asynchronous operation is in flight (operation.label, .issuer, .queue)."""

    def complete(self, operation):
        """The operation is about to take effect."""

    def arrive(self, barrier, count, issuer):
        """Arrivals on an MBarrier, by the issuer's thread or by an operation that it submitted."""

    def bytes(self, barrier, nbytes, issuer):
        """An MBarrier expects bytes (positive), or bytes of a copy have arrived (negative)."""

    def tested(self, barrier, issuer):
        """A thread tests whether a phase of an MBarrier has completed."""

    def phase(self, barrier, issuer):
        """A phase of an MBarrier has completed; barrier.phase is the number of the next one."""

    def finished(self, program, executions):
        """The grid has ended, with or without an error; executions[i]: how often step i of the program was executed."""

    def roles(self, program, executions):
        """With finished: the same for every role, {role or "warp 3": executions}."""


class _Several(Observer):
    """Forwards every call to several observers."""

    def __init__(self, observers):
        for name in vars(Observer):
            if not name.startswith("_"):
                setattr(self, name, _each([getattr(o, name) for o in observers]))


def _each(functions):
    def call(*args):
        for function in functions:
            function(*args)

    return call


_active: list = []


@contextlib.contextmanager
def observing(observer):
    """Context in which launches report to ``observer``; yields it. Contexts nest, and all observers are called."""
    outside = list(_active)
    try:
        _active.append(observer)
        yield observer
    finally:
        _active[:] = outside


@contextlib.contextmanager
def recording(recorder):
    """Context in which launches report to ``recorder``; yields its recording, which grows with every launch."""
    with observing(recorder):
        yield recorder.recording


def current():
    """The Observer of a launch that begins now, or None."""
    if len(_active) < 2:
        return _active[0] if _active else None
    return _Several(list(_active))
