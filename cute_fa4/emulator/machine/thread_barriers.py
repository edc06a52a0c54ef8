"""Barriers that count threads: the 16 named barriers of a CTA and the one barrier of a cluster.

    generation g   arrived 0 .. expected          opens: generation g + 1, arrived 0

Both keep an integer generation that only grows; a thread waits for the generation it arrived in.
"""

from cute_fa4.emulator.errors import BarrierError


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
    """barrier.cluster: every thread of the cluster arrives once and waits once per generation."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.generation = 0
        self._arrived = {}  # warp -> lanes that arrived in this generation
        self._waiting = {}  # warp -> {generation: lanes that arrived and have not waited yet}
        self.released = self.acquirable = None  # clocks, see checks/ordering.py

    def arrive(self, warp):
        """The executing lanes arrive. Raises BarrierError when they have not waited for the last arrival."""
        mask = warp.mask
        pending = self._waiting.setdefault(warp, {})
        if any(mask & lanes for lanes in pending.values()):
            raise BarrierError(
                "barrier.cluster.arrive twice without a barrier.cluster.wait between"
            )
        pending[self.generation] = pending.get(self.generation, 0) | mask
        self._arrived[warp] = self._arrived.get(warp, 0) | mask
        self._open()

    def wait(self, warp):
        """True when the executing lanes may go on. Raises BarrierError when one has not arrived."""
        mask, pending = warp.mask, self._waiting.setdefault(warp, {})
        arrived = 0
        for lanes in pending.values():
            arrived |= lanes
        if mask & ~arrived:
            raise BarrierError("barrier.cluster.wait without a barrier.cluster.arrive before it")
        self._open()
        mine = [g for g, lanes in pending.items() if lanes & mask]
        if any(g == self.generation for g in mine):
            return False
        for g in mine:
            pending[g] &= ~mask
            if not pending[g]:
                del pending[g]
        return True

    def lacks(self):
        """Text for reports: how many threads are missing."""
        missing = self._missing()
        return f"barrier.cluster: {missing} threads of the cluster have not arrived"

    def _missing(self):
        return sum(
            (warp.live & ~self._arrived.get(warp, 0)).bit_count()
            for cta in self.cluster.ctas
            for warp in cta.warps
        )

    def _open(self):
        if self._arrived and not self._missing():
            self.generation += 1
            self._arrived.clear()
            if self.released is not None:
                self.acquirable = self.released.copy()

    def opened(self, generation):
        """Has this generation opened? Exits may open it, too."""
        self._open()
        return self.generation != generation
