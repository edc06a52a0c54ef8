"""Why everything in a modelled run happened when it did: a graph of causes, built while the machine runs.

    node    an instruction that issues, an arrival, a phase of an mbarrier that completes, an MMA, a copy
    edge    node <- (earlier node, cycles, tag): not before so many cycles after that one

    tag       the edge says
    stall     a warp's next instruction waits for the stall count of the one before
    result    ... for a result of variable latency        name: what produces it ("tensor memory", "shared memory", ...)
    wait      ... for a phase of an mbarrier               name: the mbarrier, as (CTA rank, offset)
    meet      ... for the others at a bar.sync or a cluster barrier
    drain     ... for bulk stores to have read their bytes
    pipe      the pipe is busy with an earlier instruction of the warp      name: the pipe
    others    ... with one of another warp                                  name: the pipe
    issue     the scheduler issues an instruction of another warp
    arrive    an arrival takes effect                      tensor, copy: an MMA or a copy takes its time
    join      several arrivals complete a phase

A node happens at the latest of its edges. So times can be computed again without some edges. Fewer edges never make a
node later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple


class Tag(NamedTuple):
    """The kind of an edge; see the table above."""

    kind: str
    name: object = None


STALL, ISSUE, MEET, DRAIN, JOIN = (
    Tag(kind) for kind in ("stall", "issue", "meet", "drain", "join")
)
ARRIVE, TENSOR, COPY = Tag("arrive"), Tag("tensor"), Tag("copy")


class Graph:
    """Nodes by number, in an order in which causes come first.

    times   cycle of each node            edges   [(node, cycles, tag), ...] of each node
    owners  (CTA rank, warp) of an instruction; a name ("tensor core") or an mbarrier's key of others
    issued  (CTA rank, warp) -> nodes of its instructions, in order
    """

    def __init__(self):
        self.times: list[float] = []
        self.edges: list[list[tuple[int, float, Tag]]] = []
        self.owners: list[object] = []
        self.issued: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.last: dict[object, int] = {}  # of a queue, a scheduler or a pipe: its latest node
        self.busy: dict[object, float] = {}  # the same: cycles until it takes another
        self.phases: dict[object, int] = {}  # mbarrier -> node of its latest complete phase
        self._arrived: dict[object, list[int]] = defaultdict(list)
        self._expected: dict[object, list] = defaultdict(list)  # (warp, scoreboard) -> edges
        self._next: dict[object, list] = defaultdict(list)  # warp -> edges of its next instruction
        self._stores: dict[object, list[int]] = defaultdict(list)
        self._groups: dict[object, list[list[int]]] = defaultdict(list)

    def node(self, when: float, edges: list, owner: object) -> int:
        """A new node; its number."""
        self.times.append(when)
        self.edges.append(edges)
        self.owners.append(owner)
        return len(self.times) - 1

    # -- called by the machine ---------------------------------------------------------------

    def issue(self, now: float, warp: tuple, waits: tuple, scheduler, pipe) -> int:
        """An instruction of a warp issues. waits: scoreboards that it needed; pipe: key of its pipe, or None."""
        edges = self._next.pop(warp, [])
        for number in waits:
            edges += self._expected.pop((warp, number), ())
        queue = self.last.get(scheduler)
        if queue is not None and queue != self._latest(warp):
            edges.append((queue, 1, ISSUE))
        if pipe is not None and pipe in self.last:
            before = self.last[pipe]
            kind = "pipe" if self.owners[before] == warp else "others"
            edges.append((before, self.busy[pipe], Tag(kind, pipe[-1])))
        number = self.node(now, edges, warp)
        self.issued[warp].append(number)
        self.last[scheduler] = number
        return number

    def _latest(self, warp) -> int | None:
        issued = self.issued[warp]
        return issued[-1] if issued else None

    def occupied(self, number: int, warp: tuple, stall: float, pipe, busy: float) -> None:
        """The instruction keeps its warp from the next one for its stall count, and its pipe busy."""
        self._next[warp].append((number, stall, STALL))
        if pipe is not None:
            self.last[pipe], self.busy[pipe] = number, busy

    def result(self, number: int, warp: tuple, scoreboard: int, latency: float, name: str) -> None:
        """A scoreboard is busy until a result of the instruction is ready."""
        self._expected[warp, scoreboard].append((number, latency, Tag("result", name)))

    def wait(self, number: int, warp: tuple, scoreboard: int, key, latency: float, passed: bool):
        """A wait for an mbarrier; the phase may have completed already."""
        edges = self._expected[warp, scoreboard]
        edges.append((number, latency if passed else 0.0, Tag("result", "mbarrier")))
        if passed and key in self.phases:
            edges.append((self.phases[key], latency, Tag("wait", key)))

    def woken(self, warp: tuple, scoreboard: int, key, latency: float) -> None:
        """The phase that a warp waits for has completed."""
        self._expected[warp, scoreboard].append((self.phases[key], latency, Tag("wait", key)))

    def effect(self, cause: int, by, key, when: float) -> int:
        """An arrival, or bytes, will reach an mbarrier. by: key of the engine whose latest work it ends, if any."""
        tag, causes = ARRIVE, [cause]
        if by is not None and (by, "complete") in self.last:
            tag = TENSOR if by[0] == "tensor" else COPY
            causes = [*([cause] if tag is TENSOR else []), self.last[by, "complete"]]
        latency = when - max(self.times[n] for n in causes)
        return self.node(when, [(n, latency, tag) for n in causes], key)

    def applied(self, number: int, key, completes: bool, now: float) -> None:
        """The effect counts; completes: it was the last of its phase."""
        self._arrived[key].append(number)
        if completes:
            edges = [(n, 0.0, JOIN) for n in self._arrived.pop(key)]
            self.phases[key] = self.node(now, edges, key)

    def meet(self, number: int, key, latency: float, awake: list[tuple] | None) -> None:
        """A warp arrives at a thread barrier; awake: those who go on now, if it was the last."""
        self._arrived[key].append(number)
        if awake is not None:
            edges = [(n, latency, MEET) for n in self._arrived.pop(key)]
            for warp in awake:
                self._next[warp] += edges

    def _queued(self, key, cause: int, start: float, busy: float, tag: Tag, owner: str) -> int:
        """An engine that serves in order begins a piece of work."""
        edges = [(cause, 0.0, tag)]
        if key in self.last:
            edges.append((self.last[key], self.busy[key], tag))
        self.last[key], self.busy[key] = self.node(start, edges, owner), busy
        return self.last[key]

    def multiplied(self, key, cause: int, start: float, busy: float, tail: float) -> None:
        """An MMA. All MMAs up to this one are complete when the slowest of them is."""
        number = self._queued(key, cause, start, busy, TENSOR, "tensor core")
        edges, done = [(number, busy + tail, TENSOR)], (key, "complete")
        if done in self.last:
            edges.append((self.last[done], 0.0, JOIN))
        when = max(self.times[n] + cycles for n, cycles, _ in edges)
        self.last[done] = self.node(when, edges, "tensor core")

    def copied(self, key, cause: int, start: float, busy: float, end: float, storing=None) -> None:
        """A bulk copy. storing: the warp whose open group of stores it belongs to, if it is a store."""
        number = self._queued(key, cause, start, busy, COPY, "copies")
        done = self.node(end, [(number, end - start, COPY)], "copies")
        self.last[key, "complete"] = done
        if storing is not None:
            self._stores[storing].append(done)

    def flushed(self, warp: tuple) -> None:
        """The open group of stores is closed."""
        self._groups[warp].append(self._stores.pop(warp, []))

    def drained(self, warp: tuple, still_open: int) -> None:
        """The warp goes on when all but so many groups of its stores have read their bytes."""
        groups = self._groups[warp]
        for group in groups[: max(0, len(groups) - still_open)]:
            self._next[warp] += [(n, 0.0, DRAIN) for n in group]

    # -- questions ---------------------------------------------------------------------------

    def evaluate(
        self, free: Callable[[Tag], bool] = lambda tag: False, starts: float = 0.0
    ) -> list[float]:
        """Times of all nodes if free edges took no time and no node waited for them.

        free  of a tag: waits, results, meetings, drains, pipes and turns of other warps are dropped; an engine's work
              takes no time
        """
        known: dict[Tag, bool] = {}
        out: list[float] = []
        for edges in self.edges:
            when = starts
            for cause, cycles, tag in edges:
                is_free = known.get(tag)
                if is_free is None:
                    is_free = known[tag] = free(tag)
                if is_free:
                    if tag.kind not in ("tensor", "copy", "arrive", "stall"):
                        continue
                    cycles = 0.0
                at = out[cause] + cycles
                if at > when:
                    when = at
            out.append(when)
        return out

    def binding(self, number: int) -> tuple[int, float, Tag] | None:
        """The edge that a node waited for longest; of equals the first."""
        times = self.times
        return max(self.edges[number], key=lambda edge: times[edge[0]] + edge[1], default=None)

    def critical_path(self, end: int, begin: float = 0.0) -> list[tuple[int, int, Tag]]:
        """[(cause, node, tag), ...] from the beginning to a node, each binding the next."""
        path = []
        while self.times[end] > begin:
            edge = self.binding(end)
            if edge is None:
                break
            path.append((edge[0], end, edge[2]))
            end = edge[0]
        return path[::-1]
