"""The `widen` warps: 8-bit K and V from the ring -> fp16 where the MMA reads them. A thread owns a key.

    K     the key's lane of tensor memory, two columns of K per column: no write to shared memory and no read from it
    V     the key's line in shared memory, as TMA would have written it

Per key tile, a thread does 2 loads of 16 bytes for 32 columns, one conversion for two elements, and one store of 16
bytes for 8 columns of V. Every work tile starts with Q (queries.py). A slot of the ring is free once it has been read.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...instructions import tensor_memory
from ...steps.pieces import WORDS, load_piece, widened
from ...steps.store import PIECE_BYTES, store_piece
from ...sync.kernel_args import Events, KernelArgs, Smem
from ...sync.pipelines import KVConsumerPipeline, Slot
from ...work.queue import NO_MORE, WorkQueue
from . import queries

COLUMNS = PIECE_BYTES  # of K or V in a piece of the ring
PIECES_OF_STORE = 4  # of K: 32 columns of tensor memory


def read_pieces(cfg, smem: Smem, slot, key, first: int, number: int) -> list:
    """Columns of a key as words of two fp16: `number` pieces from piece `first` on."""
    tile, words = cfg.tiles.ring_tile, []
    address = smem.kv_address + slot * cfg.tiles.kv_slot_bytes
    for piece in range(first, first + number):
        words += load_piece(address + tile.offset(key, piece * COLUMNS))
    return widened(words, cfg.kv_dtype)


def widen_k(cfg, smem: Smem, slot, key, k_address):
    """K of a key to its lane: the columns that the MMA contracts."""
    pieces = cfg.tiles.qk_mma_shape[2] // COLUMNS
    for first in range(0, pieces, PIECES_OF_STORE):
        words = read_pieces(cfg, smem, slot, key, first, min(PIECES_OF_STORE, pieces - first))
        for part, column in powers_of_two(len(words)):
            at = k_address + first * COLUMNS // 2 + column
            tensor_memory.store(at, words[column : column + part])
    tensor_memory.wait_store()
    tensor_memory.fence_before()


def powers_of_two(number: int) -> list:
    """Register counts that one tcgen05.st takes, and where each begins.

    >>> powers_of_two(32), powers_of_two(24)
    ([(32, 0)], [(16, 0), (8, 16)])
    """
    out, first = [], 0
    while first < number:
        part = 1 << ((number - first).bit_length() - 1)
        out.append((part, first))
        first += part
    return out


def widen_v(cfg, smem: Smem, slot, key, v_address):
    """V of a key to its line, with the padding of the depth, which is zeros."""
    tile = cfg.tiles.v_tile
    for piece in range(cfg.tiles.padded_ov_depth // COLUMNS):
        words = read_pieces(cfg, smem, slot, key, piece, 1)
        for half in range(2):
            column = piece * COLUMNS + half * COLUMNS // 2
            part = words[WORDS * half : WORDS * (half + 1)]
            store_piece(v_address + tile.offset(key, column), part)
    cute.arch.fence_proxy("async.shared", space="cta")


@cute.jit
def key_tile(
    cfg: cutlass.Constexpr,
    smem: Smem,
    tmem: Int32,
    events: Events,
    kv: KVConsumerPipeline,
    at: Slot,
    tile: Int32,
    key: Int32,
) -> Slot:
    """K and V of key tile number `tile` of the CTA. tmem: address of the first column for this warp's lanes."""
    buffer, free = tile & 1, (tile >> 1 & 1) ^ 1
    first, second = cfg.schedule.k_columns(cfg)
    kv.wait(at)
    events.k_free.wait(buffer, free)
    tensor_memory.fence_after()
    widen_k(cfg, smem, at.index, key, tmem + first + buffer * (second - first))
    cute.arch.mbarrier_arrive(kv.empty + at.index)
    events.k_wide.arrive(buffer)
    at = at.next(kv.slots)
    kv.wait(at)
    events.v_free.wait(buffer, free)
    widen_v(cfg, smem, at.index, key, smem.v_address + buffer * cfg.tiles.v_tile.nbytes)
    cute.arch.mbarrier_arrive(kv.empty + at.index)
    events.v_wide.arrive(buffer)
    return at.next(kv.slots)


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    tmem: Int32,
    events: Events,
    kv: KVConsumerPipeline,
    queue: WorkQueue,
):
    """Every work tile of the CTA."""
    thread, _, _ = cute.arch.thread_idx()
    key = thread % cfg.tiles.BN  # the warp number determines its lanes of tensor memory
    at = Slot(Int32(0), Int32(0))
    tile, number, of_q = Int32(0), Int32(0), Int32(0)
    count = queue.next(cfg, args, number).tiles.count
    while count != NO_MORE:
        if count > 0:
            events.q_full.wait(0, of_q & 1)
            if cutlass.const_expr(cfg.tiles.rows_have_scales):
                queries.widen(cfg, smem, key, of_q)
                cute.arch.fence_proxy("async.shared", space="cta")
                events.q_wide.arrive(of_q & 1)
            of_q = of_q + 1
        for _ in cutlass.range(count, unroll=1):
            at = key_tile(cfg, smem, tmem, events, kv, at, tile, key)
            tile = tile + 1
        number = number + 1
        count = queue.next(cfg, args, number).tiles.count
