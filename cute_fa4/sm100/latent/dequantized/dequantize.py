"""Dequantize warps: a stored slab -> 16 bits, times the scale of its key if it has one, for both products.

A thread owns half of the values of a key, which are one chunk of its line of V:

    K     the key's lane of tensor memory, two values per column; K does not pass through shared memory again
    V     the key's line in shared memory, in the layout that TMA writes

An 8-bit value is exact in fp16, in float32 and in bf16; its product with a scale is rounded to bf16 once. Per slab, a
thread issues 4 loads of 16 bytes and then frees the slot. For 32 values at a time it converts, multiplies, and stores
16 columns of tensor memory and 64 bytes of V. Rotary columns of 8 bits go to shared memory, where the MMA reads those
of 16 bits: a thread has 32 of the 64. If they are values, too, the threads of the second halves copy them as slab 3.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from cute_fa4.dtypes import FP16

from ...blueprint.chip import WARP_SIZE
from ...instructions import tensor_memory
from ...operands.kv_buffer import SPAN_BYTES
from ...steps import row_math
from ...steps.pieces import WORDS, as_fp16, load_piece, numbers_of
from ...steps.store import PIECE_BYTES, store_piece
from ...sync.kernel_args import Events, KernelArgs, Smem
from ...sync.pipelines import KVConsumerPipeline, Slot
from ...work.queue import NO_MORE, WorkQueue
from ..tiles import ROPE_DEPTH
from . import blocks
from .barriers import K_BUFFERS
from .blocks import Ahead
from .tiles import COLUMNS_OF_COLUMN, COLUMNS_OF_SCALE, WIDE_BYTES

HALF = COLUMNS_OF_SCALE // 2  # columns of a slab per thread
ROPE_HALF = ROPE_DEPTH // 2  # rotary columns per thread
NUMBERS = 32  # at a time: two pieces in 8 bits, four in bf16
WORDS_AT_ONCE = NUMBERS // 4
NUMBERS_OF_PIECE = PIECE_BYTES // WIDE_BYTES


@dataclass(frozen=True)
class Place:
    """The part that a thread dequantizes: one key of a tile, and the first or second half of each slab.

    scales: of the blocks of its key; None: there are none
    """

    key: Int32
    half: Int32
    scales: Ahead | None = None


def scales_of_key(cfg, smem: Smem, place: Place) -> list:
    """The scales of this thread's values, one per slab; None each if rows have none."""
    if place.scales is not None:
        words = place.scales.words
        return [blocks.of_slab(words, i, place.half) for i in range(cfg.tiles.slabs)]
    row = cfg.tiles.row
    if not row.has_scales:
        return [None] * cfg.tiles.slabs
    words = load_piece(smem.lines_address + place.key * row.line_bytes)
    return [word.bitcast(Float32) for word in words]


def read_slab(cfg, smem: Smem, slot, key, half, columns: int = HALF) -> list:
    """This thread's values of a slab, four per word: half of its first 2 * columns ones.

    The swizzle keeps the second half as many bytes from the first.
    """
    address, words = smem.kv_address + slot * cfg.tiles.kv_slot_bytes, []
    for column in range(0, columns, PIECE_BYTES):
        words += load_piece(address + (cfg.tiles.stored_tile.offset(key, column) ^ half * columns))
    return words


def dequantized(cfg, words: list, scale) -> list:
    """Words of four values -> words of two in 16 bits, times the scale if there is one."""
    found = as_fp16(words, cfg.kv_dtype)
    if scale is None and cfg.qkv_dtype == FP16.name:
        return found
    numbers = numbers_of(found)
    if scale is not None:
        numbers = row_math.multiplied(numbers, scale)
    return row_math.pack(numbers, cfg.qkv_dtype)


