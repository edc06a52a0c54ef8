"""Scales of blocks of a latent cache, where a thread owns half of the values of each slab of a key.

    page of n rows    n x 576 bytes: 448 e4m3, 64 bf16        n x 8 bytes: 7 e8m0, one unused

A key is an entry of the page table: its row among all rows of 576 bytes, of which the distance between pages is a
multiple. A thread reads the eight bytes of its key one key tile ahead, in parallel with the conversions, and the entry
two key tiles ahead, because a warp waits for an address. A key that does not exist has scales of 0: its values are
zeros, and whatever memory holds is not read.

e8m0 is the exponent of a float32: 2^-126 to 2^127. The byte 0 stands for 0, and 255 for infinity.
"""

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32

from cute_fa4.layouts.scalars import choose, quotient

from ...blueprint.latent_rows import COLUMNS_OF_BLOCK, COLUMNS_OF_SCALE
from ...work import blocks, scales
from .formats import BLOCKS, OF_584

WORD_BYTES = 4
WORDS = BLOCKS // WORD_BYTES  # of the scales of a key
WORDS_OF_ROW = OF_584.nbytes // WORD_BYTES
BLOCKS_OF_SLAB = COLUMNS_OF_SCALE // COLUMNS_OF_BLOCK
NO_PAGES = 1 << 30  # rows: more than there are
EXPONENT_AT = 23  # bit of a float32


@dataclass(frozen=True)
class Ahead:
    """Scales of a thread's key in a key tile. entry: of its key in the tile after."""

    words: tuple
    entry: Int32


def begin(cfg, args, work, key) -> Ahead | None:
    """Scales in the first key tile of a work tile. key: of the tile. None: the cache has no such scales."""
    if not cfg.latent_blocks:
        return None
    first = work.tiles.first
    entry = scales.page_of_key(cfg, args, work, *_of_tile(cfg, work, key, first))
    return _read(cfg, args, work, key, first, Ahead((Int32(0),) * WORDS, entry))


def read(cfg, args, work, key, n, before: Ahead | None, moves=True) -> Ahead | None:
    """Those in key tile n, 0 from the end of the work tile on.

    before: of the key tile before, the result unless `moves`
    No selection depends on what is loaded: it would wait for it.
    """
    return None if before is None else _read(cfg, args, work, key, n, before, moves)


def _read(cfg, args, work, key, n, before: Ahead, moves=True) -> Ahead:
    at, exists = _of_tile(cfg, work, key, n)
    entry = before.entry
    exists = exists & (at < work.sequence.num_keys) & (entry >= 0) & (entry < args.num_pages)
    otherwise = tuple(choose(moves, 0, word) for word in before.words)
    words = _words_of(args.descales[-1], entry, Boolean(exists & moves), otherwise)
    following, exists = _of_tile(cfg, work, key, n + 1)
    none = choose(moves, scales.NO_PAGE, entry)
    return Ahead(words, scales.page_of_key(cfg, args, work, following, exists & moves, none))


def _of_tile(cfg, work, key, n) -> tuple:
    """-> (key number `key` of key tile n, whether the work tile has that key tile)."""
    at = blocks.key_tile(cfg, n) * cfg.tiles.BN + key
    return at, n < work.tiles.first + work.tiles.count


@cute.jit
def _words_of(tensor: cute.Tensor, entry: Int32, exists: Boolean, otherwise: tuple) -> tuple:
    """The scales of a row; tensor: (pages, rows of a page, 2) Int32, pages as far apart as those of the rows."""
    found = otherwise
    if exists:
        # The distance between pages, in rows. One page has none, whatever its stride is.
        rows = choose(tensor.shape[0] == 1, NO_PAGES, Int32(tensor.stride[0]) // WORDS_OF_ROW)
        page = quotient(entry, rows)
        found = tuple(tensor[page, entry - page * rows, i] for i in range(WORDS))
    return found


def words_of(first, one: Ahead | None, other: Ahead | None) -> tuple | None:
    """The words of `one` if first, else of the other; None: there are none."""
    if one is None:
        return None
    return tuple(choose(first, a, b) for a, b in zip(one.words, other.words, strict=True))


def of_slab(words: tuple, slab: int, half) -> Float32:
    """The scale of the first or second half of a slab."""
    byte = slab * BLOCKS_OF_SLAB
    return of_byte(words[byte // WORD_BYTES], byte % WORD_BYTES + half)


def of_byte(word: Int32, byte) -> Float32:
    """Byte `byte` of a word as a factor."""
    return ((word >> byte * 8 & 255) << EXPONENT_AT).bitcast(Float32)
