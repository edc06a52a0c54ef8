"""A picture of the steady state: roles as rows, cycles to the right, as SVG written by hand.

tensor   | S0 |P V| S1 |P V|            an MMA chain
copies   |    K    |    V    |          bytes on their way into shared memory
softmax  |########|        |########|   instructions, between waits at mbarriers
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from cute_fa4.emulator.model.machine import Result

WIDTH, LEFT, ROW, GAP, TOP = 1200, 130, 26, 8, 46
COLOURS = {
    "tensor core": "#76b900",
    "copies": "#4a90d9",
    "mma": "#8a6fd1",
    "load": "#4a90d9",
    "softmax 0": "#e07b39",
    "softmax 1": "#d9a441",
    "correction": "#b5537b",
}
WARPS = {"softmax 0": 0, "softmax 1": 4, "correction": 8, "mma": 12}
MOST_TICKS = 24
# Shorter gaps between spans are below a pixel of a picture of three key tiles.
MERGE_CYCLES = 4.0


def spans(result: Result, cta: int = 0) -> dict[str, list[tuple[float, float]]]:
    """Role -> [(from, until)] in which it is busy."""
    out = {
        "tensor core": _joined((s, s + n) for s, n in result.tensor[cta]),
        "copies": _joined((s, s + n) for s, n in result.copies[cta]),
    }
    for role, warp in WARPS.items():
        out[role] = list(_between(result.waits[cta, warp], result.ends[cta, warp]))
    return out


def _joined(found: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    out: list[tuple[float, float]] = []
    for start, end in sorted(found):
        if out and start - out[-1][1] < MERGE_CYCLES:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((start, end))
    return out


def _between(waits, end: float):
    at = 0.0
    for start, until, _ in waits:
        if start > at:
            yield at, start
        at = max(at, until)
    if end > at:
        yield at, end


def svg(result: Result, first: float, last: float, title: str) -> str:
    """The cycles [first, last) of a modelled CTA. ValueError for an empty range."""
    if last <= first:
        raise ValueError(f"cycles {first} to {last}: the range is empty")
    scale = (WIDTH - LEFT - 20) / (last - first)
    rows = spans(result)
    height = TOP + len(rows) * (ROW + GAP) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="22" font-size="15">{escape(title)}</text>',
    ]
    for number, (role, busy) in enumerate(rows.items()):
        y = TOP + number * (ROW + GAP)
        inside = [(max(a, first), min(b, last)) for a, b in busy if b > first and a < last]
        share = sum(b - a for a, b in inside) / (last - first)
        parts.append(f'<text x="10" y="{y + 17}">{role} {share:.0%}</text>')
        parts.append(
            f'<rect x="{LEFT}" y="{y}" width="{WIDTH - LEFT - 20}" height="{ROW}" fill="#f2f2f2"/>'
        )
        for start, end in inside:
            x, width = LEFT + (start - first) * scale, (end - start) * scale
            parts.append(
                f'<rect x="{x:.2f}" y="{y}" width="{max(width, 0.3):.2f}" height="{ROW}" '
                f'fill="{COLOURS[role]}"/>'
            )
    y = TOP + len(rows) * (ROW + GAP) + 14
    step = 500 if last - first <= MOST_TICKS * 500 else 5000
    tick = -(-first // step) * step
    while tick < last:
        x = LEFT + (tick - first) * scale
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{y - 12}" stroke="#999" stroke-dasharray="2 3"/>'
        )
        parts.append(f'<text x="{x - 14:.1f}" y="{y + 4}" fill="#555">{tick:.0f}</text>')
        tick += step
    parts.append("</svg>\n")
    return "\n".join(parts)
