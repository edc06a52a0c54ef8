"""Blocks of the grid: a CTA's own, or that of the pair of CTAs which share an MMA and its key tiles.

    rows of a block     0..255   256..511       of four query tiles
    a CTA alone         block 0  block 1
    a pair              block 0, rank 0 | rank 1

Ranks are those of the cluster. Every CTA of a block takes the key tiles that any row of the block sees.
"""

import cutlass.cute as cute
from cutlass import Int32


def own_block(cfg) -> Int32:
    """The block that a CTA was launched as."""
    cta, _, _ = cute.arch.block_idx()
    return block_of(cfg, cta)


def block_of(cfg, cta) -> Int32:
    """The block of CTA number `cta` of the grid; -1 for -1, which is no CTA."""
    return cta if cfg.tiles.cta_group == 1 else cta >> 1


def rank(cfg) -> Int32 | int:
    """Which CTA of its block this is."""
    if cfg.tiles.cta_group == 1:
        return 0
    return rank_in_cluster()


def rank_in_cluster() -> Int32:
    """Which CTA of its cluster this is."""
    return cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())


def key_tile(cfg, n) -> Int32:
    """The key tile of turn n: n; if CTAs share the keys of a block, every cluster_parts-th one (split.py)."""
    if cfg.cluster_parts == 1:
        return n
    return n * cfg.cluster_parts + rank_in_cluster()


def turn_of(cfg, tile) -> Int32:
    """The inverse: this CTA's first turn whose key tile is not before `tile`."""
    if cfg.cluster_parts == 1:
        return tile
    return turn_from(tile, rank_in_cluster(), cfg.cluster_parts)


def turn_from(tile, rank, number: int):
    """The first turn of a rank whose key tile is not before `tile`, which is not negative.

    >>> [turn_from(tile, 1, 4) for tile in (0, 1, 2, 5, 6)]
    [0, 0, 1, 1, 2]
    """
    return (tile + (number - 1 - rank)) // number


def first_position(cfg, of_block):
    """The first position of this CTA's rows, in a block that begins at position `of_block`."""
    if cfg.tiles.cta_group == 1:
        return of_block
    return of_block + rank(cfg) * cfg.tiles.positions_per_cta


def block_begin(cfg, position):
    """The inverse: where the block begins in which this CTA's rows begin at a position."""
    if cfg.tiles.cta_group == 1:
        return position
    return position - rank(cfg) * cfg.tiles.positions_per_cta
