"""How knowledge of what happened travels: arrivals and waits, barriers, fences, commits, copies.

    release(barrier, clock)     what the arriving one knows goes into the barrier's open phase; when that
                                completes, the barrier makes it acquirable
    acquire(barrier, warp)      a wait succeeds: the warp knows it, too

    warp --release--> mbarrier --acquire--> warp         copy:  launch() takes the warp's clock along,
    warp --launch---> copy --release--> mbarrier                its completion releases it on the mbarrier

PTX ISA, "Memory Consistency Model"; "Async proxy"; "tcgen05 Memory Consistency Model Considerations".
"""

from dataclasses import dataclass

import numpy as np

from cute_fa4.emulator.checks import clocks
from cute_fa4.emulator.checks.clocks import (
    ASYNC_GLOBAL,
    ASYNC_SHARED,
    BARRIERS,
    HAPPENED,
    SEALED,
    TENSOR,
    Strand,
    merged,
)
from cute_fa4.emulator.checks.reports import Access, Party
from cute_fa4.emulator.errors import BarrierError, InFlightError

LEVELS = ("ptx", "hardware")

IN_FLIGHT = np.iinfo(np.int32).max
_ACTORS_OF_A_WARP = 4  # itself, its tcgen05.ld, its tcgen05.st, the tensor core as it uses it


@dataclass(eq=False, slots=True)
class Flight:
    """An asynchronous operation that somebody must have waited for when its CTA ends."""

    actor: int
    number: int
    access: Access


