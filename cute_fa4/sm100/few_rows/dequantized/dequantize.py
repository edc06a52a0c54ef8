"""The `dequantize` warps: K and V of 8 or 4 bits from the ring -> fp16 where the MMA reads them. A thread owns a key.

    K     the key's lane of tensor memory, two columns of K per column: no write to shared memory and no read from it
    V     the key's line in shared memory, as TMA would have written it

Per key tile, a thread does 2 loads of 16 bytes for 32 columns, one conversion for two elements, and one store of 16
bytes for 8 columns of V. Columns of 4 bits are half the loads. Where blocks have scales, each word is multiplied by
that of its block (steps/cache_blocks.py). Every work tile starts with Q (queries.py). A slot of the ring is free once
it has been read.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...instructions import tensor_memory
from ...steps import cache_blocks
from ...steps.pieces import WORDS, as_fp16, load_piece
from ...steps.store import PIECE_BYTES, store_piece
from ...sync.kernel_args import Events, KernelArgs, Smem
from ...sync.pipelines import KVConsumerPipeline, Slot
from ...work.queue import NO_MORE, WorkQueue
from . import queries
from .tiles import WIDE_DTYPE

COLUMNS_OF_STORE = 64  # of K: 32 columns of tensor memory
COLUMNS_OF_LINE = PIECE_BYTES // 2  # of V in a piece of its line


def columns_of_piece(cfg) -> int:
    """Columns of K or V in a piece of the ring."""
    return PIECE_BYTES * cfg.in_element


def to_fp16(cfg) -> tuple[str, str]:
    """The dtypes of a conversion."""
    return cfg.kv_dtype, WIDE_DTYPE


def read_pieces(cfg, smem: Smem, slot, key, first: int, number: int, of_key: list | None) -> list:
    """Columns of a key as words of two fp16: `number` pieces from piece `first` on. of_key: scales of its blocks."""
    tile, words = cfg.tiles.ring_tile, []
    address = smem.kv_address + slot * cfg.tiles.kv_slot_bytes
    for piece in range(first, first + number):
        words += load_piece(address + tile.offset(key, piece * PIECE_BYTES))
    return cache_blocks.scaled(
        to_fp16(cfg), as_fp16(words, cfg.kv_dtype), of_key, first * columns_of_piece(cfg)
    )


def dequantize_k(cfg, smem: Smem, slot, key, k_address, of_key: list | None):
    """K of a key to its lane: the columns that the MMA contracts."""
    columns = columns_of_piece(cfg)
    pieces, at_once = cfg.tiles.qk_mma_shape[2] // columns, COLUMNS_OF_STORE // columns
    for first in range(0, pieces, at_once):
        words = read_pieces(cfg, smem, slot, key, first, min(at_once, pieces - first), of_key)
        for part, column in powers_of_two(len(words)):
            at = k_address + first * columns // 2 + column
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


def dequantize_v(cfg, smem: Smem, slot, key, v_address, of_key: list | None):
    """V of a key to its line, with the padding of the depth, which is zeros."""
    tile, columns = cfg.tiles.v_tile, columns_of_piece(cfg)
    for piece in range(cfg.tiles.padded_ov_depth // columns):
        words = read_pieces(cfg, smem, slot, key, piece, 1, of_key)
        for stored in range(columns // COLUMNS_OF_LINE):
            column = piece * columns + stored * COLUMNS_OF_LINE
            part = words[WORDS * stored : WORDS * (stored + 1)]
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
    mine: cache_blocks.Key,
) -> Slot:
    """K and V of key tile number `tile` of the CTA. tmem: address of the first column for this warp's lanes."""
    key = mine.key
    buffer, free = tile & 1, (tile >> 1 & 1) ^ 1
    first, second = cfg.schedule.k_columns(cfg)
    kv.wait(at)
    events.k_free.wait(buffer, free)
    tensor_memory.fence_after()
    of_k = (
        None
        if cutlass.const_expr(mine.scales is None)
        else cache_blocks.factors(to_fp16(cfg), mine.scales.of_k)
    )
    dequantize_k(cfg, smem, at.index, key, tmem + first + buffer * (second - first), of_k)
    cute.arch.mbarrier_arrive(kv.empty + at.index)
    events.k_wide.arrive(buffer)
    at = at.next(kv.slots)
    kv.wait(at)
    events.v_free.wait(buffer, free)
    of_v = (
        None
        if cutlass.const_expr(mine.scales is None)
        else cache_blocks.factors(to_fp16(cfg), mine.scales.of_v)
    )
    dequantize_v(cfg, smem, at.index, key, smem.v_address + buffer * cfg.tiles.v_tile.nbytes, of_v)
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
    work = queue.next(cfg, args, number)
    while work.tiles.count != NO_MORE:
        if work.tiles.count > 0:
            events.q_full.wait(0, of_q & 1)
            if cutlass.const_expr(cfg.tiles.rows_have_scales):
                queries.to_fp16(cfg, smem, key, of_q)
                cute.arch.fence_proxy("async.shared", space="cta")
                events.q_wide.arrive(of_q & 1)
            of_q = of_q + 1
        of_key = cache_blocks.begin(cfg, args, work, key)
        for n in cutlass.range(work.tiles.count, unroll=1):
            ahead = cache_blocks.read(cfg, args, work, key, work.tiles.first + n + 1, of_key)
            at = key_tile(cfg, smem, tmem, events, kv, at, tile, cache_blocks.Key(key, of_key))
            tile, of_key = tile + 1, ahead
        number = number + 1
        work = queue.next(cfg, args, number)
