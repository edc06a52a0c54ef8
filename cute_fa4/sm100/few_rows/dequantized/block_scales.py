"""Scales warp: the scales of blocks of a cache (NVFP4, MXFP8), from global memory into a ring of shared memory.

    lane       four consecutive keys of a key tile, nearly always of one page
    turn n     for each of its key tiles: wait scales_empty -> words to the ring -> scales_full
    turn n+1   unless n is the last: its loads are issued, with the look-up of the pages of turn n+2

A turn is four key tiles, because a load takes as long as memory does, and that is more than a key tile takes. One warp
reads all scales, so the threads that dequantize neither compute addresses nor wait for memory (docs/decisions/0071).

    entry of the ring    of K    words of four blocks of a key: the first of each key, then the second ...
                         of V    for each block a byte of each key, where transposed.py takes them from
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cute_fa4.dtypes import row_of
from cute_fa4.layouts.scalars import choose

from ...blueprint.barriers import SCALE_SLOTS
from ...blueprint.cache_blocks import words_of
from ...steps.pieces import load_piece, load_word, permuted, store_word
from ...steps.store import PIECE_BYTES, store_piece
from ...sync.kernel_args import Events, KernelArgs, Smem
from ...work import scales
from ...work.queue import NO_MORE, WorkQueue
from ...work.tile import Work
from . import transposed
from .scale_rows import KEYS, TILES, keys_of_page, rows_of

LOWER_HALVES, UPPER_HALVES = 0x5410, 0x7632  # of permuted: those of two words


@dataclass(frozen=True)
class Turn:
    """What a lane has on its way.

    words, left   of the key tiles of a turn: words of the lane's keys, and how many exist for each keys_of_page
    pages         of the next turn
    """

    words: tuple
    left: tuple
    pages: tuple


def place_of(tile):
    """Key tile number `tile` of the CTA -> (its slot, parity of its barriers)."""
    return tile & (SCALE_SLOTS - 1), tile >> SCALE_SLOTS.bit_length() - 1 & 1


def entries(cfg, smem: Smem, slot) -> tuple:
    """Addresses of an entry of the ring: of K, of V."""
    of_k, of_v = cfg.tiles.scale_bytes
    entry = smem.block_scales_address + slot * (of_k + of_v)
    return entry, entry + of_k


def turn_of(cfg, args: KernelArgs, work: Work, n, rows: tuple) -> Turn:
    """The turn that begins with key tile n; its loads are issued. rows: of the turn (scale_rows.py)."""
    of, together = rows_of(cfg), keys_of_page(cfg)
    pages = of.pages(cfg, args, work, n + TILES)
    each = [of.of_tile(cfg, args, work, n + i, i, rows) for i in range(TILES)]
    words = tuple(
        sum((scales.words_of_keys(cfg, args, work, found, together) for found in mine), ())
        for mine in each
    )
    return Turn(words, tuple(tuple(found.left for found in mine) for mine in each), pages)


@cute.jit
def existing(turn: Turn) -> Turn:
    """The turn with zeros for keys that do not exist; only the last turn of a sequence has any."""
    words = turn.words
    if sum(count for each in turn.left for count in each) != TILES * KEYS:
        words = tuple(map(of_existing, words, turn.left))
    return Turn(words, turn.left, turn.pages)


def of_existing(words: tuple, left: tuple) -> tuple:
    """The words of a lane's keys; zeros of keys that do not exist."""
    of_key, together = len(words) // KEYS, KEYS // len(left)
    keys = (divmod(i // of_key, together) for i in range(len(words)))
    return tuple(
        choose(i < left[page], word, 0) for (page, i), word in zip(keys, words, strict=True)
    )


def pairs_by_block(words: list) -> list:
    """Words of four blocks of four keys -> for blocks 0 and 1, then 2 and 3: words of two keys, of the others.

    A word has the scales of two keys of the one block, then those of the other.
    """
    return [
        [permuted(*pair, selector) for pair in (words[:2], words[2:])]
        for selector in (0x5140, 0x7362)
    ]


def store_v(cfg, address, key, words: list):
    """Words of V of four keys from `key` on, word by word, to an entry; zeros for blocks beyond the depth."""
    keys = cfg.tiles.BN
    pairs = [pair for four in words for pair in pairs_by_block(four)]
    for block in range(cfg.tiles.scale_bytes[1] // keys):
        pair = pairs[block // 2] if block // 2 < len(pairs) else [Int32(0)] * 2
        place = address + block * keys + transposed.place_of_unit(keys, key)
        store_word(place, permuted(*pair, UPPER_HALVES if block % 2 else LOWER_HALVES))


@cute.jit
def hand_over(
    cfg: cutlass.Constexpr,
    smem: Smem,
    events: Events,
    tile: Int32,
    words: tuple,
):
    """The words of key tile number `tile` of the CTA, when its entry is free."""
    slot, phase = place_of(tile)
    events.scales_empty.wait(slot, phase ^ 1)
    number, key = len(words) // KEYS, KEYS * cute.arch.lane_idx()
    of_k, _ = words_of(cfg)
    k_address, v_address = entries(cfg, smem, slot)
    by_word = [list(words[i::number]) for i in range(number)]
    for i in cutlass.range_constexpr(of_k):
        store_piece(k_address + 4 * (i * cfg.tiles.BN + key), by_word[i])
    store_v(cfg, v_address, key, by_word[of_k:])
    events.scales_full.arrive(slot)


@cute.jit
def take(
    cfg: cutlass.Constexpr, smem: Smem, events: Events, tile: Int32, key: Int32, warp: Int32
) -> tuple:
    """The scales of key tile number `tile` of the CTA that a thread needs; its entry is then free.

    -> (words of its key of K, bytes of its columns of V for its keys). warp: of the four that have columns of V
    """
    slot, phase = place_of(tile)
    of_k, _ = words_of(cfg)
    lane, block = cute.arch.lane_idx(), row_of(cfg.kv_dtype).block
    events.scales_full.wait(slot, phase)
    k_address, v_address = entries(cfg, smem, slot)
    mine = v_address + transposed.block_of(cfg, warp, lane, block) * cfg.tiles.BN
    mine = mine + lane % 4 * (cfg.tiles.BN // 4)
    words = tuple(load_word(k_address + 4 * (i * cfg.tiles.BN + key)) for i in range(of_k))
    pairs = tuple(load_piece(mine) + load_piece(mine + PIECE_BYTES))
    events.scales_empty.arrive(slot)
    return words, pairs


@cute.jit
def run(cfg: cutlass.Constexpr, args: KernelArgs, smem: Smem, events: Events, queue: WorkQueue):
    """Every work tile of the CTA."""
    tile, number = Int32(0), Int32(0)
    nothing = (Int32(0),) * (KEYS * sum(words_of(cfg)))
    work = queue.next(cfg, args, number)
    while work.tiles.count != NO_MORE:
        first, count = work.tiles.first, work.tiles.count
        none = ((Int32(0),) * (KEYS // keys_of_page(cfg)),) * TILES
        turn = Turn((nothing,) * TILES, none, rows_of(cfg).pages(cfg, args, work, first))
        for n in cutlass.range(-TILES, count, TILES, unroll=1):
            # Before the words are handed over: both were loaded, and a warp waits for all of its loads.
            rows = rows_of(cfg).rows(cfg, args, work, first + (n + TILES), turn.pages)
            turn = existing(turn)
            for i in cutlass.range_constexpr(TILES):
                if (n >= 0) & (n + i < count):
                    hand_over(cfg, smem, events, tile + (n + i), turn.words[i])
            if n + TILES < count:
                turn = turn_of(cfg, args, work, first + (n + TILES), rows)
        tile, number = tile + count, number + 1
        work = queue.next(cfg, args, number)
