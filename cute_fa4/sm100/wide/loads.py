"""Load warp: copies key tiles as units, each into the next ring slot, in the order in which the MMA warp takes them.

    K0   K1 V0   K2 V1   ...   K(last) V(last-1) V(last)

V of a tile is needed one tile later than its K. If it were loaded right after its K, the next K would wait for slots
that its product frees, and S would wait for that K.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..operands.kv_buffer import KVBuffer, KVBufferConfig
from ..steps import rope_rows
from ..steps.loads import find_rows, load_q, look_up
from ..steps.warps import LoadWarp, TileToLoad
from ..sync.pipelines import Slot, TMAProducerPipeline
from ..work import blocks
from ..work.tile import Work
from .units import k_span, k_unit, v_unit


@cute.jit
def load_tile(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    warp: LoadWarp,
    tile: TileToLoad,
    at: Slot,
    q_phase: Int32,
) -> Slot:
    """Load K of key tile n and V of the one before; for the first also Q, for the last also its V. As roles/load.py."""
    args, smem, events, kv = warp.args, warp.smem, warp.events, warp.kv
    work, n, entries = tile.work, tile.n, tile.entries
    first, last = work.tiles.first, work.tiles.first + work.tiles.count - 1
    if n == first:
        events.q_free.wait(0, q_phase ^ 1)
        load_q(cfg, args, smem, events, work, 0)
    k = KVBuffer(KVBufferConfig.as_it_arrives(cfg, is_v=False), smem.kv_address, args.k)
    v = KVBuffer(KVBufferConfig.as_it_arrives(cfg, is_v=True), smem.kv_address, args.v)
    of_k, of_v = find_rows(cfg, args, work, n, entries)
    rope = rope_rows.found_of(cfg, args, smem, work, n, entries, of_k)
    if cutlass.const_expr(rope is None):
        k_units = [k_unit(cfg, k, unit) for unit in range(cfg.tiles.k_units)]
        at = load_units(k_units, kv, work, at, of_k)
    else:
        at = order.load_units_of_two(cfg, order, warp, work, at, (k, of_k), rope)
    v_units = [v_unit(cfg, v, unit) for unit in range(cfg.tiles.v_units)]
    own = [own_columns(cfg, unit) for unit in range(cfg.tiles.v_units)]
    if n > first:
        before = look_up(cfg, args, work, n - 1)
        _, of_v_before = find_rows(cfg, args, work, n - 1, before)
        at = load_units(v_units, kv, work, at, of_v_before, own)
    if n == last:
        at = load_units(v_units, kv, work, at, of_v, own)
    return at


def own_columns(cfg, unit: int):
    """Where the columns of this CTA begin in a unit of V."""
    return blocks.rank(cfg) * (cfg.tiles.v_columns(unit) // cfg.tiles.cta_group)


def load_units(
    units: list[KVBuffer], kv: TMAProducerPipeline, work: Work, at: Slot, found, own=None
) -> Slot:
    """Copy the units of a tile of K or V. own: from own_columns, for each unit of V."""
    for unit, column in zip(units, own or [0] * len(units), strict=True):
        kv.acquire(at)
        mbarrier = kv.get_v(at)
        place = work.tile.kv_head, work.sequence.batch
        unit.load_from_dram(at.index, mbarrier, found, *place, first_column=column)
        at = kv.commit_step(at)
    return at


def load_units_of_two(
    cfg, order, warp: LoadWarp, work: Work, at: Slot, own: tuple, rope: tuple
) -> Slot:
    """Copy the units of a K tile, span by span: first those from K, then those from the columns that all heads share.

    own: K, and where its rows are; rope: the same for the shared columns, from rope_rows.found_of
    """
    k, of_k = own
    shared, of_rope = rope
    kv = warp.kv
    batch, spans = work.sequence.batch, cfg.tiles.unit_columns // cfg.tiles.swizzle_granule
    for unit in range(cfg.tiles.k_units):
        kv.acquire(at)
        mbarrier = order.announced(cfg, warp.events, kv, at, unit)
        for span in range(spans):
            buffer, is_own = k_span(cfg, k, shared, unit, span)
            found, head = (of_k, work.tile.kv_head) if is_own else (of_rope, Int32(0))
            buffer.load_from_dram(at.index, mbarrier, found, head, batch)
        at = kv.commit_step(at)
    return at
