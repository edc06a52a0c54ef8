"""What batch_invariant=True costs at 8,192 keys, modelled and compared with the default: decode and prefill.

decode   decode/: the kernel, parts and merge that call_of gives for each choice
prefill  the kernel of two query tiles with an exact maximum, whose work tiles are cut into parts (launch_time). Partial
         results are written and read once at the rate of HBM, after the attention: the least that a merge can take
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.cycle_model import report, schedules
from benchmarks.cycle_model.decode.problems import DecodeProblem
from benchmarks.cycle_model.decode.time import ours
from benchmarks.cycle_model.grid import launch_time
from benchmarks.cycle_model.kernels import OURS, Variant
from benchmarks.cycle_model.problems import Problem
from benchmarks.cycle_model.workloads import KEYS_A_TILE
from cute_fa4.emulator.model.constants import Constant

KEYS = 8192
BATCHES = (1, 8, 32, 64, 128)
TOKENS = (8192, 4096, 2048, 1024, 512)
# Choices of the schedule, as in policy.of_schedules(True).
CHOICES = (("maximum", "exact"), ("lone_tiles", False))
GOALS = {"decode": 1.10, "prefill": 1.15}


def table(what: str, first: str, rows: dict[str, list[float]]) -> str:
    """rows: microseconds by default, then with parts of each of TOKENS. Bold: within the goal."""
    heads = [first, "default", *(f"parts of {n:,}" for n in TOKENS)]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for name, (default, *others) in rows.items():
        cells = [name, f"{default:.1f} us"]
        for us in others:
            cell = f"{us / default:.2f}"
            cells.append(f"**{cell}**" if us / default <= GOALS[what] else cell)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def decode(constants: dict[str, Constant]) -> dict[str, list[float]]:
    """64 query heads on 8 key heads, d=128, pages of 16."""
    found = {}
    for batch in BATCHES:
        problem = DecodeProblem.even(batch, KEYS)
        invariant = (
            ours(problem, constants, batch_invariant=True, tokens_per_split=n) for n in TOKENS
        )
        found[str(batch)] = [each.us for each in (ours(problem, constants), *invariant)]
    return found


def prefill(constants: dict[str, Constant]) -> dict[str, list[float]]:
    """Two sequences of 16 heads, d=128, contiguous."""
    found = {}
    for causal in (True, False):
        problem = Problem(2, 16, 16, KEYS, 128, causal)
        default = Variant.of(OURS, problem)
        us = report.cell(report.model(default, constants), problem, constants).us
        kernel = report.model(replace(default, pairs=False, choices=CHOICES), constants)
        parts = [in_parts(kernel, problem, n, constants) for n in TOKENS]
        found["causal" if causal else "full"] = [us, *parts]
    return found


def in_parts(kernel: report.Modelled, problem: Problem, tokens: int, constants) -> float:
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


def tables(constants: dict[str, Constant]) -> dict[str, str]:
    """Both, by the names of their marks."""
    return {
        "invariant_decode": table("decode", "sequences", decode(constants)),
        "invariant_prefill": table("prefill", "mask", prefill(constants)),
    }
