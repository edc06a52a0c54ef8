"""Dequantizing warps: every unit of K and V, 8 or 4 bits -> 16, in its ring slot. A thread owns two keys of a tile.

    line of a key    as it arrives         128 columns of 8 or 4 bits     in the place of chunk 1
                     as it is multiplied   64 columns of 16 bits a chunk, one chunk or two

K takes the dtype of q, V is fp16. The warps walk the ring in the order in which the load warp fills it (wide/loads.py)
and raise kv_full of every slot. With two units of K, its RoPE columns and one unit of V:

    K0 K0 R0   K1 K1 R1   V0   K2 K2 R2   V1   V2

RoPE columns of 16 bits arrive as the MMA reads them; the warps only pass them on. Numbers are multiplied by the scales
of their blocks, if they have any (steps/cache_blocks.py): a thread reads them for both of its keys one key tile ahead.
"""

from dataclasses import dataclass, replace

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cute_fa4.dtypes import CACHED, DTYPES

from ...blueprint.chip import WARP_SIZE
from ...steps import cache_blocks
from ...steps.raw_rows import LINE_BYTES, dequantize_row, dequantize_slot
from ...sync.kernel_args import Events, KernelArgs, Smem
from ...sync.pipelines import KVConsumerPipeline, Slot
from ...work.queue import NO_MORE, WorkQueue
from .. import units


@dataclass(frozen=True)
class Unit:
    """A unit of K or V.

    columns  its number of columns
    dtypes   as stored, and as multiplied
    first    its first block in a row
    factors  of the blocks of each key of the thread, from cache_blocks.factors; None: there are no scales of blocks
    """

    columns: int
    dtypes: tuple[str, str]
    first: int = 0
    factors: list | None = None


def k_formats(cfg) -> list[Unit]:
    """The units of K."""
    tiles = cfg.tiles
    stored = [cfg.kv_dtype] * tiles.own_units + [cfg.rope_stored_dtype] * (cfg.rope_depth > 0)
    return [
        Unit(tiles.k_columns(unit), (dtype, cfg.qkv_dtype), first_block(cfg, unit))
        for unit, dtype in enumerate(stored)
    ]


def v_formats(cfg) -> list[Unit]:
    """Those of V."""
    tiles = cfg.tiles
    return [
        Unit(tiles.v_columns(unit), (cfg.kv_dtype, cfg.v_dtype), first_block(cfg, unit))
        for unit in range(tiles.v_units)
    ]


def first_block(cfg, unit: int) -> int:
    """The first block of a unit; 0 where there are none."""
    block = DTYPES[cfg.kv_dtype].block
    return unit * cfg.tiles.unit_columns // block if cfg.cache_blocks else 0


def with_scales(cfg, of_units: list[Unit], words: tuple | None) -> list[Unit]:
    """The units of a key tile with the scales of each key of the thread. words: of four scales, for each key."""
    if words is None:
        return of_units
    dtypes = of_units[0].dtypes
    factors = [cache_blocks.factors(dtypes, of_key) for of_key in words]
    return [replace(unit, factors=[of[unit.first :] for of in factors]) for unit in of_units]


def dequantize_key(cfg, line, first_byte: int, of_unit: Unit):
    """Dequantize the row of a key, if it has 8 or 4 bits.

    line: from line_of, first_byte: from there to the line of the key in a chunk
    """
    if of_unit.dtypes[0] not in CACHED:
        return []
    raw = first_byte + cfg.tiles.raw_offset(is_v=False)
    places = enumerate(cfg.tiles.chunks(of_unit.columns))
    chunks = [(number, line, first_byte + place) for number, place in places]
    factors = None
    if of_unit.factors is not None:
        factors = of_unit.factors[first_byte // (LINE_BYTES * cfg.warps.threads_of("dequantize"))]
    return [dequantize_row(of_unit.dtypes, line, raw, chunks, factors)]


def dequantize_units(
    cfg, smem: Smem, events: Events, kv: KVConsumerPipeline, at: Slot, thread, formats: list[Unit]
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
    units_of_k, units_of_v = k_formats(cfg), v_formats(cfg)
    keys = range(0, cfg.tiles.BN, cfg.warps.threads_of("dequantize"))
    at, number = units.first(), Int32(0)
    work = queue.next(cfg, args, number)
    while work.tiles.count != NO_MORE:
        now = None
        if cutlass.const_expr(cfg.cache_blocks):
            now = tuple(cache_blocks.begin(cfg, args, work, thread + key) for key in keys)
        before = scales_of_v(now)
        for n in cutlass.range(work.tiles.count, unroll=1):
            of_k = with_scales(cfg, units_of_k, scales_of_k(now))
            at = dequantize_units(cfg, smem, events, kv, at, thread, of_k)
            # Here, not before K: a wait for its scales would be one for these, too (docs/decisions/0065).
            ahead = None
            if cutlass.const_expr(cfg.cache_blocks):
                tile = work.tiles.first + n + 1
                ahead = tuple(
                    cache_blocks.read(cfg, args, work, thread + key, tile, mine)
                    for key, mine in zip(keys, now, strict=True)
                )
            if n > 0:
                of_v = with_scales(cfg, units_of_v, before)
                at = dequantize_units(cfg, smem, events, kv, at, thread, of_v)
            before, now = scales_of_v(now), ahead
        if work.tiles.count > 0:
            of_v = with_scales(cfg, units_of_v, before)
            at = dequantize_units(cfg, smem, events, kv, at, thread, of_v)
        number = number + 1
        work = queue.next(cfg, args, number)


def scales_of_k(keys: tuple | None) -> tuple | None:
    """Words of scales of K in a key tile, for each key of the thread."""
    return None if keys is None else tuple(key.of_k for key in keys)


def scales_of_v(keys: tuple | None) -> tuple | None:
    """The same of V."""
    return None if keys is None else tuple(key.of_v for key in keys)
