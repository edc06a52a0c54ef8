"""CTA pairs compared with single CTAs: the steady state, whole launches, and the cycles of the rule of calls.

    python -m benchmarks.cycle_model.pairs --steady    the steady state of the full mask: about a minute a kernel
    python -m benchmarks.cycle_model.pairs --rule      the cycles of choose/pays.py (docs/decisions/0020)
    python benchmarks/model.py --pairs                 the tables of the pages of performance

All cycles are means over start offsets (starts.py).
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from benchmarks.cycle_model import b300, calibration, modelled, report
from benchmarks.cycle_model.evaluate import AlignedKernel, SteadyState, steady_state
from benchmarks.cycle_model.grid import Curve
from benchmarks.cycle_model.kernels import OURS, THEIRS, Variant, runs_on_pairs, traced
from benchmarks.cycle_model.problems import Problem
from benchmarks.cycle_model.workloads import TILES, uses_pairs, workload
from cute_fa4.emulator.model.constants import Constant, fitted_b200
from cute_fa4.emulator.model.starts import STARTS
from cute_fa4.sm100.blueprint import bands
from cute_fa4.sm100.choose import pays
from cute_fa4.system.gains import ratio

HEAD_DIMS = (128, 64)
WINDOW = 1024
LATENT = (192, 128)
LATENT_HEADS = 128


def problems() -> list[Problem]:
    """Those of the table of speeds with one key head a query head, from contiguous keys; and 192/128."""
    found = [p for p in report.problems() if not p.page_size and p.group == 1]
    found = [p for p in found if p.window in (0, WINDOW) and not (p.head_dim == 64 and p.window)]
    latent = [
        Problem(1, LATENT_HEADS, LATENT_HEADS, seqlen, LATENT[0], causal, head_dim_v=LATENT[1])
        for causal in (False, True)
        for seqlen in report.SEQLENS[1:]
    ]
    return [*found, *latent]


def both(problem: Problem) -> tuple[Variant, Variant]:
    """Ours on CTAs alone and on pairs."""
    ours = Variant.of(OURS, problem)
    return replace(ours, pairs=False), replace(ours, pairs=True)


def table(kernels: dict[Variant, report.Modelled], constants: dict[str, Constant]) -> str:
    """Speeds on CTAs alone and on pairs; what a call takes is bold."""
    lines = [
        "Modelled TFLOPS of cute_fa4 on CTAs alone and on pairs of CTAs, bf16. **Bold**: what a call runs on.",
        "",
        "| d | mask | S | batch x heads | alone | pairs | pairs / alone | chosen / flash-attn-4 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for problem in problems():
        alone, pairs = (report.cell(kernels[v], problem, constants).tflops for v in both(problem))
        theirs = kernels.get(Variant.of(THEIRS, problem))
        chosen = runs_on_pairs(problem)
        over = ""
        if theirs is not None:
            speed = report.cell(theirs, problem, constants).tflops
            over = ratio((pairs if chosen else alone) / speed)
        depth = (
            f"{problem.head_dim}/{problem.head_dim_v}" if problem.head_dim_v else problem.head_dim
        )
        speeds = [f"{alone:.0f}", f"{pairs:.0f}"]
        speeds[chosen] = f"**{speeds[chosen]}**"
        speeds[0] = report.marked(speeds[0], theirs, *(kernels[v] for v in both(problem)))
        size = f"{problem.batch} x {problem.heads_q}"
        cells = [depth, both(problem)[0].mask, report.lengths_of(problem), size, *speeds]
        lines.append("| " + " | ".join(map(str, [*cells, ratio(pairs / alone), over])) + " |")
    return "\n".join(lines)


def check_table(kernels: dict[Variant, report.Modelled], constants: dict[str, Constant]) -> str:
    """The model's error on flash-attn-4's pairs and CTAs alone; at d=64, without pairs, what masks make of it."""
    lines = [
        "Modelled over published speed of flash-attn-4. Without a mask it takes pairs at d=128 and CTAs alone at d=64; "
        "under the causal mask CTAs alone.",
        "",
        "| run | d | S | full | kernel | causal | full / causal |",
        "|---|---|---|---|---|---|---|",
    ]
    errors: dict[tuple, dict[bool, float]] = {}
    for row in calibration.published_rows():
        if row.variant in kernels:
            found = calibration.modelled(row, kernels[row.variant].cycles, constants) / row.tflops
            errors.setdefault((row.run, row.head_dim, row.seqlen), {})[row.causal] = found
    for (run, depth, seqlen), found in errors.items():
        if len(found) == 2:
            kernel = "pairs" if uses_pairs(Variant(THEIRS, depth)) else "alone"
            full, causal = found[False], found[True]
            used = (kernels[Variant(THEIRS, depth, masked)] for masked in (False, True))
            cells = [run, depth, seqlen, report.marked(f"{full:.3f}", *used), kernel]
            cells += [f"{causal:.3f}", f"{full / causal:.3f}"]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def of_rule(curve: Curve) -> pays.Cycles:
    """The start and the cycles of a key tile that a curve ends with."""
    tile = curve.per_tile
    last, cycles = curve.points[-1]
    return pays.Cycles(round(cycles - tile * last), round(tile))


def rule(constants: dict[str, Constant], arch: str) -> dict:
    """The rows of an architecture in the tuning table, modelled again."""
    found = {}
    for qk, ov, mask in pays.modelled(arch):
        depth_v = 0 if qk == ov else ov
        variant = Variant(OURS, qk, mask is bands.Causal, head_dim_v=depth_v, arch=arch)
        curves = (
            report.model(replace(variant, pairs=p), constants).cycles.added for p in (False, True)
        )
        found[qk, ov, mask] = tuple(map(of_rule, curves))
    return found


def steady(variant: Variant) -> SteadyState:
    """The steady state of a kernel, from its two longest work tiles."""
    works = [workload(variant, tiles) for tiles in TILES[-2:]]
    kernel = AlignedKernel.of(traced(variant, works))
    return steady_state(kernel.simulate(fitted_b200(), STARTS))


def steady_row(head_dim: int) -> str:
    """Cycles of a key tile, and of them those of tensor core and copies, alone and in pairs."""
    cells = [f"{head_dim}, bf16"]
    for pairs in (False, True):
        found = steady(Variant(OURS, head_dim, pairs=pairs))
        busy = (round(found.busy[name] * found.cycles) for name in ("tensor", "copies"))
        cells += [str(round(found.cycles)), *map(str, busy), found.bound]
    return "| " + " | ".join(cells) + " |"


def tables(
    makers: tuple[str, ...], constants: dict[str, Constant], model: report.Model = report.model
) -> dict[str, str]:
    """By the marks of the pages."""
    wanted = [variant for problem in problems() for variant in both(problem)]
    if THEIRS in makers:
        wanted += [Variant.of(THEIRS, problem) for problem in problems()]
        wanted += [row.variant for row in calibration.published_rows()]
    kernels = {variant: model(variant, constants) for variant in dict.fromkeys(wanted)}
    found = {"pairs": f"{table(kernels, constants)}\n\n{modelled.made_by(kernels)}"}
    if THEIRS in makers:
        found["pairs_check"] = f"{check_table(kernels, constants)}\n\n{modelled.made_by(kernels)}"
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steady", action="store_true")
    parser.add_argument("--rule", action="store_true")
    args = parser.parse_args(argv)
    if args.steady:
        print("| head dim | alone | tensor | copies | bound | pairs | tensor | copies | bound |")
        print("|---" * 9 + "|")
        for head_dim in HEAD_DIMS:
            print(steady_row(head_dim), flush=True)
    if args.rule:
        for arch, chip in (("sm_100a", fitted_b200()), (b300.ARCH, b300.constants())):
            for key, cycles in rule(chip, arch).items():
                print(arch, key, *cycles, "now", *pays.modelled(arch)[key])
    return 0


if __name__ == "__main__":
    sys.exit(main())
