"""Where the parts of a row are in the workspace, and where its result goes.

as many parts everywhere    part p of every row: copies of O and of the log-sum-exp, one after another
cut                         consecutive slots of its work tile, for work tiles of a launch whose lists are cut
shared                      the consecutive slots of its block, which the attention kernel records
"""

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32

from ...layouts.scalars import maximum, minimum

TURNS = 3  # cut: rows of a warp, at most


@dataclass(frozen=True)
class Partial:
    """Partial results, as CombineKernel.__call__ takes them."""

    o: cute.Tensor
    lse: cute.Tensor
    parts: cute.Tensor | None


@dataclass(frozen=True)
class Result:
    """What is written, and the sinks of its heads, as CombineKernel.__call__ takes them."""

    out: cute.Tensor
    lse: cute.Tensor | None
    sink: cute.Tensor | None


@dataclass(frozen=True)
class Division:
    """Divisors that split row and head numbers into indices, created on the host (work/tile_order.py).

    heads, seqlen_q     of the result
    of_tile, positions  shared: heads and query positions of a block
    tiles, blocks       shared: of a sequence, and of one of its tiles; cut: blocks, a divisor, work tiles of a head
    """

    heads: object
    seqlen_q: object
    of_tile: object | None = None
    positions: object | None = None
    tiles: Int32 | None = None
    blocks: object = None


def division(partial: Partial, batch, seqlen_q, heads) -> Division:
    """Create the divisors on the host; each is at least 1."""
    divisor, at_least_one = cute.fast_divmod_create_divisor_v2, lambda n: maximum(Int32(n), 1)
    heads_and_length = divisor(at_least_one(heads)), divisor(at_least_one(seqlen_q))
    if partial.parts is None:
        return Division(*heads_and_length)
    if len(partial.lse.shape) == 2:
        rows = at_least_one(partial.lse.shape[1])
        blocks = at_least_one((Int32(seqlen_q) + rows - 1) // rows)
        return Division(*heads_and_length, positions=divisor(rows), blocks=divisor(blocks))
    _, of_tile, positions = (at_least_one(size) for size in partial.lse.shape)
    tiles = Int32(heads) // of_tile
    blocks = Int32(partial.parts.shape[0]) // at_least_one(batch * tiles)
    return Division(*heads_and_length, divisor(of_tile), divisor(positions), tiles, blocks)


@dataclass(frozen=True)
class Row:
    """A row of the result."""

    sequence: Int32
    q_index: Int32  # in its sequence
    number: Int32  # packed: in the tensor
    head: Int32


@dataclass(frozen=True)
class RowParts:
    """Parts [begin, end) of a row."""

    begin: Int32
    end: Int32
    lse: cute.Tensor  # by part
    o_of: cute.Tensor
    place: tuple  # in o_of, of part 0
    apart: Int32  # in its first dimension, from one part to the next

    def o(self, part) -> cute.Tensor:
        """All columns of O of a part."""
        first, *rest = self.place
        return self.o_of[(first + part * self.apart, *rest)]


def rows_of_lists(partial: Partial) -> tuple:
    """cut: -> (rows of all lists that may be cut, those that a launch has warps for). Most launches cut few lists."""
    lists, rows = Int32(partial.parts.shape[0]), Int32(partial.lse.shape[1])
    return lists * rows, (lists + TURNS - 1) // TURNS * rows


@dataclass(frozen=True)
class CutList:
    """A work tile whose list is cut, and the row of a warp in it; Int32."""

    sequence: Int32
    q_index: Int32
    head: Int32
    inside: Int32
    slot: Int32
    parts: Int32  # 0: there is no such list

    @staticmethod
    def of(partial: Partial, by: Division, number) -> "CutList":
        """number: of a row among those of the lists that are cut."""
        of_list, inside = divmod(number, by.positions)
        of_list = minimum(of_list, Int32(partial.parts.shape[0]) - 1)
        tile, slot, parts = (partial.parts[of_list, word] for word in range(3))
        rest, block = divmod(tile, by.blocks)
        sequence, head = divmod(rest, by.heads)
        rows = Int32(partial.lse.shape[1])
        return CutList(sequence, block * rows + inside, head, inside, slot, parts)

    def of_row(self, partial: Partial) -> RowParts:
        begin, end = self.slot, self.slot + self.parts
        of_part = partial.lse[None, self.inside]
        return RowParts(begin, end, of_part, partial.o, (Int32(0), self.inside, None), Int32(1))


def parts_of_row(cfg, partial: Partial, by: Division, out: cute.Tensor, row: Row) -> RowParts:
    if not cfg.shared:
        begin, number = Int32(0), Int32(partial.lse.shape[0])
        of_part = partial.lse[(None, *lse_place(cfg, row))]
        return RowParts(begin, number, of_part, partial.o, o_place(cfg, row), Int32(out.shape[0]))
    tile, head = divmod(row.head, by.of_tile)
    block, inside = divmod(row.q_index, by.positions)
    number = (row.sequence * by.tiles + tile) * by.blocks + block
    begin = partial.parts[number, 0]
    of_part = partial.lse[None, head, inside]
    place, apart = (Int32(0), inside, head, None), Int32(1)
    if cfg.packed:
        place, apart = (inside, head, None), Int32(partial.lse.shape[2])
    end = begin + partial.parts[number, 1]
    return RowParts(begin, end, of_part, partial.o, place, apart)


def lse_place(cfg, row: Row) -> tuple:
    return (row.head, row.number) if cfg.packed else (row.sequence, row.head, row.number)


def o_place(cfg, row: Row) -> tuple:
    """The place of all columns of O."""
    if cfg.packed:
        return row.number, row.head, None
    return row.sequence, row.number, row.head, None
