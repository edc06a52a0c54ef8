"""Where the scales of blocks of a key tile are in global memory: pages are looked up a turn of key tiles ahead.

    lane of the scales warp    0 .. 3     4 .. 7     8 ..          each has four consecutive keys of a key tile
    pages of 16 keys           box 0      box 1      box 2 ..      a box of a page, as TMA copies it (tma/paged_rows.py)

BoxRows    boxes of pages: lane p looks up box p of several key tiles, and computes the address of its first row once.
           A lane gets its address from the lane of its box.
KeyRows    everything else, as rows of pages that are gathered, or scales that are read byte by byte: each lane does it
           for its own keys.
"""

from dataclasses import dataclass

import cutlass.cute as cute

from cute_fa4.tma import paged_rows
from cute_fa4.tma.paged_rows import Boxes

from ...blueprint.cache_blocks import in_words
from ...steps import loads
from ...steps.cache_blocks import of_tile
from ...steps.pieces import WORDS
from ...sync.kernel_args import KernelArgs
from ...work import blocks, scales
from ...work.tile import Work

TILES = 4  # of a turn
KEYS = WORDS  # of a lane, side by side: a piece of the ring


def keys_of_page(cfg) -> int:
    """How many of a lane's keys are in one page, whatever the page table says."""
    begins_anywhere = cfg.kv_layout == "paged" and (cfg.page_size % KEYS or cfg.cache_leftpad)
    return 1 if begins_anywhere else KEYS


@dataclass(frozen=True)
class KeyRows:
    """A lane has the pages and the rows of its own keys: for each key tile of a turn, for each keys_of_page."""

    def pages(self, cfg, args: KernelArgs, work: Work, n) -> tuple:
        """Of the turn that begins with key tile n; they are on their way."""
        return tuple(
            tuple(scales.page_of_key(cfg, args, work, *key) for key in self.keys(cfg, work, n + i))
            for i in range(TILES)
        )

    def rows(self, cfg, args: KernelArgs, work: Work, n, pages: tuple) -> tuple:
        """Of the same turn."""
        together = keys_of_page(cfg)
        return tuple(
            tuple(
                scales.rows_of_keys(cfg, args, work, key, page, exists, together)
                for page, (key, exists) in zip(pages[i], self.keys(cfg, work, n + i), strict=True)
            )
            for i in range(TILES)
        )

    def of_tile(self, cfg, args: KernelArgs, work: Work, n, i: int, rows: tuple) -> tuple:
        """The lane's rows in key tile n, number i of its turn: a scales.RowsOfKeys for each keys_of_page."""
        return rows[i]

    def keys(self, cfg, work: Work, n) -> list:
        """The first of each keys_of_page in key tile n: (key, whether the work tile has it)."""
        first = KEYS * cute.arch.lane_idx()
        return [of_tile(cfg, work, first + i, n) for i in range(0, KEYS, keys_of_page(cfg))]


@dataclass(frozen=True)
class BoxRows:
    """A lane has a page and the first row of its box, of as many key tiles as fit into the lanes of a warp."""

    def pages(self, cfg, args: KernelArgs, work: Work, n) -> tuple:
        row, boxes = args.lengths.cache_row(work.sequence.batch), self.boxes(cfg)
        of_call = args.page_divisor, args.page_table, row
        return tuple(
            paged_rows.look_up_at_once(boxes, *of_call, first_key, work.sequence.num_keys)
            for first_key in self.first_keys(cfg, n)
        )

    def rows(self, cfg, args: KernelArgs, work: Work, n, pages: tuple) -> tuple:
        of_pages = zip(pages, self.first_keys(cfg, n), strict=True)
        boxes = self.boxes(cfg)
        return tuple(scales.rows_of_boxes(cfg, args, work, boxes, *page) for page in of_pages)

    def of_tile(self, cfg, args: KernelArgs, work: Work, n, i: int, rows: tuple) -> tuple:
        boxes, key = self.boxes(cfg), KEYS * cute.arch.lane_idx()
        number, tile = divmod(i, boxes.tiles)
        box = tile * boxes.of_tile + key // boxes.rows
        first_key = blocks.key_tile(cfg, n) * cfg.tiles.BN
        keys = key % boxes.rows, first_key + key, KEYS
        return (scales.rows_in_box(args, work, rows[number], box, *keys),)

    def boxes(self, cfg) -> Boxes:
        """Those of a look-up."""
        boxes = loads.boxes_of(cfg)
        return boxes._replace(tiles=min(TILES, boxes.tiles))

    def first_keys(self, cfg, n) -> list:
        """Of each look-up of the turn that begins with key tile n."""
        return [
            blocks.key_tile(cfg, n + i) * cfg.tiles.BN
            for i in range(0, TILES, self.boxes(cfg).tiles)
        ]


def rows_of(cfg) -> KeyRows | BoxRows:
    """How a kernel finds them."""
    in_boxes = cfg.tiles.tiles_of_look_up > 1
    return BoxRows() if in_boxes and all(in_words(cfg, name) for name in "kv") else KeyRows()
