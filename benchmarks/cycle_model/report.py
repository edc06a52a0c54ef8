"""The table of modelled speeds, ours beside flash-attn-4's, and everything behind it as JSON.

A row is a problem of 32K tokens in all with 2048 / d query heads. "not built" marks what
cute_fa4 has no kernel for; its row stays in the table.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import asdict, dataclass

from benchmarks.cycle_model import calibration
from benchmarks.cycle_model.constants import Constant
from benchmarks.cycle_model.evaluate import AlignedKernel, SteadyState, cta_cycles, steady_state
from benchmarks.cycle_model.grid import CTACycles, LaunchTime, Problem, launch_time
from benchmarks.cycle_model.kernels import OURS, THEIRS, Variant, load

TOKENS = 32768
HIDDEN = 2048
SEQLENS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
GQA_GROUP = 8
GQA_SEQLENS = (1024, 8192, 32768)
# What the table is to hold as soon as cute_fa4 has the kernels.
NOT_BUILT = (
    *(f"d{d} window {w}" for d in (64, 128) for w in (128, 1024)),
    "d128 ragged",
    *(f"d128 pages of {p}" for p in (16, 64, 128)),
)
# A launch whose CTAs spend less than this share of their cycles in the steady state is bound by
# what comes before and after it.
STEADY_FROM = 0.5


@dataclass
class Modelled:
    """A kernel with its simulated cycles."""

    variant: Variant
    cycles: CTACycles
    steady: SteadyState
    results: dict


@dataclass(frozen=True)
class Cell:
    """One kernel on one problem."""

    tflops: float
    us: float
    bound: str
    slack: float


def model(variant: Variant, constants: dict[str, Constant]) -> Modelled:
    """Compile (or read from the cache), align and simulate a kernel."""
    results = AlignedKernel.of(load(variant)).simulate(constants)
    return Modelled(variant, cta_cycles(results), steady_state(results), results)


def problems() -> list[tuple[int, Problem]]:
    """(group, problem) of every row that both have a kernel for."""
    rows = []
    for d in (64, 128):
        for causal in (False, True):
            for seqlen in SEQLENS:
                heads = HIDDEN // d
                rows.append((1, Problem(TOKENS // seqlen, heads, heads, seqlen, d, causal)))
    for causal in (False, True):
        for seqlen in GQA_SEQLENS:
            heads = HIDDEN // 128
            problem = Problem(TOKENS // seqlen, heads, heads // GQA_GROUP, seqlen, 128, causal)
            rows.append((GQA_GROUP, problem))
    return rows


def cell(kernel: Modelled, problem: Problem, constants: dict[str, Constant]) -> Cell:
    """Speed, bound and slack of a kernel on a problem."""
    time = launch_time(kernel.variant, problem, kernel.cycles, constants)
    bound, slack = _bound(kernel, problem, time, constants)
    return Cell(time.tflops(problem), time.us, bound, slack)


def _bound(kernel: Modelled, problem: Problem, time: LaunchTime, constants) -> tuple[str, float]:
    if time.bound_by_memory:
        return "HBM", 0.0
    tiles = problem.seqlen / 128 * (0.5 if problem.causal else 1)
    curve = kernel.cycles.added or kernel.cycles.single
    total = curve(tiles) + (0 if kernel.cycles.added else constants["cta_gap"].value)
    steady = tiles * kernel.steady.cycles / total * time.busy
    if steady < STEADY_FROM:
        return "start and end", 1 - steady
    return kernel.steady.bound, 1 - (1 - kernel.steady.slack) * min(1.0, steady)


def published(problem: Problem) -> float | None:
    """flash-attn-4's speed on the problem in the paper; None where it has none."""
    for row in calibration.published_rows():
        if row.run == "paper" and row.problem == problem:
            return row.tflops
    return None


def rows(kernels: dict[Variant, Modelled], constants: dict[str, Constant]) -> list[dict]:
    """Every row of the table as a dictionary."""
    out = []
    for group, problem in problems():
        makers = {}
        for maker in (OURS, THEIRS):
            variant = Variant(maker, problem.head_dim, problem.causal, group)
            if variant in kernels:
                makers[maker] = asdict(cell(kernels[variant], problem, constants))
        ratio = makers[OURS]["tflops"] / makers[THEIRS]["tflops"] if len(makers) == 2 else None
        out.append(
            {"problem": asdict(problem), "group": group, **makers, "ratio": ratio,
             "published": published(problem)}
        )  # fmt: skip
    return out


