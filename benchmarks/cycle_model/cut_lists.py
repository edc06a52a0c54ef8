"""Lists of key blocks of which the longest are cut into parts: time by pattern, compared with the same calls without.

Work tiles and parts are those of the kernels' own rules. All heads share the lists of a problem.

    global    the first query block sees all keys, as that of global tokens does; the others as many as the density says
    long last, random  as in block_sparse.py
    before    the call without parts: in the order of the grid, or sorted where SMs have more than three work tiles each
    cut       three launches: one CTA sorts work tiles and cuts lists, attention, and the merge of the parts
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from benchmarks.cycle_model import block_sparse, modelled, report, schedules
from benchmarks.cycle_model.block_sparse import DEPTH, IN_ORDER, LARGE, SMALL, Listed
from benchmarks.cycle_model.grid import CTACycles, Curve, launch_time
from benchmarks.cycle_model.workloads import KEYS_A_TILE
from cute_fa4.emulator.model.constants import Constant
from cute_fa4.sm100.blueprint import tuning
from cute_fa4.sm100.blueprint.listed import CUT_WORDS, ORDER_WORDS
from cute_fa4.sm100.combine.config import THREADS, CombineConfig
from cute_fa4.sm100.combine.kernel import AHEAD
from cute_fa4.sm100.combine.parts import TURNS
from cute_fa4.sm100.work.lists.config import BlockListsConfig, cut_in_order, most_cut
from cute_fa4.system.gains import ratio

_CHOICES = (("longest_first", True), ("cut_lists", True), ("write_lse", True))
CUT = {variant.q_block: replace(variant, choices=_CHOICES) for variant in IN_ORDER}
PARTS = {rows: replace(variant, in_parts=True) for rows, variant in CUT.items()}
SORTED = {variant.q_block: variant for variant in (SMALL, LARGE)}
GRID = {variant.q_block: variant for variant in IN_ORDER}
# Tokens and heads of a sequence, patterns and densities.
SIZES = ((4096, 12), (16384, 12), (16384, 2), (65536, 2))
PATTERNS = (("global", 0.1), ("long last", 0.1), ("random", 0.1), ("random", 0.25))
ROWS_MERGED = 4  # of a CTA that merges: a warp has one
THREADS_OF_SM = 2048


@dataclass(frozen=True)
class WholeAndPart:
    """Cycles of a work tile by its key tiles; -n: a part of a list with n."""

    whole: Curve
    part: Curve

    def __call__(self, tiles: int) -> float:
        return self.part(-tiles) if tiles < 0 else self.whole(tiles)


@dataclass(frozen=True)
class Times:
    """us of a call without parts and with them, and how many lists are cut into how many parts in all."""

    before: float
    cut: float
    lists: int
    parts: int


def problem(pattern: str, seqlen: int, heads: int, q_block: int, density: float) -> Listed:
    """A problem of the table.

    >>> problem("global", 2048, 2, 256, 0.25).counts
    (16, 4, 4, 4, 4, 4, 4, 4)
    """
    if pattern != "global":
        found = block_sparse.listed(pattern, seqlen, q_block, density)
        return replace(found, heads_q=heads, heads_kv=heads)
    keys = seqlen // KEYS_A_TILE
    counts = [keys, *[round(keys * density)] * (seqlen // q_block - 1)]
    return Listed(1, heads, heads, seqlen, DEPTH, False, counts=tuple(counts))


def times(kernels: dict, q_block: int, of: Listed, constants: dict[str, Constant]) -> Times:
    """The times of a call, with the rules of the kernels."""
    sms = int(constants["sms"].value)
    lengths = schedules.work_tiles(replace(CUT[q_block], choices=()), of)
    entries = cut_in_order(lengths, sms, tuning.choose("cut_least_tiles"))
    order = []
    for tile, number, parts, _ in entries:
        each, more = divmod(lengths[tile], parts)
        keys = each + (number < more)
        order.append(-keys if parts > 1 else keys)
    whole, part = (kernels[variants[q_block]].cycles for variants in (CUT, PARTS))
    cycles = CTACycles(
        WholeAndPart(whole.single, part.single), WholeAndPart(whole.added, part.added)
    )
    time = launch_time(CUT[q_block], of, cycles, constants, order=order)
    of_lists = [parts for _, number, parts, _ in entries if parts > 1 and number == 0]
    around = block_sparse.before_us(cycles_of_cutting(len(lengths), of.heads_q), constants)
    around += merging_us(q_block, max(of_lists, default=0), len(of_lists), constants)
    return Times(
        before_us(kernels, q_block, of, constants), time.us + around, len(of_lists), sum(of_lists)
    )


def before_us(kernels: dict, q_block: int, of: Listed, constants: dict[str, Constant]) -> float:
    tiles = len(schedules.work_tiles(GRID[q_block], of))
    if not block_sparse.sorts(tiles, constants):
        return launch_time(GRID[q_block], of, kernels[GRID[q_block]].cycles, constants).us
    time = launch_time(SORTED[q_block], of, kernels[SORTED[q_block]].cycles, constants)
    return time.us + block_sparse.sorting_us(tiles, constants)


@cache
def cycles_of_cutting(tiles: int, heads: int) -> float:
    """The cycles of the CTA that sorts the work tiles of a launch and cuts their lists; random lengths."""
    import torch

    shares, counts = 148, block_sparse.lengths_of(tiles // heads)
    order = torch.empty((tiles + shares, ORDER_WORDS), dtype=torch.int32)
    cut = torch.empty((most_cut(shares), CUT_WORDS), dtype=torch.int32)
    sizes = tiles // heads, heads, 1, tiles, shares, 8

    def launch(kernel):
        kernel((counts, counts), counts[0, 0], (2, 0), sizes, order, cut)

    return block_sparse.cycles_of(BlockListsConfig("cut"), launch)


@cache
def cycles_of_merging(parts: int) -> float:
    """The cycles of a CTA whose warps merge a row each, and then find no other list; 0 parts: they find none."""
    import torch

    o = torch.zeros((max(parts, 1), ROWS_MERGED, DEPTH))
    cut = torch.tensor([[0, 0, parts], [0, 0, 0]], dtype=torch.int32)
    out = torch.empty((1, ROWS_MERGED, 1, DEPTH), dtype=torch.bfloat16)

    def launch(kernel):
        lse = torch.empty((1, 1, ROWS_MERGED))
        kernel(o, o[..., 0].contiguous(), cut, out, lse, None, None, 0, None)

    return block_sparse.cycles_of(CombineConfig("bf16", DEPTH, cut=True, write_lse=True), launch)


def merging_us(rows: int, parts: int, lists: int, constants: dict[str, Constant]) -> float:
    """Time of the launch that merges, whose CTAs all run at once: each merges a row of one list after another."""
    value = {name: constant.value for name, constant in constants.items()}
    most = most_cut(int(value["sms"]))
    if -(-most // TURNS) * rows // ROWS_MERGED * THREADS > THREADS_OF_SM * value["sms"]:
        raise ValueError("the CTAs that merge do not fit on the SMs at once")
    alike = -(-parts // AHEAD) * AHEAD  # as many loads come together
    cycles = max(-(-lists * TURNS // most), 1) * cycles_of_merging(alike)
    return max(cycles / value["clock_ghz"] * 1e-3, value["dependent_least_us"])


def table(kernels: dict, constants: dict[str, Constant]) -> str:
    """A row for each size, pattern and density; a star where calls do not cut lists."""
    lines = [
        f"Modelled: one sequence, bf16, head dim {DEPTH}, blocks of {GRID[128].q_block} x {KEYS_A_TILE} and of "
        f"{GRID[256].q_block} x {KEYS_A_TILE} queries x keys. us of a call with all of its launches. Lists: how many "
        "are cut, into how many parts in all. *: calls of this size do not cut lists.",
        "",
        "| S | heads | pattern | density | 128: before | cut | ratio | lists | 256: before | cut | ratio | lists |",
        "|---" * 12 + "|",
    ]
    for seqlen, heads in SIZES:
        for pattern, density in PATTERNS:
            row = [seqlen, heads, pattern, density]
            for q_block in GRID:
                of = problem(pattern, seqlen, heads, q_block, density)
                found = times(kernels, q_block, of, constants)
                star = "" if cuts(len(of.counts) * heads, seqlen, constants) else " *"
                lists = f"{found.lists}, {found.parts}" if found.lists else "0"
                row += [f"{found.before:.1f}", f"{found.cut:.1f}{star}"]
                row += [ratio(found.before / found.cut), lists]
            lines.append("| " + " | ".join(map(str, row)) + " |")
    return "\n".join(lines)


def cuts(tiles: int, keys: int, constants: dict[str, Constant]) -> bool:
    """Whether calls with so many work tiles and keys cut their lists."""
    few = tiles <= tuning.choose("cut_lists") * constants["sms"].value
    return few and keys >= tuning.choose("cut_least_keys")


def variants() -> list:
    """Every kernel of the table."""
    return [variant for made in (CUT, PARTS, SORTED, GRID) for variant in made.values()]


def tables(constants: dict[str, Constant]) -> dict[str, str]:
    """By the mark of docs/performance/block_sparsity.md."""
    kernels = {variant: report.model(variant, constants) for variant in variants()}
    return {"cut_lists": f"{table(kernels, constants)}\n\n{modelled.made_by(kernels)}"}
