"""Where the time of a modelled run went: cycles of a warp by reason, busy resources, enders of waits, longest chain.

    account(graph, warp, window)     reason -> cycles; the reasons of a window add up to its length
    busy(...)                        resource -> cycles in which it worked
    chain(...)                       the steps that bound each other, by whose they are

A reason is (kind, name): ("issue", "") the instruction's own cycle, ("stall", "") its fixed latency, and the kinds of
graph.py: ("wait", key of an mbarrier), ("result", "tensor memory"), ("pipe", "mufu"), ("turn", "") for the issue slots
of other warps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict

from cute_fa4.emulator.model.constants import SUB_PARTITIONS
from cute_fa4.emulator.model.graph import Graph

Reason = tuple[str, object]
ISSUE, STALL, TURN, OTHER = ("issue", ""), ("stall", ""), ("turn", ""), ("other", "")


def account(graph: Graph, warp: tuple[int, int], begin: float, end: float) -> Counter[Reason]:
    """Cycles between two times by what the warp did or waited for."""
    spent: Counter[Reason] = Counter()
    times = graph.times
    before = None
    for node in graph.issued[warp]:
        if before is not None and times[node] > begin and times[before] < end:
            for reason, start, until in _parts(graph, before, node):
                inside = min(until, end) - max(start, begin)
                if inside > 0:
                    spent[reason] += inside
        before = node
    return spent


def _parts(graph: Graph, before: int, node: int):
    """(reason, from, until) of the time between two instructions of a warp."""
    times, now = graph.times, graph.times[node]
    at = times[before]
    yield ISSUE, at, min(at + 1, now)
    at = min(at + 1, now)
    steps: list[tuple[Reason, float]] = []
    none: tuple[Reason | None, float] = (None, 0.0)
    data, pipe, turn = none, none, none
    for cause, cycles, tag in graph.edges[node]:
        ready = times[cause] + cycles
        if tag.kind == "stall":
            steps.append((STALL, ready))
        elif tag.kind in ("pipe", "others"):
            pipe = max(pipe, (("pipe", tag.name), ready), key=lambda item: item[1])
        elif tag.kind == "issue":
            turn = max(turn, (TURN, ready), key=lambda item: item[1])
        else:
            data = max(data, ((tag.kind, tag.name), ready), key=lambda item: item[1])
    for reason, ready in (*steps, data, pipe, turn):
        until = min(ready, now)
        if reason is not None and until > at:
            yield reason, at, until
            at = until
    if now > at:
        yield OTHER, at, now


def segments(graph: Graph, warp: tuple[int, int], end: float):
    """(from, until, reason, number of the instruction) of a warp, for a picture."""
    before = None
    for number, node in enumerate(graph.issued[warp]):
        if before is not None:
            for reason, start, until in _parts(graph, before, node):
                if start < end and until > start:
                    yield start, until, reason, number
        before = node


def ender(graph: Graph, node: int, key) -> object | None:
    """Who ended the wait for an mbarrier before this instruction: a warp, "tensor core" or "copies"."""
    for cause, _, tag in graph.edges[node]:
        if tag.kind == "wait" and tag.name == key:
            while True:
                edge = graph.binding(cause)
                if edge is None:
                    return None
                cause, owner = edge[0], graph.owners[edge[0]]
                if owner != key:
                    return owner
    return None


def busy(graph: Graph, costs: dict, result, cta: int, begin: float, end: float) -> dict[str, float]:
    """Cycles in which each resource of a CTA worked between two times; of four equal ones the busiest.

    costs: warp -> pipes.Cost of each of its instructions
    """
    total: Counter = Counter()
    for warp, nodes in graph.issued.items():
        if warp[0] != cta:
            continue
        times = [graph.times[node] for node in nodes]
        partition = warp[1] % SUB_PARTITIONS
        for number in range(bisect_left(times, begin), bisect_left(times, end)):
            cost = costs[warp][number]
            total["issue slots", partition] += 1
            if cost.pipe == "shared":
                total["shared memory", 0] += cost.busy
            elif cost.pipe:
                total[cost.pipe, partition] += cost.busy
    for name, work in (("tensor core", result.tensor), ("copies", result.copies)):
        for start, cycles in work.get(cta, ()):
            total[name, 0] += max(0.0, min(start + cycles, end) - max(start, begin))
    found: dict[str, float] = {}
    for (name, _), cycles in total.items():
        found[name] = max(found.get(name, 0.0), cycles)
    return found


def chain(graph: Graph, end: int, begin: float) -> dict[tuple[object, Reason], float]:
    """Cycles of the longest chain of causes back to a time, by (owner, reason).

    owner: the warp that waited or worked, "tensor core", "copies", or the key of an mbarrier
    """
    spent: dict[tuple[object, Reason], float] = defaultdict(float)
    for cause, node, tag in graph.critical_path(end, begin):
        cycles = graph.times[node] - max(graph.times[cause], begin)
        if cycles > 0:
            owner = graph.owners[cause] if tag.kind in ("tensor", "copy") else graph.owners[node]
            spent[owner, (tag.kind, tag.name)] += cycles
    return spent
