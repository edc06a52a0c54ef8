"""PagedRowIndices: the rows of one key tile in paged memory, looked up once for K and V.

A tile of BN keys is covered by boxes of `box_rows` = gcd(page_size, BN) rows, a multiple of eight. If calls bind
the page size (Problem.binds_page_size), page_size is a divisor of it. A box never crosses a page boundary. Lane p
of the load warp has box p: the row in the operand's row space and the number of its valid rows:

    page_size 64, BN 128, page table (7, 2, 9, 4), keys 128..255 of a sequence of 200
        lane 0   page 9   row 9 * rows_per_page          64 rows
        lane 1   page 4   row 4 * rows_per_page           8 rows, the rest is filled with zeros

    page_size 48, BN 128, page table (7, 2, 9, 4), keys 0..127 of a sequence of 60
        lanes 0 to 2   page 7   rows 7 * rows_per_page + 0, 16, 32    16 rows each
        lanes 3 to 5   page 2   rows 2 * rows_per_page + 0, 16, 32    12, 0, 0 rows
        lanes 6, 7     page 9   not looked up                          0 rows

So the table entries of a tile are one coalesced load, for any alignment of the table, and the load completes when a
box is used. A box without rows is still copied, fully out of bounds. P V needs its zeros, and every tile then has
the same number of expected bytes. Its page is not read. Its table entry is not read either, unless a CTA looks it
up before it knows the length (sm100/steps/loads.py: guess). So table entries after the end of a sequence may hold
anything.
"""

from dataclasses import dataclass, replace
from math import gcd
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T

from ..layouts.scalars import choose, maximum, minimum


class Boxes(NamedTuple):
    """How tiles are covered by boxes, and how many tiles a warp looks up at once.

    >>> Boxes(128, 16, 4).of_tile, Boxes(128, 48).rows
    (8, 16)
    """

    tile_rows: int
    page_size: int
    tiles: int = 1  # of a look-up: the lanes after those of a tile have the boxes of the next ones
    apart: int = 1  # from one of these tiles to the next, in tiles

    @property
    def rows(self) -> int:
        """Rows of a box."""
        return box_rows(self.tile_rows, self.page_size)

    @property
    def of_tile(self) -> int:
        """Boxes of a tile."""
        return self.tile_rows // self.rows

    def first_key(self, lane):
        """The first key of the box of a lane, from the first key of the look-up on.

        >>> [Boxes(128, 64, 4, apart=2).first_key(lane) for lane in range(4)]
        [0, 64, 256, 320]
        """
        if self.tiles == 1 or self.apart == 1:
            return lane * self.rows
        return (
            lane // self.of_tile * (self.apart * self.tile_rows) + lane % self.of_tile * self.rows
        )


@dataclass(frozen=True)
class PagedRowIndices:
    """The boxes of a tile. `row`, `valid`: box p in lane p, or in first + p; a single box, without first, in all."""

    row: Int32
    valid: Int32
    boxes: cutlass.Constexpr
    first: Int32 | None = None

    def box(self, p: int) -> tuple:
        """(first row, rows that exist) of box p, in every lane."""
        if self.first is not None:
            p = self.first + p
        elif self.boxes == 1:
            return self.row, self.valid
        return cute.arch.shuffle_sync(self.row, p), cute.arch.shuffle_sync(self.valid, p)

    def in_groups_of_eight(self) -> "PagedRowIndices":
        """The same with rows counted in groups of eight, for whole pages; a page starts with a group."""
        return replace(self, row=self.row >> 3)

    def all_rows_exist(self, rows_of_box: int):
        """Whether all boxes of the tile are full."""
        whole = self.valid == rows_of_box
        if self.first is not None:
            lane = cute.arch.lane_idx()
            whole = whole | (lane < self.first) | (lane >= self.first + self.boxes)
        elif self.boxes > 1:
            whole = whole | (cute.arch.lane_idx() >= self.boxes)
        return cute.arch.vote_all_sync(whole)


def box_rows(tile_rows: int, page_size: int) -> int:
    """Rows of one copy: the common divisor of page and tile, or the tile without pages.

    >>> box_rows(128, 64), box_rows(128, 256), box_rows(128, 48), box_rows(128, 784), box_rows(128, 0)
    (64, 128, 16, 16, 128)
    """
    return gcd(tile_rows, page_size) if page_size else tile_rows


def nest(tile_rows: int, page_size: int) -> bool:
    """Whole pages in a tile, or whole tiles in a page: every tile starts at the same row of its page."""
    return tile_rows % page_size == 0 or page_size % tile_rows == 0


def populate_contiguous(tile_rows: int, first_row, first_key, num_keys) -> PagedRowIndices:
    """Rows [first_row + first_key, ...) of a packed sequence of `num_keys` keys: one box."""
    valid = minimum(maximum(num_keys - first_key, 0), tile_rows)
    return PagedRowIndices(first_row + first_key, valid, 1)


