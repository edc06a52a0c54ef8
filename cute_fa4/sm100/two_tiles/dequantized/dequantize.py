"""Dequantize K and V, 8 or 4 bits -> 16, in their slots of the ring. A thread of these warps owns two keys of a tile.

    line of a key    as it arrives         128 columns of 8 or 4 bits     in the place of its last chunk
                     as it is multiplied   64 columns of 16 bits a chunk, one chunk or two

Chunk 0 of two is written next to the row. The last chunk overwrites the row once all of its 64 columns are in
registers. No thread reads or writes a line of another thread. K takes the dtype of q, V is fp16. The warps traverse the
ring in the order of the load warp, K0 V0 K1 V1 ..., and raise kv_full of every slot.

The rest of K, columns beyond 128, goes to a place beside the ring, with a key's line at the same place (tiles.py).

Where blocks have scales (NVFP4, MXFP8) a thread reads those of its keys one key tile ahead (steps/cache_blocks.py).
"""

from dataclasses import dataclass, replace

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cute_fa4.dtypes import row_of

from ...blueprint.chip import WARP_SIZE
from ...steps import cache_blocks
from ...steps.raw_rows import LINE_BYTES, dequantize_row, dequantize_slot, line_of, together
from ...sync.kernel_args import Events, KernelArgs, Smem
from ...sync.pipelines import KVConsumerPipeline, Slot, first_slot
from ...work.queue import NO_MORE, WorkQueue


@dataclass(frozen=True)
class Tensor:
    """K or V of a key tile.

    words  of four scales of blocks, for each key of the thread; None: there are none
    rest   line of the thread in the rest of K, from line_of; None: there is no rest
    """

    is_v: bool
    words: tuple | None
    rest: Int32 | None = None


def tensor_of(scales: tuple | None, is_v: bool) -> Tensor:
    """scales: of the thread's keys, from read."""
    if scales is None:
        return Tensor(is_v, None)
    return Tensor(is_v, tuple(key.of_v if is_v else key.of_k for key in scales))


def rest_of(cfg, smem: Smem, at: Slot, thread) -> Int32 | None:
    """The line of the thread in the rest of the K in a slot."""
    if not cfg.tiles.rest_qk_depth:
        return None
    return line_of(smem.k_rest_address + at.rest * cfg.tiles.k_rest_bytes, thread)


def dequantize_key(cfg, line, first_byte: int, of: Tensor):
    """Dequantize the row of a key. line: from line_of, first_byte: from there to the line of the key in the tile."""
    dtype, tile = cfg.v_dtype if of.is_v else cfg.qkv_dtype, cfg.tiles.wide_tile(of.is_v)
    dtypes = cfg.kv_dtype, dtype
    ends = range(first_byte, first_byte + tile.nbytes, tile.chunk_bytes)
    chunks, rest = [(line, at) for at in ends], [(of.rest, first_byte)] * (of.rest is not None)
    raw = first_byte + cfg.tiles.raw_offset(of.is_v)
    factors = None
    if of.words is not None:
        words = of.words[first_byte // (LINE_BYTES * cfg.warps.threads_of("dequantize"))]
        factors = cache_blocks.factors(dtypes, words)
    if not (rest and cfg.tiles.rest_arrives):
        return dequantize_row(dtypes, line, raw, chunks + rest, factors)
    of_rest = None if factors is None else factors[blocks_before_rest(cfg) :]
    return together(
        [
            dequantize_row(dtypes, line, raw, chunks, factors),
            dequantize_row(dtypes, of.rest, first_byte, rest, of_rest),
        ]
    )


def blocks_before_rest(cfg) -> int:
    """Blocks of a row of K whose numbers are in the slot."""
    return cfg.tiles.slot_qk_depth // row_of(cfg.kv_dtype).block


def keys_of(cfg, thread) -> list:
    """The keys of a thread in a key tile."""
    return [thread + first for first in range(0, cfg.tiles.BN, cfg.warps.threads_of("dequantize"))]


def begin(cfg, args, work, thread) -> tuple | None:
    """Scales of the blocks of a thread's keys in the first key tile of a work tile; None: there are none."""
    if not cfg.cache_blocks:
        return None
    return tuple(cache_blocks.begin(cfg, args, work, key) for key in keys_of(cfg, thread))


def read(cfg, args, work, thread, n, before: tuple | None) -> tuple | None:
    """Those in key tile n. before: of the key tile before."""
    if before is None:
        return None
    keys = zip(keys_of(cfg, thread), before, strict=True)
    return tuple(cache_blocks.read(cfg, args, work, key, n, mine) for key, mine in keys)


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
    at, number = first_slot(0, cfg.tiles.k_rests), Int32(0)
    work = queue.next(cfg, args, number)
    while work.tiles.count != NO_MORE:
        scales = begin(cfg, args, work, thread)
        for n in cutlass.range(work.tiles.count, unroll=1):
            k, v = tensor_of(scales, False), tensor_of(scales, True)
            k = replace(k, rest=rest_of(cfg, smem, at, thread))
            at = dequantize_slot(cfg, smem, events, kv, at, thread, dequantize_key, k)
            # Here, not before K: a wait for its scales would be one for these, too (docs/decisions/0065).
            scales = read(cfg, args, work, thread, work.tiles.first + n + 1, scales)
            at = dequantize_slot(cfg, smem, events, kv, at, thread, dequantize_key, v)
        number = number + 1
        work = queue.next(cfg, args, number)
