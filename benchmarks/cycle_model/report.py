"""The table of modeled speeds, ours compared with flash-attn-4's, and all underlying data as JSON.

A row is a problem of 32K tokens in total with 2048 / d query heads. If the model cannot follow a kernel, its cell
says so; the row stays in the table.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.cycle_model import calibration, schedules
from benchmarks.cycle_model.grid import LaunchTime, launch_time
from benchmarks.cycle_model.kernels import OURS, THEIRS, Variant
from benchmarks.cycle_model.modelled import Model, Modelled, marked, model
from benchmarks.cycle_model.problems import RAGGED, TOKENS, Problem
from cute_fa4.emulator.model.constants import Constant
from cute_fa4.system.gains import change, ratio

PUBLISHED_DECODE_FILE = Path(__file__).with_name("published_decode.json")
HIDDEN = 2048
SEQLENS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
GQA_GROUP = 8
WINDOWS = (128, 1024)
PAGE_SIZES = (16, 64, 128)
# Sequence lengths of the rows that are variations of the first ones.
FEWER_SEQLENS = (1024, 8192, 32768)
WINDOW_SEQLENS = (2048, 8192, 32768)
CLAIM_SEQLENS = (512, 2048, 8192, 32768)
# Alternative costs of a claim, in cycles: zero, and four times the assumed constant.
OTHER_CLAIMS = (0, 4000)
# A launch whose CTAs spend less than this share of their cycles in the steady state is bound by
# what comes before and after it.
STEADY_FROM = 0.5


@dataclass(frozen=True)
class Cell:
    """One kernel on one problem."""

    tflops: float
    us: float
    bound: str
    slack: float


def problems() -> list[Problem]:
    """Every row, whether there is a kernel for it or not."""

    def dense(seqlen, d, causal, group=1, window=0, page_size=0):
        heads = HIDDEN // d
        kv, batch = heads // group, TOKENS // seqlen
        return Problem(batch, heads, kv, seqlen, d, causal, window, page_size=page_size)

    masks = (False, True)
    return [
        *(dense(s, d, causal) for d in (64, 128) for causal in masks for s in SEQLENS),
        *(dense(s, 128, causal, GQA_GROUP) for causal in masks for s in FEWER_SEQLENS),
        *(
            dense(s, d, True, window=window)
            for d in (64, 128)
            for window in WINDOWS
            for s in WINDOW_SEQLENS
        ),
        *(
            Problem.packed(lengths, HIDDEN // 128, 128, causal)
            for causal in masks
            for lengths in RAGGED.values()
        ),
        *(
            dense(s, 128, causal, page_size=page_size)
            for causal in masks
            for page_size in PAGE_SIZES
            for s in FEWER_SEQLENS
        ),
    ]


def variants(makers: tuple[str, ...] = (OURS, THEIRS)) -> list[Variant]:
    """Every kernel of the table that can be modelled, in the order of its rows."""
    found = [Variant.of(maker, problem) for problem in problems() for maker in makers]
    return [variant for variant in dict.fromkeys(found) if not variant.not_modelled]


def cell(kernel: Modelled, problem: Problem, constants: dict[str, Constant]) -> Cell:
    """Speed, bound and slack of a kernel on a problem."""
    time = launch_time(kernel.variant, problem, kernel.cycles, constants)
    bound, slack = _bound(kernel, time)
    return Cell(time.tflops(problem), time.us, bound, slack)


def cells(
    kernels: dict[Variant, Modelled],
    variants: Iterable[Variant],
    problem: Problem,
    constants: dict[str, Constant],
) -> list[str]:
    """Speed and bound of ours and theirs, and the ratio; "-" for a kernel that is not modelled."""
    row, speeds, used = [], [], [kernels.get(variant) for variant in variants]
    for kernel in used:
        if kernel is None:
            row += ["-", ""]
            continue
        one = cell(kernel, problem, constants)
        speeds.append(one.tflops)
        row += [f"{one.tflops:.0f}", one.bound]
    row[0] = marked(row[0], *used)
    return [*row, ratio(speeds[0] / speeds[1]) if len(speeds) == 2 else ""]


def _bound(kernel: Modelled, time: LaunchTime) -> tuple[str, float]:
    if time.bound_by_memory:
        return "HBM", 0.0
    steady = min(1.0, time.key_tiles * kernel.steady.cycles / time.slot_cycles)
    if steady < STEADY_FROM:
        return "start and end", 1 - steady
    return kernel.steady.bound, 1 - (1 - kernel.steady.slack) * steady


def published(problem: Problem) -> float | None:
    """flash-attn-4's speed on the problem in the paper; None where it has none."""
    for row in calibration.published_rows():
        if row.run == "paper" and row.problem == problem:
            return row.tflops
    return None


