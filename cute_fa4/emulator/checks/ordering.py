"""Propagation of clocks: arrivals and waits, barriers, fences, commits, copies.

    publish(barrier, releases)  the arriver's clock goes into the barrier's open phase; when that
                                completes, the barrier makes it acquirable
    acquire(barrier, warp)      a wait succeeds: the warp receives it, as far as both scopes allow

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
from cute_fa4.emulator.checks.lanes import LaneAccesses
from cute_fa4.emulator.checks.reports import Access, Party
from cute_fa4.emulator.checks.scopes import CTA, GPU, Published
from cute_fa4.emulator.machine.mbarrier import Note
from cute_fa4.emulator.ptx.errors import BarrierError, InFlightError

LEVELS = ("ptx", "hardware")

IN_FLIGHT = np.iinfo(np.int32).max
_ACTORS_OF_A_WARP = 4  # itself, its tcgen05.ld, its tcgen05.st, the tensor core as it uses it

FENCED_APART = (BARRIERS, SEALED)  # rows that a specific fence lets a relaxed arrival carry


@dataclass(eq=False, slots=True)
class Word:
    """An address of memory that strong accesses have written.

    published  their releases in running clusters            latest   number of the latest that reaches other clusters
    earlier    the same in earlier clusters
    """

    published: Published
    latest: int = 0
    earlier: int = 0


@dataclass(eq=False, slots=True)
class Flight:
    """An asynchronous operation that must have been waited for when its CTA ends.

    store  a bulk store; level "hardware" lets a CTA exit before its source is read (DeepGEMM, flash-attn-4's backward)
    """

    actor: int
    number: int
    access: Access
    store: bool = False


class Ordering:
    """The actors of a launch, their clocks, and the numbers of their accesses.

    level      "ptx" or "hardware"        now  number of the latest access
    notes      list of remarks that are not errors: that of the machine
    completes  number of a copy's write -> (mbarrier, phase) on which it completes, its tensor map or None
    """

    def __init__(self, level, notes=None, lanes=False):
        self.level, self.ptx = level, level == "ptx"
        self.lanes = {} if lanes else None  # warp -> LaneAccesses
        self.notes = [] if notes is None else notes
        self.orders_additions = False  # unordered bulk additions of floats are errors (copies.py)
        self.noted = set()  # keys of notes, one per pair of instructions
        self.now = 0
        self.actor_of = np.zeros(1 << 12, np.int32)  # access number -> actor
        self.accesses = [None]  # access number -> Access
        self.global_regions = None  # memory.py
        # Numbers that represent accesses of earlier launches; 0: none, or complete.
        self.reads_before = 0  # all reads of the launch before
        self.grid_before = 0  # its writes; a clock that covers them also covers the reads
        self.unwaited = 0  # the writes of launches that no wait of this one waits for
        self._interned = {}
        self._synchronised = {}  # (memory, address) of atomics, releases -> Word
        self._start_cluster(0, 0)

    # -- clusters ------------------------------------------------------------------------------------------

    def _start_cluster(self, first_access, warps):
        # Accesses of earlier clusters count as those of actor 0, which no clock covers.
        self.actor_of[first_access : self.now + 1] = 0
        self.actors = 1
        self.capacity = 64
        while self.capacity < 2 + _ACTORS_OF_A_WARP * warps:
            self.capacity *= 2
        self.is_async = np.zeros(self.capacity, bool)
        self._copies = ([], [])  # actors of copies: generic, asynchronous proxy
        self._last = np.zeros(self.capacity, np.int32)  # copy actor -> number of its latest access
        self._flights, self.completes = [], {}
        self._strands = {}  # (warp, "ld" | "st" | "mma") -> Strand
        self._interned.clear()
        if self.lanes is not None:
            self.lanes.clear()
        self._first_access = self.now

    def begin_cluster(self, cluster, joins=False):
        """Fresh clocks for the warps of a cluster; joins: other clusters are still running."""
        warps = [warp for cta in cluster.ctas for warp in cta.warps]
        if not joins:
            self._start_cluster(self._first_access, len(warps))
        for warp in warps:
            party, actor = Party.of(warp), self._actor()
            warp.order = Strand(actor, np.zeros((clocks.ROWS, self.capacity), np.int32), party)
        if joins:
            return
        if self.global_regions is not None:
            self.global_regions.end_cluster()
        for word in self._synchronised.values():
            word.published, word.earlier = Published(), word.latest

    def end_cta(self, cta):
        """Some warp must have waited for each asynchronous operation of a CTA."""
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
            text = (
                f"CTA {cta.id} ended and nobody has waited for: {flight.access.what}; its shared and tensor "
                "memory must outlive the operation: wait for the mbarrier or the bulk group before the last "
                f"thread returns\n{flight.access.where()}"
            )
            if self.ptx or not flight.store:
                raise InFlightError(text)
            self.notes.append(Note.of("store_at_end", text))
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

    def number(self, actor, party, ins, what, strong=0):
        """Number of a new access; strong: 0, or 1 + its scope."""
        now = self.now = self.now + 1
        if now >= len(self.actor_of):
            self.actor_of = np.concatenate((self.actor_of, np.zeros_like(self.actor_of)))
        self.actor_of[now] = actor
        key = (id(party), id(ins), what, strong)  # the Access keeps both alive
        access = self._interned.get(key)
        if access is None:
            access = self._interned[key] = Access(party, ins, what, strong)
        self.accesses.append(access)
        return now

    def may_meet(self, number, strong, party):
        """Whether an earlier access and one of this strength need no order (PTX: "morally strong")."""
        earlier = self.accesses[number]
        if not (strong and earlier.strong):
            return False
        if self.actor_of[number] == 0:
            distance = GPU  # an earlier cluster
        else:
            distance = earlier.party.distance(party)
        return min(strong, earlier.strong) > distance

    def unordered(self, numbers, known, strong, party):
        """The first access number of an array that is not covered by ``known`` (by actor), or 0."""
        flat = numbers.ravel()
        if not flat.size:
            return 0
        if len(known) < self.capacity:
            known = np.concatenate((known, np.zeros(self.capacity - len(known), np.int32)))
        first = int(flat[0])
        # The common case: one box of a copy, one MMA.
        if first == flat[-1] and np.count_nonzero(flat == first) == flat.size:
            bad = (first,) if first > known[self.actor_of[first]] else ()
        else:
            late = flat > known[self.actor_of[flat]]
            if not np.count_nonzero(late):
                return 0
            bad = set(flat[late].tolist()) if strong else (int(flat[int(np.argmax(late))]),)
        for n in bad:
            # Two atomics, or an atomic and a volatile or relaxed access, may be unordered.
            if not self.may_meet(n, strong, party):
                return n
        return 0

    # -- threads ---------------------------------------------------------------------------------------------

    def outgoing(self, warp, scope=GPU, relaxed=False):
        """[(place, scope, clock)] that an arrival of the warp carries: its clock, and its own accesses.

        relaxed  only what fences (also tcgen05.fence::before_thread_sync) have made publishable, and fenced mbarriers
        """
        order = warp.order
        order.clock[HAPPENED, order.actor] = self.now
        place = _place(warp)
        if not relaxed:
            return [(place, scope, order.clock)]
        fenced = np.zeros_like(order.clock)
        for row in FENCED_APART:
            fenced[row] = order.clock[row]
        return [(place, scope, fenced), *self._fenced(order, place, scope)]

    def _fenced(self, order, place, scope):
        """[(place, scope, clock)] that fences let a relaxed operation publish, within both scopes."""
        found = []
        for reach in range(scope, CTA - 1, -1):
            clock = order.fenced[reach]
            if clock is not None and not any(clock is other for _, _, other in found):
                found.append((place, reach, clock))
        return found

    def publish(self, barrier, releases):
        """An arrival: its clocks belong to the open phase. releases: of outgoing()."""
        if barrier.released is None:
            barrier.released = Published()
        for place, scope, clock in releases:
            barrier.released.add(place, scope, clock)

    def release(self, barrier, clock):
        """The same for an asynchronous operation, which reaches all threads."""
        self.publish(barrier, [(None, GPU, clock)])

    def acquire(self, barrier, warp, scope=GPU, relaxed=False):
        """A wait of the warp has succeeded. relaxed: a fence must follow before it counts.

        For tensor memory that fence is tcgen05.fence::after_thread_sync, which needs no acquire (PTX ISA, "tcgen05
        memory consistency model": the canonical patterns arrive and wait with .relaxed.cluster).
        """
        if barrier.acquirable is not None:
            self._take(warp, barrier.acquirable.reaching(_place(warp), scope), relaxed)

    def lanes_of(self, warp):
        """The LaneAccesses of a warp."""
        found = self.lanes.get(warp)
        if found is None:
            found = self.lanes[warp] = LaneAccesses()
        return found

    def lanes_meet(self, warp, clock=None):
        """Later accesses of a warp's lanes come after all their earlier ones, or after those that a clock covers."""
        if self.lanes is not None:
            actor, lanes = warp.order.actor, self.lanes_of(warp)
            own = (
                self.now
                if clock is None
                else clock[HAPPENED, actor]
                if actor < clock.shape[1]
                else 0
            )
            lanes.met = max(lanes.met, int(own))

    def _take(self, warp, reaching, relaxed):
        order = warp.order
        for distance, clock in reaching:
            if relaxed:
                order.seen[distance] = merged(order.seen[distance], clock)
                only = np.zeros_like(clock)
                only[SEALED] = clock[SEALED]
                self._learn(order, only)
            else:
                self._learn(order, clock)
                self.lanes_meet(warp, clock)

    def wait_for_grid(self, warp):
        """griddepcontrol.wait: the previous launch has ended; its writes are visible to threads and to copies."""
        if self.grid_before:
            self.learn_number(warp, 0, self.grid_before, (HAPPENED, ASYNC_SHARED, ASYNC_GLOBAL))

    def _learn(self, order, clock):
        order.clock = merged(order.clock, clock)
        order.version += 1

    def fence(self, warp, scope=GPU, publishes=True, learns=True):
        """fence.acq_rel, fence.sc, membar: later relaxed accesses publish the present clock.

        fence.release only publishes; fence.acquire only accepts what relaxed accesses have seen.
        """
        order, reached = warp.order, range(scope + 1)
        for distance in reached if learns else ():
            if order.seen[distance] is not None:
                self._learn(order, order.seen[distance])
                order.seen[distance] = None
        order.clock[HAPPENED, order.actor] = self.now
        if not publishes:
            return
        clock = order.clock.copy()
        for reach in reached:
            order.fenced[reach] = clock

    def fence_proxy(self, warp, shared=True, to_global=True):
        """fence.proxy.async: earlier accesses are visible to the asynchronous proxy as well."""
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
        order, known = warp.order, TENSOR if self.ptx else HAPPENED
        order.clock[HAPPENED, order.actor] = self.now
        target, source = (SEALED, known) if before else (TENSOR, SEALED)
        np.maximum(order.clock[target], order.clock[source], out=order.clock[target])
        order.version += 1

    def strong_access(self, warp, key, release, acquire, write, scope):
        """An atomic, volatile, relaxed, acquire or release access to an address that threads agree on by it."""
        word, order, place = self._synchronised.get(key), warp.order, _place(warp)
        if word is not None:
            self._take(warp, word.published.reaching(place, scope), not acquire)
            if word.earlier and scope == GPU:
                # A value published by an earlier cluster: includes all accesses before it.
                seen = np.zeros_like(order.clock)
                seen[:, 0] = word.earlier
                self._take(warp, [(GPU, seen)], not acquire)
        if write:
            order.clock[HAPPENED, order.actor] = self.now
            own = [(place, scope, order.clock)]
            releases = own if release else self._fenced(order, place, scope)
            if releases:
                word = self._synchronised.setdefault(key, Word(Published()))
            for release in releases:
                word.published.add(*release)
                if release[1] == GPU:
                    word.latest = self.now

    # -- asynchronous operations -------------------------------------------------------------------------------

    def launch(self, warp, is_async=True):
        """A Strand for a copy that the warp issues now, with the warp's clock."""
        order = warp.order
        clock = order.snapshot(self.now).copy()
        clock[HAPPENED, order.actor] = self.now
        free = self._copies[is_async]
        actor = None
        if free:
            # An actor can be reused for a warp that comes after its last copy.
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

    def landed(self, strand, must_be_awaited=None, store=False):
        """The strand's copy has made its latest access (number ``now``); an Access that must be waited for."""
        bulk = self.is_async[strand.actor]  # cp.async and st.async write through the generic proxy
        rows = (HAPPENED, ASYNC_SHARED, ASYNC_GLOBAL) if bulk else HAPPENED
        strand.clock[rows, strand.actor] = self.now
        self._last[strand.actor] = self.now
        if must_be_awaited is not None:
            self._flights.append(Flight(strand.actor, self.now, must_be_awaited, store))

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
        """tcgen05.wait::ld or ::st: the warp's own accesses of that kind are complete."""
        strand = self._strands.get((warp, kind))
        if strand is not None:
            self.learn_number(warp, strand.actor, self.now, (HAPPENED, TENSOR))
        if not self.ptx:  # docs/decisions/0045
            self.fence_tensor(warp, before=True)

    def commit(self, strand):
        """tcgen05.commit has passed the queue: the MMAs before it are complete, and sealed."""
        clock = strand.clock
        clock[HAPPENED, strand.actor] = clock[TENSOR, strand.actor] = self.now
        np.maximum(clock[SEALED], clock[TENSOR], out=clock[SEALED])

    def must_wait(self, strand, access):
        """The latest access of a long-lived strand (tensor core) must be waited for."""
        for flight in self._flights:
            if flight.actor == strand.actor:
                flight.number, flight.access = self.now, access
                return
        self._flights.append(Flight(strand.actor, self.now, access))

    # -- mbarriers ---------------------------------------------------------------------------------------------

    def arrived(self, barrier, warp):
        """A warp arrives on a barrier: it must know of the phase in which it arrives."""
        barrier.seen[warp] = barrier.phase

    def looked(self, barrier, warp, succeeded, fault):
        """A warp tests a phase. A test that fails because a later phase has also completed is an error."""
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


def _place(warp):
    """Where the CTA of a warp is: its cluster, and its rank there."""
    return warp.cta.cluster.id, warp.cta.rank
