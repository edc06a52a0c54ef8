"""A modelled run as lanes of segments, in cycles: what page.py draws."""

from __future__ import annotations

from cute_fa4.emulator.model import accounts
from cute_fa4.emulator.model.graph import Graph
from cute_fa4.emulator.model.names import Names

MOST_SEGMENTS = 20_000


def timeline(names: Names, paths, graph: Graph, result, window) -> dict:
    """Lanes of segments for page.py: of each role its first warp, then tensor core and copies."""
    lanes = []
    left = MOST_SEGMENTS
    for name, warps in names.roles.items():
        warp = warps[0]
        path, merged = paths[warp], []
        line = ""
        for start, until, reason, number in accounts.segments(graph, warp, result.cycles):
            event = path[number - 1].event
            if event is not None:
                line = names.launch.source(event.line)
            text = names.reason(reason)
            kind = "work" if reason[0] in ("issue", "stall", "turn", "pipe") else reason[0]
            if kind == "work":
                text = "works"
            if (
                merged
                and merged[-1][2] == kind
                and merged[-1][3] == text
                and merged[-1][1] == start
            ):
                merged[-1][1] = until
            else:
                merged.append([start, until, kind, text, line])
        lanes.append({"name": name, "segments": merged[:left]})
        left -= len(merged[:left])
    cta = min(rank for rank, _ in paths)
    for name, work in (("tensor core", result.tensor), ("copies", result.copies)):
        rows = [[start, start + cycles, "engine", name, ""] for start, cycles in work.get(cta, ())]
        if rows:
            lanes.append({"name": name, "segments": rows[:MOST_SEGMENTS]})
    return {"lanes": lanes, "steady": list(window[:2]), "cycles": result.cycles}
