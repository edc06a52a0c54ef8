"""Mistakes in what the warps look up in pages: several key tiles at once, and the rows of scales of blocks.

The subject: one query over 810 keys of NVFP4 in pages of 16, scales that all differ. Seven key tiles are two look-ups
of four; the last one has 42 keys, so pages of 16 keys are empty, half full and full, and what is in memory after the
last key is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
from cutlass import Int32

from cute_fa4.layouts.scalars import maximum
from cute_fa4.sm100.few_rows.dequantized import block_scales, scale_rows
from cute_fa4.sm100.steps import loads
from cute_fa4.sm100.work import scales
from cute_fa4.tma import paged_rows
from tests.emulator.mutations.quick import quick_or_sweep
from tests.sm100.steps.raw_row_defects import is_noticed, is_right_over_blocks

DEFECTS: dict[str, tuple[ModuleType | type, str, Callable]] = {
    "a key tile has the boxes of the first of its look-up": (
        loads, "place_in_look_up", lambda made: lambda cfg, work, n: Int32(0),
    ),
    "the next look-up comes a key tile late": (
        loads, "place_in_look_up", lambda made: lambda cfg, work, n: made(cfg, work, n - 1),
    ),
    "the look-up after is the same": (
        loads, "look_up_at_once",
        lambda made: lambda cfg, args, work, n: made(cfg, args, work, n % cfg.tiles.tiles_of_look_up),
    ),
    "pages are counted from the first key of the tile": (
        paged_rows, "_column", lambda made: lambda sizes, divisor, first, lane: made(sizes, divisor, first, lane % 8),
    ),
    "a box after the last key is looked up": (
        paged_rows, "_wanted", lambda made: lambda sizes, first, keys, lane: lane < sizes.of_tile * sizes.tiles,
    ),
    "a box of scales has the page of the next": (
        scales, "rows_in_box",
        lambda made: lambda args, work, found, box, *more: made(args, work, found, box + 1 & 31, *more),
    ),
    "a key has the scales of the first one of its box": (
        scales, "rows_in_box",
        lambda made: lambda args, work, found, box, row, *more: made(args, work, found, box, 0 * row, *more),
    ),
    "rows of scales are half as far apart": (
        scales, "row_bytes", lambda made: lambda args, name: made(args, name) // 2,
    ),
    "scales of missing keys are whatever memory holds": (
        block_scales, "of_existing", lambda made: lambda words, left: words,
    ),
    "a turn has the scales of the one before": (
        scale_rows.BoxRows, "pages",
        lambda made: lambda self, cfg, args, work, n: made(self, cfg, args, work, maximum(n - scale_rows.TILES, 0)),
    ),
}  # fmt: skip

# Whatever page is read there, its rows are not copied, since the box has no keys.
EQUIVALENT = ("a box after the last key is looked up",)
QUICK = (
    "a key tile has the boxes of the first of its look-up",
    "a box of scales has the page of the next",
)


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS, QUICK))
def test_a_mistake_is_noticed(own_kernels, monkeypatch, name):
    def is_right(mode: str, seed: int) -> bool:
        return is_right_over_blocks(810, 1, {"k": 128, "v": 128}, mode, seed)

    is_noticed(monkeypatch, DEFECTS[name], name, is_right)
