"""What batch_invariant=True costs at 8,192 keys, modelled and compared with the default: decode and prefill.

decode   decode/: the kernel, parts and merge that call_of gives for each choice
prefill  the kernel of two query tiles with an exact maximum, whose CTAs merge the parts of their rows
         (sm100/two_tiles/own_parts). Blocks of one, two and three parts are simulated; each further part costs as much
         as the third. What threads read, sums of earlier parts and log-sum-exps, takes the latency of L2: 148 CTAs
         keep 20 MB
         in_memory: the kernel without that, whose work tiles are cut into parts. Partial results are written and read
         once at the rate of HBM, after the attention: the least that a merge can take
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.cycle_model import report, schedules
from benchmarks.cycle_model.decode.problems import DecodeProblem
from benchmarks.cycle_model.decode.time import Source, ours
from benchmarks.cycle_model.grid import CTACycles, Curve, launch_time
from benchmarks.cycle_model.kernels import OURS, Variant
from benchmarks.cycle_model.modelled import NAN, Model, Modelled, made_by, marked
from benchmarks.cycle_model.problems import Problem
from benchmarks.cycle_model.workloads import KEYS_A_TILE
from cute_fa4.emulator.model.constants import Constant
from cute_fa4.system.gains import ratio

KEYS = 8192
BATCHES = (1, 8, 32, 64, 128)
TOKENS = (8192, 4096, 2048, 1024, 512)
# Choices of the schedule, as in policy.of_schedules(True).
CHOICES = (("maximum", "exact"), ("lone_tiles", False), ("row_sum", "exact"))
GOALS = {"decode": 1.10, "prefill": 1.15}


def table(what: str, first: str, rows: dict[str, tuple[list[float], list]]) -> str:
    """rows: microseconds by default, then with parts of each of TOKENS, and what they are of. Bold: within the goal."""
    heads = [first, "default", *(f"parts of {n:,}" for n in TOKENS)]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for name, ((default, *others), used) in rows.items():
        cells = [name, marked(f"{default:.1f} us", *used)]
        for us in others:
            cell = ratio(us / default)
            cells.append(f"**{cell}**" if us / default <= GOALS[what] else cell)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def calls() -> list[tuple[DecodeProblem, dict]]:
    """Every call of the table of decode: the default of each batch, then with parts of each of TOKENS."""
    options = [{}, *(dict(batch_invariant=True, tokens_per_split=n) for n in TOKENS)]
    return [(DecodeProblem.even(batch, KEYS), each) for batch in BATCHES for each in options]


def decode(constants: dict[str, Constant], source: Source) -> dict[str, tuple[list[float], list]]:
    """64 query heads on 8 key heads, d=128, pages of 16."""
    times: dict[str, list] = {}
    for problem, options in calls():
        found = ours(problem, constants, source=source, **options)
        times.setdefault(str(problem.batch), []).append(found)
    return {batch: ([each.us for each in found], found) for batch, found in times.items()}


def prefill_problem(causal: bool) -> Problem:
    """Two sequences of 16 heads, d=128, contiguous."""
    return Problem(2, 16, 16, KEYS, 128, causal)


def from_l2(constants: dict[str, Constant]) -> dict[str, Constant]:
    """What threads read has the latency of L2."""
    return constants | {"lat_global": constants["lat_l2"]}


def kernels(
    causal: bool, constants: dict[str, Constant]
) -> list[tuple[Variant, dict[str, Constant]]]:
    """Kernels of prefill, with constants: the default, with the exact maximum, whose CTAs merge."""
    default = Variant.of(OURS, prefill_problem(causal))
    exact = replace(default, pairs=False, choices=CHOICES)
    own = replace(exact, choices=(*CHOICES, ("own_parts", True)))
    return [(default, constants), (exact, constants), (own, from_l2(constants))]


def prefill(
    constants: dict[str, Constant], model: Model
) -> dict[str, tuple[list[float], list[Modelled]]]:
    found = {}
    for causal in (True, False):
        problem = prefill_problem(causal)
        used = default, exact, own = [model(*one) for one in kernels(causal, constants)]
        us = report.cell(default, problem, constants).us
        one_part, curves = in_memory(exact, problem, KEYS, constants), part_cycles(own)
        parts = [in_ctas(own.variant, curves, problem, n, constants) for n in TOKENS if n < KEYS]
        found["causal" if causal else "full"] = [us, one_part, *parts], used
    return found


@dataclass(frozen=True)
class PartCurve(Curve):
    """Cycles of a block in parts of `each` key tiles: points are those of one part.

    second, further  what the second part and each later one add
    """

    second: float
    further: float
    each: int = 1 << 30

    def __call__(self, tiles: float) -> float:
        more = -(-tiles // self.each) - 1
        added = self.second + (more - 1) * self.further if more > 0 else 0.0
        return super().__call__(tiles) + added

    @classmethod
    def of(cls, cycles: dict[tuple[int, int], float]) -> PartCurve:
        """cycles: of (key tiles, parts), of one part twice, of two and of three."""
        curve = Curve(tuple(sorted((n, c) for (n, parts), c in cycles.items() if parts == 1)))
        second, third = (c - curve(n) for (n, parts), c in sorted(cycles.items()) if parts > 1)
        return cls(curve.points, second, third - second)


def part_cycles(kernel: Modelled) -> tuple[Curve, Curve]:
    """The curves of a kernel with own_parts, as the fields of CTACycles."""
    if kernel.state == "missing":
        unknown = PartCurve(kernel.cycles.single.points, NAN, NAN)
        return unknown, unknown
    alone = {(w.tiles, w.parts): r.cycles for w, r in kernel.results.items() if w.work_tiles == 1}
    added = {
        (w.tiles, w.parts): (r.cycles - alone[w.tiles, w.parts]) / (w.work_tiles - 1)
        for w, r in kernel.results.items()
        if w.work_tiles > 1
    }
    return PartCurve.of(alone), PartCurve.of(added)


def in_ctas(variant: Variant, curves: tuple, problem: Problem, tokens: int, constants) -> float:
    """Microseconds of a launch whose CTAs take parts of so many keys one after the other, and merge them."""
    cycles = CTACycles(*(replace(curve, each=tokens // KEYS_A_TILE) for curve in curves))
    return launch_time(variant, problem, cycles, constants).us


def in_memory(kernel: report.Modelled, problem: Problem, tokens: int, constants) -> float:
    """Microseconds of a launch whose rows see parts of so many keys, and of the merge."""
    value = {name: constant.value for name, constant in constants.items()}
    each, tiles = tokens // KEYS_A_TILE, schedules.work_tiles(kernel.variant, problem)
    cut = [min(each, n - first) for n in tiles for first in range(0, n, each)]
    time = launch_time(kernel.variant, problem, kernel.cycles, constants, order=cut)
    if len(cut) == len(tiles):
        return time.us
    rows = problem.batch * problem.heads_q * KEYS
    partial = rows * len(cut) / len(tiles) * 4 * (problem.head_dim + 1)
    merged = partial + rows * 2 * problem.head_dim
    return time.us + value["kernel_start_us"] + merged / value["hbm_tbs"] * 1e-6


def tables(constants: dict[str, Constant], model: Model, source: Source) -> dict[str, str]:
    """Both, by the names of their marks."""
    of_prefill = prefill(constants, model)
    kernels_of = [kernel for _, used in of_prefill.values() for kernel in used]
    return {
        "invariant_decode": table("decode", "sequences", decode(constants, source)),
        "invariant_prefill": f"{table('prefill', 'mask', of_prefill)}\n\n{made_by(kernels_of)}",
    }
