"""Load warp: a key tile as units, each into the next slot of the ring."""

from ..operands.kv_buffer import KVBuffer
from ..sync.pipelines import Slot, TMAProducerPipeline
from ..work.tile import Work
from .units import k_unit, v_unit


def load_k(cfg, k: KVBuffer, kv: TMAProducerPipeline, work: Work, at: Slot, found) -> Slot:
    """Copy a key tile, unit by unit."""
    return _load([k_unit(cfg, k, unit) for unit in range(cfg.tiles.k_units)], kv, work, at, found)


def load_v(cfg, v: KVBuffer, kv: TMAProducerPipeline, work: Work, at: Slot, found) -> Slot:
    """Copy a value tile, unit by unit."""
    return _load([v_unit(cfg, v, unit) for unit in range(cfg.tiles.v_units)], kv, work, at, found)


def _load(units: list[KVBuffer], kv, work: Work, at: Slot, found) -> Slot:
    for unit in units:
        kv.acquire(at)
        mbarrier = kv.get_v(at)
        unit.load_from_dram(at.index, mbarrier, found, work.tile.kv_head, work.sequence.batch)
        at = kv.commit_step(at)
    return at
