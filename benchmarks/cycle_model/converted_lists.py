"""Lists of small blocks: the launch that converts them to lists of tiles, one of whose CTAs is modelled.

docs/generate.py writes the table of docs/performance/block_sparsity.md from records (recorded.py).
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import NamedTuple

from benchmarks.cycle_model import block_sparse
from benchmarks.cycle_model.bounds import us
from benchmarks.cycle_model.modelled import made_by, marked
from benchmarks.cycle_model.profiled import Launch, recorded
from benchmarks.cycle_model.records import Constants
from cute_fa4.sm100.work.lists.config import TILE, UNIT, UNITS_OF_BYTE, BlockListsConfig

CONFIG = BlockListsConfig("tiles")


class Lists(NamedTuple):
    """Lists of a tile of queries. block: queries and keys of one; density: part of the key blocks that is listed."""

    block: tuple[int, int]
    keys: int
    density: float

    @property
    def launch(self) -> Launch:
        rows, columns = self.block
        name = f"lists of {rows} x {columns} converted, {self.keys} keys, {self.density:.0%}"
        return block_sparse.launch_of(name, CONFIG, self.run)

    def run(self, kernel) -> None:
        """One CTA, of a tile of queries; each listed block is a partial or a full one."""
        import torch

        q_block, kv_block = self.block
        draw, blocks = random.Random(0), self.keys // kv_block
        entries = torch.zeros(2, 1, 1, TILE // q_block, blocks, dtype=torch.int32)
        counts = torch.zeros(2, 1, 1, TILE // q_block, dtype=torch.int32)
        for row in range(TILE // q_block):
            for block in range(blocks):
                if draw.random() < self.density:
                    kind = draw.randrange(2)
                    entries[kind, 0, 0, row, counts[kind, 0, 0, row]] = block
                    counts[kind, 0, 0, row] += 1
        one, tiles = counts[0, 0, 0], torch.zeros(1, 1, 1, self.keys // TILE, dtype=torch.int32)
        units = torch.zeros(
            1, 1, TILE // q_block, self.keys // (UNIT * UNITS_OF_BYTE), dtype=torch.uint8
        )
        of_tiles = torch.zeros(1, 1, 1, dtype=torch.int32)
        results = of_tiles, tiles, of_tiles.clone(), tiles.clone(), units
        sizes = q_block, kv_block, TILE, TILE, self.keys, 0
        kernel((*counts,), (*entries,), (one, one), (one, one), (2, 0, 0, 0, 0), sizes, results)


ROWS = (
    Lists((64, 64), 8192, 0.1),
    Lists((64, 64), 32768, 0.1),
    Lists((128, 16), 8192, 0.3),
    Lists((16, 16), 8192, 0.1),
)


def launches() -> Iterable[Launch]:
    return (row.launch for row in ROWS)


def table(constants: Constants) -> str:
    """Cycles of a CTA of each, and the time of a launch whose CTAs all run at once."""
    lines = [
        "| blocks | keys | listed | cycles of a CTA | us with its start |",
        "|---|---|---|---|---|",
    ]
    used = []
    for row in ROWS:
        of = recorded(row.launch)
        used.append(of)
        time = us(of.cycles, constants) + constants["kernel_start_us"].value
        cells = [f"{row.block[0]} x {row.block[1]}", f"{row.keys:,}", f"{row.density:.0%}"]
        cells += [marked(f"{of.cycles:,.0f}", of), f"{time:.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", made_by(used)])
