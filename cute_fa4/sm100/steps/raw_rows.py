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

    dtypes       as stored, and as multiplied
    raw     offset from `line` of the row
    chunks  of each chunk a line of the key, from line_of, and the offset from there. One of 8 bits may lie over its own
            columns of the row, and over those of none after it: these are in registers before it is stored. One of 4
            bits may lie anywhere: so are all
    factors      of the blocks of these columns, from cache_blocks.factors of these dtypes; None: there are none
    """
    stored, dtype = dtypes
    of_piece, ahead = WORDS_OF_PIECE // row_of(stored).in_byte, comes_whole(stored)
    row = [load_chunk(stored, line, raw, chunk) for chunk in range(len(chunks)) if ahead]
    yield
    for chunk, (to, at) in enumerate(chunks):
        words = row[chunk] if ahead else load_chunk(stored, line, raw, chunk)
        for piece in range(PIECES):
            found = as_16_bits(words[of_piece * piece : of_piece * (piece + 1)], stored, dtype)
            column = (chunk * PIECES + piece) * COLUMNS_OF_PIECE
            found = cache_blocks.scaled((stored, dtype), found, factors, column)
            store_piece(piece_of(to, piece, at), found)


def together(rows: list[Iterator[None]]) -> Iterator[None]:
    """Rows of one key, from dequantize_row, as one: the loads ahead of all, a yield, then the rest of each."""
    for row in rows:
        next(row, None)
    yield
    for row in rows:
        next(row, None)


def await_raw(events: Events, at: Slot):
    """Wait until the rows of a slot have arrived."""
    events.raw_full.wait(at.index, at.phase)


def complete(kv: KVConsumerPipeline, at: Slot):
    """This thread's lines are written, and the tensor core may read them once all threads have arrived."""
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.mbarrier_arrive(kv.full + at.index)


def dequantize_slot(
    cfg, smem: Smem, events: Events, kv: KVConsumerPipeline, at: Slot, thread, of_key: Callable, of
) -> Slot:
    """Dequantize the rows of a slot; -> the next slot.

    of_key  dequantizes the row of a key in the steps of dequantize_row: of_key(cfg, line, first byte of the key's line
            in the tile, of)
    of      what the family knows of the slot
    """
    await_raw(events, at)
    line = line_of(smem.kv_address + at.index * cfg.tiles.kv_slot_bytes, thread)
    before: Iterator[None] = iter(())
    for first in range(0, cfg.tiles.BN, cfg.warps.threads_of("dequantize")):
        row = of_key(cfg, line, first * LINE_BYTES, of)
        next(row, None)
        next(before, None)
        before = row
    next(before, None)
    complete(kv, at)
    return at.next(kv.slots)
