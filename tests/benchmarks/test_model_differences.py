"""The error of a comparison of two choices (stated_error.DIFFERENCES) is what the pages of performance show."""

import re
from pathlib import Path

import pytest

from benchmarks.cycle_model.plots import read_table
from cute_fa4.emulator.model.stated_error import DIFFERENCES

PAGES = Path(__file__).parents[2] / "docs" / "performance"


def page(name: str) -> str:
    return (PAGES / f"{name}.md").read_text()


def error_of(start: str) -> float:
    [error] = [error for error, what in DIFFERENCES.items() if what.startswith(start)]
    return error


def test_pairs_on_a_b200():
    """Full over causal at d=128, where flash-attn-4's full kernel runs pairs, over the same at d=64, without pairs."""
    rows = read_table(page("calibration"), "pairs_check")
    masks = {
        row["S"]: float(row["full / causal"])
        for row in rows
        if row["run"] == "second_run" and row["d"] == "64"
    }
    found = [
        abs(float(row["full / causal"]) / masks[row["S"]] - 1)
        for row in rows
        if row["d"] == "128" and row["S"] in masks
    ]
    assert len(found) >= 8 and max(found) == pytest.approx(
        error_of("pairs of CTAs against CTAs alone on sm_100a"), abs=0.005
    )


def test_pairs_on_a_b300():
    over: dict[tuple, float] = {}
    for row in read_table(page("index"), "b300"):
        published = row["flash-attn-4, published"]
        if published:
            mask = row["mask"].removesuffix(", pairs")
            over[row["d"], mask, row["S"]] = float(row["flash-attn-4"]) / float(published)
    masks = {
        (d, s): over[d, "full", s] / over[d, "causal", s] for d, mask, s in over if mask == "causal"
    }
    found = [
        masks["128", s] / masks["64", s] - 1 for d, s in masks if d == "128" and ("64", s) in masks
    ]
    assert len(found) >= 3 and max(found) == pytest.approx(
        error_of("pairs of CTAs against CTAs alone on sm_103a"), abs=0.005
    )


def test_decodes():
    largest = re.search(
        r"rows that gave no constant: mean error [\d.]+%, largest ([\d.]+)%", page("decode_method")
    )
    assert float(largest[1]) / 100 == error_of("two decodes")


def test_claims():
    rows = read_table(page("scheduling"), "claims")
    heads = [head for head in rows[0] if head.startswith("a claim takes")]
    found = [
        float(row[heads[1]]) / float(row[heads[2]]) - 1
        for row in rows
        if not {"as fast", "-"} & set(row.values())
    ]
    assert max(found) == pytest.approx(error_of("with claims against without"), abs=0.005)


@pytest.mark.parametrize(
    "start, said",
    [("two kernels that the tensor core", "about 2 %"), ("two kernels that softmax", "up to 6 %")],
)
def test_the_order_in_which_warps_meet(start, said):
    assert said in page("method") and f"{error_of(start):.0%}".replace("%", " %") in said
