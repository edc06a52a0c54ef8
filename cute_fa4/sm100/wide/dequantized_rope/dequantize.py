"""Dequantizing warps: the last unit of every K tile, 8 bits -> 16, in its ring slot. A thread owns two keys.

    line of a key    bytes 0..63: 64 numbers of 8 bits, 64..127: zeros    ->    64 numbers of 16 bits
    with a scale     the numbers are multiplied in float32 and rounded once

The thread that has a key loads the scale of the key from global memory, one key tile ahead. If these columns are paged,
it looks the key up in their page table first.

Both are swizzled alike, in pieces of 16 bytes: a thread loads the four pieces of its key, then stores eight over them.
The warps walk the ring in the order in which the load warp fills it (wide/loads.py). With three units of K, two of V:

    K0 K0 R0   K1 K1 R1   V0 V0   K2 K2 R2   V1 V1   V2 V2

They raise kv_full of each R; the load warp leaves that to them.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cute_fa4.dtypes import BF16, row_of
from cute_fa4.layouts.operand_tiles import KMajorTile
from cute_fa4.layouts.scalars import choose

from ...blueprint.chip import SWIZZLE_BYTES, WARP_SIZE
from ...steps import rope_rows, row_math
from ...steps.pieces import WORDS, as_fp16, load_piece, numbers_of
from ...steps.store import PIECE_BYTES, store_piece
from ...sync.kernel_args import Events, KernelArgs, Smem
from ...sync.pipelines import KVConsumerPipeline, Slot
from ...work import blocks, scales
from ...work.queue import NO_MORE, WorkQueue
from ...work.tile import Work
from .. import units

DEQUANTIZED = 3  # named barrier of the two warps; 0 to 2 are others' (kernel.py, steps/store.py)
COLUMNS = BF16.elements_in(PIECE_BYTES)  # of a piece of 16 bits


def further(at: Slot, number: int, slots: int) -> Slot:
    """The slot `number` positions further on; number: at most the number of slots."""
    index = at.index + number
    turned = index >= slots
    return Slot(choose(turned, index - slots, index), at.phase ^ choose(turned, 1, 0))


def scales_of(cfg, args: KernelArgs, work: Work, n, end, thread) -> tuple:
    """The scales of this thread's keys of tile n, 0 from tile `end` on; () if the keys have none."""
    if not cfg.scale_dtype:
        return ()
    keys = work.sequence.num_keys
    if cfg.rope_page_size:
        _, keys = rope_rows.keys_in_pages(cfg, args, work, n)
    first = blocks.key_tile(cfg, n) * cfg.tiles.BN + thread
    return tuple(
        scales.of_rope(cfg, args, work, first + i, keys, n < end) for i in firsts_of_threads(cfg)
    )


def firsts_of_threads(cfg) -> range:
    """The key of thread 0 in each pass of the threads over a tile."""
    return range(0, cfg.tiles.BN, threads_of(cfg))


def threads_of(cfg) -> int:
    return WARP_SIZE * len(cfg.warps.dequantize)


def dequantize_key(cfg, address, key, scale=None):
    """Dequantize the line of a key in the slot at this shared address; scale: multiplies its numbers."""
    raw = KMajorTile(cfg.tiles.BN, SWIZZLE_BYTES, 8)
    wide = KMajorTile(cfg.tiles.BN, cfg.tiles.swizzle_granule, cfg.tiles.bits)
    words = []
    for column in range(0, cfg.tiles.swizzle_granule, PIECE_BYTES):
        words += load_piece(address + raw.offset(key, column))
    found = as_fp16(words, cfg.rope_dtype)
    if scale is not None:
        found = row_math.pack([x * scale for x in numbers_of(found)], cfg.qkv_dtype)
    elif cfg.qkv_dtype != row_of(cfg.rope_dtype).dequantized_to:
        found = row_math.pack(numbers_of(found), cfg.qkv_dtype)
    for piece in range(cfg.tiles.swizzle_granule // COLUMNS):
        part = found[WORDS * piece : WORDS * (piece + 1)]
        store_piece(address + wide.offset(key, piece * COLUMNS), part)


def await_raw(events: Events, at: Slot, phases: Int32):
    events.rope_raw.wait(at.index, phases >> at.index & 1)


def turned(phases: Int32, at: Slot) -> Int32:
    """The parities after a wait for the unit in a slot."""
    return phases ^ (Int32(1) << at.index)


def complete(threads: int):
    """Both warps have written their lines; the tensor core may read them once one thread has signaled it."""
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.barrier(barrier_id=DEQUANTIZED, number_of_threads=threads)


@cute.jit
def dequantize_unit(
    cfg: cutlass.Constexpr,
    smem: Smem,
    events: Events,
    kv: KVConsumerPipeline,
    at: Slot,
    phases: Int32,
    thread: Int32,
    held: tuple,
) -> Int32:
    """Dequantize the unit in a slot; -> phases, whose bit i is the next parity of rope_raw of slot i.

    held: from scales_of
    """
    await_raw(events, at, phases)
    address = smem.kv_address + at.index * cfg.tiles.kv_slot_bytes
    for turn, first in enumerate(firsts_of_threads(cfg)):
        dequantize_key(cfg, address, thread + first, *held[turn : turn + 1])
    complete(threads_of(cfg))
    if thread == 0:
        cute.arch.mbarrier_arrive(kv.full + at.index)
    return turned(phases, at)


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
    k_units, v_units = cfg.tiles.k_units, cfg.tiles.v_units
    at, phases, number = units.first(), Int32(0), Int32(0)
    work = queue.next(cfg, args, number)
    while work.tiles.count != NO_MORE:
        first, end = work.tiles.first, work.tiles.first + work.tiles.count
        held = scales_of(cfg, args, work, first, end, thread)
        for n in cutlass.range(first, end, unroll=1):
            ahead = scales_of(cfg, args, work, n + 1, end, thread)
            at = further(at, k_units - 1, kv.slots)
            phases = dequantize_unit(cfg, smem, events, kv, at, phases, thread, held)
            held = ahead
            at = at.next(kv.slots)
            if n > first:
                at = further(at, v_units, kv.slots)
        if work.tiles.count > 0:
            at = further(at, v_units, kv.slots)
        number = number + 1
        work = queue.next(cfg, args, number)
