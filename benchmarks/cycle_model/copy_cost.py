"""The cost of pages for the load warp: TMA copies, instructions and issue cycles per key tile.

    python -m benchmarks.cycle_model.copy_cost [--head-dim 128]

The counts are those of one K and one V tile of 128 keys in the middle of a sequence, from the difference of six and
four key tiles. The emulator counts the copies, including those of V that another warp issues, and records the path
of the load warp through the machine code, whose control codes have the issue cycles of each instruction. Waits for
results are not included, nor the cost of a copy for the TMA unit beyond its bytes, for which no figure is
published. docs/generate.py writes the tables of docs/serving/caches.md from records (cycle_model/recorded.py).
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from functools import partial

from benchmarks.cycle_model.evaluate import AlignedKernel
from benchmarks.cycle_model.kernels import OURS, Variant, traced
from benchmarks.cycle_model.modelled import NAN, Model, made_by, marked
from benchmarks.cycle_model.records import Constants, Subject, records
from benchmarks.cycle_model.workloads import KEYS_A_TILE, workload

HEAD_DIM = 128
# Keys: rows that are gathered (1 to 7), boxes of 8, 16 and twice 8 keys, and boxes with all keys of a tile.
PAGE_SIZES = (0, 1, 2, 4, 7, 8, 16, 24, 128)
TILES = (4, 6)
# Kernels of the cycles of prefill: contiguous keys, rows that are gathered, boxes of 16 keys.
PREFILL = tuple(Variant(OURS, HEAD_DIM, page_size=size) for size in (0, 1, 4, 16))


@dataclass(frozen=True)
class Cost:
    """The cost of a key tile, K and V."""

    page_size: int
    copies: int
    bytes_of_copy: int
    instructions: float
    issue_cycles: float


def variant_of(head_dim: int, page_size: int) -> Variant:
    return Variant(OURS, head_dim=head_dim, page_size=page_size, one_block=True)


def subject(page_size: int) -> Subject:
    """The record of a page size, which depends on no constant."""
    from benchmarks.cycle_model.our_kernel import config

    variant = variant_of(HEAD_DIM, page_size)

    def figures() -> dict:
        return {"cost": asdict(cost_of(HEAD_DIM, page_size))}

    return Subject(f"copies of {variant}", str(variant), {}, figures, partial(config, variant))


def recorded(page_size: int) -> Cost:
    """The record of a page size; without one all figures are NaN."""
    of = subject(page_size)
    return (
        Cost(page_size, *[NAN] * 4) if of.state == "missing" else Cost(**records()[of.name]["cost"])
    )


def cost_of(head_dim: int, page_size: int) -> Cost:
    """Compile, emulate two launches, and follow the load warp."""
    variant = variant_of(head_dim, page_size)
    works = [workload(variant, tiles) for tiles in TILES]
    kernel = traced(variant, works)
    aligned = AlignedKernel.of(kernel)
    load, values = _loading_warps()

    def a_tile(of, warp=load) -> float:
        few, many = (of(aligned.runs[work][0][0, warp]) for work in works)
        return (many - few) / (TILES[1] - TILES[0])

    def copies_in(path) -> int:
        return sum(step.instruction.name.startswith("UTMALDG") for step in path)

    copies = round(sum(a_tile(copies_in, warp) for warp in (load, values)))
    return Cost(
        page_size,
        copies,
        2 * KEYS_A_TILE * _padded(head_dim) * 2 // copies,
        a_tile(len),
        a_tile(lambda path: sum(max(1, aligned.codes[s.instruction.address].stall) for s in path)),
    )


def _loading_warps() -> tuple[int, int]:
    """The load warp, and the warp that copies V for gathered rows and is otherwise idle."""
    from cute_fa4.sm100.blueprint.warp_roles import WarpRoles

    warps = WarpRoles().with_values()
    return warps.load.start, warps.values.start


def _padded(head_dim: int) -> int:
    return -(-head_dim // 64) * 64


def table(costs: list[Cost], used: list[Subject] | None = None) -> str:
    """Markdown. used: the records of the costs, if they are recorded."""
    lines = [
        "| keys a page | copies of a key tile | bytes of a copy | instructions of the load warp | issue cycles |",
        "|---|---|---|---|---|",
    ]
    for cost, of in zip(costs, used or [None] * len(costs), strict=True):
        numbers = (cost.copies, cost.bytes_of_copy, cost.instructions, cost.issue_cycles)
        copies, *cells = (f"{number:,.0f}" for number in numbers)
        cells = [str(cost.page_size or "contiguous"), marked(copies, of), *cells]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", made_by(used)] if used else lines)


def recorded_table() -> str:
    """The table of docs/serving/caches.md."""
    return table([*map(recorded, PAGE_SIZES)], [*map(subject, PAGE_SIZES)])


def prefill_table(constants: Constants, model: Model) -> str:
    """Cycles of a key tile, K and V for 256 queries, with both warps and all waits."""
    lines = ["| keys a page | cycles of a key tile in prefill | bound |", "|---|---|---|"]
    used = [model(variant, constants) for variant in PREFILL]
    for variant, kernel in zip(PREFILL, used, strict=True):
        cells = [str(variant.page_size or "contiguous")]
        cells += [marked(f"{kernel.steady.cycles:,.0f}", kernel), kernel.steady.bound]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", made_by(used)])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--head-dim", type=int, default=HEAD_DIM)
    options = parser.parse_args(arguments)
    print(table([cost_of(options.head_dim, page_size) for page_size in PAGE_SIZES]))


if __name__ == "__main__":
    main()
