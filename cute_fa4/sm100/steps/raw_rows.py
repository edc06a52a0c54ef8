"""Dequantize the row of a key in its slot of the ring, 8 or 4 bits -> 16 (blueprint/raw_rows.py).

A thread owns a key. It reads and writes the lines of this key alone, so nothing but the slot's own barriers orders the
threads. Both formats are swizzled alike, in pieces of 16 bytes.
"""

from collections.abc import Callable, Iterator

import cutlass.cute as cute

from ...dtypes import row_of
from ..sync.kernel_args import Events, Smem
from ..sync.pipelines import KVConsumerPipeline, Slot
from . import cache_blocks
from .pieces import as_16_bits, load_piece
from .store import PIECE_BYTES, store_piece

LINE_BYTES = 128  # of a key in a chunk: 128 columns of 8 bits, or 64 of 16
LINES_OF_SWIZZLE = 8
PIECES = LINE_BYTES // PIECE_BYTES
WORDS_OF_PIECE = 2  # of 8 bits that fill a piece of 16
COLUMNS_OF_PIECE = PIECE_BYTES // 2  # of 16 bits


def line_of(address, key):
    """A key's line in the chunk at this shared address, with the swizzle of the key, for piece_of."""
    return address + key * LINE_BYTES + key % LINES_OF_SWIZZLE * PIECE_BYTES


def piece_of(line, number: int, offset: int):
    """The address of 16 bytes of a line, `offset` bytes from it; one instruction, so that none is held in a register.

    The address bits that select the piece are those of the line, flipped (layouts/swizzle.py).
    """
    return (line ^ number * PIECE_BYTES) + offset


def comes_whole(stored: str) -> bool:
    """Whether a thread has all numbers of a row in registers before it converts those of the row before: 16 words."""
    return row_of(stored).in_byte > 1


def load_chunk(stored: str, line, raw: int, chunk: int) -> list:
    """Words of 64 columns of a row. line, raw: as dequantize_row takes them."""
    pieces = PIECES // 2 // row_of(stored).in_byte
    of_chunk = range(chunk * pieces, (chunk + 1) * pieces)
    return [word for piece in of_chunk for word in load_piece(piece_of(line, piece, raw))]


def dequantize_row(
    dtypes: tuple[str, str], line, raw: int, chunks: list[tuple], factors: list | None = None
) -> Iterator[None]:
    """Dequantize the row of a key into chunks of 64 columns: loads ahead, a yield, then the rest. line: from line_of.

    dtypes   as stored, and as multiplied
    raw      offset from `line` of the row
    chunks   (number in the row, a line of the key from line_of, offset from there) of each. The last one may be the
             row's own place: all of its columns are in registers before they are stored
    factors  of the blocks of the row, from cache_blocks.factors of these dtypes; None: there are none
    """
    stored, dtype = dtypes
    of_piece, ahead = WORDS_OF_PIECE // row_of(stored).in_byte, comes_whole(stored)
    row = {chunk: load_chunk(stored, line, raw, chunk) for chunk, _, _ in chunks if ahead}
    yield
    for chunk, to, at in chunks:
        words = row[chunk] if ahead else load_chunk(stored, line, raw, chunk)
        for piece in range(PIECES):
            found = as_16_bits(words[of_piece * piece : of_piece * (piece + 1)], stored, dtype)
            column = (chunk * PIECES + piece) * COLUMNS_OF_PIECE
            found = cache_blocks.scaled((stored, dtype), found, factors, column)
            store_piece(piece_of(to, piece, at), found)


def await_raw(events: Events, at: Slot):
    """Wait until the rows of a slot have arrived."""
    events.raw_full.wait(*at.raw)


def complete(kv: KVConsumerPipeline, at: Slot):
    """This thread's lines of a slot are written."""
    hand_over(kv.full + at.index)


def hand_over(mbarrier: cute.Pointer):
    """This thread's lines are written, and the tensor core may read them once all threads have arrived."""
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.mbarrier_arrive(mbarrier)


def dequantize_slot(
    cfg, smem: Smem, events: Events, kv: KVConsumerPipeline, at: Slot, thread, of_key: Callable, of
) -> Slot:
    """Dequantize the rows of a slot; -> the next slot.

    of_key  the steps in which the row of a key is dequantized, each from dequantize_row: of_key(cfg, line, first byte
            of the key's line in the tile, of). The loads of a step come before the conversions of the step before
    of      what the family knows of the slot
    """
    await_raw(events, at)
    dequantize_lines(cfg, line_in_slot(cfg, smem, at, thread), of_key, of)
    complete(kv, at)
    return at.next(kv.slots)


def line_in_slot(cfg, smem: Smem, at: Slot, thread):
    """The line of the thread's first key in a slot."""
    return line_of(smem.kv_address + at.index * cfg.tiles.kv_slot_bytes, thread)


def dequantize_lines(cfg, line, of_key: Callable, of):
    """Dequantize the rows of the thread's keys. line: of the first one; of_key, of: as dequantize_slot takes them."""
    before: Iterator[None] = iter(())
    for first in range(0, cfg.tiles.BN, cfg.warps.threads_of("dequantize")):
        for row in of_key(cfg, line, first * LINE_BYTES, of):
            next(row, None)
            next(before, None)
            before = row
    next(before, None)
