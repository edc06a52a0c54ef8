"""The second half of a grid on another core: a forked process executes it and returns its memory accesses.

    this process     clusters 0 .. n/2                            compare ---> take its bytes, counts, notes
    forked child     clusters n/2 .. n, from the memory at the start  /     or execute them here

The ordering checks know which bytes of global memory each half accessed. If neither half wrote what the other
accessed, the child has computed the same results as this process would have, one cluster after another, and its
bytes are taken. Otherwise (a common byte, an error, modified tensor maps, an exhausted budget, a dead child) the
second half is executed here, after the first, as on one core. So results, counts and reports are always those of
one core.

These always run on one core: launches without checks, modes that draw random numbers, kernels that may cancel
clusters (unless claims=0), observed launches (trace, coverage), and grids of one cluster.
"""

import os
import pickle
import select
import signal
import time
from dataclasses import dataclass

import numpy as np

from cute_fa4.emulator.run.schedules import SEEDED

PATIENCE, GRACE = 4.0, 10.0
"""Time limit of a child: this factor times the time of this process's half, plus this many seconds."""


@dataclass(frozen=True)
class Touched:
    """Accesses of a launch to a range of global memory: a checks.regions.Region after the launch."""

    was_read: tuple
    was_written: tuple

    def read(self):
        """(first byte, bytes) of every range that was read."""
        return self.was_read

    def written(self):
        """The same for the ranges that were written."""
        return self.was_written


def may_split(program, machine, mode, claims, clusters):
    """Whether the halves of a launch may run concurrently."""
    return (
        clusters > 1
        and hasattr(os, "fork")
        and mode not in SEEDED
        and machine.ordering is not None
        and machine.observer is None
        and (claims == 0 or not _may_cancel(program))
    )


def _may_cancel(program):
    return any("try_cancel" in ins.opcode for members in program.members for ins in members)


def regions(machine):
    """The regions of global memory with their accesses; they need checks."""
    return () if machine.ordering is None else tuple(machine.ordering.global_regions.regions)


def touched(machine):
    """The Touched of every region."""
    return tuple(Touched(tuple(r.read()), tuple(r.written())) for r in regions(machine))


class SecondHalf:
    """Clusters that a child executes by execute(index)."""

    def __init__(self, machine, scheduler, indices, execute):
        self._machine, self._scheduler, self._indices = machine, scheduler, indices
        self._execute = execute
        self._start = time.perf_counter()
        self._from, to = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            self._be_the_child(to)
        os.close(to)

    def finish(self):
        """Take the child's results. Returns the Touched of the launch; None: give_up() has the remaining clusters."""
        if not self._indices:
            return None
        mine = touched(self._machine)
        theirs = self._answer()
        if theirs is None or not self._take(mine, theirs):
            return None
        return mine + theirs["touched"]

    def give_up(self):
        """End the child. Returns its clusters, which are then not executed."""
        self.abandon()
        left, self._indices = self._indices, []
        return left

    def abandon(self):
        """End the child if it is still running."""
        pid, self._pid = self._pid, 0
        if pid:
            os.close(self._from)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            os.waitpid(pid, 0)

    # -- the child --------------------------------------------------------------------------------------

    def _be_the_child(self, to):
        """In the child. After any error here, the parent executes the work again and reports the error."""
        status = 1
        try:
            machine, scheduler = self._machine, self._scheduler
            scheduler.instructions, scheduler.executions_of = 0, {}
            machine.counters.clear()
            machine.notes.clear()
            for index in self._indices:
                self._execute(index)
            found = touched(machine)
            read = machine.memory.read
            data = [
                (at, read(at, size).tobytes()) for each in found for at, size in each.was_written
            ]
            told = dict(
                touched=found, data=data, instructions=scheduler.instructions, counters=machine.counters,
                executions_of=scheduler.executions_of, notes=machine.notes, tensor_maps=len(machine.tensor_maps),
            )  # fmt: skip
            with os.fdopen(to, "wb") as pipe:
                pickle.dump(told, pipe)
            status = 0
        finally:
            os._exit(status)

    # -- this process -----------------------------------------------------------------------------------

    def _answer(self):
        """The child's results; None if it died or hangs."""
        until = time.perf_counter() + GRACE + PATIENCE * (time.perf_counter() - self._start)
        parts = []
        while (left := until - time.perf_counter()) > 0 and select.select(
            [self._from], [], [], left
        )[0]:
            part = os.read(self._from, 1 << 20)
            if not part:
                break
            parts.append(part)
        self.abandon()
        try:
            return pickle.loads(b"".join(parts))
        except (EOFError, pickle.UnpicklingError):
            return None

    def _take(self, mine, theirs):
        """Adopt the child's work. False, without changes, if that is not allowed."""
        machine, scheduler = self._machine, self._scheduler
        budget, together = scheduler.budget, scheduler.instructions + theirs["instructions"]
        if budget is not None and together > budget:
            return False
        if theirs["tensor_maps"] or machine.tensor_maps or _meet(mine, theirs["touched"]):
            return False
        for address, data in theirs["data"]:
            machine.memory.write(address, np.frombuffer(data, np.uint8))
        scheduler.instructions = together
        machine.counters.update(theirs["counters"])
        known = machine.ordering.noted
        machine.notes += [
            note for note in theirs["notes"] if getattr(note, "key", None) not in known
        ]
        for role, counts in theirs["executions_of"].items():
            mine_of_role = scheduler.executions_of.setdefault(role, [0] * len(counts))
            mine_of_role[:] = map(sum, zip(mine_of_role, counts, strict=True))
        return True


def _meet(one, other):
    """Whether one of two halves wrote what the other read or wrote."""
    ranges = lambda half, *of: _sorted(
        r for each in half for name in of for r in getattr(each, name)
    )
    both = ("was_read", "was_written")
    return _overlap(ranges(one, "was_written"), ranges(other, *both)) or _overlap(
        ranges(other, "was_written"), ranges(one, *both)
    )


def _sorted(ranges):
    """(starts, ends) of ranges, by start; int64."""
    array = np.array(sorted(ranges), np.int64).reshape(-1, 2)
    return array[:, 0], array[:, 0] + array[:, 1]


def _overlap(written, others):
    """Whether the ranges of two lists share a byte. Ranges of ``written`` are disjoint."""
    starts, ends = written
    if not len(starts):
        return False
    # The first written range that ends after the start of another one: does it begin before that one's end?
    at = np.searchsorted(ends, others[0], side="right")
    found = at < len(starts)
    return bool((starts[at[found]] < others[1][found]).any())
