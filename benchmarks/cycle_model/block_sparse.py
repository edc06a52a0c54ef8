"""Lists of key blocks: time by density, compared with the dense call, with flash-attn-4, and with published rows.

docs/generate.py writes the tables from records (recorded.py).

Work tiles are those of the kernel's own tile scheduler. All heads share the lists of a problem.

    random      each key block is listed with the probability of the density
    long last   the last query blocks, half of the density of them, see all keys; the others a band
    long first  the first query blocks, likewise
    law         time of the SMs / (density x that of the dense call): at most LIMIT. The fixed cost of a launch, which
                is the same, does not count
    lists are not cut into parts: cut_lists.py has these calls
    grid        the law if work tiles began in the order of the grid
    sorting     the launch that sorts work tiles by the lengths of their lists; in the times of a call, not in the law
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.cycle_model import profiled, report, schedules
from benchmarks.cycle_model.grid import LaunchTime, launch_time
from benchmarks.cycle_model.kernels import OURS, THEIRS, Variant
from benchmarks.cycle_model.modelled import MARK, Model, Modelled, made_by, marked
from benchmarks.cycle_model.problems import Problem
from benchmarks.cycle_model.profiled import Cost, Cycles, Launch
from benchmarks.cycle_model.workloads import KEYS_A_TILE, ROWS_A_CTA
from cute_fa4.emulator.model.constants import Constant
from cute_fa4.emulator.model.report import Profiles
from cute_fa4.sm100.blueprint import tuning
from cute_fa4.sm100.blueprint.score_mods import ScoreMod
from cute_fa4.sm100.work.lists.config import BlockListsConfig, windows_of
from cute_fa4.system.gains import ratio

PUBLISHED_FILE = Path(__file__).with_name("published_block_sparse.json")
HEADS, DEPTH = 12, 128
SEQLENS = (4096, 16384, 65536)
DENSITIES = (0.1, 0.25, 0.5, 1.0)
PATTERNS = ("random", "long last", "long first")
SMALLER = 128  # queries of a block that flash-attn-4 does not have
LIMIT = 1.08


@dataclass(frozen=True)
class Listed(Problem):
    """A dense problem whose blocks of queries list key blocks. counts: key blocks of each, for all heads."""

    counts: tuple[int, ...] = ()

    def key_tiles(self, sequence: int, first: int, rows: int) -> int:
        return self.counts[first * len(self.counts) // self.seqlen]

    @property
    def density(self) -> float:
        """Pairs of blocks that are listed, of all pairs."""
        return sum(self.counts) / len(self.counts) / (self.seqlen // KEYS_A_TILE)


def listed(pattern: str, seqlen: int, q_block: int, density: float) -> Listed:
    """A problem of the table.

    >>> listed("long last", 2048, 128, 0.5).counts
    (5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 16, 16, 16, 16)
    >>> listed("random", 1 << 16, 128, 0.25).density == 0.25
    False
    """
    blocks, keys = seqlen // q_block, seqlen // KEYS_A_TILE
    if pattern == "random":
        draw = random.Random(0)
        counts = [sum(draw.random() < density for _ in range(keys)) for _ in range(blocks)]
    else:
        few = round(keys * (density / 2) / (1 - density / 2))
        long = round(blocks * density / 2)
        counts = [few] * (blocks - long) + [keys] * long
        counts = counts[::-1] if pattern == "long first" else counts
    return Listed(1, HEADS, HEADS, seqlen, DEPTH, False, counts=tuple(counts))


def _dense(seqlen: int) -> Problem:
    return Problem(1, HEADS, HEADS, seqlen, DEPTH, False)


def _near(batch, head, q_idx, kv_idx):
    return kv_idx <= q_idx + 200


IN_ORDER = tuple(Variant(OURS, DEPTH, q_block=rows) for rows in (SMALLER, ROWS_A_CTA))
_SORTED = (("longest_first", True),)
SMALL, LARGE = (replace(variant, choices=_SORTED) for variant in IN_ORDER)
PEER = replace(IN_ORDER[1], maker=THEIRS)
ALONE, PAIRS, PEER_DENSE = (
    Variant(OURS, DEPTH),
    Variant(OURS, DEPTH, pairs=True),
    Variant(THEIRS, DEPTH),
)
_HIDING = (("mask_mod", ScoreMod.of(_near, "mask_mod")),)
HIDING = tuple(replace(variant, choices=_HIDING + _SORTED) for variant in IN_ORDER)
TIMED = (SMALL, LARGE, PEER)
Kernels = dict[Variant, Modelled]
Launches = dict[Launch, Cycles]


def _time(
    kernels: Kernels, variant: Variant, problem: Problem, constants, order=None
) -> LaunchTime:
    return launch_time(variant, problem, kernels[variant].cycles, constants, order=order)


def law(time: LaunchTime, density: float, dense: LaunchTime) -> float:
    """Time of the SMs over density times that of the dense call; the rest of a launch is the same in both."""
    return time.busy_us / (density * dense.busy_us)


def sorting(tiles: int) -> Launch:
    """The CTA that sorts the work tiles of a launch; random lengths."""
    config = BlockListsConfig("longest")

    def launch(kernel):
        import torch

        counts, order = lengths_of(tiles // HEADS), torch.empty(tiles, dtype=torch.int32)
        sizes = tiles // HEADS, HEADS, 1, windows_of(tiles), tiles, 0
        kernel((counts, counts), counts[0, 0], counts[0, 0], (2, 0), sizes, order)

    return launch_of(f"{tiles} work tiles sorted", config, launch)


def lengths_of(lists: int):
    """Random lengths of so many lists, which all heads share."""
    import torch

    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 500, (1, 1, lists), generator=generator, dtype=torch.int32)


def launch_of(name: str, config, launch: Callable) -> Launch:
    """One CTA of a kernel, modelled alone on an SM. launch: with the compiled kernel."""
    return Launch(name, config.name, partial(_profiles, config, launch), lambda: config)


def _profiles(config, launch: Callable) -> Profiles:
    from cute_fa4 import emulator
    from cute_fa4.compiler.compiler import kernel_and_arguments

    kernel, arguments, _ = kernel_and_arguments(config)
    return emulator.profile(lambda: launch(emulator.compile(kernel, *arguments, arch="sm_100a")))


def sorts(tiles: int, constants: dict[str, Constant]) -> bool:
    """Whether calls with so many work tiles sort them."""
    return tiles > tuning.choose("longest_first") * constants["sms"].value


def before_us(cycles: float, constants: dict[str, Constant]) -> float:
    """Time of a launch of one CTA of so many cycles, before a dependent launch."""
    value = {name: constant.value for name, constant in constants.items()}
    alone = value["kernel_start_us"] + cycles / value["clock_ghz"] * 1e-3
    return max(alone - value["dependent_saves_us"], value["dependent_least_us"])


def _cells(
    found: tuple[Kernels, Launches], variant: Variant, problem: Listed, dense: LaunchTime, constants
) -> list:
    """Time, speed and law; ours with the launch that sorts, if any, and also the law in the order of the grid."""
    kernels, launches = found
    if variant not in kernels:
        return ["-"] * 3
    tiles = len(schedules.work_tiles(variant, problem))
    in_order = replace(variant, choices=())
    sorted_here = variant.maker == OURS and sorts(tiles, constants)
    used = variant if sorted_here or variant.maker != OURS else in_order
    time, before = _time(kernels, used, problem, constants), None
    if sorted_here:
        before = launches[sorting(tiles)]
        time = replace(time, us=time.us + before_us(before.cycles, constants))
    tflops = time.tflops(problem) * problem.density
    known = kernels[used], before, kernels.get(in_order)
    cells = [
        marked(f"{time.us:.1f}", *known),
        f"{tflops:.0f}",
        f"{law(time, problem.density, dense):.2f}",
    ]
    if variant.maker == OURS:
        grid = _time(kernels, in_order, problem, constants)
        cells.append(f"{law(grid, problem.density, dense):.2f}")
    return cells


def table(kernels: Kernels, launches: Launches, constants: dict[str, Constant]) -> str:
    """A row for each length, pattern and density."""
    ours, theirs = f"cute_fa4, {ROWS_A_CTA}", f"flash-attn-4, {ROWS_A_CTA}"
    lines = [
        f"Modelled: one sequence, {HEADS} heads, bf16, head dim {DEPTH}, blocks of {SMALLER} x {KEYS_A_TILE} and of "
        f"{ROWS_A_CTA} x {KEYS_A_TILE} queries x keys. TFLOPS count listed blocks only. law: time of the SMs over "
        "density times that of the dense kernel that a call gets by default; the bar is "
        f"{LIMIT}. grid: the law in the order of the grid, which is used at {SEQLENS[0]}; the other times have the "
        "launch that sorts work tiles.",
        "",
        f"| S | pattern | density | cute_fa4, {SMALLER}: us | TFLOPS | law | grid | {ours}: us | TFLOPS | law | grid "
        f"| {theirs}: us | TFLOPS | law | ratio |",
        "|---" * 15 + "|",
    ]
    for seqlen in SEQLENS:
        whole = _dense(seqlen)
        dense = _time(kernels, ALONE, whole, constants)
        for pattern in PATTERNS:
            for density in DENSITIES:
                if density == 1 and pattern != PATTERNS[0]:
                    continue  # all lists have all blocks
                row = [seqlen, pattern if density < 1 else "all", density]
                for variant in TIMED:
                    problem = listed(pattern, seqlen, variant.q_block, density)
                    row += _cells((kernels, launches), variant, problem, dense, constants)
                both = row[7], row[11]
                us = [float(str(cell).removesuffix(MARK)) for cell in both if cell != "-"]
                row.append(ratio(us[1] / us[0]) if len(us) == 2 else "")
                lines.append("| " + " | ".join(map(str, row)) + " |")
    return "\n".join(lines)


def steady_table(kernels: Kernels) -> str:
    """Cycles of each kernel for a key tile of 256 queries in the steady state."""
    lines = [
        f"Cycles of {ROWS_A_CTA} queries and {KEYS_A_TILE} keys on an SM in the steady state.",
        "",
        "| kernel | cycles | bound |",
        "|---|---|---|",
    ]
    for variant, kernel in kernels.items():
        if variant in IN_ORDER:
            continue  # the same loop
        rows = variant.rows // (2 if variant.pair else 1)
        cycles = kernel.steady.cycles * ROWS_A_CTA / rows
        with_mask = "mask_mod" in dict(variant.choices)
        hides = "partial blocks, with a mask_mod of two operations" if with_mask else ""
        what = ", ".join(filter(None, (variant.maker, replace(variant, choices=()).mask, hides)))
        what += ", pairs" * (variant.maker == THEIRS and variant.pair)
        lines.append(f"| {what} | {marked(f'{cycles:.0f}', kernel)} | {kernel.steady.bound} |")
    return "\n".join(lines)


def sorted_sizes(constants: dict[str, Constant]) -> list[tuple[int, int, int]]:
    """(tokens, queries of a block, work tiles) of the launches of the first table whose work tiles are sorted."""
    sizes = (
        (seqlen, rows, seqlen // rows * HEADS)
        for seqlen in SEQLENS
        for rows in (SMALLER, ROWS_A_CTA)
    )
    return [size for size in sizes if sorts(size[2], constants)]


def sorting_table(launches: Launches, constants: dict[str, Constant]) -> str:
    """The launch that sorts the work tiles of rows of the first table."""
    lines = [
        "The launch that sorts work tiles: one CTA, and the attention kernel sets up meanwhile.",
        "",
        "| S | blocks | work tiles | cycles | us |",
        "|---|---|---|---|---|",
    ]
    for seqlen, rows, tiles in sorted_sizes(constants):
        found = launches[sorting(tiles)]
        cells = seqlen, f"{rows} x {KEYS_A_TILE}", tiles, marked(f"{found.cycles:.0f}", found)
        us = before_us(found.cycles, constants)
        lines.append(f"| {' | '.join(map(str, cells))} | {us:.1f} |")
    return "\n".join(lines)


def published_table() -> str:
    """Speeds that others measured."""
    lines = [
        "Published, measured by others:",
        "",
        "| what | S | density | us | TFLOPS |",
        "|---|---|---|---|---|",
    ]
    for row in json.loads(PUBLISHED_FILE.read_text())["rows"]:
        cells = (str(row.get(name, "")) for name in ("seqlen", "density", "us", "tflops"))
        lines.append(f"| [{row['what']}]({row['url']}) | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def variants(makers: Iterable[str]) -> list[Variant]:
    """Every kernel of both tables."""
    wanted = (
        *(SMALL, HIDING[0], LARGE, HIDING[1], PEER, ALONE, PAIRS, PEER_DENSE),
        *IN_ORDER,
    )
    return [variant for variant in wanted if variant.maker in makers]


def launches(constants: dict[str, Constant]) -> list[Launch]:
    """Those that sort work tiles."""
    return [sorting(tiles) for *_, tiles in sorted_sizes(constants)]


def tables(
    makers: tuple[str, ...],
    constants: dict[str, Constant],
    model: Model = report.model,
    cost: Cost = profiled.recorded,
) -> dict[str, str]:
    """By the marks of docs/performance/block_sparsity.md."""
    kernels = {variant: model(variant, constants) for variant in variants(makers)}
    sorts_of = {launch: cost(launch) for launch in launches(constants)}
    of_code = made_by([*kernels.values(), *sorts_of.values()])
    return {
        "block_sparse": f"{table(kernels, sorts_of, constants)}\n\n{of_code}",
        "block_sparse_steady": f"{steady_table(kernels)}\n\n{made_by(kernels)}",
        "block_sparse_sorting": f"{sorting_table(sorts_of, constants)}\n\n{made_by(sorts_of.values())}",
        "block_sparse_published": published_table(),
    }
