"""A Recording as Chrome trace events, as text, and as a picture.

text      slot  mma              softmax 0     tensor core       raises
          3     .                wait s_ready  S0 = Q0 kv[0]     s_ready[0]
picture   the same rotated: one line per role, slots to the right
"""

import json
import re
from itertools import accumulate
from xml.sax.saxutils import escape

AXIS = "order, not duration"

COLORS = {  # fill and text of a mark in the picture, readable with and without colour vision
    "copy": ("#cfe3f5", "#123a5c"),
    "product": ("#f6d9a8", "#5c3a06"),
    "read": ("#d6ecd2", "#1d4a17"),
    "write": ("#e7d6ef", "#46205a"),
    "wait": ("#f1f1f1", "#777777"),
}
_CELL, _LINE, _LEFT = 94, 30, 100
_TOP, _TOP_OF_BAND, _GAP = (
    40,
    18,
    14,
)  # heights of the header, of a band's numbers, and below a band
_BAND = 880  # width of the slots in one band
_HEADER = 620  # width of the lines above them
_SMALL = 4.3  # width of a letter of the mbarriers below a mark


def write_chrome(recording, path):
    """Chrome trace event format: "X" a mark, "s"/"f" an arrow from the mark that raised a barrier to the waiter."""
    processes = {cta: i for i, cta in enumerate(dict.fromkeys(key[0] for key in recording.rows))}
    # Warps keep their number; engines follow after all possible warps of a CTA.
    threads = {
        key: key[1] if isinstance(key[1], int) else 100 + len(key[1]) for key in recording.rows
    }
    events = []
    for cta, number in processes.items():
        events.append(_name("process_name", number, 0, f"CTA {cta}"))
    for key, role in recording.rows.items():
        label = role if isinstance(key[1], str) else f"warp {key[1]} {role}".rstrip()
        events.append(_name("thread_name", processes[key[0]], threads[key], label))
    for number, mark in enumerate(recording.marks):
        place = {"pid": processes[mark.row[0]], "tid": threads[mark.row]}
        arguments = {"slot": mark.slot, "times": mark.count, "raises": mark.raises, "at": mark.line}
        events.append(
            {"ph": "X", "name": mark.name, "cat": mark.kind, "ts": mark.first,
             "dur": max(mark.last - mark.first, 1), "args": arguments, **place}
        )  # fmt: skip
        if mark.cause is not None:
            row, step = mark.cause
            arrow = {"name": mark.name, "cat": "barrier", "id": number}
            source = {"pid": processes[row[0]], "tid": threads[row]}
            events.append({"ph": "s", "ts": step, **arrow, **source})
            events.append({"ph": "f", "bp": "e", "ts": mark.last, **arrow, **place})
    document = {
        "traceEvents": events,
        "otherData": {"time": f"emulator steps: {AXIS}", "kernels": recording.kernels},
    }
    with open(path, "w") as file:
        json.dump(document, file)


def _name(what, pid, tid, name):
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def columns_of(recording, cta=None):
    """[(row key, role)] of one CTA: the first warp of every role, then the engines."""
    if not recording.rows:
        return []
    cta = next(iter(recording.rows))[0] if cta is None else tuple(cta)
    warps, engines, seen = [], [], set()
    for key, role in recording.rows.items():
        if key[0] != cta or role in seen:
            continue
        seen.add(role)
        (engines if isinstance(key[1], str) else warps).append((key, role))
    warps.sort(key=lambda item: item[0][1])
    return warps + sorted(engines)


def cells_of(recording, cta=None):
    """(columns, {(row key, slot): Mark}, {(row key, slot): waiting Mark}, number of slots)."""
    columns = columns_of(recording, cta)
    keys = {key for key, _ in columns}
    marks, waits = {}, {}
    for mark in recording.marks:
        if mark.row not in keys:
            continue
        if mark.kind == "wait":
            for slot in range(mark.slot + 1, mark.end + 1):
                waits.setdefault((mark.row, slot), mark)
        elif mark.kind != "sync":
            marks[mark.row, mark.slot] = mark
    busy = {key[0] for key in (*marks, *waits)}
    columns = [column for column in columns if column[0] in busy]
    return columns, marks, waits, max((slot for _, slot in (*marks, *waits)), default=0)


def text(recording, cta=None, width=24):
    """See Recording.text."""
    columns, marks, waits, slots = cells_of(recording, cta)
    rows = [["slot", *(role for _, role in columns), "raises"]]
    for slot in range(1, slots + 1):
        row, raised = [str(slot)], []
        for key, _ in columns:
            mark, wait = marks.get((key, slot)), waits.get((key, slot))
            if mark is not None:
                row.append(mark.name + (f" x{mark.count}" if mark.count > 1 else ""))
                raised += [name for name in mark.raises if name not in raised]
            elif wait is not None:
                row.append(f"wait {wait.name}" if wait.slot + 1 == slot else ":")
            else:
                row.append(".")
        rows.append([*row, " ".join(raised)])
    rows = [[cell if len(cell) <= width or i == len(row) - 1 else cell[: width - 1] + "~"
             for i, cell in enumerate(row)] for row in rows]  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return "\n".join([f"A line is a slot: {AXIS}.", "", *lines])


