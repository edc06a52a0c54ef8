"""Lists of key blocks of which the longest are cut into parts: time by pattern, compared with the same calls without.

Work tiles and parts are those of the kernels' own rules. All heads share the lists of a problem.

    global    the first query block sees all keys, as that of global tokens does; the others as many as the density says
    long last, random  as in block_sparse.py
    before    the call without parts: in the order of the grid, or sorted where SMs have more than three work tiles each
    cut       three launches: one CTA sorts work tiles and cuts lists, attention, and the merge of the parts
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.cycle_model import block_sparse, profiled, report, schedules
from benchmarks.cycle_model.block_sparse import (
    DEPTH,
    IN_ORDER,
    LARGE,
    SMALL,
    Kernels,
    Launches,
    Listed,
)
from benchmarks.cycle_model.grid import CTACycles, Curve, launch_time
from benchmarks.cycle_model.modelled import Model, made_by, marked
from benchmarks.cycle_model.profiled import Cost, Launch
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
ROWS = [(*size, *pattern) for size in SIZES for pattern in PATTERNS]
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
    """us of a call without parts and with them, and how many lists are cut into how many parts in all.

    used  what the first two are computed from
    """

    before: float
    cut: float
    lists: int
    parts: int
    used: tuple


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


def cut(q_block: int, of: Listed, constants: dict[str, Constant]) -> tuple[list[int], list[int]]:
    """Key tiles of the work tiles in their order, those of parts negative; and the parts of each list that is cut."""
    sms = int(constants["sms"].value)
    lengths = schedules.work_tiles(replace(CUT[q_block], choices=()), of)
    entries = cut_in_order(lengths, sms, tuning.choose("cut_least_tiles"))
    order = []
    for tile, number, parts, _ in entries:
        each, more = divmod(lengths[tile], parts)
        keys = each + (number < more)
        order.append(-keys if parts > 1 else keys)
    return order, [parts for _, number, parts, _ in entries if parts > 1 and number == 0]


def launches_of(q_block: int, of: Listed, constants: dict[str, Constant]) -> tuple[Launch, ...]:
    """The launch that cuts lists, the one that merges, and the one that sorts, if the call without parts has it."""
    tiles = len(schedules.work_tiles(GRID[q_block], of))
    _, parts = cut(q_block, of, constants)
    found = cutting(tiles, of.heads_q), merging(alike(max(parts, default=0)))
    return (*found, *[block_sparse.sorting(tiles)] * block_sparse.sorts(tiles, constants))


def times(
    kernels: Kernels, launches: Launches, q_block: int, of: Listed, constants: dict[str, Constant]
) -> Times:
    """The times of a call, with the rules of the kernels."""
    order, parts = cut(q_block, of, constants)
    whole, part = (kernels[variants[q_block]].cycles for variants in (CUT, PARTS))
    cycles = CTACycles(
        WholeAndPart(whole.single, part.single), WholeAndPart(whole.added, part.added)
    )
    time = launch_time(CUT[q_block], of, cycles, constants, order=order)
    cuts_lists, merges, *sorts = (launches[one] for one in launches_of(q_block, of, constants))
    around = block_sparse.before_us(cuts_lists.cycles, constants)
    around += merging_us(q_block, merges.cycles, len(parts), constants)
    variant = (SORTED if sorts else GRID)[q_block]
    before = launch_time(variant, of, kernels[variant].cycles, constants).us
    before += sum(block_sparse.before_us(one.cycles, constants) for one in sorts)
    used = (
        *(kernels[v[q_block]] for v in (CUT, PARTS)),
        kernels[variant],
        cuts_lists,
        merges,
        *sorts,
    )
    return Times(before, time.us + around, len(parts), sum(parts), used)


def cutting(tiles: int, heads: int) -> Launch:
    """The CTA that sorts the work tiles of a launch and cuts their lists; random lengths."""

    def launch(kernel):
        import torch

        shares, counts = 148, block_sparse.lengths_of(tiles // heads)
        order = torch.empty((tiles + shares, ORDER_WORDS), dtype=torch.int32)
        cut = torch.empty((most_cut(shares), CUT_WORDS), dtype=torch.int32)
        sizes = tiles // heads, heads, 1, tiles, shares, 8
        kernel((counts, counts), counts[0, 0], (2, 0), sizes, order, cut)

    name = f"lists of {tiles} work tiles of {heads} heads cut"
    return block_sparse.launch_of(name, BlockListsConfig("cut"), launch)


def merging(parts: int) -> Launch:
    """A CTA whose warps merge a row each, and then find no other list; 0 parts: they find none."""

    def launch(kernel):
        import torch

        o = torch.zeros((max(parts, 1), ROWS_MERGED, DEPTH))
        cut = torch.tensor([[0, 0, parts], [0, 0, 0]], dtype=torch.int32)
        out = torch.empty((1, ROWS_MERGED, 1, DEPTH), dtype=torch.bfloat16)
        lse = torch.empty((1, 1, ROWS_MERGED))
        kernel(o, o[..., 0].contiguous(), cut, out, lse, None, None, 0, None)

    config = CombineConfig("bf16", DEPTH, cut=True, write_lse=True)
    return block_sparse.launch_of(f"{parts} parts of a cut list merged", config, launch)


def alike(parts: int) -> int:
    """Parts that are merged in the time of so many: as many loads come together."""
    return -(-parts // AHEAD) * AHEAD


def merging_us(rows: int, merge: float, lists: int, constants: dict[str, Constant]) -> float:
    """Time of the launch that merges, whose CTAs all run at once: each merges a row of one list after another.

    merge: cycles of a row of the list with the most parts
    """
    value = {name: constant.value for name, constant in constants.items()}
    most = most_cut(int(value["sms"]))
    if -(-most // TURNS) * rows // ROWS_MERGED * THREADS > THREADS_OF_SM * value["sms"]:
        raise ValueError("the CTAs that merge do not fit on the SMs at once")
    cycles = max(-(-lists * TURNS // most), 1) * merge
    return max(cycles / value["clock_ghz"] * 1e-3, value["dependent_least_us"])


def table(kernels: Kernels, launches: Launches, constants: dict[str, Constant]) -> str:
    """A row for each size, pattern and density; a star where calls do not cut lists."""
    lines = [
        f"Modelled: one sequence, bf16, head dim {DEPTH}, blocks of {GRID[128].q_block} x {KEYS_A_TILE} and of "
        f"{GRID[256].q_block} x {KEYS_A_TILE} queries x keys. us of a call with all of its launches. Lists: how many "
        "are cut, into how many parts in all. *: calls of this size do not cut lists.",
        "",
        "| S | heads | pattern | density | 128: before | cut | ratio | lists | 256: before | cut | ratio | lists |",
        "|---" * 12 + "|",
    ]
    for seqlen, heads, pattern, density in ROWS:
        row = [seqlen, heads, pattern, density]
        for q_block in GRID:
            of = problem(pattern, seqlen, heads, q_block, density)
            found = times(kernels, launches, q_block, of, constants)
            star = "" if cuts(len(of.counts) * heads, seqlen, constants) else " *"
            lists = f"{found.lists}, {found.parts}" if found.lists else "0"
            row += [marked(f"{found.before:.1f}", *found.used), f"{found.cut:.1f}{star}"]
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


def launches(constants: dict[str, Constant]) -> list[Launch]:
    """Every launch of the table that is not of attention."""
    found: dict[Launch, None] = {}
    for seqlen, heads, pattern, density in ROWS:
        for q_block in GRID:
            of = problem(pattern, seqlen, heads, q_block, density)
            found |= dict.fromkeys(launches_of(q_block, of, constants))
    return list(found)


def tables(
    constants: dict[str, Constant], model: Model = report.model, cost: Cost = profiled.recorded
) -> dict[str, str]:
    """By the mark of docs/performance/block_sparsity.md."""
    kernels = {variant: model(variant, constants) for variant in variants()}
    costs = {launch: cost(launch) for launch in launches(constants)}
    of_code = made_by([*kernels.values(), *costs.values()])
    return {"cut_lists": f"{table(kernels, costs, constants)}\n\n{of_code}"}
