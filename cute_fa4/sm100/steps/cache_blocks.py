"""Scales of blocks of a cache, where a thread owns keys: K and V are multiplied as they are dequantized.

    NVFP4    E2M1 number * e4m3 scale of its 16 columns, both as fp16: exact (docs/numerics_eight_bits.md)
    MXFP8    e4m3 number * e8m0 scale of its 32 columns, likewise: exact from 2^-14 on, and NaN for scales above 2^7

A thread reads the scales of a key from global memory one key tile ahead, in parallel with the conversions: 8 bytes of
K and 8 of V at depth 128, of MXFP8 4 and 4. The page of a key is looked up two tiles ahead, because a warp waits for
an address. The global scales are k_descale and v_descale, as those of an 8-bit cache.
"""

from dataclasses import dataclass

from cutlass import Int32

from cute_fa4.dtypes import DTYPES, E4M3, FP16
from cute_fa4.layouts.block_scales import ONE

from ..work import blocks, scales
from .pieces import as_fp16, both_halves, multiplied_halves, powers_as_fp16


@dataclass(frozen=True)
class Ahead:
    """Scales of a thread's key in a key tile: words of four, of K and of V. page: of its key in the tile after."""

    of_k: tuple
    of_v: tuple
    page: Int32 | None


@dataclass(frozen=True)
class Key:
    """The key that a thread dequantizes in a key tile, and the scales of its blocks; None: it has none."""

    key: Int32
    scales: Ahead | None


def begin(cfg, args, work, key) -> Ahead | None:
    """Scales in the first key tile of a work tile. key: of the tile. None: there are no such scales."""
    if not cfg.cache_blocks:
        return None
    first = work.tiles.first
    return _read(
        cfg,
        args,
        work,
        key,
        first,
        scales.page_of_key(cfg, args, work, *_of_tile(cfg, work, key, first)),
    )


def read(cfg, args, work, key, n, before: Ahead | None) -> Ahead | None:
    """Those in key tile n, 0 from the end of the work tile on. before: of the key tile before."""
    return None if before is None else _read(cfg, args, work, key, n, before.page)


def _read(cfg, args, work, key, n, page) -> Ahead:
    at, exists = _of_tile(cfg, work, key, n)
    of_k, of_v = scales.of_blocks(cfg, args, work, at, page, exists)
    return Ahead(of_k, of_v, scales.page_of_key(cfg, args, work, *_of_tile(cfg, work, key, n + 1)))


def _of_tile(cfg, work, key, n) -> tuple:
    """-> (key number `key` of key tile n, whether the work tile has that key tile)."""
    at = blocks.key_tile(cfg, n) * cfg.tiles.BN + key
    return at, n < work.tiles.first + work.tiles.count


def factors(stored: str, words: tuple) -> list:
    """Words of four scales -> for each scale a word with two of it as fp16. stored: the dtype of the cache."""
    row = DTYPES[stored]
    if row.cache_scales is not E4M3:
        most = ONE + FP16.largest_log2 - row.largest_log2  # the largest number times it is finite
        return [two for word in words for two in powers_as_fp16(word, most)]
    return [two for pair in as_fp16(list(words), E4M3.name) for two in both_halves(pair)]


def scaled(stored: str, numbers: list, of_key: list | None, column: int) -> list:
    """Words of two fp16 from a column on, times their scales; columns beyond the depth have none and are zeros.

    stored: the dtype of the cache
    """
    if of_key is None:
        return numbers
    block = DTYPES[stored].block
    out = []
    for i in range(0, len(numbers), block // 2):
        number = (column + 2 * i) // block
        part = numbers[i : i + block // 2]
        out += part if number >= len(of_key) else multiplied_halves(part, Int32(of_key[number]))
    return out
