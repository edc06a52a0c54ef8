"""Which work tiles are single-tile."""

from cute_fa4.layouts.scalars import choose

from ...work import rows


def is_single(cfg, work):
    """Whether a work tile has rows for one query tile, and key tiles for both softmax warpgroups."""
    left = work.sequence.seqlen_q - work.tile.first_position
    return (left <= rows.positions_per_tile(cfg)) & (work.tiles.count > 1)


def one_if_single(cfg, work):
    """1 or 0, Int32."""
    return choose(is_single(cfg, work), 1, 0)
