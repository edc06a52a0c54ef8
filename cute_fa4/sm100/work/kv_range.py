"""Which key tiles a query tile needs, and which of them need a mask.

Tiles of BN keys are walked upwards. seqlen_q = 256, seqlen_k = 512, causal: query i sees keys up to i + 256.

              key tiles of 128
    rows      0    1    2    3
    0..127    .    .    m    -          . whole, no mask code      tiles of the CTA: 4 (the last row's)
    128..255  .    .    .    m          m crossed by the diagonal
                                        - needed by the other query tile alone: left out

So query tile 0 ends one key tile early: S0, P0 and O0 of tile 3 are not made (mha2q/uneven/hooks.py). One tile it
always keeps; rows without keys mask it whole. What query tile 1 does not see at the lower end of a window is computed
and masked whole.

A mask with a lower bound, a sliding window say, has masked tiles at both ends:

    [first, whole_from)  masked        [whole_from, whole_to)  whole        [whole_to, end)  masked
"""

from dataclasses import dataclass

from cutlass import Int32

from ...layouts.scalars import choose, maximum, minimum
from . import blocks


@dataclass(frozen=True)
class TileRange:
    """Key tiles [first, first + count); of the CTAs of a cluster that share keys, turns (blocks.key_tile).

    early   how many of them, at the end, query tile 0 leaves out; None: none (FA4Config.ends_early)
    leader  where it may leave out some: the softmax warpgroup that has query tile 1 (mha2q/uneven/hooks.py)
    """

    first: Int32
    count: Int32
    early: Int32 | None = None
    leader: Int32 | None = None

    def count_of(self, i):
        """Key tiles of query tile i, a number or an Int32 of the kernel."""
        if self.early is None:
            return self.count
        if isinstance(i, int):
            return self.count if i else self.count - self.early
        return self.count - choose(i == 0, self.early, 0)

    def end_of(self, i):
        """The key tile behind the last one of query tile i."""
        return self.first + self.count_of(i)


def left_out(cfg, tiles: TileRange, last_position, num_keys, key_limit, sizes):
    """How many key tiles lie behind the last that query tile 0 sees, whose last row has this position; one stays."""
    _, hi = hull(cfg, last_position, num_keys, key_limit, sizes)
    behind = tiles.end_of(1) - (hi + cfg.tiles.BN - 1) // cfg.tiles.BN
    return maximum(minimum(behind, tiles.count - 1), 0)


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