def svg(recording, cta=None):
    """See Recording.svg: hand-written SVG, no script, text as text.

    Slots that do not fit continue below, like lines of text. On a page the picture shrinks to the available width;
    opened directly it has twice the size of its numbers.
    """
    columns, marks, waits, slots = cells_of(recording, cta)
    widths = _widths(marks, slots)
    bands = _bands(widths)
    band_height = _TOP_OF_BAND + len(columns) * _LINE + _GAP
    width = 20 + max((_LEFT + sum(widths[slot - 1] for slot in band) for band in bands), default=0)
    width, height = max(width, _HEADER), _TOP + len(bands) * band_height + 20
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{2 * width}" '
        f'height="{2 * height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="10" y="18" font-size="13">{escape(kernel_names(recording.kernels))}</text>',
        f'<text x="10" y="34" fill="#777777">One column is a slot of synchronisation: {AXIS}. Below a mark: '
        "the mbarriers that it raises.</text>",
    ]
    for number, band in enumerate(bands):
        out += _band(columns, marks, waits, band, widths, _TOP + number * band_height)
    x = _LEFT
    for kind, (fill, color) in COLORS.items():
        y = height - 22
        out.append(
            f'<rect x="{x}" y="{y}" width="14" height="12" fill="{fill}" stroke="{color}" stroke-width="0.5"/>'
        )
        out.append(f'<text x="{x + 19}" y="{y + 10}" fill="{color}">{kind}</text>')
        x += 80
    return "\n".join([*out, "</svg>", ""])


def kernel_names(kernels):
    """Names without a trailing hash and number, so that equal pictures have equal text.

    >>> kernel_names(["fa4_d128_dc557b0f_0", "fa4_d128_dc557b0f_0", "copy"])
    'fa4_d128, copy'
    """
    return ", ".join(dict.fromkeys(re.sub(r"_[0-9a-f]{8}(_\d+)?$", "", name) for name in kernels))


def _widths(marks, slots):
    """The width of every slot, from the mbarriers below its marks."""
    widths = [_CELL] * slots
    for (_, slot), mark in marks.items():
        needed = 10 + round(_SMALL * len(" ".join(mark.raises)))
        widths[slot - 1] = max(widths[slot - 1], needed)
    return widths


def _bands(widths):
    """Slots (from 1) of each band, from the top to the bottom of the picture.

    >>> _bands([400, 400, 400, 2000, 94])
    [[1, 2], [3], [4], [5]]
    """
    bands, used = [], _BAND
    for slot, width in enumerate(widths, start=1):
        if used + width > _BAND:
            bands.append([])
            used = 0
        bands[-1].append(slot)
        used += width
    return bands


def _band(columns, marks, waits, band, widths, top):
    """The lines of all roles for the slots of one band."""
    left = list(accumulate((widths[slot - 1] for slot in band), initial=_LEFT))
    bottom = top + _TOP_OF_BAND + len(columns) * _LINE
    out = []
    for slot, x in zip(band, left, strict=False):
        out.append(f'<text x="{x + 4}" y="{top + _TOP_OF_BAND - 5}" fill="#999999">{slot}</text>')
        out.append(
            f'<line x1="{x}" y1="{top + _TOP_OF_BAND}" x2="{x}" y2="{bottom}" stroke="#e4e4e4" stroke-width="1"/>'
        )
    for number, (key, role) in enumerate(columns):
        y = top + _TOP_OF_BAND + number * _LINE
        out.append(f'<text x="10" y="{y + 19}">{escape(role)}</text>')
        for place, slot in enumerate(band):
            mark, wait = marks.get((key, slot)), waits.get((key, slot))
            x, cell = left[place], left[place + 1] - left[place]
            if mark is not None:
                raises = " ".join(mark.raises)
                out.append(_box(x, y, cell, mark.kind, mark.name, raises, mark.line))
            elif wait is not None:
                name = wait.name if wait.slot + 1 == slot or place == 0 else ""
                out.append(_box(x, y, cell, "wait", name, "", wait.line))
    return out


def _box(x, y, width, kind, name, raises, title):
    fill, color = COLORS.get(kind, COLORS["wait"])
    name_y = y + (13 if raises else 18)
    parts = [
        f'<g><title>{escape(title)}</title><rect x="{x + 1}" y="{y + 2}" width="{width - 2}" '
        f'height="{_LINE - 4}" rx="2" fill="{fill}"/>',
        f'<text x="{x + 5}" y="{name_y}" fill="{color}">{escape(name)}</text>',
    ]
    if raises:
        parts.append(
            f'<text x="{x + 5}" y="{y + 24}" font-size="8" fill="{color}">{escape(raises)}</text>'
        )
    return "".join(parts) + "</g>"
