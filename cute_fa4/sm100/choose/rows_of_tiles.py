"""How many query rows a tile has, and which heads share one: the arithmetic that the rules of which_kernel.py read."""

from ...dtypes import CACHED
from ..blueprint import tuning
from ..blueprint.latent_rows import MOST_LATENT_ROWS, heads_of_latent_tile
from ..blueprint.reach import DEPTHS, DEPTHS_OF_FP8, QK_DEPTHS, QK_DEPTHS_OF_FP8
from ..blueprint.tiles import ROWS_PER_Q_TILE
from ..few_rows.tiles import padded_heads
from ..latent.pair.schedule import LatentPair
from ..two_tiles.schedule import TwoTiles

ROWS_PER_CTA = TwoTiles.query_tiles * ROWS_PER_Q_TILE
SWAPPED_ROWS = (8, 32)  # of a tile with swapped operands, as calls ask for it: docs/decisions/0008
# Head dim of 16-bit q over 8-bit k up to which a slot holds whole rows of k; beyond it, units of columns.
DEQUANTIZED_DEPTH = DEPTHS_OF_FP8[-1]
SPAN = 64  # columns of 16 bits in a line of shared memory
LATENT_ROWS = (16, 32, MOST_LATENT_ROWS)  # of a tile over a latent cache


def is_wide(head_dim: int, head_dim_v: int, of_8_bits: bool = False) -> bool:
    """Whether head dims need the family that has one O and units of 64 columns, which are of 16 bits.

    >>> is_wide(192, 128), is_wide(256, 256), is_wide(128, 136), is_wide(256, 256, of_8_bits=True)
    (False, True, True, False)
    """
    return not of_8_bits and (head_dim > QK_DEPTHS[-1] or head_dim_v > DEPTHS[-1])


def dequantizes_rows(head_dim: int, rope: int) -> bool:
    """Whether kernels for 16-bit q over 8-bit k hold whole rows of k; rope: its columns in a separate tensor."""
    return head_dim <= DEQUANTIZED_DEPTH and not rope


def dequantizes_units(
    head_dim: int, rope: int = 0, rope_runs: bool = True, by_key: bool = False
) -> bool:
    """Whether a kernel takes the others in units of columns (sm100/wide/dequantized/).

    rope_runs: from may_be_beside_dequantized; by_key: keys have scales of their own

    >>> [dequantizes_units(*depths) for depths in ((192,), (192, 64), (200,), (96, 16))]
    [True, True, False, False]
    """
    own = head_dim - rope
    fits = not rope or (rope_runs and own > 0 and own % SPAN == 0 and rope <= SPAN)
    return not by_key and head_dim in QK_DEPTHS_OF_FP8 and fits


def in_units(head_dim: int, rope: int, stored: str | None) -> bool:
    """Whether k and v of another dtype than q, `stored`, are dequantized in units of columns; None: they have q's."""
    return stored in CACHED and not dequantizes_rows(head_dim, rope)


def tile_for(
    seqlen_q: int, group: int, pack_gqa: bool | None = None, swaps: bool = True
) -> tuple[bool, int | None]:
    """-> (whether the heads of a group share a tile, rows of a tile with swapped operands or None).

    pack_gqa   the call's option: True is a preference, ignored for a group that fits no tile; None is the same
    swaps      whether tiles with swapped operands may be chosen

    >>> [tile_for(queries, 8) for queries in (1, 2, 5, 256)]
    [(True, 8), (True, 32), (True, None), (True, None)]
    >>> [tile_for(queries, 7) for queries in (1, 4, 5, 300)]
    [(True, 8), (True, 32), (False, 8), (False, None)]
    """
    if swaps and group > 1 and pack_gqa is not False:
        rows = swapped_rows(seqlen_q, group)
        if rows is not None:
            return True, rows
    pack = pack_gqa is not False and packs_gqa(group)
    return pack, None if pack or not swaps else swapped_rows(seqlen_q, 1)


def dequantized_tile(group: int, pack_gqa: bool | None = None) -> tuple[bool, int]:
    """The same for 16-bit queries over 8-bit keys, in tiles of few rows that serve any number of queries.

    >>> dequantized_tile(1), dequantized_tile(8), dequantized_tile(64)
    ((False, 32), (True, 32), (False, 32))
    """
    highest = SWAPPED_ROWS[-1]
    return group > 1 and pack_gqa is not False and padded_heads(group) <= highest, highest


def swapped_rows(seqlen_q: int, heads: int) -> int | None:
    """Rows of a tile with swapped operands that serves up to `seqlen_q` queries best, of `heads` heads that share it.

    None: tiles of 128 rows serve them as well. A group of 16 has its own tile for one query; otherwise two heights
    are enough, so that a service has few kernels.

    >>> [swapped_rows(queries, 8) for queries in (1, 2, 4, 5)], swapped_rows(1, 16), swapped_rows(4, 7)
    ([8, 32, 32, None], 16, 32)
    """
    heads = padded_heads(heads)
    most = tuning.choose("few_rows")
    if seqlen_q == 1 and heads == 16 <= most:
        return heads
    return next((rows for rows in SWAPPED_ROWS if seqlen_q * heads <= rows <= most), None)


def latent_rows(seqlen_q: int, heads: int) -> int | None:
    """Rows of a tile over a latent cache that serves up to `seqlen_q` queries best, of `heads` query heads.

    None: there are more than a CTA has, and two share them (latent/pair/).

    >>> [latent_rows(1, heads) for heads in (8, 16, 24, 64, 128)], latent_rows(2, 16), latent_rows(8, 16)
    ([16, 16, 32, 64, None], 32, None)
    """
    needed = seqlen_q * padded_heads(heads_of_latent_tile(heads, LatentPair.latent_rows))
    return next((rows for rows in LATENT_ROWS if needed <= rows), None)


def packs_gqa(group: int) -> bool:
    """Whether the heads of a group share the tiles of 128 rows of a call: wherever whole groups fit a tile.

    A tile then has fewer positions: it walks fewer masked key tiles, and the last one has fewer rows without a query
    (docs/decisions/0030).

    >>> packs_gqa(8), packs_gqa(1), packs_gqa(7)
    (True, False, False)
    """
    return group > 1 and ROWS_PER_Q_TILE % group == 0