def table(found: list[dict]) -> str:
    """The rows as Markdown. Every number in it is modelled, but the published column."""
    lines = [
        "Modelled TFLOPS on a B200 at the stated clock; nothing in this table was measured here. "
        "Published: flash-attn-4 in its paper.",
        "",
        "| d | mask | S | batch x heads | cute_fa4 | bound | slack | flash-attn-4 | bound | slack "
        "| ratio | published |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        p = row["problem"]
        mask = ("causal" if p["causal"] else "full") + (
            f", GQA {row['group']}" if row["group"] > 1 else ""
        )
        cells = [str(p["head_dim"]), mask, str(p["seqlen"]), f"{p['batch']} x {p['heads_q']}"]
        for maker in (OURS, THEIRS):
            mine = row.get(maker)
            cells += (
                [f"{mine['tflops']:.0f}", mine["bound"], f"{mine['slack']:.0%}"]
                if mine
                else ["not installed", "", ""]
            )
        cells.append("" if row["ratio"] is None else f"{row['ratio']:.2f}")
        cells.append("" if row["published"] is None else f"{row['published']:.0f}")
        lines.append("| " + " | ".join(cells) + " |")
    for name in NOT_BUILT:
        depth, _, what = name.partition(" ")
        lines.append(f"| {depth[1:]} | {what} | | | not built | | | | | | | |")
    return "\n".join(lines)


def steady_table(kernels: dict[Variant, Modelled]) -> str:
    """Cycles a key tile (128 keys, two query tiles of 128 rows a CTA) and what is busy."""
    names = ("tensor", "mufu", "fma", "alu", "convert", "tmem", "issue", "copies")
    lines = [
        "Modelled steady state: cycles of one key tile and two query tiles, share of them in which "
        "a resource is busy (of the busiest sub-partition).",
        "",
        "| kernel | cycles | " + " | ".join(names) + " | bound | one work tile of 1 key tile |",
        "|---|---|" + "---|" * (len(names) + 2),
    ]
    for variant, kernel in kernels.items():
        steady = kernel.steady
        shares = " | ".join(f"{steady.busy[name]:.0%}" for name in names)
        first = kernel.cycles.single.points[0][1]
        lines.append(
            f"| {variant} | {steady.cycles:.0f} | {shares} | {steady.bound} | {first:.0f} |"
        )
    return "\n".join(lines)


def calibration_table(kernels: dict[Variant, Modelled], constants: dict[str, Constant]) -> str:
    """Published and modelled speed of every published row, and the errors of both halves."""
    pairs: dict[bool, list] = {True: [], False: []}
    lines = [
        "Modelled against published TFLOPS of flash-attn-4. Rows marked fit chose the fitted "
        "constants, rows marked check did not.",
        "",
        "| run | d | mask | S | published | modelled | error | use |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in calibration.published_rows():
        if row.variant not in kernels:
            continue
        found = calibration.modelled(row, kernels[row.variant].cycles, constants)
        pairs[row.fitted].append((found, row.tflops))
        lines.append(
            f"| {row.run} | {row.head_dim} | {'causal' if row.causal else 'full'} | {row.seqlen} | "
            f"{row.tflops} | {found:.0f} | {found / row.tflops - 1:+.1%} | "
            f"{'fit' if row.fitted else 'check'} |"
        )
    lines.append("")
    for fitted, use in ((True, "fit"), (False, "check")):
        errors = calibration.Errors.of(pairs[fitted])
        lines.append(
            f"{use}: {len(pairs[fitted])} rows, mean error {errors.mean:.1%}, worst {errors.worst:.1%}"
        )
        lines.append("")
    return "\n".join(lines).rstrip()


def constants_table(constants: dict[str, Constant]) -> str:
    """Every constant with unit and source."""
    lines = ["| constant | value | unit | source |", "|---|---|---|---|"]
    for name, constant in constants.items():
        mark = "**fitted** " if constant.fitted else ""
        source = constant.source.removeprefix("fitted; ").removeprefix("fitted: ")
        lines.append(f"| {name} | {constant.value:g} | {constant.unit} | {mark}{source} |")
    return "\n".join(lines)


def as_json(kernels, found: list[dict], constants: dict[str, Constant]) -> dict:
    """Everything: constants, cycles of every kernel, rows, versions."""
    return {
        "modelled": True,
        "constants": {name: asdict(constant) for name, constant in constants.items()},
        "kernels": {
            str(variant): {
                "cycles_per_key_tile": kernel.steady.cycles,
                "busy": kernel.steady.busy,
                "bound": kernel.steady.bound,
                "single_work_tile": kernel.cycles.single.points,
                "further_work_tile": kernel.cycles.added and kernel.cycles.added.points,
                "roles": roles(kernel),
                "unknown_opcodes": next(iter(kernel.results.values())).unknown_opcodes,
            }
            for variant, kernel in kernels.items()
        },
        "rows": found,
        "not_built": NOT_BUILT,
        "versions": {name: _version(name) for name in ("nvidia-cutlass-dsl", THEIRS)},
    }


def roles(kernel: Modelled) -> dict[str, float]:
    """Cycles a key tile that each warp is not waiting at an mbarrier, by warp."""
    single = sorted((w for w in kernel.results if w.work_tiles == 1), key=lambda w: w.tiles)
    short, long = single[-2:]
    out = {}
    for name in kernel.results[long].ends:
        busy = []
        for work in (short, long):
            result = kernel.results[work]
            waited = sum(until - since for since, until, _ in result.waits[name])
            busy.append(result.ends[name] - waited)
        out["cta {} warp {}".format(*name)] = (busy[1] - busy[0]) / (long.tiles - short.tiles)
    return out


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
