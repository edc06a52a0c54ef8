"""Head dim 256 on CTA pairs (sm100/mhawidepair), compared with flash-attn-4 and published cuDNN figures.

python -m benchmarks.cycle_model.wide [ours]      the table; ours: without flash-attn-4
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.cycle_model import modelled, report
from benchmarks.cycle_model.kernels import OURS, THEIRS, Variant
from benchmarks.cycle_model.problems import Problem
from cute_fa4.emulator.model.constants import Constant, fitted_b200

PUBLISHED_FILE = Path(__file__).with_name("published_wide.json")
HEAD_DIM, HEADS, HEADS_KV = 256, 32, 2
MASKS = ("full", "causal")


def published() -> dict:
    """Rows (seqlen, TFLOPS or None) by mask, with their source."""
    return json.loads(PUBLISHED_FILE.read_text())


def problems() -> list[Problem]:
    """One sequence of each published length."""
    return [
        Problem(1, HEADS, HEADS_KV, seqlen, HEAD_DIM, mask == "causal")
        for mask in MASKS
        for seqlen, _ in published()[mask]
    ]


def variants(problem: Problem) -> list[Variant]:
    """Ours, flash-attn-4's."""
    return [Variant.of(OURS, problem), Variant.of(THEIRS, problem)]


def table(kernels: dict[Variant, report.Modelled], constants: dict[str, Constant]) -> str:
    data = published()
    lines = [
        f"Modelled TFLOPS of cute_fa4 and flash-attn-4 at head dim {HEAD_DIM}, one sequence of {HEADS} query heads "
        f"over {HEADS_KV}; cuDNN is published, measured by others: [{data['what']}]({data['url']}).",
        "",
        "| mask | S | cute_fa4 | bound | flash-attn-4 | bound | ratio | cuDNN, published |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for problem in problems():
        mask = "causal" if problem.causal else "full"
        both = report.cells(kernels, variants(problem), problem, constants)
        measured = str(dict(data[mask])[problem.seqlen] or "-")
        lines.append("| " + " | ".join([mask, str(problem.seqlen), *both, measured]) + " |")
    return "\n".join(lines)


def tables(
    makers: tuple[str, ...], constants: dict[str, Constant], model: report.Model = report.model
) -> dict[str, str]:
    """By the mark of docs/performance/shapes.md."""
    asked = dict.fromkeys(v for problem in problems() for v in variants(problem))
    kernels = {v: model(v, constants) for v in asked if v.maker in makers}
    return {"wide": f"{table(kernels, constants)}\n\n{modelled.made_by(kernels)}"}


def main(words: list[str]) -> int:
    makers = (OURS,) if words == ["ours"] else (OURS, THEIRS)
    print(tables(makers, fitted_b200())["wide"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
