"""Load warp: the units of a K tile whose last columns come from a separate tensor."""

from dataclasses import replace

from cutlass import Int32

from cute_fa4.dtypes import is_quantized

from ...operands.kv_buffer import KVBuffer
from ...steps.warps import LoadWarp
from ...sync.pipelines import Slot
from ...work.tile import Work
from ..loads import load_units
from ..units import k_unit


def load_units_of_two(
    cfg, order, warp: LoadWarp, work: Work, at: Slot, own: tuple, rope: tuple
) -> Slot:
    """Copy the units from K, then the unit from the columns that all heads share. As wide/loads.py."""
    k, of_k = own
    shared, of_rope = rope
    kv = warp.kv
    units = [k_unit(cfg, k, unit) for unit in range(cfg.tiles.own_units)]
    at = load_units(units, kv, work, at, of_k)
    kv.acquire(at)
    # They have as many bytes as a unit of 8 bits: 64 columns of 16, or 128 of 8.
    mbarrier = kv.get_v(at)
    in_slot(cfg, k, shared).load_from_dram(
        at.index, mbarrier, of_rope, Int32(0), work.sequence.batch
    )
    return kv.commit_step(at)


def in_slot(cfg, k: KVBuffer, rope: KVBuffer) -> KVBuffer:
    """The buffer of the RoPE columns: 8-bit rows where those of K arrive, 16-bit ones where the MMA reads them."""
    offset = cfg.tiles.raw_offset(is_v=False) if is_quantized(cfg.rope_stored_dtype) else 0
    return replace(rope, ring_address=k.ring_address, config=replace(rope.config, offset=offset))
