"""PagedRowIndices: where the rows of one key tile lie, looked up once and used for K and for V.

A tile of BN keys is covered by boxes of `box_rows` = min(page_size, BN) rows; a box never crosses a page. For each
box the object holds the row in the operand's row space and how many of its rows exist:

    page_size 64, BN 128, page table (7, 2, 9, 4), keys 128..255 of a sequence of 200
        box 0   page 9   row 9 * rows_per_page          64 rows
        box 1   page 4   row 4 * rows_per_page           8 rows, the rest arrives as zeros

A box without rows is still copied, wholly out of bounds: its zeros are what P V needs there, the expected bytes stay
the same for every tile, and neither its page nor its table entry is read. So table entries beyond a sequence may hold
anything.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..sm100.scalars import choose, maximum, minimum


@dataclass(frozen=True)
class PagedRowIndices:
    """rows[p], valid[p]: first row of box p and how many of its rows exist. Tuples of Int32."""

    rows: tuple
    valid: tuple


def box_rows(tile_rows: int, page_size: int) -> int:
    """Rows of one copy: a page, or the tile if that is shorter or nothing is paged.

    >>> box_rows(128, 64), box_rows(128, 256), box_rows(128, 0)
    (64, 128, 128)
    """
    return min(tile_rows, page_size) if page_size else tile_rows


def populate_contiguous(tile_rows: int, first_row, first_key, num_keys) -> PagedRowIndices:
    """Rows [first_row + first_key, ...) of a packed sequence of `num_keys` keys: one box."""
    valid = minimum(maximum(num_keys - first_key, 0), tile_rows)
    return PagedRowIndices((first_row + first_key,), (valid,))


@cute.jit
def _load_entries(
    table: cute.Tensor, batch, first, count: cutlass.Constexpr, vector: cutlass.Constexpr
):
    """Table entries [first, first + count) of a sequence, `vector` at a time; `first` is a multiple of `vector`."""
    entries = []
    row = table[batch, None]
    for start in cutlass.range_constexpr(0, count, vector):
        if cutlass.const_expr(vector == 1):
            entries.append(row[first + start])
        else:
            source = cute.make_tensor(
                (row.iterator + (first + start)).align(4 * vector), cute.make_layout(vector)
            )
            loaded = cute.make_rmem_tensor(vector, cutlass.Int32)
            cute.autovec_copy(source, loaded)
            for i in cutlass.range_constexpr(vector):
                entries.append(loaded[i])
    return entries


@cute.jit
def populate(
    tile_rows: cutlass.Constexpr,
    page_size: cutlass.Constexpr,
    vector: cutlass.Constexpr,
    table: cute.Tensor,
    rows_per_page,
    num_pages,
    batch,
    first_key,
    num_keys,
):
    """Rows of keys [first_key, first_key + tile_rows); first_key is a multiple of tile_rows.

    table    (batch, pages) int32; vector: entries of one load, a power of two up to 4 that divides the boxes of a
             tile and to which the table's rows are aligned
    """
    rows = box_rows(tile_rows, page_size)
    boxes = tile_rows // rows
    left = num_keys - first_key
    valid = [minimum(maximum(left - p * rows, 0), rows) for p in range(boxes)]
    entries = [Int32(0)] * boxes
    if cutlass.const_expr(boxes == 1):
        if left > 0:
            entries[0] = table[batch, first_key // page_size]
    else:
        whole = left > (boxes - 1) * rows
        if whole:
            entries = _load_entries(table, batch, first_key // page_size, boxes, vector)
        else:
            for p in cutlass.range_constexpr(boxes):
                if left > p * rows:
                    entries[p] = table[batch, first_key // page_size + p]
    inside = first_key % page_size if rows < page_size else 0
    # A page that does not exist has no rows: zeros, and nothing is read.
    exists = [choose(entry >= 0, choose(entry < num_pages, 1, 0), 0) for entry in entries]
    first_rows = tuple(
        entry * there * rows_per_page + inside for entry, there in zip(entries, exists, strict=True)
    )
    return first_rows, tuple(v * there for v, there in zip(valid, exists, strict=True))
