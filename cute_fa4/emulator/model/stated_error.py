"""The sentence that every estimate carries: how far the model is from speeds that were published.

kernels_of_others.json has the rows: published and modelled TFLOPS of one kernel each. benchmarks/cycle_model/others.py
writes the modelled ones, docs/performance/calibration.md shows them.
"""

from __future__ import annotations

import json
from pathlib import Path

FILE = Path(__file__).with_name("kernels_of_others.json")
_OWN_FIELD = (
    "Modelled, not measured: published speeds of flash-attn-4 on a B200 are met within 7 % on average and 14 % at "
    "worst; the same method on an H200, where time was measured, is 7 to 10 % too fast."
)
"""docs/performance/calibration.md has the tables; a test compares the figures."""

DIFFERENCES = {
    0.02: "two kernels that the tensor core bounds: the order in which warps meet",
    0.06: "two kernels that softmax bounds: the order in which warps meet",
    0.073: "two decodes: the largest error of a row that was measured on an H200 and is explained",
    0.13: "pairs of CTAs against CTAs alone on sm_100a: flash-attn-4's, against its published rows",
    0.15: "with claims against without: what a claim of 4,000 cycles instead of 1,000 costs",
    0.28: "pairs of CTAs against CTAs alone on sm_103a: flash-attn-4's, against its published rows",
}
"""What the model may be wrong by when it compares two choices, as a share of the time; tests compare the figures with
those of docs/performance/."""


def rows() -> list[dict]:
    """Published and modelled TFLOPS, each of a kernel of a maker."""
    return json.loads(FILE.read_text())["rows"]


def ratios() -> list[float]:
    """Modelled over published speed of each kernel of others that the model can follow."""
    return [row["modelled"] / row["published"] for row in rows() if row["modelled"]]


def text() -> str:
    """The sentence."""
    found = ratios()
    return (
        f"{_OWN_FIELD} {len(found)} other kernels, GEMMs and attention, are modelled at "
        f"{min(found):.2f} to {max(found):.2f} times their published speed."
    )


def table() -> str:
    """The rows for the documentation."""
    data = json.loads(FILE.read_text())
    lines = [
        "| maker | kernel | published TFLOPS | modelled | modelled / published |",
        "|---|---|---|---|---|",
    ]
    for row in data["rows"]:
        modelled = row["modelled"]
        cells = (
            (f"{modelled:.0f}", f"{modelled / row['published']:.2f}")
            if modelled
            else ("", row["why"])
        )
        lines.append(
            f"| {row['maker']} | {row['kernel']} | {row['published']:.0f} | {' | '.join(cells)} |"
        )
    lines.append("")
    for name, maker in data["makers"].items():
        lines.append(f"- [{name}]({maker['source']}): {maker['what']}; {maker['differs']}.")
    return "\n".join(lines)