def place_of(row, page_size: int, divisor=None) -> tuple:
    """Row of a sequence -> (column of the page table, row in the page). divisor: of a bound page size."""
    return (row // page_size, row % page_size) if divisor is None else divmod(row, divisor)


def _column(sizes: Boxes, divisor, first_key, lane):
    """Column of the page table for the box of a lane."""
    tile_rows, page_size, tiles, apart = sizes
    consecutive = tiles == 1 or (sizes.rows == page_size and apart == 1)  # pages of the lanes
    if divisor is None and nest(tile_rows, page_size) and consecutive:
        return first_key // page_size + lane
    return place_of(first_key + sizes.first_key(lane), page_size, divisor)[0]


def place_in_page(sizes: Boxes, divisor, first_key, lane):
    """Where the box of a lane begins in its page."""
    if divisor is None and sizes.rows == sizes.page_size:
        return 0
    return place_of(first_key + sizes.first_key(lane), sizes.page_size, divisor)[1]


def _wanted(sizes: Boxes, first_key, num_keys, lane):
    """Whether a lane has a box with keys."""
    return (lane < sizes.of_tile * sizes.tiles) & (first_key + sizes.first_key(lane) < num_keys)


@cute.jit
def look_up(
    sizes: cutlass.Constexpr,
    divisor,
    table: cute.Tensor,
    batch,
    first_key,
    num_keys,
):
    """Lane p: the page of box p of the keys from first_key on, of one or several tiles; 0 without one.

    sizes       keys of a tile and of a page, and tiles
    divisor     page size as a fast divisor, if it is bound by the call; None: page_size
    first_key   a multiple of tile_rows, not negative
    table       (batch, pages) int32
    """
    lane = cute.arch.lane_idx()
    entry = Int32(0)
    if _wanted(sizes, first_key, num_keys, lane):
        entry = table[batch, _column(sizes, divisor, first_key, lane)]
    return entry


def look_up_at_once(sizes: Boxes, divisor, table: cute.Tensor, batch, first_key, num_keys):
    """The same without a branch: addresses are computed before the load of `num_keys` completes."""
    lane = cute.arch.lane_idx()
    column = _column(sizes, divisor, first_key, lane)
    return load_at_once(table, (batch, column), _wanted(sizes, first_key, num_keys, lane))


def load_at_once(tensor: cute.Tensor, place: tuple, wanted, dtype: str = "b32") -> Int32:
    """An element of a tensor, 0 unless wanted: without a branch, so that the load alone waits for `wanted`.

    dtype: of PTX, "b32" or "u8"
    """
    return load_from((tensor.iterator + tensor.layout(place)).toint(), wanted, dtype)


def load_from(address, wanted=True, dtype: str = "b32") -> Int32:
    """The same from an address of global memory."""
    operands, constraints = [address.ir_value()], "=r,l"
    text = f"ld.global.{dtype} $0, [$1];"
    if wanted is not True:
        operands, constraints = [*operands, choose(wanted, 1, 0).ir_value()], "=&r,l,r"
        text = (
            "{\n.reg .pred wanted;\nsetp.ne.b32 wanted, $2, 0;\nmov.b32 $0, 0;\n"
            f"@wanted {text}\n}}"
        )
    return Int32(
        llvm.inline_asm(
            T.i32(),
            operands,
            text,
            constraints,
            has_side_effects=True,
            is_align_stack=False,
            asm_dialect=llvm.AsmDialect.AD_ATT,
        )
    )


def populate(
    sizes: Boxes, divisor, entry, rows_per_page, num_pages, first_key, num_keys
) -> PagedRowIndices:
    """Rows of a tile, or several, in the pages that look_up found. sizes, divisor, first_key: as there.

    A page that does not exist has no rows: zeros, and nothing is read.
    """
    rows, boxes = sizes.rows, sizes.of_tile
    lane = 0
    if boxes == sizes.tiles == 1:
        entry = cute.arch.shuffle_sync(entry, 0)
    else:
        lane = cute.arch.lane_idx()
    exists = choose(entry >= 0, choose(entry < num_pages, 1, 0), 0)
    inside = place_in_page(sizes, divisor, first_key, lane)
    valid = minimum(maximum(num_keys - first_key - sizes.first_key(lane), 0), rows)
    return PagedRowIndices(entry * exists * rows_per_page + inside, valid * exists, boxes)


def rows_within(
    found: PagedRowIndices, first, rows: int, box_rows: int, rows_of_box: int
) -> PagedRowIndices:
    """Rows [first, first + rows) of a tile that was looked up in boxes of `box_rows`, in boxes of `rows_of_box`.

    first   a multiple of rows_of_box, which divides box_rows
    """
    boxes = rows // rows_of_box
    at = first if boxes == 1 else first + cute.arch.lane_idx() * rows_of_box
    row, valid = found.row, found.valid
    if found.boxes > 1:
        lane = at // box_rows & 31  # any value for lanes without a box
        row, valid = cute.arch.shuffle_sync(row, lane), cute.arch.shuffle_sync(valid, lane)
    inside = at % box_rows
    return PagedRowIndices(row + inside, minimum(maximum(valid - inside, 0), rows_of_box), boxes)
