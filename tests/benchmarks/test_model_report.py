"""What the model prints: the picture is an SVG of the spans it was given, the tables keep all rows."""

import xml.etree.ElementTree as ElementTree

import pytest

from benchmarks import model
from benchmarks.cycle_model import report, timeline
from benchmarks.cycle_model.calibration import published_rows
from benchmarks.cycle_model.constants import B200
from benchmarks.cycle_model.evaluate import SteadyState
from benchmarks.cycle_model.grid import CTACycles, Curve
from benchmarks.cycle_model.kernels import OURS, THEIRS, Variant
from benchmarks.cycle_model.machine import Result

RESULT = Result(
    cycles=1000,
    tensor={0: [(0, 64), (64, 64), (500, 64)]},
    copies={0: [(100, 300)]},
    waits={(0, w): [(200.0, 600.0, (0, 64))] for w in timeline.WARPS.values()},
    ends={(0, w): 900.0 for w in timeline.WARPS.values()},
)


def modelled(variant):
    curve = Curve(((1, 6000.0), (8, 24000.0)))
    return report.Modelled(
        variant,
        CTACycles(curve),
        SteadyState(2571.0, dict.fromkeys(
            ("tensor", "mufu", "fma", "alu", "convert", "tmem", "issue", "copies"), 0.5)),
        {},
    )  # fmt: skip


def test_spans_join_what_touches_and_leave_out_the_waits():
    spans = timeline.spans(RESULT)
    assert spans["tensor core"] == [(0, 128), (500, 564)]
    assert spans["softmax 0"] == [(0.0, 200.0), (600.0, 900.0)]


def test_the_picture_is_svg_with_one_row_a_role():
    root = ElementTree.fromstring(timeline.svg(RESULT, 0, 1000, "cycles < 1000 & modelled"))
    texts = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "cycles < 1000 & modelled"
    # 200 and 300 of 1000 cycles
    assert "softmax 0 50%" in texts
    with pytest.raises(ValueError, match="empty"):
        timeline.svg(RESULT, 10, 10, "")


def test_every_row_is_in_the_table_and_what_is_not_built_says_so():
    kernels = {
        v: modelled(v)
        for d in (64, 128)
        for causal in (False, True)
        for v in (Variant(OURS, d, causal), Variant(THEIRS, d, causal))
    }
    text = report.table(report.rows(kernels, B200))
    assert text.lower().startswith("modelled")
    assert text.count("not built") == len(report.NOT_BUILT)
    # Two depths, two masks, seven lengths, and the rows of grouped heads.
    assert text.count("\n| 64 |") + text.count("\n| 128 |") == (
        2 * 2 * len(report.SEQLENS) + 2 * len(report.GQA_SEQLENS) + len(report.NOT_BUILT)
    )


def test_no_published_row_is_hidden():
    kernels = {row.variant: modelled(row.variant) for row in published_rows()}
    text = report.calibration_table(kernels, B200)
    assert text.count("| fit |") + text.count("| check |") == len(published_rows())
    assert "mean error" in text and "worst" in text


def test_a_page_without_marks_is_refused():
    assert model.fill("<!-- a -->\nold\n<!-- /a -->", "a", "new") == "<!-- a -->\nnew\n<!-- /a -->"
    with pytest.raises(ValueError, match="no marks"):
        model.fill("text", "a", "new")
