"""A Recording as one HTML file that opens in a browser: lanes of roles, arrows of mbarriers, zoom; no network.

    Recording --> lanes, marks, arrows of each CTA (JSON) --> put into trace_page.html

The data are those of the picture (trace_output.cells_of): slots, not steps.
"""

import json
from html import escape
from pathlib import Path

from cute_fa4.emulator.ptx.syntax import source_text
from cute_fa4.emulator.reports import trace_output

MOST_CTAS = 64
"""CTAs of a page: more would make a file of megabytes, and the CTAs of a grid are similar."""


def page(recording) -> str:
    """The HTML text of a Recording."""
    ctas = list(dict.fromkeys(key[0] for key in recording.rows))[:MOST_CTAS]
    kernels = trace_output.kernel_names(recording.kernels)
    data = {
        "kernels": kernels,
        "colors": trace_output.COLORS,
        "timelines": [timeline(recording, cta) for cta in ctas] or [_EMPTY],
    }
    # "</" would end the script that holds the data.
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    template = Path(__file__).with_name("trace_page.html").read_text()
    for name, value in (
        ("TITLE", escape(kernels)),
        ("AXIS", escape(trace_output.AXIS)),
        ("DATA", text),
    ):
        template = template.replace(name, value, 1)
    return template


_EMPTY = {"cta": "", "lanes": [], "marks": [], "arrows": [], "slots": 0}


def timeline(recording, cta) -> dict:
    """One CTA: lanes (names), marks with the number of their lane, arrows (lane, slot) to (lane, slot), slots."""
    columns, marks, waits, slots = trace_output.cells_of(recording, cta)
    lanes = {key: i for i, (key, _) in enumerate(columns)}
    shown = [*marks.values(), *dict.fromkeys(waits.values())]
    return {
        "cta": str(tuple(cta)),
        "lanes": [role for _, role in columns],
        "marks": [_mark(mark, lanes) for mark in shown],
        "arrows": list(_arrows(recording, cta, lanes)),
        "slots": slots,
    }


def _mark(mark, lanes):
    # A wait is drawn after the role's previous mark.
    first = mark.slot + 1 if mark.kind == "wait" else mark.slot
    return {
        "lane": lanes[mark.row], "slot": first, "end": mark.end, "kind": mark.kind, "name": mark.name,
        "raises": mark.raises, "count": mark.count, "line": mark.line, "text": source_text(mark.source),
    }  # fmt: skip


def _arrows(recording, cta, lanes):
    """[(lane, slot) of the mark that raised an mbarrier, (lane, slot) of the end of a wait for it, its name]."""
    lane_of_role = {recording.rows[key]: lane for key, lane in lanes.items()}
    by_row = {}
    for mark in recording.marks:
        if mark.row[0] == cta and mark.kind not in ("wait", "sync"):
            by_row.setdefault(mark.row, []).append(mark)
    for wait in recording.marks:
        if wait.kind != "wait" or wait.row not in lanes or wait.cause is None:
            continue
        row, step = wait.cause
        lane = lane_of_role.get(recording.rows.get(row))
        # A commit completes when its row has advanced: use the latest mark that raised the mbarrier.
        before = [m for m in by_row.get(row, ()) if m.first <= step and m.end <= wait.end]
        raising = [m for m in before if wait.name in m.raises] or before
        if raising and lane is not None and wait.end > wait.slot:
            yield [lane, raising[-1].end], [lanes[wait.row], wait.end], wait.name
