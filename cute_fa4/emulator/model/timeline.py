"""A modelled run as lanes of segments, in cycles: what page.py draws."""

from __future__ import annotations

from cute_fa4.emulator.model import accounts
from cute_fa4.emulator.model.graph import Graph
from cute_fa4.emulator.model.names import Names

MOST_SEGMENTS = 40_000
"""Of all lanes together: a longer run is drawn up to them."""
_WORK = {"issue", "stall", "turn", "pipe"}


def timeline(names: Names, paths: dict, graph: Graph, result, cta: int, steady: tuple) -> dict:
    """Lanes of one CTA: the first warp of each role, then tensor core and copies.

    A segment is [from, until, kind, what, number of its line]; lines: (place, text) of each number. The line is that of
    the latest instruction that synchronises, touches tensor memory or copies.
    """
    shown = {name: warps[0] for name, warps in names.roles.items() if warps[0][0] == cta}
    most = MOST_SEGMENTS // max(1, len(shown))
    numbers: dict[int, int] = {}
    lanes = []
    for name, warp in shown.items():
        path, line = paths[warp], -1
        merged: list[list] = []
        for start, until, reason, number in accounts.segments(graph, warp, result.cycles):
            event = path[number].event
            if event is not None:
                line = numbers.setdefault(event.line, len(numbers))
            kind = "work" if reason[0] in _WORK else reason[0]
            what = "works" if kind == "work" else names.reason(reason)
            if merged and merged[-1][2:4] == [kind, what] and merged[-1][1] == start:
                merged[-1][1] = until
            elif len(merged) == most:
                break
            else:
                merged.append([start, until, kind, what, line])
        lanes.append({"name": name, "segments": merged})
    for name, work in (("tensor core", result.tensor), ("copies", result.copies)):
        rows: list[list] = []
        for start, cycles in work.get(cta, ()):
            if rows and rows[-1][1] == start:
                rows[-1][1] = start + cycles
            else:
                rows.append([start, start + cycles, "engine", name, -1])
        if rows:
            lanes.append({"name": name, "segments": rows[:most]})
    lines = [[names.launch.source(line), names.launch.text(line)] for line in numbers]
    return {"lanes": lanes, "lines": lines, "steady": list(steady), "cycles": result.cycles}