def dequantize_slab(cfg, words: list, scale, key, k_address, v_address):
    """Dequantize this thread's values of a slab into the key's lane of tensor memory and its line in a chunk of V."""
    tile = cfg.tiles.slab_tile(walks_keys=True)
    for first in range(0, HALF, NUMBERS):
        at = first // 4
        wide = dequantized(cfg, words[at : at + WORDS_AT_ONCE], scale)
        tensor_memory.store(k_address + first // 2, wide)
        for piece in range(NUMBERS // NUMBERS_OF_PIECE):
            column = first + piece * NUMBERS_OF_PIECE
            store_piece(
                v_address + tile.offset(key, column), wide[WORDS * piece : WORDS * (piece + 1)]
            )


def dequantize_rope(cfg, words: list, key, half, address):
    """Dequantize this thread's rotary columns into the key's line of their tile."""
    tile, wide = cfg.tiles.rope_tile, dequantized(cfg, words, None)
    for piece in range(len(wide) // WORDS):
        inside = tile.offset(key, piece * NUMBERS_OF_PIECE) ^ half * (ROPE_HALF * WIDE_BYTES)
        store_piece(address + inside, wide[WORDS * piece : WORDS * (piece + 1)])


def read_line(cfg, smem: Smem, key) -> list:
    """The values of a key next to its rotary columns, four per word."""
    address, words = smem.lines_address + key * cfg.tiles.row.line_bytes, []
    for column in range(0, cfg.tiles.row.line_bytes, PIECE_BYTES):
        words += load_piece(address + column)
    return words


@cute.jit
def last_slab(
    cfg: cutlass.Constexpr,
    smem: Smem,
    slot: Slot,
    place: Place,
    scale: Float32,
    k_address,
    v_address,
):
    """Slab 3 whose second half are rotary columns, in their slot: they are copied, the values in lines dequantized."""
    if place.half == 0:
        dequantize_slab(
            cfg, read_line(cfg, smem, place.key), scale, place.key, k_address, v_address
        )
    else:
        tile, words = cfg.tiles.slab_tile(walks_keys=True), []
        address = smem.kv_address + slot.index * cfg.tiles.kv_slot_bytes
        for column in cutlass.range_constexpr(0, SPAN_BYTES, PIECE_BYTES):
            words += load_piece(address + cfg.tiles.stored_tile.offset(place.key, column))
        tensor_memory.store(k_address, words)
        for piece in cutlass.range_constexpr(len(words) // WORDS):
            at = v_address + tile.offset(place.key, piece * NUMBERS_OF_PIECE)
            store_piece(at, words[WORDS * piece : WORDS * (piece + 1)])


@cute.jit
def key_tile(
    cfg: cutlass.Constexpr,
    smem: Smem,
    tmem: Int32,
    events: Events,
    kv: KVConsumerPipeline,
    at: Slot,
    tile: Int32,
    place: Place,
) -> Slot:
    """Dequantize the slabs of the CTA's key tile number `tile`. tmem: first column for this warp's lanes."""
    key, half = place.key, place.half
    v_chunk = cfg.tiles.slab_tile(walks_keys=True).chunk_bytes
    kv.wait(at)
    scales = scales_of_key(cfg, smem, place)
    for i in cutlass.range_constexpr(cfg.tiles.slabs):
        if cutlass.const_expr(i > 0):
            kv.wait(at)
        slot, words, copies = at, [], cfg.tiles.row.rope_in_v and i == cfg.tiles.row.lines.slab
        if cutlass.const_expr(not copies):
            words = read_slab(cfg, smem, slot.index, key, half)
            cute.arch.mbarrier_arrive(kv.empty + slot.index)
        at = at.next(kv.slots)
        buffer = i % K_BUFFERS
        if cutlass.const_expr(i < K_BUFFERS):
            events.slab_free.wait(i, tile & 1 ^ 1)
        else:  # the first part of S of this tile follows V P of the previous tile
            events.k_free.wait(buffer, tile & 1)
        tensor_memory.fence_after()
        k_address = tmem + cfg.schedule.k_columns(cfg)[buffer] + half * (HALF // COLUMNS_OF_COLUMN)
        v_address = smem.v_address + i * cfg.tiles.wide_slab_bytes + half * v_chunk
        if cutlass.const_expr(copies):
            last_slab(cfg, smem, slot, place, scales[i], k_address, v_address)
            cute.arch.mbarrier_arrive(kv.empty + slot.index)
        else:
            dequantize_slab(cfg, words, scales[i], key, k_address, v_address)
        tensor_memory.wait_store()
        tensor_memory.fence_before()
        if cutlass.const_expr(i == cfg.tiles.stored_slabs - 1):  # V is not read before all of K
            cute.arch.fence_proxy("async.shared", space="cta")
        events.slab_wide.arrive(i)
    if cutlass.const_expr(cfg.tiles.row.dequantizes_rope):
        kv.wait(at)
        words = read_slab(cfg, smem, at.index, key, half, ROPE_HALF)
        cute.arch.mbarrier_arrive(kv.empty + at.index)
        at = at.next(kv.slots)
        events.rope_empty.wait(0, tile & 1 ^ 1)
        dequantize_rope(cfg, words, key, half, smem.rope_address)
        cute.arch.fence_proxy("async.shared", space="cta")
        events.rope_full.arrive(0)
    return at


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
    """Process every work tile of the CTA."""
    thread, _, _ = cute.arch.thread_idx()
    key = thread % cfg.tiles.BN  # the number of a warp selects its lanes of tensor memory
    half = (thread - cfg.warps.dequantize.start * WARP_SIZE) // cfg.tiles.BN
    at = Slot(Int32(0), Int32(0))
    tile, number = Int32(0), Int32(0)
    work = queue.next(cfg, args, number)
    while work.tiles.count != NO_MORE:
        ahead = blocks.begin(cfg, args, work, key)
        for n in cutlass.range(work.tiles.count, unroll=1):
            following = blocks.read(cfg, args, work, key, work.tiles.first + n + 1, ahead)
            place = Place(key, half, ahead)
            at = key_tile(cfg, smem, tmem, events, kv, at, tile, place)
            tile, ahead = tile + 1, following
        number = number + 1
        work = queue.next(cfg, args, number)
