"""Dequantizing warps: every unit of K and V, 8 bits -> 16, in its ring slot. A thread owns two keys of a tile.

    line of a key    as it arrives         128 columns of 8 bits          in the place of chunk 1
                     as it is multiplied   64 columns of 16 bits a chunk, one chunk or two

K takes the dtype of q, V is fp16. The warps walk the ring in the order in which the load warp fills it (wide/loads.py)
and raise kv_full of every slot. With two units of K, its RoPE columns and one unit of V:

    K0 K0 R0   K1 K1 R1   V0   K2 K2 R2   V1   V2

RoPE columns of 16 bits arrive as the MMA reads them; the warps only pass them on.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cute_fa4.dtypes import is_quantized

from ...blueprint.chip import WARP_SIZE
from ...steps.raw_rows import dequantize_row, dequantize_slot
from ...sync.kernel_args import Events, KernelArgs, Smem
from ...sync.pipelines import KVConsumerPipeline, Slot
from ...work.queue import NO_MORE, WorkQueue
from .. import units


def k_formats(cfg) -> list[tuple[int, str, str]]:
    """Of each unit of K: its columns, their dtype as stored, and as multiplied."""
    tiles = cfg.tiles
    stored = [cfg.kv_dtype] * tiles.own_units + [cfg.rope_stored_dtype] * (cfg.rope_depth > 0)
    return [(tiles.k_columns(unit), dtype, cfg.qkv_dtype) for unit, dtype in enumerate(stored)]


def v_formats(cfg) -> list[tuple[int, str, str]]:
    """The same of each unit of V."""
    tiles = cfg.tiles
    return [(tiles.v_columns(unit), cfg.kv_dtype, cfg.v_dtype) for unit in range(tiles.v_units)]


def dequantize_key(cfg, line, first_byte: int, of_unit: tuple[int, str, str]):
    """Dequantize the row of a key, if it has 8 bits.

    line: from line_of, first_byte: from there to the line of the key in a chunk
    """
    columns, *dtypes = of_unit
    if not is_quantized(dtypes[0]):
        return
    raw = first_byte + cfg.tiles.raw_offset(is_v=False)
    chunks = [first_byte + chunk for chunk in cfg.tiles.chunks(columns)]
    dequantize_row(tuple(dtypes), line, raw, chunks)


def dequantize_units(
    cfg, smem: Smem, events: Events, kv: KVConsumerPipeline, at: Slot, thread, formats: list
) -> Slot:
    """Dequantize the units of K or V of a key tile; -> the next slot."""
    for of_unit in formats:
        at = dequantize_slot(cfg, smem, events, kv, at, thread, dequantize_key, of_unit)
    return at


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
    of_k, of_v = k_formats(cfg), v_formats(cfg)
    at, number = units.first(), Int32(0)
    count = queue.next(cfg, args, number).tiles.count
    while count != NO_MORE:
        for n in cutlass.range(count, unroll=1):
            at = dequantize_units(cfg, smem, events, kv, at, thread, of_k)
            if n > 0:
                at = dequantize_units(cfg, smem, events, kv, at, thread, of_v)
        if count > 0:
            at = dequantize_units(cfg, smem, events, kv, at, thread, of_v)
        number = number + 1
        count = queue.next(cfg, args, number).tiles.count
