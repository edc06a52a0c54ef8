"""Dequantize K and V, 8 bits -> 16, in their slots of the ring. A thread of these warps owns two keys of a tile.

    line of a key    as it arrives         128 columns of 8 bits          in the place of its last chunk
                     as it is multiplied   64 columns of 16 bits a chunk, one chunk or two

Chunk 0 of two is written next to the row. The last chunk overwrites the row once all of its 64 columns are in
registers. No thread reads or writes a line of another thread. K takes the dtype of q, V is fp16. The warps traverse the
ring in the order of the load warp, K0 V0 K1 V1 ..., and raise kv_full of every slot.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cute_fa4.dtypes import row_of

from ...blueprint.chip import WARP_SIZE
from ...steps import row_math
from ...steps.pieces import as_fp16, load_piece, numbers_of
from ...steps.store import PIECE_BYTES, store_piece
from ...sync.kernel_args import Events, KernelArgs, Smem
from ...sync.pipelines import KVConsumerPipeline, Slot
from ...work.queue import NO_MORE, WorkQueue

LINE_BYTES = 128  # of a key in a chunk: 128 columns of 8 bits, or 64 of 16
LINES_OF_SWIZZLE = 8
PIECES = LINE_BYTES // PIECE_BYTES
WORDS_OF_PIECE = 2  # of 8 bits that fill a piece of 16


def line_of(address, key):
    """A key's line in the chunk at this shared address, with the swizzle of the key, for piece_of."""
    return address + key * LINE_BYTES + key % LINES_OF_SWIZZLE * PIECE_BYTES


def piece_of(line, number: int, offset: int):
    """The address of 16 bytes of a line, `offset` bytes from it; one instruction, so that none is held in a register.

    The address bits that select the piece are those of the line, flipped (layouts/swizzle.py).
    """
    return (line ^ number * PIECE_BYTES) + offset


def dequantize_key(cfg, line, first_byte: int, is_v: bool):
    """Dequantize the row of a key. line: from line_of, first_byte: from there to the line of the key in the tile."""
    dtype = cfg.v_dtype if is_v else cfg.qkv_dtype
    tile, raw = cfg.tiles.wide_tile(is_v), first_byte + cfg.tiles.raw_offset(is_v)
    for chunk in range(tile.nbytes // tile.chunk_bytes):
        words = []
        for piece in range(PIECES // 2):
            words += load_piece(piece_of(line, chunk * PIECES // 2 + piece, raw))
        for piece in range(PIECES):
            part = words[WORDS_OF_PIECE * piece : WORDS_OF_PIECE * (piece + 1)]
            found = as_fp16(part, cfg.kv_dtype)
            if dtype != row_of(cfg.kv_dtype).dequantized_to:
                found = row_math.pack(numbers_of(found), dtype)
            store_piece(piece_of(line, piece, first_byte + chunk * tile.chunk_bytes), found)


def await_raw(events: Events, at: Slot):
    events.raw_full.wait(at.index, at.phase)


def complete(kv: KVConsumerPipeline, at: Slot):
    """This thread's lines are written, and the tensor core may read them once all threads have arrived."""
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.mbarrier_arrive(kv.full + at.index)


@cute.jit
def dequantize_tile(
    cfg: cutlass.Constexpr,
    smem: Smem,
    events: Events,
    kv: KVConsumerPipeline,
    at: Slot,
    thread: Int32,
    is_v: cutlass.Constexpr,
) -> Slot:
    """Dequantize K or V of a key tile; -> the next slot."""
    await_raw(events, at)
    line = line_of(smem.kv_address + at.index * cfg.tiles.kv_slot_bytes, thread)
    for first in cutlass.range_constexpr(0, cfg.tiles.BN, cfg.warps.threads_of("dequantize")):
        dequantize_key(cfg, line, first * LINE_BYTES, is_v)
    complete(kv, at)
    return at.next(kv.slots)


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    events: Events,
    kv: KVConsumerPipeline,
    queue: WorkQueue,
):
    """Every work tile of the CTA."""
    thread, _, _ = cute.arch.thread_idx()
    thread = thread - WARP_SIZE * cfg.warps.dequantize.start
    at, number = Slot(Int32(0), Int32(0)), Int32(0)
    count = queue.next(cfg, args, number).tiles.count
    while count != NO_MORE:
        for _ in cutlass.range(count, unroll=1):
            at = dequantize_tile(cfg, smem, events, kv, at, thread, False)
            at = dequantize_tile(cfg, smem, events, kv, at, thread, True)
        number = number + 1
        count = queue.next(cfg, args, number).tiles.count
