"""Barriers that count threads: the 16 named barriers of a CTA and the one barrier of a cluster.

    generation g   arrived 0 .. expected          opens: generation g + 1, arrived 0

Both keep an integer generation that only grows; a thread waits for the generation it arrived in.
"""

from cute_fa4.emulator.machine.mbarrier import Note
from cute_fa4.emulator.ptx.errors import BarrierError


class NamedBarrier:
    """One of the barriers 0 to 15 of bar.sync.

    expected  threads that open it; None: all threads of the CTA that have not exited
    results   generation -> [threads with a true predicate, threads], for bar.red
    """

    __slots__ = (
        "acquirable", "arrived", "cta", "expected", "generation", "number", "released", "results", "who",
    )  # fmt: skip

    def __init__(self, cta, number):
        self.cta, self.number = cta, number
        self.arrived = self.generation = 0
        self.expected = None
        self.results = {}
        self.who = []
        self.released = self.acquirable = None  # clocks, see checks/ordering.py

    def arrive(self, threads, count, issuer):
        """Count threads; returns the generation they arrived in. Raises BarrierError on disagreement."""
        if self.arrived and count != self.expected:
            raise BarrierError(
                f"barrier {self.number}: {issuer.who()} passes {count or 'no'} threads as its count, but "
                f"{', '.join(self.who)} passed {self.expected or 'none'}; all participants must pass the same"
                f"\n{issuer.where()}"
            )
        self.expected = count
        self.arrived += threads
        self.who.append(issuer.who())
        generation = self.generation
        if count is not None and self.arrived > count:
            raise BarrierError(
                f"barrier {self.number}: {issuer.who()} brings the arrivals to {self.arrived}, but the barrier "
                f"opens at {count} threads (arrived before: {', '.join(self.who[:-1])})\n{issuer.where()}"
            )
        self.passed(generation)
        return generation

    def passed(self, generation):
        """Has this generation opened?"""
        if self.generation == generation and self.arrived:
            needed = self.cta.live_threads if self.expected is None else self.expected
            if self.arrived >= needed:
                self.generation += 1
                self.arrived = 0
                self.who.clear()
                if self.released is not None:
                    self.acquirable = self.released.copy()
        return self.generation != generation

    def lacks(self):
        """Text for reports: how many threads are missing."""
        needed = self.cta.live_threads if self.expected is None else self.expected
        return f"barrier {self.number}: {self.arrived} of {needed} threads arrived ({', '.join(self.who)})"


class ClusterBarrier:
    """barrier.cluster: every thread of the cluster arrives once and waits once per generation.

    A thread that arrives again before it has waited violates PTX. At levels other than "ptx" this is tolerated: the
    arrival belongs to the next generation, and waits match arrivals in order:

        arrive (g)  arrive (g + 1)  wait (g)  wait (g + 1)

    flash-attn-4's MLA kernel does this: one of its pipelines synchronizes the cluster between the arrive and the
    wait that all pipelines share. Whether hardware distinguishes the two arrivals of a thread from those of two
    threads is unknown, so a note reports it.
    """

    def __init__(self, cluster):
        self.cluster = cluster
        self.generation = 0
        self.noted = False  # one note is enough
        self._arrived = {}  # generation, this one and later -> {warp: lanes that arrived}
        self._waiting = {}  # warp -> {generation: lanes that arrived but have not waited}
        self.released = self.acquirable = None  # clocks, see checks/ordering.py

    def arrive(self, warp):
        """The executing lanes arrive. Raises BarrierError if they have not waited for the last arrival."""
        mask, generation = warp.mask, self.generation
        pending = self._waiting.setdefault(warp, {})
        if any(mask & lanes for lanes in pending.values()):
            self._arrives_again(warp)
        while mask:
            arrived = self._arrived.setdefault(generation, {})
            before = arrived.get(warp, 0)
            arrived[warp] = before | mask
            pending[generation] = pending.get(generation, 0) | mask & ~before
            mask &= before
            generation += 1
        self._open()

    def _arrives_again(self, warp):
        machine = warp.cta.machine
        text = "barrier.cluster.arrive twice without a barrier.cluster.wait between"
        if machine.ordering is not None and machine.ordering.ptx:
            raise BarrierError(text)
        if not self.noted:
            self.noted = True
            machine.notes.append(Note.of("cluster_barrier", f"{text}\n{warp.issuer().where()}"))

    def wait(self, warp):
        """True if the executing lanes may continue. Raises BarrierError if one has not arrived."""
        rest, pending = warp.mask, self._waiting.setdefault(warp, {})
        self._open()
        mine = {}  # generation -> lanes for which it is the earliest
        for generation in sorted(pending):
            if found := pending[generation] & rest:
                mine[generation] = found
                rest &= ~found
        if rest:
            raise BarrierError("barrier.cluster.wait without a barrier.cluster.arrive before it")
        if any(generation >= self.generation for generation in mine):
            return False
        for generation, lanes in mine.items():
            pending[generation] &= ~lanes
            if not pending[generation]:
                del pending[generation]
        return True

    def lacks(self):
        """Text for reports: how many threads are missing."""
        missing = self._missing()
        return f"barrier.cluster: {missing} threads of the cluster have not arrived"

    def _missing(self):
        arrived = self._arrived.get(self.generation, {})
        return sum(
            (warp.live & ~arrived.get(warp, 0)).bit_count()
            for cta in self.cluster.ctas
            for warp in cta.warps
        )

    def _open(self):
        while self._arrived.get(self.generation) and not self._missing():
            del self._arrived[self.generation]
            self.generation += 1
            if self.released is not None:
                self.acquirable = self.released.copy()

    def opened(self, generation):
        """Has this generation opened? Exits may open it, too."""
        self._open()
        return self.generation != generation