def rows(kernels: dict[Variant, Modelled], constants: dict[str, Constant]) -> list[dict]:
    """The rows that one of these kernels serves, as dictionaries."""
    out = []
    for problem in problems():
        cells = {}
        for maker in (OURS, THEIRS):
            variant = Variant.of(maker, problem)
            if variant in kernels:
                cells[maker] = asdict(cell(kernels[variant], problem, constants))
            elif variant.not_modelled:
                cells[maker] = {"not_modelled": variant.not_modelled}
        speeds = [found["tflops"] for found in cells.values() if "tflops" in found]
        if not speeds:
            continue
        over = speeds[0] / speeds[1] if len(speeds) == 2 else None
        out.append(
            {"problem": asdict(problem), "mask": Variant.of(OURS, problem).mask, **cells,
             "ratio": over, "published": published(problem)}
        )  # fmt: skip
    return out


def table(found: list[dict], kernels: dict[Variant, Modelled]) -> str:
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
        problem = Problem(**p)
        cells = [
            str(p["head_dim"]),
            row["mask"],
            lengths_of(problem),
            f"{p['batch']} x {p['heads_q']}",
        ]
        for maker in (OURS, THEIRS):
            cells += _cells(row.get(maker))
        cells[4] = marked(cells[4], *_used(kernels, problem))
        cells.append("" if row["ratio"] is None else ratio(row["ratio"]))
        cells.append("" if row["published"] is None else f"{row['published']:.0f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _used(kernels: dict[Variant, Modelled], *problems: Problem) -> list[Modelled | None]:
    """The kernels that run these problems."""
    return [kernels.get(Variant.of(maker, p)) for p in problems for maker in (OURS, THEIRS)]


def _cells(mine: dict | None) -> list[str]:
    if mine is None:
        return ["-", "", ""]
    if "not_modelled" in mine:
        return [f"not modelled: {mine['not_modelled']}", "", ""]
    return [f"{mine['tflops']:.0f}", mine["bound"], f"{mine['slack']:.0%}"]


def pages_table(found: list[dict], kernels: dict[Variant, Modelled]) -> str:
    """Speed from pages over speed from contiguous keys, of the rows that have both."""
    lines = [
        "Modelled speed with pages over modelled speed with contiguous keys, d=128.",
        "",
        "| mask | S | "
        + " | ".join(f"{maker}, pages of {n}" for maker in (OURS, THEIRS) for n in PAGE_SIZES)
        + " |",
        "|---|---|" + "---|" * (2 * len(PAGE_SIZES)),
    ]
    by_problem = {tuple(row["problem"].values()): row for row in found}
    for row in found:
        p = row["problem"]
        paged = [by_problem.get(tuple((p | {"page_size": n}).values())) for n in PAGE_SIZES]
        if p["page_size"] or not all(paged):
            continue
        cells = [row["mask"], str(p["seqlen"])]
        for maker in (OURS, THEIRS):
            plain = row.get(maker, {}).get("tflops")
            speeds = [other.get(maker, {}).get("tflops") for other in paged]
            cells += [ratio(speed / plain) if speed and plain else "-" for speed in speeds]
        every = [Problem(**one["problem"]) for one in (row, *paged) if one]
        cells[2] = marked(cells[2], *_used(kernels, *every))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def decode_table() -> str:
    """Published decode of others, as TB/s of keys and values: bytes that are read once, over the published time."""
    data = json.loads(PUBLISHED_DECODE_FILE.read_text())
    lines = [
        f"Published, measured by others: TB/s of keys and values. [Source]({data['url']}): {data['source']}.",
        "",
        "| keys | batch | "
        + " | ".join(f"{kernel}, published" for kernel in data["kernels"])
        + " |",
        "|---|---|" + "---|" * len(data["kernels"]),
    ]
    for batch, keys, times, _ in sorted(data["rows"], key=lambda row: (row[1], row[0])):
        speeds = [f"{decode_bytes(batch, keys) / us * 1e-6:.2f}" for us in times]
        lines.append("| " + " | ".join([str(keys), str(batch), *speeds]) + " |")
    return "\n".join(lines)


def decode_bytes(batch: int, keys: int, heads_kv: int = 8, head_dim: int = 128) -> int:
    """Bytes of the 16-bit keys and values of a batch."""
    return 2 * 2 * batch * keys * heads_kv * head_dim


def orders_table(kernels: dict[Variant, Modelled], constants: dict[str, Constant]) -> str:
    """Our launches whose CTAs differ in length, in other orders of the same work tiles."""
    lines = [
        "Modelled microseconds of cute_fa4's launches in its own order of work tiles, and in others of "
        "the same tiles without empty CTAs: flash-attn-4's sections of heads, longest first over all "
        "heads, and as if no SM ever idled.",
        "",
        "| d | mask | S | empty CTAs | now | sections | longest first | no idle SM | longest first gains |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for problem in problems():
        variant = Variant.of(OURS, problem)
        even = not problem.causal and not problem.lengths
        if variant not in kernels or problem.page_size or problem.group > 1 or even:
            continue
        found = schedules.orders(variant, problem)
        times = {
            name: launch_time(variant, problem, kernels[variant].cycles, constants, order=order)
            for name, order in found.items()
        }
        clock = constants["clock_ghz"].value * 1e3
        best = times["longest first"]
        idle = (1 - best.busy) * best.slot_cycles / int(constants["sms"].value) / clock
        ideal = best.us - (0 if best.bound_by_memory else idle)
        us = [f"{time.us:.0f}" for time in times.values()]
        empty = marked(str(found["now"].count(0)), kernels[variant])
        cells = [str(problem.head_dim), variant.mask, lengths_of(problem), empty, *us]
        cells += [f"{ideal:.0f}", change(times["now"].us / best.us - 1)]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def claims(constants: dict[str, Constant]) -> list[dict[str, Constant]]:
    """The constants with each cost of a claim, the assumed one among them."""
    assumed = constants["claim"]
    costs = sorted({assumed.value, *OTHER_CLAIMS})
    return [constants | {"claim": replace(assumed, value=n)} for n in costs]


def _claim_problems() -> list[Problem]:
    plain = [p for p in problems() if not (p.window or p.page_size or p.group > 1)]
    return [p for p in plain if p.lengths or p.seqlen in CLAIM_SEQLENS]


def claimed(one_block: bool = True) -> list[Variant]:
    """Our kernels in the table of claims: those that claim, or with one_block those without claims."""
    found = dict.fromkeys(Variant.of(OURS, problem) for problem in _claim_problems())
    return [replace(variant, one_block=one_block) for variant in found]


def claims_table(
    kernels: dict[Variant, Modelled], constants: dict[str, Constant], modelled: Model = model
) -> str:
    """Our speed over flash-attn-4's with claims of several latencies, and with CTAs of one block."""
    assumed, settings = constants["claim"].value, claims(constants)
    costs = [setting["claim"].value for setting in settings]
    names = [f"a claim takes {n:g} cycles{' (assumed)' * (n == assumed)}" for n in costs]
    lines = [
        "Modelled speed of cute_fa4 over modelled speed of flash-attn-4, by what a claim costs.",
        "",
        "| d | mask | S | " + " | ".join([*names, "no claims"]) + " |",
        "|---|---|---|" + "---|" * (len(names) + 1),
    ]
    simulated: dict[Variant, list[Modelled]] = {}
    for problem in _claim_problems():
        variant, peer = Variant.of(OURS, problem), Variant.of(THEIRS, problem)
        if variant not in kernels or peer not in kernels:
            continue
        if variant not in simulated:
            ours = [modelled(variant, setting) for setting in settings]
            simulated[variant] = [*ours, modelled(replace(variant, one_block=True), constants)]
        theirs = cell(kernels[peer], problem, constants).tflops
        speeds = [cell(kernel, problem, constants).tflops for kernel in simulated[variant]]
        cells = [str(problem.head_dim), variant.mask, lengths_of(problem)]
        ratios = [ratio(s / theirs) for s in speeds]
        ratios[0] = marked(ratios[0], kernels[peer], *simulated[variant])
        lines.append("| " + " | ".join(cells + ratios) + " |")
    return "\n".join(lines)


def lengths_of(problem: Problem) -> str:
    """The length of its sequences, or the shortest and the longest."""
    lengths = problem.lengths
    return f"{min(lengths)} to {max(lengths)}" if lengths else str(problem.seqlen)


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
        cycles = marked(f"{steady.cycles:.0f}", kernel)
        lines.append(f"| {variant} | {cycles} | {shares} | {steady.bound} | {first:.0f} |")
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
            f"{row.tflops} | {marked(f'{found:.0f}', kernels[row.variant])} | {found / row.tflops - 1:+.1%} | "
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
        "versions": {name: _version(name) for name in ("nvidia-cutlass-dsl", THEIRS)},
        "ptxas": sorted({kernel.ptxas or "unknown" for kernel in kernels.values()}),
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
