"""Dequantize K and V, 8 or 4 bits -> 16, in their slots of the ring. A thread of these warps owns two keys of a tile.

    line of a key    as it arrives         128 columns of 8 or 4 bits     in the place of its last chunk
                     as it is multiplied   64 columns of 16 bits a chunk, one chunk or two

Chunk 0 of two is written next to the row. The last chunk overwrites the row once all of its 64 columns are in
registers. No thread reads or writes a line of another thread. K takes the dtype of q, V is fp16. The warps traverse the
ring in the order of the load warp, K0 V0 K1 V1 ..., and raise kv_full of every slot.

The rest of K, columns beyond 128, goes to a place outside the ring, with a key's line at the same place (tiles.py).

Where blocks have scales (NVFP4, MXFP8) a thread reads those of its keys one key tile ahead (steps/cache_blocks.py).
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cute_fa4.dtypes import row_of

from ...blueprint.chip import WARP_SIZE
from ...steps import cache_blocks
from ...steps.raw_rows import (
    LINE_BYTES,
    await_raw,
    complete,
    dequantize_lines,
    dequantize_row,
    dequantize_slot,
    hand_over,
    line_in_slot,
    line_of,
)
from ...sync.kernel_args import Events, KernelArgs, Smem
from ...sync.pipelines import KVConsumerPipeline, Slot, first_slot
from ...work.queue import NO_MORE, WorkQueue


@dataclass(frozen=True)
class Tensor:
    """K or V of a key tile. words: of four scales of blocks, for each key of the thread; None: there are none."""

    is_v: bool
    words: tuple | None


def tensor_of(scales: tuple | None, is_v: bool) -> Tensor:
    """scales: of the thread's keys, from read."""
    if scales is None:
        return Tensor(is_v, None)
    return Tensor(is_v, tuple(key.of_v if is_v else key.of_k for key in scales))


def formats(cfg, first_byte: int, of: Tensor) -> tuple[tuple[str, str], list | None]:
    """-> (dtypes as stored and as multiplied, factors of the blocks of a key); first_byte: as of dequantize_key."""
    dtypes = cfg.kv_dtype, cfg.v_dtype if of.is_v else cfg.qkv_dtype
    if of.words is None:
        return dtypes, None
    words = of.words[first_byte // (LINE_BYTES * cfg.warps.threads_of("dequantize"))]
    return dtypes, cache_blocks.factors(dtypes, words)


def chunks_in_slot(cfg, line, first_byte: int, of: Tensor) -> list[tuple]:
    """Number and place of the chunks of a key in a slot, as dequantize_row takes them."""
    tile = cfg.tiles.wide_tile(of.is_v)
    places = range(first_byte, first_byte + tile.nbytes, tile.chunk_bytes)
    return [(number, line, place) for number, place in enumerate(places)]


def dequantize_key(cfg, line, first_byte: int, of: Tensor):
    """Dequantize the row of a key. line: from line_of, first_byte: from there to the line of the key in the tile."""
    dtypes, factors = formats(cfg, first_byte, of)
    raw = first_byte + cfg.tiles.raw_offset(of.is_v)
    chunks = chunks_in_slot(cfg, line, first_byte, of)
    return [dequantize_row(dtypes, line, raw, chunks, factors)]


def dequantize_rest(cfg, line, first_byte: int, of: Tensor):
    """The same of the columns of K in its rest, which arrive there. line: in the rest."""
    dtypes, factors = formats(cfg, first_byte, of)
    factors = factors_of_rest(cfg, factors)
    return [dequantize_row(dtypes, line, first_byte, [(0, line, first_byte)], factors)]


def factors_of_rest(cfg, factors: list | None) -> list | None:
    """Those of the blocks of K in its rest."""
    if factors is None:
        return None
    return factors[cfg.tiles.slot_qk_depth // row_of(cfg.kv_dtype).block :]


def dequantize_from_rest(cfg, line, first_byte: int, of: tuple):
    """The same of a row of K that arrives in its rest. of: (the tensor, the line in the slot of K).

    A chunk at a time, the one over the row last: the codes of two rows are too many registers.
    """
    tensor, in_slot = of
    dtypes, factors = formats(cfg, first_byte, tensor)
    chunks = chunks_in_slot(cfg, in_slot, first_byte, tensor)
    chunks.append((len(chunks), line, first_byte))
    return [dequantize_row(dtypes, line, first_byte, [chunk], factors) for chunk in chunks]


def dequantize_k(
    cfg, smem: Smem, events: Events, kv: KVConsumerPipeline, at: Slot, thread, k: Tensor
) -> Slot:
    """Dequantize K of a key tile, with its rest if it has one; -> the next slot."""
    if cfg.tiles.k_rests == 1:
        return dequantize_slot(cfg, smem, events, kv, at, thread, dequantize_key, k)
    line = line_of(smem.k_rest_address + at.rest * cfg.tiles.k_rest_bytes, thread)
    in_slot = line_in_slot(cfg, smem, at, thread)
    events.rest_full.wait(at.rest, at.rest_phase)
    if cfg.tiles.row_in_rest:
        kv.wait_empty(at)
        dequantize_lines(cfg, line, dequantize_from_rest, (k, in_slot))
    else:
        dequantize_lines(cfg, line, dequantize_rest, k)
        hand_over(kv.rest_ready + at.rest)
        await_raw(events, at)
        dequantize_lines(cfg, in_slot, dequantize_key, k)
    complete(kv, at)
    return at.next(kv.slots)


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
            at = dequantize_k(cfg, smem, events, kv, at, thread, k)
            # Here, not before K: a wait for its scales would be one for these, too (docs/decisions/0065).
            scales = read(cfg, args, work, thread, work.tiles.first + n + 1, scales)
            at = dequantize_slot(cfg, smem, events, kv, at, thread, dequantize_key, v)
        number = number + 1
        work = queue.next(cfg, args, number)
