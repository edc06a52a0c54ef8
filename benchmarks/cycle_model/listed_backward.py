"""Lists of the backward pass: time of dQ, and of dK and dV, in the order of the grid and with the longest first.

docs/generate.py writes the table from records (recorded.py). Cycles of a CTA are those of the kernels (bf16, head dim
128, full blocks), with lists of some lengths; between and beyond them they are linear. A chip hands CTAs out in the
order of the grid, each to the SM that is free first.

    random       each block is listed with the probability of the density
    long last    the last tiles of queries, half of the density of them, see all keys; the others a band before them
    long first   the first ones, likewise
    sinks        all queries see the first tiles of keys, a quarter of the density of them, and some of the others
    sinks last   the last ones, likewise

A CTA reads its place in an order also where there is none: machine code has no branch there.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache, partial

import torch

from benchmarks.cycle_model import block_sparse, profiled
from benchmarks.cycle_model.backward import ROWS, constants, zeros
from benchmarks.cycle_model.grid import Curve, makespan
from benchmarks.cycle_model.kernels import OURS
from benchmarks.cycle_model.modelled import made_by, marked
from benchmarks.cycle_model.profiled import Cost, Cycles, Launch
from cute_fa4.block_sparsity import BlockSparseTensors
from cute_fa4.calls.backward import Attended, Scores, gradients
from cute_fa4.calls.block_lists import Lists
from cute_fa4.emulator.model.constants import fitted_b200
from cute_fa4.emulator.model.report import Profiles, profiling
from cute_fa4.sm100.backward.config import BackwardConfig
from cute_fa4.sm100.blueprint import tuning
from cute_fa4.sm100.work.lists.config import in_order
from cute_fa4.system.gains import ratio

DEPTHS = 128, 128
LENGTHS = 0, 1, 4, 8  # tiles of a list
OWNERS = {"queries": "_dq_", "keys": "_dkv_"}
HEADS = 12
SEQLENS, DENSITIES = (4096, 16384, 65536), (0.1, 0.25)
PATTERNS = ("random", "long last", "long first", "sinks", "sinks last")


@cache
def run(rows: int, keys: int, empty: bool) -> Profiles:
    """A call that is sorted, of one head, in which all queries see all keys, or none. CTAs own the first tiles."""
    q, k, v, out, dout = zeros(rows, keys, DEPTHS)
    q_tiles, k_tiles = rows // ROWS, keys // ROWS
    counts = torch.full((1, 1, q_tiles), 0 if empty else k_tiles, dtype=torch.int32)
    entries = torch.arange(k_tiles, dtype=torch.int32).expand(1, 1, q_tiles, -1).contiguous()
    none = torch.zeros_like(counts), torch.zeros_like(entries)
    lists = BlockSparseTensors(*none, counts, entries, block_size=(ROWS, ROWS))
    scores = Scores(DEPTHS[0] ** -0.5, lists=Lists.of_operator(lists._asdict()))
    with (
        tuning.using(tuning.shipped().changed(longest_first=0)),
        profiling(constants=constants()) as found,
    ):
        gradients(Attended(q, k, v, out, torch.zeros(1, 1, rows)), dout, None, scores)
    return found


def launch(owner: str, tiles: int) -> Launch:
    """A call in which the list of a CTA of this owner has so many tiles."""
    sizes = (ROWS, ROWS * max(tiles, 1))[:: 1 if owner == "queries" else -1]
    of = f"{OURS} backward of lists d{DEPTHS[0]}"
    return Launch(
        f"{of} {owner} {tiles} tiles", of, partial(run, *sizes, tiles == 0),
        lambda: BackwardConfig("bf16", *DEPTHS, listed=True), OWNERS[owner], OURS, constants(),
    )  # fmt: skip


def sorting(seqlen: int) -> Launch:
    """The launch that sorts the lists of an owner."""
    return block_sparse.sorting(seqlen // ROWS * HEADS)


def launches() -> list[Launch]:
    return [launch(owner, n) for owner in OWNERS for n in LENGTHS] + list(map(sorting, SEQLENS))


def visible(pattern: str, tiles: int, density: float) -> torch.Tensor:
    """(tiles of queries, tiles of keys) of a head: which pairs are listed.

    >>> visible("long first", 8, 0.5).sum(1).tolist(), visible("sinks", 8, 0.5).sum(0).tolist()[:2]
    ([8, 8, 3, 3, 3, 3, 3, 3], [8, 1])
    """
    numbers = torch.arange(tiles)
    draw = random.Random(0)
    chance = torch.tensor([[draw.random() for _ in range(tiles)] for _ in range(tiles)])
    if pattern == "random":
        return chance < density
    if "sinks" in pattern:
        sinks = max(1, round(tiles * density / 4))
        is_sink = numbers >= tiles - sinks if pattern == "sinks last" else numbers < sinks
        return is_sink[None] | (chance < density * 3 / 4)
    few = round(tiles * (density / 2) / (1 - density / 2))
    long = round(tiles * density / 2)
    apart = numbers[:, None] - numbers[None]
    is_long = numbers >= tiles - long if pattern == "long last" else numbers < long
    return is_long[:, None] | (apart >= 0) & (apart < few)


@dataclass(frozen=True)
class Found:
    """cycles: of a CTA of each owner by the tiles of its list; sorting: of the launch that sorts so many lists."""

    cycles: tuple[Curve, Curve]
    sorting: dict[int, float]

    def us(self, at: int, pairs: torch.Tensor, values: dict) -> tuple[float, float]:
        """Of an owner's kernel in the order of the grid, and of the launch that sorts and the kernel after it.

        at: 0: queries, 1: keys; pairs: of visible(). The grid begins with the last tiles of queries or the first of
        keys, of all heads.
        """
        cycles, counts = self.cycles[at], pairs.sum(1 - at).tolist()
        every, in_grid = counts * HEADS, counts[::-1] if at == 0 else counts
        slots, clock = int(values["sms"]), values["clock_ghz"] * 1e3
        grid = makespan((cycles(n) for n in in_grid for _ in range(HEADS)), slots) / clock
        longest = makespan((cycles(every[i]) for i in in_order(every)), slots) / clock
        return grid, longest + values["kernel_start_us"] + self.sorting[len(every)] / clock


def found_by(costs: dict[Launch, Cycles]) -> Found:
    """costs: of every launch of launches()."""
    queries, keys = (
        Curve(tuple((n, costs[launch(owner, n)].cycles) for n in LENGTHS)) for owner in OWNERS
    )
    sizes = {seqlen // ROWS * HEADS: costs[sorting(seqlen)].cycles for seqlen in SEQLENS}
    return Found((queries, keys), sizes)


def table(cost: Cost = profiled.recorded) -> str:
    """us of both kernels of the backward pass, in the order of the grid and sorted."""
    costs = {one: cost(one) for one in launches()}
    found, values = found_by(costs), {name: x.value for name, x in fitted_b200().items()}
    lines = [
        f"Modelled: one sequence, {HEADS} heads, bf16, head dim {DEPTHS[0]}, full blocks of {ROWS} x {ROWS}. us of the "
        "kernel of dQ and of that of dK and dV, in the order of the grid; sorted: with the launch that sorts. "
        "*: calls of this size are not sorted.",
        "",
        "| S | pattern | density | dQ: grid | sorted | dK, dV: grid | sorted | both: ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for seqlen in SEQLENS:
        mark = "" if block_sparse.sorts(seqlen // ROWS * HEADS, fitted_b200()) else " *"
        for pattern in PATTERNS:
            for density in DENSITIES:
                pairs = visible(pattern, seqlen // ROWS, density)
                owners = [found.us(at, pairs, values) for at in range(2)]
                cells = [f"{x:.1f}" + mark * i for of in owners for i, x in enumerate(of)]
                cells[0] = marked(cells[0], *costs.values())
                before, after = map(sum, zip(*owners, strict=True))
                row = (
                    seqlen,
                    pattern,
                    f"{pairs.double().mean():.2f}",
                    *cells,
                    ratio(before / after),
                )
                lines.append("| " + " | ".join(map(str, row)) + " |")
    return "\n".join([*lines, "", made_by(costs.values())])