class Ordering:
    """The actors of a launch, their clocks, and the numbers of their accesses.

    level   "ptx" or "hardware"
    now     number of the latest access
    """

    def __init__(self, level):
        self.level = level
        self.ptx = level == "ptx"
        self.now = 0
        self.actor_of = np.zeros(1 << 12, np.int32)  # access number -> actor
        self.accesses = [None]  # access number -> Access
        self.global_regions = None  # memory.py
        self._interned = {}
        self._synchronised = {}  # (memory, address) of atomics, releases -> [clock, latest access number]
        self._start_cluster(0, 0)

    # -- clusters ------------------------------------------------------------------------------------------

    def _start_cluster(self, first_access, warps):
        # Whatever earlier clusters did counts as done by actor 0, whom nobody knows.
        self.actor_of[first_access : self.now + 1] = 0
        self.actors = 1
        self.capacity = 64
        while self.capacity < 2 + _ACTORS_OF_A_WARP * warps:
            self.capacity *= 2
        self.is_async = np.zeros(self.capacity, bool)
        self._copies = ([], [])  # actors of copies: generic, asynchronous proxy
        self._last = np.zeros(self.capacity, np.int32)  # copy actor -> number of its latest access
        self._flights = []
        self._strands = {}  # (warp, "ld" | "st" | "mma") -> Strand
        self._interned.clear()
        self._first_access = self.now

    def begin_cluster(self, cluster):
        """Fresh clocks for the warps of a cluster."""
        warps = [warp for cta in cluster.ctas for warp in cta.warps]
        self._start_cluster(self._first_access, len(warps))
        for warp in warps:
            party = Party.of(warp)
            clock = np.zeros((clocks.ROWS, self.capacity), np.int32)
            warp.order = Strand(self._actor(), clock, party)
        if self.global_regions is not None:
            self.global_regions.end_cluster()
        for entry in self._synchronised.values():
            entry[0] = None

    def end_cta(self, cta):
        """Every asynchronous operation of a CTA must be known to be over by somebody."""
        if not self._flights:
            return
        known = np.zeros(self.capacity, np.int32)
        for peer in cta.cluster.ctas:
            for warp in peer.warps:
                row = warp.order.clock[HAPPENED]
                np.maximum(known[: len(row)], row, out=known[: len(row)])
        rest = []
        for flight in self._flights:
            if flight.number <= known[flight.actor]:
                continue
            party = flight.access.party
            if party.cta != cta.id:
                rest.append(flight)
                continue
            raise InFlightError(
                f"CTA {cta.id} ended and nobody has waited for: {flight.access.what}; its shared and tensor "
                "memory must outlive the operation: wait for the mbarrier or the bulk group before the last "
                f"thread returns\n{flight.access.where()}"
            )
        self._flights = rest

    def _actor(self, is_async=False):
        actor = self.actors
        self.actors += 1
        if actor >= self.capacity:
            self.capacity *= 2
            self.is_async = np.concatenate((self.is_async, np.zeros_like(self.is_async)))
            self._last = np.concatenate((self._last, np.zeros_like(self._last)))
        self.is_async[actor] = is_async
        return actor

    # -- accesses --------------------------------------------------------------------------------------------

    def number(self, actor, party, ins, what, strong=False):
        """Number of a new access."""
        now = self.now = self.now + 1
        if now >= len(self.actor_of):
            self.actor_of = np.concatenate((self.actor_of, np.zeros_like(self.actor_of)))
        self.actor_of[now] = actor
        key = (party, id(ins), what, strong)
        access = self._interned.get(key)
        if access is None:
            access = self._interned[key] = Access(party, ins, what, strong)
        self.accesses.append(access)
        return now

    def unordered(self, numbers, known, strong=False):
        """The first access number of an array that is not covered by ``known`` (by actor), or 0."""
        flat = numbers.ravel()
        if not flat.size:
            return 0
        if len(known) < self.capacity:
            known = np.concatenate((known, np.zeros(self.capacity - len(known), np.int32)))
        first = int(flat[0])
        if (
            first == flat[-1] and (flat == first).all()
        ):  # one box of a copy, one product: the usual case
            bad = (first,) if first > known[self.actor_of[first]] else ()
        else:
            late = flat > known[self.actor_of[flat]]
            if not late.any():
                return 0
            bad = set(flat[late].tolist()) if strong else (int(flat[int(np.argmax(late))]),)
        for n in bad:
            # Two atomics, or an atomic and a volatile or relaxed access, may meet: PTX, "morally strong".
            if not (strong and self.accesses[n].strong):
                return n
        return 0

    # -- threads ---------------------------------------------------------------------------------------------

    def outgoing(self, warp, relaxed=False):
        """The clock that an arrival of the warp carries: everything it knows, and its own accesses.

        relaxed  only what a fence made fit to travel, and fenced mbarriers
        """
        order = warp.order
        order.clock[HAPPENED, order.actor] = self.now
        if not relaxed:
            return order.clock
        clock = np.zeros_like(order.clock)
        if order.fenced is not None:
            clock = merged(clock, order.fenced)
        clock[BARRIERS, : order.clock.shape[1]] = order.clock[BARRIERS]
        return clock

    def release(self, barrier, clock):
        """An arrival: its clock belongs to the open phase."""
        barrier.released = merged(barrier.released, clock)

    def acquire(self, barrier, warp, relaxed=False):
        """A wait of the warp has succeeded. relaxed: a fence must follow before it counts."""
        clock, order = barrier.acquirable, warp.order
        if not relaxed:
            self._learn(order, clock)
        elif clock is not None:
            order.seen = merged(order.seen, clock)

    def _learn(self, order, clock):
        if clock is not None:
            order.clock = merged(order.clock, clock)
            order.version += 1

    def fence(self, warp):
        """fence.acq_rel, fence.sc, membar: later relaxed accesses publish what is known now."""
        order = warp.order
        if order.seen is not None:
            self._learn(order, order.seen)
            order.seen = None
        order.clock[HAPPENED, order.actor] = self.now
        order.fenced = order.clock.copy()

    def fence_proxy(self, warp, shared=True, to_global=True):
        """fence.proxy.async: what happened is visible to the asynchronous proxy as well."""
        order = warp.order
        clock = order.clock
        clock[HAPPENED, order.actor] = self.now
        for row, wanted in ((ASYNC_SHARED, shared), (ASYNC_GLOBAL, to_global), (BARRIERS, shared)):
            if wanted:
                np.maximum(clock[row], clock[HAPPENED], out=clock[row])
        order.version += 1

    def fence_barriers(self, warp):
        """fence.mbarrier_init: initialised mbarriers are visible to the cluster and to copies."""
        order = warp.order
        clock = order.clock
        clock[HAPPENED, order.actor] = self.now
        np.maximum(clock[BARRIERS], clock[HAPPENED], out=clock[BARRIERS])
        order.version += 1

    def fence_tensor(self, warp, before):
        """tcgen05.fence::before_thread_sync seals tensor-memory accesses, ::after_thread_sync accepts them."""
        clock = warp.order.clock
        target, source = (SEALED, TENSOR) if before else (TENSOR, SEALED)
        np.maximum(clock[target], clock[source], out=clock[target])
        warp.order.version += 1

    def strong_access(self, warp, key, release, acquire, write):
        """An atomic, volatile, relaxed, acquire or release access to an address that threads agree on by it."""
        entry, order = self._synchronised.get(key), warp.order
        if entry is not None:
            # What an earlier cluster published: all accesses before it.
            if entry[0] is None:
                seen = np.zeros_like(order.clock)
                seen[:, 0] = entry[1]
            else:
                seen = entry[0]
            if acquire:
                self._learn(order, seen)
            else:
                order.seen = merged(order.seen, seen)
        if write:
            order.clock[HAPPENED, order.actor] = self.now
            clock = order.clock if release else order.fenced
            if clock is not None:
                entry = self._synchronised.setdefault(key, [None, 0])
                entry[0], entry[1] = merged(entry[0], clock), self.now

    # -- asynchronous operations -------------------------------------------------------------------------------

    def launch(self, warp, is_async=True):
        """A Strand for a copy that the warp issues now: it knows what the warp knows."""
        order = warp.order
        clock = order.snapshot(self.now).copy()
        clock[HAPPENED, order.actor] = self.now
        free = self._copies[is_async]
        actor = None
        if free:
            # An actor can serve again for a warp that knows its last copy to be over.
            known = order.clock[HAPPENED]
            inside = [a for a in free if a < len(known)]
            over = self._last[inside] <= known[inside]
            if over.any():
                actor = inside[int(np.argmax(over))]
        if actor is None:
            actor = self._actor(is_async)
            free.append(actor)
        self._last[actor] = IN_FLIGHT
        if clock.shape[1] < self.capacity:
            clock = clocks.widened(clock, self.capacity)
        strand = Strand(actor, clock, order.party)
        return strand

    def landed(self, strand, must_be_awaited=None):
        """The strand's copy has made its latest access (number ``now``); an Access that must be waited for."""
        strand.clock[HAPPENED, strand.actor] = self.now
        strand.clock[ASYNC_SHARED, strand.actor] = self.now
        strand.clock[ASYNC_GLOBAL, strand.actor] = self.now
        self._last[strand.actor] = self.now
        if must_be_awaited is not None:
            self._flights.append(Flight(strand.actor, self.now, must_be_awaited))

    def learn_number(self, warp, actor, number, rows=(HAPPENED,)):
        """The warp has waited for the accesses of an actor up to a number."""
        order = warp.order
        if actor >= order.clock.shape[1]:
            order.clock = clocks.widened(order.clock, self.capacity)
        for row in rows:
            if order.clock[row, actor] < number:
                order.clock[row, actor] = number
                order.version += 1

    def strand_of(self, warp, kind):
        """The tensor core ("mma"), or the loads and stores of tensor memory ("ld", "st"), as used by a warp."""
        strand = self._strands.get((warp, kind))
        if strand is None:
            clock = np.zeros((clocks.ROWS, self.capacity), np.int32)
            actor = self._actor(is_async=kind == "mma")
            if actor >= clock.shape[1]:
                clock = clocks.widened(clock, self.capacity)
            strand = self._strands[warp, kind] = Strand(actor, clock, warp.order.party)
        return strand

    def wait_tensor(self, warp, kind):
        """tcgen05.wait::ld or ::st: the warp's own accesses of that kind are over."""
        strand = self._strands.get((warp, kind))
        if strand is not None:
            self.learn_number(warp, strand.actor, self.now, (HAPPENED, TENSOR))

    def commit(self, strand):
        """tcgen05.commit has come through the queue: the products before it are complete, and sealed."""
        clock = strand.clock
        clock[HAPPENED, strand.actor] = clock[TENSOR, strand.actor] = self.now
        np.maximum(clock[SEALED], clock[TENSOR], out=clock[SEALED])

    def must_wait(self, strand, access):
        """The latest access of a long-lived strand (tensor core) must be awaited by somebody."""
        for flight in self._flights:
            if flight.actor == strand.actor:
                flight.number, flight.access = self.now, access
                return
        self._flights.append(Flight(strand.actor, self.now, access))

    # -- mbarriers ---------------------------------------------------------------------------------------------

    def initialised(self, barrier, warp):
        """mbarrier.init: others must know of it before they use the barrier."""
        barrier.born = (
            warp.order.actor,
            self.number(warp.order.actor, warp.order.party, warp.ins, "mbarrier.init"),
        )

    def check_initialised(self, barrier, user, clock, is_async, fault):
        """``fault(message, kind)`` unless the user of a barrier (an actor, its clock) knows it is initialised."""
        if barrier.born is None:
            return
        actor, number = barrier.born
        if actor == user and not is_async:
            return
        if clock[BARRIERS, actor] >= number or not is_async and clock[HAPPENED, actor] >= number:
            return
        access = self.accesses[number]
        if clock[HAPPENED, actor] >= number:
            why = (
                "its initialisation is not visible to asynchronous operations: fence.mbarrier_init (or "
                "fence.proxy.async) is missing after mbarrier.init"
            )
        else:
            why = "nothing orders this use after its initialisation: a barrier is missing between them"
        fault(f"{barrier.name}: {why}\n  initialised by\n{access.where()}\n  used by", BarrierError)

    def arrived(self, barrier, warp):
        """A warp arrives on a barrier: the phase it arrives in is one that it knows of."""
        barrier.seen[warp] = barrier.phase

    def looked(self, barrier, warp, succeeded, fault):
        """A warp tests a phase. A test that fails because the phase came and went is an error."""
        seen = barrier.seen
        if succeeded:
            seen[warp] = barrier.phase
        elif barrier.phase - seen.get(warp, 0) >= 2:
            first = seen.get(warp, 0)
            fault(
                f"{barrier.name}: phases {first} to {barrier.phase - 1} completed before this wait looked; it waits "
                f"for one of them and would now see a later one instead (it saw {first} of {barrier.phase} "
                "completions); nothing keeps the arrivals from running ahead",
                BarrierError,
            )
