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

from ...blueprint.chip import WARP_SIZE
from ...steps.raw_rows import dequantize_row, dequantize_slot
from ...sync.kernel_args import Events, KernelArgs, Smem
from ...sync.pipelines import KVConsumerPipeline, Slot
from ...work.queue import NO_MORE, WorkQueue


def dequantize_key(cfg, line, first_byte: int, is_v: bool):
    """Dequantize the row of a key. line: from line_of, first_byte: from there to the line of the key in the tile."""
    dtype, tile = cfg.v_dtype if is_v else cfg.qkv_dtype, cfg.tiles.wide_tile(is_v)
    chunks = range(first_byte, first_byte + tile.nbytes, tile.chunk_bytes)
    raw = first_byte + cfg.tiles.raw_offset(is_v)
    dequantize_row((cfg.kv_dtype, dtype), line, raw, chunks)


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
            at = dequantize_slot(cfg, smem, events, kv, at, thread, dequantize_key, False)
            at = dequantize_slot(cfg, smem, events, kv, at, thread, dequantize_key, True)
        number = number + 1
        count = queue.next(cfg, args, number).tiles.count
