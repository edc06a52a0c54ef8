"""Load warp of either CTA: stored units, in the order of latent/pair/load.py, and the scales of their keys.

    n = 0           Q  K0 K0 K0 K0 rope0
    n = 1, 2, ...      Kn Kn Kn Kn ropen   V(n-1) V(n-1) V(n-1) V(n-1)
    at the end                             V(last) ...

The first two of four units bring scales: two warpgroups take units in turn and keep the scales for their next unit.
Only the dequantize warps of this CTA wait for its units. Rotary columns of 16 bits go where the MMAs of both CTAs read
them, and signal the mbarrier of CTA 0; those of 8 bits go to a place of this CTA, for its dequantize warps. TMA fills
rows past the end of a sequence with zeros, scales included. Over rows of 584 bytes the rotary columns are the fourth
unit, with lines of the values before them (tiles.py).
"""

from dataclasses import replace

import cutlass.cute as cute
from cutlass import Int32

from cute_fa4.dtypes import DTYPES
from cute_fa4.layouts.scalars import choose
from cute_fa4.tma import copies

from ...operands.kv_buffer import SPAN_BYTES, Gathered, gather_chunks
from ...operands.tma import KVOperand
from ...sync.kernel_args import KernelArgs, Smem
from ...sync.pipelines import Slot
from ..pair.load import KV_HEAD, LatentPairProducer, LoadPosition, rows_of_unit
from ..pair.tiles import CTAS, UNIT_KEYS


def load_bytes(
    cfg, operand: KVOperand, address, mbarrier, rows, first, line_bytes: int, ctas: int = 1
):
    """Copy line_bytes bytes of each of 64 keys to shared memory, starting at byte `first` of their rows.

    ctas: 2 if both CTAs signal the mbarrier of CTA 0
    """
    if cfg.tiles.gathers_rows:
        shape = Gathered(UNIT_KEYS, 1, ctas, line_bytes)
        gather_chunks(shape, operand, address, mbarrier, rows, Int32(KV_HEAD), first)
        return
    for p, (place, further) in enumerate(rows):
        box = address + p * cfg.tiles.k_box_rows * line_bytes
        copies.load_tile(
            operand.boxes, DTYPES[cfg.stored_dtype].cutlass, box, mbarrier, place, further, first
        )


def load_unit(cfg, args: KernelArgs, smem: Smem, kv, rows, first, slot: Slot, lines: bool) -> Slot:
    """Load a unit of 64 keys, 128 bytes of each from byte `first` on; lines: also load the lines of these keys."""
    kv.units.acquire(slot)
    mbarrier = kv.units.get_k(slot, 0) if lines else kv.units.get_v(slot)
    address = smem.stored_address + slot.index * cfg.tiles.stored_bytes
    load_bytes(cfg, args.k, address, mbarrier, rows, first, SPAN_BYTES)
    if lines:
        of_row = cfg.tiles.row.lines
        places = address + cfg.tiles.lines_at
        load_bytes(cfg, args.k.rest, places, mbarrier, rows, of_row.first, of_row.nbytes)
    return kv.units.commit_step(slot)


def load_k(cfg, args: KernelArgs, smem, kv: LatentPairProducer, found, at: LoadPosition):
    """Load this CTA's half of the keys, with all columns; scales in lines once per dequantize warpgroup."""
    rows = rows_of_unit(cfg, found, cute.arch.block_idx_in_cluster() * UNIT_KEYS)
    slot, row = at.unit, cfg.tiles.row
    for block in range(cfg.tiles.k_units):
        first, lines = row.first_byte(block), cfg.tiles.lines_with_k(block)
        slot = load_unit(cfg, args, smem, kv, rows, first, slot, lines)
    if row.rope_in_v:
        return replace(at, unit=slot)
    kv.rope.acquire(at.rope)
    mbarrier = kv.rope.get_v(at.rope)
    if row.dequantizes_rope:
        place = smem.stored_rope_address
        load_bytes(cfg, args.k, place, mbarrier, rows, row.rope_at, SPAN_BYTES)
    else:
        address = smem.rope_address + at.rope.index * cfg.tiles.rope_slot_bytes
        load_bytes(cfg, args.v, address, mbarrier, rows, row.rope_at, SPAN_BYTES, CTAS)
    return replace(at, unit=slot, rope=kv.rope.commit_step(at.rope))


def load_v(cfg, args: KernelArgs, smem, kv: LatentPairProducer, found, slot: Slot) -> Slot:
    """Load all keys, with this CTA's half of the columns of each product."""
    tiles, rank = cfg.tiles, cute.arch.block_idx_in_cluster()
    parts = [rows_of_unit(cfg, found, Int32(i * UNIT_KEYS)) for i in range(tiles.key_parts)]
    for output in range(tiles.outputs):
        for rows in parts:
            of_ranks = (tiles.row.first_byte(CTAS * output + other) for other in range(CTAS))
            first = choose(rank == 0, *map(Int32, of_ranks))
            lines = tiles.lines_with_v(output)
            slot = load_unit(cfg, args, smem, kv, rows, first, slot, lines)
    return slot
