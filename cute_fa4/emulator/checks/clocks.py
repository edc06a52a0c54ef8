"""Vector clocks: the accesses that a warp, or an operation in flight, is ordered after.

Accesses are numbered 1, 2, 3 ... over the whole launch. Each is made by an actor: a warp, or an asynchronous
operation. A clock has one number per actor: "I come after its accesses up to this one".

                 actor   earlier   warp 0   warp 1   copy 0   tensor core ...
    HAPPENED             0         812      790      655      640           everything that happened before
    ASYNC_SHARED         0         700      640      0        0             and that fence.proxy.async has made
    ASYNC_GLOBAL         0         ...                                      visible to copies and tensor core
    BARRIERS             0         12       0                               mbarriers whose initialisation is fenced
    SEALED               0         655      650      ...                    tensor memory: before_thread_sync
    TENSOR               0         655      640      ...                    tensor memory: after_thread_sync

Access n of actor a is ordered before mine if n <= clock[HAPPENED, a]. Propagation is an elementwise maximum. TENSOR
stays with its warp: the next warp needs its own tcgen05.fence.
"""

import numpy as np

HAPPENED, ASYNC_SHARED, ASYNC_GLOBAL, BARRIERS, SEALED, TENSOR = range(6)
ROWS = 6
PASSED_ON = 5  # the rows before TENSOR


class Strand:
    """An actor with its clock: a warp, the tensor core as used by a warp, a copy in flight.

    actor    its column in clocks
    clock    int32 (ROWS, actors)
    version  incremented when the clock changes; copies of it are shared until then
    """

    __slots__ = (
        "_copy", "_copy_of", "actor", "async_known", "clock", "fenced", "last", "learned", "party", "seen",
        "version",
    )  # fmt: skip

    def __init__(self, actor, clock, party):
        self.actor, self.clock, self.party = actor, clock, party
        self.version = 0
        self.last = 0  # number of its latest access
        self._copy = self._copy_of = None
        # Per scope: the clock at the last fence of the generic proxy with that scope, for relaxed operations, and
        # what relaxed loads have read since then, for a later fence with that scope.
        self.fenced = [None] * 3
        self.seen = [None] * 3
        self.learned = None  # the snapshot that a product was last issued with
        self.async_known = None

    def known(self, row, now):
        """Numbers by actor in a row; the actor's own accesses always count as ordered."""
        clock = self.clock
        clock[HAPPENED, self.actor] = now
        return clock[row]

    def snapshot(self, now):
        """A snapshot of the clock, for an operation. Shared until the clock changes."""
        if self._copy_of != (self.version, self.last):
            self.clock[HAPPENED, self.actor] = now
            self._copy = self.clock.copy()
            self._copy_of = (self.version, self.last)
        return self._copy


def merged(target, clock):
    """target = max(target, clock) for all rows but TENSOR; target None: a copy. Returns target."""
    if target is None:
        target = clock.copy()
        target[TENSOR] = 0
        return target
    if target.shape[1] < clock.shape[1]:
        target = widened(target, clock.shape[1])
    part = target[:PASSED_ON, : clock.shape[1]]
    np.maximum(part, clock[:PASSED_ON], out=part)
    return target


def widened(clock, actors):
    """The clock extended by further actors, with number 0."""
    wide = np.zeros((clock.shape[0], actors), np.int32)
    wide[:, : clock.shape[1]] = clock
    return wide
