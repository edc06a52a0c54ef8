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
    """The block of CTA number `cta` of the grid; of -1, which is none, -1."""
    return cta if cfg.tiles.cta_group == 1 else cta >> 1


def rank(cfg) -> Int32 | int:
    """Which CTA of its block this is."""
    if cfg.tiles.cta_group == 1:
        return 0
    return rank_in_cluster()


def rank_in_cluster() -> Int32:
    """Which CTA of its cluster this is."""
    return cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())


def first_position(cfg, of_block):
    """Of this CTA's rows, in a block that begins at this position."""
    if cfg.tiles.cta_group == 1:
        return of_block
    return of_block + rank(cfg) * cfg.tiles.positions_per_cta


def block_begin(cfg, position):
    """The other way round: where the block begins whose rows of this CTA begin at a position."""
    if cfg.tiles.cta_group == 1:
        return position
    return position - rank(cfg) * cfg.tiles.positions_per_cta
