"""Plots of the tables in docs/performance/, as SVG written by hand.

    speeds.svg   TFLOPS against sequence length: one panel a head dim and mask
    decode.svg   TB/s of decode against batch: one panel a number of keys

All points are read from the page: a plot shows exactly the figures of its table. Solid lines with filled marks are
modeled, dashed lines with hollow marks are published.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from benchmarks.cycle_model import pages as performance
from benchmarks.cycle_model.kernels import OURS, THEIRS
from benchmarks.cycle_model.modelled import MARK
from cute_fa4.emulator.model.constants import B200

WIDTH, MARGIN, GAP, HEAD = 960, 50, 44, 92
PANEL_HEIGHT, PANEL_GAP = 220, 74
FONT = 14
PUBLISHED = ", published"
COLOURS = {
    OURS: "#1b7837",
    THEIRS: "#c2560c",
    "trtllm-gen": "#5e3c99",
    "FlashInfer cute-dsl": "#0571b0",
    "FlashInfer fa2": "#737373",
}


def text_of_pages(pages: Sequence[Path] = performance.PAGES) -> str:
    """All performance pages as one text: the plots use tables of several."""
    return "\n".join(page.read_text() for page in pages)


def read_table(page: str, name: str) -> list[dict[str, str]]:
    """The rows of the generated table <!-- name --> by the names of its columns; a name that comes again gets a number.

    >>> read_table("<!-- a -->\\nText.\\n\\n| d | x | x |\\n|---|---|---|\\n| 64 | 1 | 2 |\\n<!-- /a -->", "a")
    [{'d': '64', 'x': '1', 'x 2': '2'}]
    """
    lines = [line for line in performance.printed(page, name).splitlines() if line.startswith("|")]
    cells = [
        [cell.strip().removesuffix(MARK) for cell in line.strip("|").split("|")] for line in lines
    ]
    names: list[str] = []
    for title in cells[0]:
        names.append(title if title not in names else f"{title} {cells[0].count(title)}")
    return [dict(zip(names, row, strict=True)) for row in cells[2:]]


@dataclass(frozen=True)
class Line:
    """Points (x, y) of one kernel, in the order of x."""

    kernel: str
    published: bool
    points: tuple[tuple[float, float], ...]

    @property
    def name(self) -> str:
        return f"{self.kernel}, {'published' if self.published else 'modelled'}"


@dataclass(frozen=True)
class Panel:
    """One plot. limit: (height, what it is) of a horizontal line."""

    title: str
    lines: tuple[Line, ...]
    limit: tuple[float, str] | None = None


@dataclass(frozen=True)
class Axes:
    """Common to the panels of a picture. ticks: of x, on a logarithmic axis; top and step: of y, which begins at 0."""

    title: str
    x: str
    ticks: tuple[int, ...]
    y: str
    top: float
    step: float
    columns: int


def speeds(page: str) -> tuple[Axes, list[Panel]]:
    """TFLOPS of dense rows without groups, windows or pages, by length; of single CTAs and of pairs."""
    table = [r | {"mask": r["mask"].removesuffix(", pairs")} for r in read_table(page, "speeds")]
    rows = [row for row in table if row["mask"] in ("full", "causal")]
    columns = {(OURS, False): OURS, (THEIRS, False): THEIRS, (THEIRS, True): "published"}
    panels = []
    for d in dict.fromkeys(row["d"] for row in rows):
        for mask in ("full", "causal"):
            mine = [row for row in rows if (row["d"], row["mask"]) == (d, mask)]
            lines = [
                Line(kernel, published, points)
                for (kernel, published), column in columns.items()
                if (points := tuple((int(r["S"]), float(r[column])) for r in mine if r[column]))
            ]
            panels.append(Panel(f"d={d}, {mask}", tuple(lines)))
    ticks = tuple(sorted({int(row["S"]) for row in rows}))
    top = 500 * math.ceil(max(y for p in panels for li in p.lines for _, y in li.points) / 500)
    title = "Forward TFLOPS on a B200 by sequence length, 32K tokens in all, bf16"
    return Axes(title, "sequence length", ticks, "TFLOPS", top, 500, 2), panels


def decode(page: str) -> tuple[Axes, list[Panel]]:
    """TB/s of keys and values by batch; a column says after its kernel what it is: ", modelled" or ", published"."""
    rows = read_table(page, "decode")
    hbm = B200["hbm_tbs"].value
    panels = []
    for keys in dict.fromkeys(row["keys"] for row in rows):
        mine = [row for row in rows if row["keys"] == keys]
        lines = [
            Line(column.partition(", ")[0], column.endswith(PUBLISHED), tuple(points))
            for column in rows[0]
            if column not in ("keys", "batch")
            and (points := [(int(r["batch"]), float(r[column])) for r in mine if r[column]])
        ]
        panels.append(Panel(f"{keys} keys", tuple(lines), (hbm, f"HBM read: {hbm:g}")))
    ticks = tuple(sorted({int(row["batch"]) for row in rows}))
    title = (
        "Decode on a B200: TB/s of keys and values by batch, pages of 16, 64/8 heads, d=128, bf16"
    )
    return Axes(title, "batch", ticks, "TB/s", 8, 2, 3), panels


def pictures(page: str) -> dict[str, str]:
    """File name -> SVG, of every plot of the page."""
    return {"speeds.svg": svg(*speeds(page)), "decode.svg": svg(*decode(page))}


def svg(axes: Axes, panels: Sequence[Panel]) -> str:
    """Panels in rows of `axes.columns`, one legend above them."""
    panel_width = (WIDTH - MARGIN - 16 - (axes.columns - 1) * GAP) / axes.columns
    height = HEAD + math.ceil(len(panels) / axes.columns) * (PANEL_HEIGHT + PANEL_GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{2 * WIDTH}" '
        f'height="{2 * height}" font-family="sans-serif" font-size="{FONT}" fill="#222222">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="10" y="22" font-size="{FONT + 2}">{escape(axes.title)}</text>',
    ]
    parts += _legend(dict.fromkeys((li.kernel, li.published) for p in panels for li in p.lines))
    for number, panel in enumerate(panels):
        x = MARGIN + number % axes.columns * (panel_width + GAP)
        y = HEAD + number // axes.columns * (PANEL_HEIGHT + PANEL_GAP)
        parts += _panel(axes, panel, x, y, panel_width)
    return "\n".join([*parts, "</svg>", ""])


def _legend(entries) -> list[str]:
    parts, x = [], 12
    for kernel, published in entries:
        name = Line(kernel, published, ()).name
        parts += _marks(kernel, published, [(x, 46), (x + 30, 46)], ["", ""])
        parts.append(f'<text x="{x + 40}" y="51">{escape(name)}</text>')
        x += 64 + round(0.54 * FONT * len(name))
    return parts


def _panel(axes: Axes, panel: Panel, left: float, top: float, width: float) -> list[str]:
    first, last = (math.log2(n) for n in (axes.ticks[0], axes.ticks[-1]))
    inside = 14  # between the axis and the first point

    def at(x, y):
        share = (math.log2(x) - first) / (last - first)
        return left + inside + share * (width - 2 * inside), top + PANEL_HEIGHT * (1 - y / axes.top)

    bottom = top + PANEL_HEIGHT
    parts = [f'<text x="{left:.1f}" y="{top - 9:.1f}" font-weight="bold">{panel.title}</text>']
    tick = 0.0
    while tick <= axes.top:
        y = at(axes.ticks[0], tick)[1]
        parts.append(
            f'<line x1="{left:.1f}" x2="{left + width:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>'
        )
        parts.append(
            f'<text class="y" x="{left - 6:.1f}" y="{y + 5:.1f}" text-anchor="end">{tick:g}</text>'
        )
        tick += axes.step
    for n in axes.ticks:
        x = at(n, 0)[0]
        parts.append(
            f'<text class="x" x="{x:.1f}" y="{bottom + 19:.1f}" text-anchor="middle">{_short(n)}</text>'
        )
    parts.append(
        f'<text x="{left + width / 2:.1f}" y="{bottom + 37:.1f}" text-anchor="middle" fill="#666666">'
        f"{axes.y} by {axes.x}</text>"
    )
    if panel.limit is not None:
        value, name = panel.limit
        y = at(axes.ticks[0], value)[1]
        parts.append(
            f'<line x1="{left:.1f}" x2="{left + width:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="#aa0000" '
            'stroke-dasharray="2 3"/>'
        )
        parts.append(
            f'<text x="{left + 6:.1f}" y="{y - 6:.1f}" fill="#aa0000">{escape(name)}</text>'
        )
    for line in panel.lines:
        titles = [
            f"{panel.title}, {line.name}, {axes.x} {x:g}: {y:g} {axes.y}" for x, y in line.points
        ]
        parts += _marks(line.kernel, line.published, [at(*point) for point in line.points], titles)
    return parts


def _marks(kernel: str, published: bool, places, titles) -> list[str]:
    """A line with a mark at each place; a mark's title is shown where the pointer rests on it."""
    colour, path = COLOURS[kernel], " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    style = ' stroke-dasharray="6 4"' if published else ""
    fill, radius = ("#ffffff", 4.5) if published else (colour, 4)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{style}/>']
    for (x, y), title in zip(places, titles, strict=True):
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{fill}" stroke="{colour}" stroke-width="2">'
            f"<title>{escape(title)}</title></circle>"
        )
    return parts


def _short(n: int) -> str:
    """
    >>> _short(512), _short(1024), _short(32768)
    ('512', '1K', '32K')
    """
    return f"{n // 1024}K" if n >= 1024 else str(n)
