"""Which query and which head a row of a query tile is.

one head a tile              packed group of 4
row 0   position 0           row 0   position 0, head 0
row 1   position 1           row 1   position 0, head 1
...                          ...
                             row 4   position 1, head 0
"""

from dataclasses import dataclass

from cutlass import Int32


@dataclass(frozen=True)
class Row:
    """q_index: of the query in its sequence, may lie beyond the end; head: of the query."""

    q_index: Int32
    head: Int32


def row_of(cfg, work, i, row) -> Row:
    """Row `row` (0 to 127) of query tile i of the CTA."""
    first = work.tile.first_position + i * positions_per_tile(cfg)
    if cfg.heads_per_tile == 1:
        return Row(first + row, work.tile.head)
    return Row(first + row // cfg.heads_per_tile, work.tile.head + row % cfg.heads_per_tile)


def positions_per_tile(cfg) -> int:
    return cfg.tiles.rows_per_q_tile // cfg.heads_per_tile
