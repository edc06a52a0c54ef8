"""The cost of head dims: every multiple of 16 in the steady state, and 192/128 (MLA, K concatenated) in full.

Q K^T contracts the depth in steps of 16, P V makes 16 columns at a time, and TMA copies chunks of 64 columns: a depth
that is an odd multiple of 8 is computed as the next multiple of 16, in the same instructions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.cycle_model import modelled, report
from benchmarks.cycle_model.evaluate import SteadyState
from benchmarks.cycle_model.kernels import OURS, THEIRS, Variant
from benchmarks.cycle_model.problems import Problem
from benchmarks.cycle_model.workloads import KEYS_A_TILE, ROWS_A_CTA
from cute_fa4.emulator.model.constants import Constant
from cute_fa4.sm100.choose.choose_config import columns_of_v
from cute_fa4.sm100.choose.rows_of_tiles import is_wide
from cute_fa4.system.gains import ratio

PUBLISHED_FILE = Path(__file__).with_name("published_latent.json")
EQUAL = tuple(range(16, 129, 16))  # of Q, K, V and O
WITH_A_REST = (144, 160, 176, 192)  # of Q and K, with V of 128
WIDE = (
    (256, 256),
    (192, 256),
    (512, 512),
)  # one query tile a CTA, on pairs; V of 512 in two launches
LATENT = (192, 128)
LATENT_HEADS = 128
REFERENCE = 128


@dataclass(frozen=True)
class Depth:
    """Head dims with the cycles of a key tile for a CTA's rows. state: that of modelled.Modelled."""

    qk: int
    ov: int
    rows: int
    family: str
    steady: SteadyState
    state: str = ""

    @property
    def cycles(self) -> float:
        """Of a key tile and 256 queries."""
        launches = self.ov // columns_of_v(self.ov)
        return launches * self.steady.cycles * ROWS_A_CTA / self.rows

    def tflops(self, constants: dict[str, Constant]) -> float:
        """Of a chip whose SMs all are in the steady state."""
        flops = 2 * (self.qk + self.ov) * ROWS_A_CTA * KEYS_A_TILE
        per_second = constants["sms"].value * constants["clock_ghz"].value * 1e9
        return flops / self.cycles * per_second / 1e12


def depths() -> list[tuple[int, int]]:
    """(of Q and K, of V and O), in the order of the rows."""
    return [*((d, d) for d in EQUAL), *((d, LATENT[1]) for d in WITH_A_REST), *WIDE]


def variant_of(qk: int, ov: int) -> Variant:
    """The kernel of one launch."""
    of_v = columns_of_v(ov)
    return Variant(OURS, qk, head_dim_v=0 if qk == of_v else of_v, pairs=is_wide(qk, ov))


def depth_of(qk: int, ov: int, kernel: report.Modelled) -> Depth:
    """Its steady state, and the family that runs it."""
    from benchmarks.cycle_model.our_kernel import config

    variant = kernel.variant
    schedule = config(variant).schedule
    family = " ".join([schedule.family, getattr(schedule, "order", "")]).strip()
    rows = variant.rows // (2 if variant.pair else 1)
    return Depth(qk, ov, rows, family, kernel.steady, kernel.state)


def table(found: list[Depth], constants: dict[str, Constant]) -> str:
    """The steady state of each depth, and its cycles relative to depth 128."""
    [reference] = [one for one in found if (one.qk, one.ov) == (REFERENCE, REFERENCE)]
    lines = [
        "Modelled: cycles of a key tile (256 queries, 128 keys) in the steady state of the full mask, "
        f"beside those of depth {REFERENCE}, and the TFLOPS of a chip that does nothing else.",
        "",
        "| q, k | v, out | cycles | of depth 128 | TFLOPS | bound | family |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in found:
        share = one.cycles / reference.cycles
        cycles = report.marked(f"{one.cycles:.0f}", one)
        lines.append(
            f"| {one.qk} | {one.ov} | {cycles} | {share:.2f} | {one.tflops(constants):.0f} "
            f"| {one.steady.bound} | {one.family} |"
        )
    return "\n".join(lines)


def latent_problems() -> list[Problem]:
    """Those that were published: as many sequences of 128 heads."""
    data, heads = published(), (LATENT_HEADS, LATENT_HEADS)
    return [
        Problem(data["batch"], *heads, seqlen, LATENT[0], causal, head_dim_v=LATENT[1])
        for causal in (False, True)
        for seqlen, _ in data["full"]
    ]


def published() -> dict:
    """Rows (seqlen, TFLOPS) by mask, with their source."""
    return json.loads(PUBLISHED_FILE.read_text())


def latent_table(kernels: dict[Variant, report.Modelled], constants: dict[str, Constant]) -> str:
    """192/128, ours beside flash-attn-4's, and what cuDNN was measured to do."""
    data = published()
    lines = [
        "Modelled TFLOPS of cute_fa4 on CTAs alone and on pairs of CTAs, and of flash-attn-4, "
        f"{data['batch']} sequences of 128 heads. **Bold**: what a call takes. cuDNN is published, measured by others: "
        f"[{data['what']}]({data['url']}).",
        "",
        "| mask | S | alone | bound | on pairs | bound | flash-attn-4 | bound | ratio | ratio, pairs "
        "| cuDNN, published |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for problem in latent_problems():
        mask = "causal" if problem.causal else "full"
        cells, speeds = [mask, str(problem.seqlen)], []
        for variant in latent_variants(problem):
            kernel = kernels.get(variant)
            if kernel is None:
                cells += ["-", ""]
                continue
            one = report.cell(kernel, problem, constants)
            speeds.append(one.tflops)
            runs = variant == Variant.of(OURS, problem)
            cells += [f"**{one.tflops:.0f}**" if runs else f"{one.tflops:.0f}", one.bound]
        cells[2] = report.marked(cells[2], *map(kernels.get, latent_variants(problem)))
        both = len(speeds) == 3
        cells += [ratio(ours / speeds[2]) if both else "" for ours in speeds[:2]]
        cells.append(str(dict(data[mask])[problem.seqlen]))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def latent_variants(problem: Problem) -> list[Variant]:
    """Ours on CTAs alone, ours on pairs, flash-attn-4's."""
    ours = Variant.of(OURS, problem)
    both = (replace(ours, pairs=pairs) for pairs in (False, True))
    return [*both, Variant.of(THEIRS, problem)]


def tables(
    makers: tuple[str, ...], constants: dict[str, Constant], model: report.Model = report.model
) -> dict[str, str]:
    """Both, by the marks of docs/performance/shapes.md."""
    variants = dict.fromkeys(
        variant
        for problem in latent_problems()
        for variant in latent_variants(problem)
        if variant.maker in makers
    )
    kernels = {variant: model(variant, constants) for variant in variants}
    of_depths = {both: model(variant_of(*both), constants) for both in depths()}
    rows = [depth_of(*both, kernel) for both, kernel in of_depths.items()]
    return {
        "depths": f"{table(rows, constants)}\n\n{modelled.made_by(of_depths.values())}",
        "latent": f"{latent_table(kernels, constants)}\n\n{modelled.made_by(kernels)}",
    }
