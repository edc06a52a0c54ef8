"""Which key tiles a query tile needs, and which of them need a mask.

Tiles of BN keys are walked in ascending order. seqlen_q = 256, seqlen_k = 512, causal: query i sees keys up to i + 256.

              key tiles of 128
    rows      0    1    2    3
    0..127    .    .    m    -          . whole, no mask code      tiles of the CTA: 4 (the last row's)
    128..255  .    .    .    m          m crossed by the diagonal
                                        - needed by the other query tile alone: left out

Query tile 0 therefore ends one key tile early: S0, P0 and O0 of tile 3 are not computed (two_tiles/uneven/hooks.py).
Under a window, query tile 1 likewise begins late. The same with a window of 128 keys:

    0..127    .    m    m    -          tiles of the CTA: 3, from tile 1 on (the first row's)
    128..255  .    -    m    m

Each query tile keeps at least one key tile; rows without keys mask it whole. No key tile is left out by both.

A mask with a lower bound, such as a sliding window, has masked tiles at both ends:

    [first, whole_from)  masked        [whole_from, whole_to)  whole        [whole_to, end)  masked
"""

from dataclasses import dataclass, replace

from cutlass import Int32

from ...layouts.scalars import choose, maximum, minimum
from . import blocks, rows

MOST_LEFT_OUT = (1 << 15) - 1  # at either end, where an announcement has a word for both (queue.py)


@dataclass(frozen=True)
class TileRange:
    """Key tiles [first, first + count); for the CTAs of a cluster that share keys, turns (blocks.key_tile).

    early   how many of them query tile 0 leaves out at the end; None: none (FA4Config.uneven)
    late    how many of them query tile 1 leaves out at the beginning; None: none (FA4Config.begins_late)
    leader  if some may be left out: the softmax warpgroup that has query tile 1 (two_tiles/uneven/hooks.py)
    whole   where blocks are listed: turns of full blocks, which come first (block_lists.py); None: they are not
    """

    first: Int32
    count: Int32
    early: Int32 | None = None
    late: Int32 | None = None
    leader: Int32 | None = None
    whole: Int32 | None = None

    def count_of(self, i):
        """Key tiles of query tile i, a number or an Int32 of the kernel."""
        if self.early is None:
            return self.count
        late = 0 if self.late is None else self.late
        if isinstance(i, int):
            return self.count - (late if i else self.early)
        return self.count - choose(i == 0, self.early, late)

    def before(self, i):
        """How many of them lie before the first one of query tile i."""
        if self.late is None:
            return 0
        return choose(i == 0, 0, self.late)

    def begin_of(self, i):
        """The first key tile of query tile i."""
        return self.first + self.before(i)

    def end_of(self, i):
        """The key tile after the last one of query tile i."""
        if self.late is None:
            return self.first + self.count_of(i)
        return self.first + self.count - choose(i == 0, self.early, 0)


def uneven(cfg, tiles: TileRange, first_position, sequence, sizes) -> TileRange:
    """Add the tiles that each query tile leaves out. first_position: of a block, whose CTAs leave out the same ones."""
    keys = sequence.num_keys, sequence.key_limit, sizes
    each = rows.positions_per_tile(cfg)
    end_of_first = first_position + cfg.tiles.positions_per_block - each
    last = minimum(end_of_first, sequence.seqlen_q) - 1
    early = left_out(cfg, tiles, sequence.position(last), *keys)
    if not cfg.begins_late:
        return replace(tiles, early=early)
    early = minimum(early, MOST_LEFT_OUT)
    second = first_position + each
    late = not_begun(cfg, tiles, early, sequence.position(second), *keys)
    late = choose(second < sequence.seqlen_q, late, 0)
    return replace(tiles, early=early, late=late)


def left_out(cfg, tiles: TileRange, last_position, num_keys, key_limit, sizes):
    """How many key tiles come after the last one that query tile 0 sees; its last row is last_position. One stays."""
    _, hi = hull(cfg, last_position, num_keys, key_limit, sizes)
    after = tiles.end_of(1) - (hi + cfg.tiles.BN - 1) // cfg.tiles.BN
    return maximum(minimum(after, tiles.count - 1), 0)


def not_begun(cfg, tiles: TileRange, early, first_position, num_keys, key_limit, sizes):
    """How many key tiles come before the first one that query tile 1 sees; its first row is first_position.

    At least one stays, and so do the `early` tiles that query tile 0 leaves out.
    """
    lo, _ = hull(cfg, first_position, num_keys, key_limit, sizes)
    stay = maximum(early, 1)
    before = minimum(lo // cfg.tiles.BN - tiles.first, tiles.count - stay)
    return maximum(minimum(before, MOST_LEFT_OUT), 0)


@dataclass(frozen=True)
class WholeTiles:
    """Key tiles [begin, end) that every row of a query tile sees whole; part of the CTA's range."""

    begin: Int32
    end: Int32


def hull(cfg, position, num_keys, key_limit, sizes):
    """(lo, hi) of one query, clipped to the keys that exist and to `key_limit`."""
    lo, hi = cfg.mask.hull(position, num_keys, sizes)
    return lo, minimum(hi, key_limit)


def tile_range(cfg, first_position, last_position, num_keys, key_limit, sizes) -> TileRange:
    """The key tiles of the CTA: from the first one that its first row sees to the last one that its last row sees."""
    lo, _ = hull(cfg, first_position, num_keys, key_limit, sizes)
    _, hi = hull(cfg, last_position, num_keys, key_limit, sizes)
    first = lo // cfg.tiles.BN
    end = (hi + cfg.tiles.BN - 1) // cfg.tiles.BN
    return TileRange(first, maximum(end - first, 0))


def whole_tiles(
    cfg, tiles: TileRange, i, first_position, last_position, num_keys, key_limit, sizes
) -> WholeTiles:
    """The key tiles of a CTA that all rows of query tile i see whole, as one range."""
    end = tiles.first + tiles.count
    if not cfg.mask.is_band:
        return WholeTiles(end, end)
    _, hi = hull(cfg, first_position, num_keys, key_limit, sizes)
    whole_to = minimum(maximum(blocks.turn_of(cfg, hi // cfg.tiles.BN), tiles.first), end)
    if not cfg.mask.has_lower_bound:
        return WholeTiles(tiles.first, whole_to)
    lo, _ = hull(cfg, last_position, num_keys, key_limit, sizes)
    from_lo = blocks.turn_of(cfg, (lo + cfg.tiles.BN - 1) // cfg.tiles.BN)
    if tiles.late is None:
        whole_from = minimum(maximum(from_lo, tiles.first), end)
    else:
        end = tiles.end_of(i)
        whole_from = minimum(maximum(from_lo, tiles.begin_of(i)), end)
        whole_to = minimum(whole_to, end)
    return WholeTiles(whole_from, maximum(whole_to, whole_from))
