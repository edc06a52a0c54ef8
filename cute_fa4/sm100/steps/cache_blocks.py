"""Scales of blocks of a cache, where a thread owns keys: K and V are multiplied as they are dequantized.

    NVFP4    E2M1 number * e4m3 scale of its 16 columns, both as fp16 or bf16: exact (docs/numerics_eight_bits.md)
    MXFP8    e4m3 number * e8m0 scale of its 32 columns, likewise: in fp16 exact from 2^-14 on; NaN for scales above 2^7

A thread reads the scales of a key from global memory one key tile ahead, in parallel with the conversions: 8 bytes of
K and 8 of V at depth 128, of MXFP8 4 and 4. The page of a key is looked up two tiles ahead, because a warp waits for
an address. The global scales are k_descale and v_descale, as those of an 8-bit cache.
"""

from dataclasses import dataclass

from cutlass import Int32

from cute_fa4.dtypes import DTYPES, E4M3, FP16
from cute_fa4.layouts.block_scales import ONE

from ..work import blocks, scales
from .pieces import as_16_bits, both_halves, multiplied_halves, pairs_of_powers, powers


@dataclass(frozen=True)
class Ahead:
    """Scales of a thread's key in a key tile: words of four, of K and of V.

    row: the page of its key in the tile after, and the row there; None where keys are not paged
    """

    of_k: tuple
    of_v: tuple
    row: tuple | None


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
    return _read(cfg, args, work, key, first, _row_of(cfg, args, work, key, first))


def read(cfg, args, work, key, n, before: Ahead | None) -> Ahead | None:
    """Those in key tile n, 0 from the end of the work tile on. before: of the key tile before."""
    return None if before is None else _read(cfg, args, work, key, n, before.row)


def _read(cfg, args, work, key, n, row) -> Ahead:
    at, exists = of_tile(cfg, work, key, n)
    of_k, of_v = scales.of_blocks(cfg, args, work, at, row, exists)
    return Ahead(of_k, of_v, _row_of(cfg, args, work, key, n + 1))


def _row_of(cfg, args, work, key, n) -> tuple | None:
    """The page of a key of key tile n, and the row there; None where keys are not paged."""
    return scales.row_of_key(cfg, args, work, *of_tile(cfg, work, key, n))


def of_tile(cfg, work, key, n) -> tuple:
    """-> (key number `key` of key tile n, whether the work tile has that key tile)."""
    at = blocks.key_tile(cfg, n) * cfg.tiles.BN + key
    return at, n < work.tiles.first + work.tiles.count


def factors(dtypes: tuple[str, str], words: tuple) -> list:
    """Words of four scales -> for each scale a word with two of it. dtypes: of the cache, and of what it becomes."""
    stored, dtype = dtypes
    row = DTYPES[stored]
    if row.cache_scales is not E4M3:
        return [two for word in words for two in powers(word, _most(row), dtype)]
    return [two for pair in as_16_bits(list(words), E4M3.name, dtype) for two in both_halves(pair)]


def factors_of_pairs(dtypes: tuple[str, str], words: list) -> list:
    """Words of four scales -> two words of two each, in the same order. dtypes: as factors takes them."""
    stored, dtype = dtypes
    row = DTYPES[stored]
    if row.cache_scales is not E4M3:
        return [pair for word in words for pair in pairs_of_powers(word, _most(row), dtype)]
    return as_16_bits(words, E4M3.name, dtype)


def _most(row) -> int:
    """The largest e8m0 byte whose power times the largest number is finite in fp16."""
    return ONE + FP16.largest_log2 - row.largest_log2


def scaled(dtypes: tuple[str, str], numbers: list, of_key: list | None, column: int) -> list:
    """Words of two numbers from a column on, times their scales; columns beyond the depth have none and are zeros.

    dtypes: as factors takes them
    """
    if of_key is None:
        return numbers
    stored, dtype = dtypes
    block = DTYPES[stored].block
    out = []
    for i in range(0, len(numbers), block // 2):
        number = (column + 2 * i) // block
        part = numbers[i : i + block // 2]
        out += (
            part if number >= len(of_key) else multiplied_halves(part, Int32(of_key[number]), dtype)
        )
    return out
