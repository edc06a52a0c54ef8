"""A work tile: which rows of which sequence a CTA runs next, and which key tiles they see."""

from dataclasses import dataclass

from cutlass import Int32

from .kv_range import TileRange
from .sequence import Sequence


@dataclass(frozen=True)
class WorkTile:
    """The CTA's share: BM rows from `first_position` on, of one head (packed: of one key/value head).

    A row is a query position, or with packed groups (position, head of the group).
    """

    first_position: Int32
    head: Int32  # of the query; packed: the first of the group
    kv_head: Int32
    batch: Int32
    part: Int32 | None = None  # of the keys, where they are split; shared: stream_k.part_of


@dataclass(frozen=True)
class Work:
    """A work tile: its share of the queries, its sequence, and the key tiles it takes.

    again: nonzero in a rerun (`checked.py`); None if no tile is rerun
    """

    tile: WorkTile
    sequence: Sequence
    tiles: TileRange
    again: Int32 | None = None
