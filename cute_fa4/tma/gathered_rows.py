"""GatheredRows: the rows of one key tile looked up one by one, for pages of any size.

A gather copies four rows, wherever they lie, to four neighbouring rows of the tile. Lane p of the load warp knows the
four rows of gather p: the page of each from the table, then its row in the pool:

    page_size 3, page table (7, 2, 9, 4, ...), keys 0..127 of a sequence of 8

    lane   keys         pages     rows of the pool
    0      0  1  2  3   7 7 7 2   21 22 23  6
    1      4  5  6  7   2 2 9 9    7  8 27 28
    2      8  9 10 11   - - - -   none: the rows of the tile are filled with zeros

Four keys in a row meet one page where pages hold a multiple of four keys, else two, or four pages of one key; more
where the keys of a sequence begin amid its rows (left padding). Pages from that of the first key on are read from the
table, as far as they hold a key of the sequence: entries beyond it may hold anything. A row that does not exist has a
negative number: TMA finds no such row and fills zeros, which is what P V needs there, and its bytes count like those of
the others (the tutorial "Native TMA Gather and Scatter" of Triton has negative rows in its test for Blackwell GPUs). No
two rows of a gather have the same: TMA is slow where all are the same, even if there is none (FlashMLA,
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
    """The rows of a tile in the pool's row space: row i of gather p is rows[i] of lane p; negative: there is none."""

    rows: tuple

    def in_map(self, rows_apart, first) -> "GatheredRows":
        """The same in a map whose rows are `rows_apart` rows of the pool apart; first: its row of row 0."""
        return GatheredRows(
            tuple(choose(row < 0, row, row * rows_apart + first) for row in self.rows)
        )

    def of_gather(self, p) -> tuple:
        """The four rows of gather p, in every lane."""
        return tuple(cute.arch.shuffle_sync(row, p) for row in self.rows)


def pages_of_four(page_size: int, anywhere: bool = False) -> int:
    """Pages that four rows of a sequence meet, whose first is a multiple of four, or anywhere.

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
    """Row first + i of a sequence -> (how many pages after that of `first`, place in its page)."""
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
    """Lane p: the pages of the rows of gather p of the tile, 0 where they hold no key of the sequence.

    first_row   of the tile in the sequence's pages, not negative; a multiple of four, or anywhere
    end         of the sequence's rows
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
    """Entry `page` of a sequence's row, if keys before `end` are in that page."""
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
    """The rows of a tile from row `first` on, a multiple of four; what lies behind them may be anything."""
    lane = cute.arch.lane_idx() + first // ROWS & 31
    return GatheredRows(tuple(cute.arch.shuffle_sync(row, lane) for row in found.rows))
