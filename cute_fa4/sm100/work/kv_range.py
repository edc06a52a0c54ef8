"""Which key tiles a query tile needs, and which of them need a mask.

Tiles of BN keys are walked upwards. seqlen_q = 256, seqlen_k = 512, causal: query i sees keys up to i + 256.

              key tiles of 128
    rows      0    1    2    3
    0..127    .    .    m    -          . whole, no mask code      tiles of the CTA: 4 (the last row's)
    128..255  .    .    .    m          m crossed by the diagonal
                                        - needed by the other query tile alone: masked whole

A mask with a lower bound, a sliding window say, has masked tiles at both ends:

    [first, whole_from)  masked        [whole_from, whole_to)  whole        [whole_to, end)  masked
"""

from dataclasses import dataclass

from cutlass import Int32

from ...layouts.scalars import maximum, minimum
from . import blocks


@dataclass(frozen=True)
class TileRange:
    """Key tiles [first, first + count); of the CTAs of a cluster that share keys, turns (blocks.key_tile)."""

    first: Int32
    count: Int32


@dataclass(frozen=True)
class WholeTiles:
    """Key tiles [begin, end) that every row of a query tile sees whole; a part of the CTA's range."""

    begin: Int32
    end: Int32


def hull(cfg, position, num_keys, key_limit, sizes):
    """(lo, hi) of one query, clipped to the keys that exist and to `key_limit`."""
    lo, hi = cfg.mask.hull(position, num_keys, sizes)
    return lo, minimum(hi, key_limit)


def tile_range(cfg, first_position, last_position, num_keys, key_limit, sizes) -> TileRange:
    """What the CTA walks: from the first tile that its first row sees to the last one that its last row sees."""
    lo, _ = hull(cfg, first_position, num_keys, key_limit, sizes)
    _, hi = hull(cfg, last_position, num_keys, key_limit, sizes)
    first = lo // cfg.tiles.BN
    end = (hi + cfg.tiles.BN - 1) // cfg.tiles.BN
    return TileRange(first, maximum(end - first, 0))


def whole_tiles(
    cfg, tiles: TileRange, first_position, last_position, num_keys, key_limit, sizes
) -> WholeTiles:
    """The key tiles of a CTA that all rows of one query tile see whole."""
    end = tiles.first + tiles.count
    if not cfg.mask.is_band:
        return WholeTiles(end, end)
    _, hi = hull(cfg, first_position, num_keys, key_limit, sizes)
    whole_to = minimum(maximum(blocks.turn_of(cfg, hi // cfg.tiles.BN), tiles.first), end)
    if not cfg.mask.has_lower_bound:
        return WholeTiles(tiles.first, whole_to)
    lo, _ = hull(cfg, last_position, num_keys, key_limit, sizes)
    from_lo = blocks.turn_of(cfg, (lo + cfg.tiles.BN - 1) // cfg.tiles.BN)
    whole_from = minimum(maximum(from_lo, tiles.first), end)
    return WholeTiles(whole_from, maximum(whole_to, whole_from))
