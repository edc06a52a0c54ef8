"""Which query and which head a row of a query tile is.

one head a tile              packed group of 4
row 0   position 0           row 0   position 0, head 0
row 1   position 1           row 1   position 0, head 1
...                          ...
                             row 4   position 1, head 0
"""

from dataclasses import dataclass

from cutlass import Int32

from ...layouts.scalars import minimum


@dataclass(frozen=True)
class Row:
    """q_index: of the query in its sequence, may lie beyond the end; head: of the query."""

    q_index: Int32
    head: Int32


def row_of(cfg, work, i, row) -> Row:
    """Row `row` (0 to 127) of query tile i of the CTA."""
    first = work.tile.first_position + i * positions_per_tile(cfg)
    each = cfg.tiles.rows_per_position
    if each == 1:
        return Row(first + row, work.tile.head)
    return Row(first + row // each, work.tile.head + row % each)


def scheduled_head(cfg, work):
    """The index of the group of heads that shares a tile, among the groups of a position."""
    if not cfg.pack_gqa:
        return work.tile.head
    if cfg.heads_per_tile == cfg.group:
        return work.tile.kv_head
    return work.tile.head // cfg.heads_per_tile


def head_of(cfg, work, row: Row):
    """The head of a row; a padding row after the group gets the last head of the group."""
    if not cfg.tiles.pads_groups:
        return row.head
    return minimum(row.head, work.tile.head + cfg.heads_per_tile - 1)


def positions_per_tile(cfg) -> int:
    return cfg.tiles.rows_per_q_tile // cfg.tiles.rows_per_position
