"""8-bit q, k and v at depth 128: ours compared with flash-attn-4's FP8 kernel, and published cuDNN figures.

python -m benchmarks.cycle_model.eight_bits           print the table
python -m benchmarks.cycle_model.eight_bits --docs    write it into docs/performance/shapes.md
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.cycle_model import modelled, report
from benchmarks.cycle_model.kernels import OURS, THEIRS, Variant
from benchmarks.cycle_model.problems import TOKENS, Problem
from cute_fa4.emulator.model.constants import Constant
from cute_fa4.system.gains import ratio

PUBLISHED_FILE = Path(__file__).with_name("published_eight_bits.json")
DEPTH = 128
MAKERS = (OURS, THEIRS)
BUSY = ("mufu", "fma", "issue", "tensor")


def published() -> dict:
    """Rows (seqlen, TFLOPS) by mask, with their source."""
    return json.loads(PUBLISHED_FILE.read_text())


def problems() -> list[Problem]:
    """32K tokens of 2048 / 128 heads, by mask and length."""
    heads = report.HIDDEN // DEPTH
    return [
        Problem(TOKENS // seqlen, heads, heads, seqlen, DEPTH, mask == "causal", dtype="e4m3")
        for mask in ("full", "causal")
        for seqlen, _ in published()[mask]
    ]


def table(kernels: dict[Variant, report.Modelled], constants: dict[str, Constant]) -> str:
    """Speeds of both, and then the cycles of a key tile in the steady state."""
    data = published()
    lines = [
        "Modelled TFLOPS of e4m3 q, k and v, out in bf16, depth 128; cuDNN is published, measured by others: "
        f"[{data['what']}]({data['url']}).",
        "",
        "| mask | S | cute_fa4 | bound | slack | flash-attn-4 | bound | slack | ratio | cuDNN, published |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for problem in problems():
        mask = "causal" if problem.causal else "full"
        cells = [
            report.cell(kernels[variant], problem, constants) if variant in kernels else None
            for variant in (Variant.of(maker, problem) for maker in MAKERS)
        ]
        row = [mask, str(problem.seqlen)]
        used = [kernels.get(Variant.of(maker, problem)) for maker in MAKERS]
        for one in cells:
            row += [f"{one.tflops:.0f}", one.bound, f"{one.slack:.0%}"] if one else ["-", "", ""]
        row[2] = report.marked(row[2], *used)
        row.append(ratio(cells[0].tflops / cells[1].tflops) if all(cells) else "")
        row.append(str(dict(data[mask])[problem.seqlen]))
        lines.append("| " + " | ".join(row) + " |")
    lines += [
        "",
        "Cycles of a key tile (256 queries, 128 keys) in the steady state, and those in which a resource is busy.",
        "",
        "| kernel | cycles | " + " | ".join(BUSY) + " |",
        "|---|---|" + "---|" * len(BUSY),
    ]
    for variant, kernel in kernels.items():
        steady = kernel.steady
        rows = variant.rows // 256 if variant.pair else 1
        busy = " | ".join(f"{steady.busy[name] * steady.cycles:.0f}" for name in BUSY)
        of = f", {256 * rows} queries" if rows > 1 else ""
        cycles = report.marked(f"{steady.cycles:.0f}", kernel)
        lines.append(f"| {variant.maker}, {variant.mask}{of} | {cycles} | {busy} |")
    return "\n".join([*lines, "", modelled.made_by(kernels)])


def tables(
    makers: tuple[str, ...], constants: dict[str, Constant], model: report.Model = report.model
) -> dict[str, str]:
    """By the mark of docs/performance/shapes.md."""
    variants = dict.fromkeys(
        Variant.of(maker, problem) for maker in makers for problem in problems()
    )
    kernels = {variant: model(variant, constants) for variant in variants}
    return {"eight_bits": table(kernels, constants)}
