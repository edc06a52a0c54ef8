"""A B300: code for sm_103a, the constants that differ, and a table with published GB300 rows.

    python -m benchmarks.cycle_model.b300      the table of the page of performance

It computes 32 exponentials per cycle and SM, so none run on the FMA units, and its tcgen05.ld also reduces.
The fitted constants are those of the B200.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.cycle_model import modelled, report
from benchmarks.cycle_model.kernels import OURS, THEIRS, Variant
from benchmarks.cycle_model.problems import TOKENS, Problem
from cute_fa4.emulator.model.constants import OTHER_CHIPS, Constant, of_target

ARCH = "sm_103a"
PUBLISHED_FILE = Path(__file__).with_name("published_gb300.json")
LLAMA_HEADS = 64, 8
DIFFERENCES = OTHER_CHIPS["sm_103"]


def constants() -> dict[str, Constant]:
    """The constants of the B200 with these changes; as many SMs: eight GPCs of about 18 (ademeure)."""
    return of_target(ARCH)[0]


def published() -> dict:
    """Tables of rows (seqlen, TFLOPS), by a name of the problem, with their source."""
    return json.loads(PUBLISHED_FILE.read_text())


def name_of(problem: Problem) -> str:
    """As the published rows are called."""
    mask = "causal" if problem.causal else "full"
    return f"{problem.head_dim} {mask}" + " gqa" * (problem.group > 1)


def problems() -> list[Problem]:
    """Those of the published rows: 32K tokens of 2048 / d heads, or as many sequences of Llama's heads as were run."""
    found = []
    for name in dict.fromkeys(name for table in published().values() for name in table["rows"]):
        depth, mask, *gqa = name.split()
        seqlens = {s for table in published().values() for s, _ in table["rows"].get(name, ())}
        for seqlen in sorted(seqlens):
            heads = LLAMA_HEADS if gqa else (2048 // int(depth),) * 2
            batch = published()["cudnn"]["batch"] if gqa else TOKENS // seqlen
            found.append(Problem(batch, *heads, seqlen, int(depth), mask == "causal"))
    return sorted(found, key=lambda p: (p.head_dim, p.group, p.causal, p.seqlen))


def published_speeds(problem: Problem) -> list[str]:
    """(of flash-attn-4, of cuDNN), empty where there is none."""
    name, cells = name_of(problem), []
    for tables in (("flash_attn_4",), ("cudnn", "cudnn_of_2605")):
        speeds = [dict(published()[t]["rows"].get(name, ())).get(problem.seqlen) for t in tables]
        cells.append(next((str(speed) for speed in speeds if speed), ""))
    return cells


def table(makers: tuple[str, ...] = (OURS, THEIRS), model: report.Model = report.model) -> str:
    """Every row, modelled and published."""
    chip = constants()
    variants = dict.fromkeys(Variant.of(m, p, ARCH) for p in problems() for m in makers)
    kernels = {variant: model(variant, chip) for variant in variants}
    sources = "; ".join(f"[{t['what']}]({t['url']}), {t['differs']}" for t in published().values())
    lines = [
        "Modelled TFLOPS on a B300; nothing in this table was measured here. Other constants than a B200's: "
        + ", ".join(f"{name} {value:g} ({source})" for name, (value, source) in DIFFERENCES.items())
        + f". Published, by others: {sources}.",
        "",
        "| d | mask | S | batch x heads | cute_fa4 | bound | flash-attn-4 | bound | ratio "
        "| flash-attn-4, published | cuDNN, published |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for problem in problems():
        found = [Variant.of(maker, problem, ARCH) for maker in (OURS, THEIRS)]
        cells = [str(problem.head_dim), found[0].mask, str(problem.seqlen)]
        cells.append(f"{problem.batch} x {problem.heads_q}")
        cells += report.cells(kernels, found, problem, chip)
        lines.append("| " + " | ".join([*cells, *published_speeds(problem)]) + " |")
    return "\n".join([*lines, "", modelled.made_by(kernels)])


if __name__ == "__main__":
    sys.exit(print(table()))
