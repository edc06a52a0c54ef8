"""The output of the model: the picture is an SVG of its spans, the tables keep all rows."""

import xml.etree.ElementTree as ElementTree

import pytest

from benchmarks.cycle_model import pages, report, timeline
from benchmarks.cycle_model.calibration import published_rows
from benchmarks.cycle_model.evaluate import SteadyState
from benchmarks.cycle_model.grid import CTACycles, Curve
from cute_fa4.emulator.model.constants import B200
from cute_fa4.emulator.model.result import Result

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


def test_every_problem_is_a_row_and_what_is_not_modelled_says_so():
    kernels = {variant: modelled(variant) for variant in report.variants()}
    problems, found = report.problems(), report.rows(kernels, B200)
    assert len(problems) == len(set(problems)) == len(found)
    text = report.table(found, kernels)
    assert text.lower().startswith("modelled")
    assert text.count("\n| 64 |") + text.count("\n| 128 |") == len(problems)
    # flash-attn-4 with pages of 16 and 64: two masks, three lengths each.
    assert text.count("not modelled: cp.async") == 2 * 2 * len(report.FEWER_SEQLENS)
    for mask in ("window 128", "window 1024", "causal, ragged", "full, ragged", "pages of 16"):
        assert mask in text


def test_rows_of_kernels_that_were_left_out_are_left_out():
    chosen = [v for v in report.variants() if str(v).endswith("d64 causal")]
    found = report.rows({variant: modelled(variant) for variant in chosen}, B200)
    assert [row["problem"]["seqlen"] for row in found] == list(report.SEQLENS)


def test_pages_are_compared_with_the_contiguous_row_of_the_same_shape():
    """Kernels that take equally long: the ratio is one wherever there are two of them."""
    kernels = {variant: modelled(variant) for variant in report.variants()}
    lines = report.pages_table(report.rows(kernels, B200), kernels).splitlines()[4:]
    assert len(lines) == 2 * len(report.FEWER_SEQLENS)
    for line in lines:
        assert line.split("|")[3:-1] == [" as fast "] * 3 + [" - ", " - ", " as fast "]


def test_no_published_row_is_hidden():
    kernels = {row.variant: modelled(row.variant) for row in published_rows()}
    text = report.calibration_table(kernels, B200)
    assert text.count("| fit |") + text.count("| check |") == len(published_rows())
    assert "mean error" in text and "worst" in text


def test_a_page_without_marks_is_refused():
    assert pages.fill("<!-- a -->\nold\n<!-- /a -->", "a", "new") == "<!-- a -->\nnew\n<!-- /a -->"
    with pytest.raises(ValueError, match="no marks"):
        pages.fill("text", "a", "new")
