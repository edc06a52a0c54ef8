"""GatheredRows: the rows of one key tile, looked up individually, for pages of any size.

A gather copies four arbitrary rows to four consecutive rows of the tile. Lane p of the load warp has the four rows
of gather p: the page of each from the table, then its row in the pool:

    page_size 3, page table (7, 2, 9, 4, ...), keys 0..127 of a sequence of 8

    lane   keys         pages     rows of the pool
    0      0  1  2  3   7 7 7 2   21 22 23  6
    1      4  5  6  7   2 2 9 9    7  8 27 28
    2      8  9 10 11   - - - -   none: the rows of the tile are zeros

Four consecutive keys are in one page if pages hold a multiple of four keys, else in two, or in four pages of one
key; in more if the keys of a sequence start within a page (left padding). The table is read from the page of the
first key to that of the sequence's last key; later entries may hold anything. A row that does not exist has a
negative index. TMA fills it with zeros, which P V needs there, and its bytes count like those of other rows
(Triton's tutorial "Native TMA Gather and Scatter" tests negative rows on Blackwell GPUs). The indices of a gather
differ from each other, because TMA is slow if all are equal, even for rows that do not exist (FlashMLA,
csrc/sm100/prefill/sparse/fwd/head128/phase1.cuh).
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..layouts.scalars import choose

ROWS = 4  # of one gather


@dataclass(frozen=True)
class GatheredRows:
    """The rows of a tile in the pool's row space: row i of gather p is rows[i] of lane p; negative: no row."""

    rows: tuple

    def in_map(self, rows_apart, first) -> "GatheredRows":
        """The same for a map with a row pitch of `rows_apart` pool rows; first: its index of row 0."""
        return GatheredRows(
            tuple(choose(row < 0, row, row * rows_apart + first) for row in self.rows)
        )

    def of_gather(self, p) -> tuple:
        """The four rows of gather p, in every lane."""
        return tuple(cute.arch.shuffle_sync(row, p) for row in self.rows)


def pages_of_four(page_size: int, anywhere: bool = False) -> int:
    """Number of pages of four consecutive rows that start at a multiple of four, or anywhere.

    >>> [pages_of_four(page) for page in (1, 2, 3, 4, 5, 6, 12, 33)]
    [4, 2, 2, 1, 2, 2, 1, 2]
    >>> [pages_of_four(page, anywhere=True) for page in (1, 2, 3, 4, 5, 128)]
    [4, 3, 2, 2, 2, 2]
    """
    if not anywhere and page_size % ROWS == 0:
        return 1
    if not anywhere and page_size == 2:
        return 2
    return 1 - (1 - ROWS) // page_size


def place_in_pages(page_size: int, first, i: int):
    """Row first + i of a sequence -> (number of pages after that of `first`, row in its page)."""
    page = (first + i) // page_size - first // page_size
    return page, (first + i) % page_size


@cute.jit
def look_up(
    tile_rows: cutlass.Constexpr,
    page_size: cutlass.Constexpr,
    anywhere: cutlass.Constexpr,
    table: cute.Tensor,
    batch,
    first_row,
    end,
):
    """Lane p: the pages of the rows of gather p of the tile, 0 for pages without keys of the sequence.

    first_row   first row of the tile in the sequence's pages, not negative; a multiple of four, or any
    end         end of the sequence's rows
    table       (batch, pages) int32
    """
    first = first_row + cute.arch.lane_idx() * ROWS
    end = cutlass.select_(cute.arch.lane_idx() < tile_rows // ROWS, end, 0)
    return tuple(
        entry_of(table, batch, first // page_size + i, page_size, end)
        for i in range(pages_of_four(page_size, anywhere))
    )


@cute.jit
def entry_of(table: cute.Tensor, batch, page, page_size: cutlass.Constexpr, end):
    """Entry `page` of a sequence's row, if that page holds keys before `end`."""
    entry = Int32(0)
    if page * page_size < end:
        entry = table[batch, page]
    return entry


def populate(
    page_size: int, entries: tuple, rows_per_page, num_pages, first_row, end
) -> GatheredRows:
    """Rows of a tile in the pages that look_up found. A page that does not exist has no rows."""
    first = first_row + cute.arch.lane_idx() * ROWS
    rows = []
    for i in range(ROWS):
        page, inside = place_in_pages(page_size, first, i)
        entry = entries[-1]
        for number in reversed(range(len(entries) - 1)):
            entry = choose(page == number, entries[number], entry)
        exists = (first + i < end) & (entry >= 0) & (entry < num_pages)
        rows.append(choose(exists, entry * rows_per_page + inside, -1 - i))
    return GatheredRows(tuple(rows))


def from_row(found: GatheredRows, first) -> GatheredRows:
    """The rows of a tile from row `first` on, a multiple of four; later ones may be anything."""
    lane = cute.arch.lane_idx() + first // ROWS & 31
    return GatheredRows(tuple(cute.arch.shuffle_sync(row, lane) for row in found.rows))
