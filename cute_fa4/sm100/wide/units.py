"""A unit of K or V, 64 columns of a key tile: its global memory, its slot, its MMA, and its position in the ring.

    units    K0 K0 K0 K0 K1 K1 K1 K1 V0 V0 V0 V0 K2 ...      of 256 columns each
    slot      0  1  2  3  4  5  6  7  8  0  1  2  3          a ring of nine

The load warp fills them in the order in which the MMA warp takes and releases them.
"""

from dataclasses import replace

from cutlass import Int32

from ..operands.kv_buffer import SPAN_BYTES, KVBuffer
from ..sync.pipelines import KVConsumerPipeline, KVPosition, Slot


def k_unit(cfg, k: KVBuffer, unit: int) -> KVBuffer:
    """The columns of a unit of K, in any slot."""
    columns = cfg.tiles.unit_columns
    contraction = cfg.tiles.k_columns(unit)
    first = unit * columns // cfg.in_element
    return _part(k, columns=columns, contraction=contraction, first_column=first)


def k_span(cfg, k: KVBuffer, rope: KVBuffer, unit: int, span: int) -> tuple[KVBuffer, bool]:
    """-> (the buffer that copies 64 columns of a unit of K, whether K itself has them). rope: has the other columns."""
    columns, own = cfg.tiles.swizzle_granule, cfg.tiles.own_qk_depth
    column = unit * cfg.tiles.unit_columns + span * columns
    there = k.ring_address + span * cfg.tiles.k_rows_per_cta * SPAN_BYTES
    if column >= own:
        part = _part(rope, first_column=column - own)
    else:
        part = _part(k, columns=columns, contraction=columns, first_column=column)
    return replace(part, ring_address=there), column < own


def v_unit(cfg, v: KVBuffer, unit: int) -> KVBuffer:
    """The CTA's own columns of a unit of V, in any slot; those of the next CTA follow."""
    first = unit * cfg.tiles.unit_columns // cfg.in_element
    return _part(v, columns=cfg.tiles.v_cols_per_cta, first_column=first)


def _part(whole: KVBuffer, **changes) -> KVBuffer:
    return replace(whole, config=replace(whole.config, **changes))


def wait(kv: KVConsumerPipeline, at: Slot):
    """Wait until the unit has arrived."""
    kv.wait_k(KVPosition(at, at.index), 0)


def release(kv: KVConsumerPipeline, at: Slot):
    """Hand the slot back once every MMA issued so far has completed."""
    kv.release(KVPosition(at, at.index))


def first() -> Slot:
    return Slot(Int32(0), Int32(0))
