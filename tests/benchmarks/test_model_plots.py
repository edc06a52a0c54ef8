"""The plots of the performance page say what its tables say; published and modelled points can be told apart.

The oracle reads a plot as a reader does: the place of a mark against the labels of the axes.
"""

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.cycle_model import pages, plots, report
from benchmarks.cycle_model.modelled import MARK

DOCS = Path(__file__).resolve().parents[2] / "docs"
FIRST = (DOCS / "performance" / "index.md").read_text()
PAGE = plots.text_of_pages(pages.PAGES)
SVG = "{http://www.w3.org/2000/svg}"
HALF_A_LETTER = 5  # a label's baseline is that much below its line


def labels(root, axis: str) -> list[tuple[float, float]]:
    """(place, value) of the labels of an axis, of all panels."""
    below = HALF_A_LETTER if axis == "y" else 0
    found = [e for e in root.iter(f"{SVG}text") if e.get("class") == axis]
    number = lambda text: float(text.replace("K", "")) * (1024 if text.endswith("K") else 1)
    return [(float(e.get(axis)) - below, number(e.text)) for e in found]


def marks(root) -> list[tuple[str, float, float, bool]]:
    """(title, x, y, hollow) of every mark that stands for a number."""
    found = []
    for circle in root.iter(f"{SVG}circle"):
        title = circle.find(f"{SVG}title").text
        if title:
            hollow = circle.get("fill") == "#ffffff"
            found.append((title, float(circle.get("cx")), float(circle.get("cy")), hollow))
    return found


def value_at(place: float, axis: list[tuple[float, float]], step: float) -> float:
    """A linear axis as it is read: from the nearest label below the mark, with the distance of two labels as `step`."""
    below = min(((p, v) for p, v in axis if p >= place - 0.1), key=lambda label: label[0])
    distances = {round(abs(a[0] - b[0]), 1) for a in axis for b in axis if abs(a[1] - b[1]) == step}
    return below[1] + (below[0] - place) / min(distances) * step


def expected_speeds() -> Counter:
    """(panel, kernel, published or modelled, length, TFLOPS) of every cell that belongs into the plot."""
    found = Counter()
    lines = re.search(r"<!-- speeds -->\n(.*?)<!-- /speeds -->", PAGE, re.DOTALL)[1].splitlines()
    for line in lines:
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != 12:
            continue
        cells[4] = cells[4].removesuffix(MARK)
        if cells[1] in ("full", "causal"):
            for kernel, column in (("cute_fa4", 4), ("flash-attn-4", 7)):
                found[
                    f"d={cells[0]}, {cells[1]}", f"{kernel}, modelled", cells[2], cells[column]
                ] += 1
            if cells[11]:
                found[
                    f"d={cells[0]}, {cells[1]}", "flash-attn-4, published", cells[2], cells[11]
                ] += 1
    return found


def test_the_plot_of_speeds_has_every_dense_row_of_the_table_and_no_other():
    root = ElementTree.fromstring(plots.pictures(PAGE)["speeds.svg"])
    drawn = Counter()
    for title, *_ in marks(root):
        panel, name, x, y = re.fullmatch(
            r"(d=\d+, \w+), ([\w-]+, \w+), sequence length (\d+): (\d+) TFLOPS", title
        ).groups()
        drawn[panel, name, x, y] += 1
    assert drawn == expected_speeds() and len(drawn) > 60


def test_the_plot_of_decode_has_every_cell_of_its_table():
    root = ElementTree.fromstring(plots.pictures(PAGE)["decode.svg"])
    drawn = Counter(title for title, *_ in marks(root))
    table = plots.read_table(PAGE, "decode")
    wanted = Counter(
        f"{row['keys']} keys, {kernel}, batch {row['batch']}: {float(row[kernel]):g} TB/s"
        for row in table
        for kernel in row
        if kernel not in ("keys", "batch")
    )
    assert drawn == wanted and len(table) == 9


@pytest.mark.parametrize("name, step", [("speeds.svg", 500), ("decode.svg", 2)])
def test_marks_stand_where_the_axes_say(name, step):
    root = ElementTree.fromstring(plots.pictures(PAGE)[name])
    x_axis, y_axis = labels(root, "x"), labels(root, "y")
    for title, x, y, hollow in marks(root):
        says_x, says_y = map(float, re.search(r" ([\d.]+): ([\d.]+) ", title).groups())
        assert (x, says_x) in x_axis  # every length and batch of the tables has a label
        # Marks are placed to a tenth of a unit: 0.1 / 220 of the axis, and the labels' own tenth.
        assert math.isclose(value_at(y, y_axis, step), says_y, abs_tol=step / 100), title
        assert hollow == ("published" in title)


def test_the_pictures_of_the_page_are_those_of_its_tables():
    for name, picture in plots.pictures(PAGE).items():
        assert (DOCS / "pictures" / name).read_text() == picture, "run python docs/generate.py"
        assert f"](../pictures/{name})" in FIRST[: FIRST.index("## Speeds")]


def test_another_number_in_the_table_is_another_picture():
    changed = PAGE.replace("| 64 | full | 4096 | 8 x 32 | ", "| 64 | full | 4096 | 8 x 32 | 1", 1)
    assert changed != PAGE
    before, after = plots.pictures(PAGE), plots.pictures(changed)
    assert (
        before["speeds.svg"] != after["speeds.svg"] and before["decode.svg"] == after["decode.svg"]
    )


def test_published_decode_agrees_with_the_bandwidth_that_was_published_beside_it():
    """The table's figures are bytes over published times; the source gives them, too, to a tenth."""
    data = json.loads(report.PUBLISHED_DECODE_FILE.read_text())
    for batch, keys, times, published in data["rows"]:
        for us, speed in zip(times, published, strict=True):
            assert abs(report.decode_bytes(batch, keys) / us * 1e-6 - speed) < 0.06
    table = re.search(r"<!-- decode -->\n(.*?)<!-- /decode -->", PAGE, re.DOTALL)[1].rstrip()
    assert table == report.decode_table()


def test_a_table_belongs_on_exactly_one_page():
    first, second = Path("first"), Path("second")
    marks_of_a, marks_of_b = "<!-- a -->\n<!-- /a -->", "<!-- b -->\n<!-- /b -->"
    filled = pages.filled({first: marks_of_a, second: marks_of_b}, {"a": "1", "b": "2"})
    assert filled == {first: "<!-- a -->\n1\n<!-- /a -->", second: "<!-- b -->\n2\n<!-- /b -->"}
    with pytest.raises(ValueError, match="on 2 pages"):
        pages.filled({first: marks_of_a, second: marks_of_a}, {"a": "1"})
    with pytest.raises(ValueError, match="on 0 pages"):
        pages.filled({first: marks_of_a, second: marks_of_b}, {"c": "1"})
    text = "\n".join(path.read_text() for path in pages.PAGES)
    for name in (
        "speeds",
        "pages",
        "decode",
        "latent_decode",
        "orders",
        "claims",
        "steady",
        "calibration",
        "constants",
    ):
        assert text.count(f"<!-- {name} -->") == text.count(f"<!-- /{name} -->") == 1
