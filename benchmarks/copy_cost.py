"""The cost of pages for the load warp: TMA copies, instructions and issue cycles per key tile.

    python benchmarks/copy_cost.py [--head-dim 128] [--docs]

The counts are those of one K and one V tile of 128 keys in the middle of a sequence, from the difference of six and
four key tiles. The emulator counts the copies, including those of V that another warp issues, and records the path
of the load warp through the machine code, whose control codes have the issue cycles of each instruction. Waits for
results are not included, nor the cost of a copy for the TMA unit beyond its bytes, for which no figure is
published. --docs writes the table of docs/serving/caches.md.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.cycle_model.evaluate import AlignedKernel
from benchmarks.cycle_model.kernels import OURS, Variant, traced
from benchmarks.cycle_model.workloads import KEYS_A_TILE, workload

DOCUMENT = Path(__file__).parents[1] / "docs" / "serving" / "caches.md"
MARKED = re.compile(r"(<!-- page sizes[^>]*-->\n).*?(<!-- /page sizes -->)", re.DOTALL)
PAGE_SIZES = (0, 1, 2, 3, 4, 7, 8, 16, 24, 48, 64, 128, 544, 784)
TILES = (4, 6)


@dataclass(frozen=True)
class Cost:
    """The cost of a key tile, K and V."""

    page_size: int
    copies: int
    bytes_of_copy: int
    instructions: float
    issue_cycles: float


def cost_of(head_dim: int, page_size: int) -> Cost:
    """Compile, emulate two launches, and follow the load warp."""
    variant = Variant(OURS, head_dim=head_dim, page_size=page_size, one_block=True)
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


def table(costs: list[Cost]) -> str:
    """Markdown."""
    lines = [
        "| keys a page | copies of a key tile | bytes of a copy | instructions of the load warp | issue cycles |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {cost.page_size or 'contiguous'} | {cost.copies} | {cost.bytes_of_copy:,} | {cost.instructions:.0f} | "
        f"{cost.issue_cycles:.0f} |"
        for cost in costs
    ]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument(
        "--docs", action="store_true", help="write the table of docs/serving/caches.md"
    )
    options = parser.parse_args(arguments)
    written = table([cost_of(options.head_dim, page_size) for page_size in PAGE_SIZES])
    print(written)
    if options.docs:
        text = DOCUMENT.read_text()
        DOCUMENT.write_text(MARKED.sub(lambda found: found[1] + written + found[2], text))


if __name__ == "__main__":
    main()
