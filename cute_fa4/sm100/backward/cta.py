"""The shared state of the roles of a CTA of the backward pass: addresses, events, the place of a compute thread."""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ..sync.pipelines import Event
from . import pair
from .operands import OwnerArgs
from .owner import ROWS, STATS

SET_UP = 2  # named barrier: mbarriers and tensor memory are ready


@dataclass(frozen=True)
class CTA:
    """State that the roles of a CTA share."""

    base: Int32  # of its shared memory
    own_address: Int32
    ring_address: Int32
    stats_address: Int32
    stats: cute.Tensor  # the same as float32
    ones_address: Int32
    distances: cute.Tensor  # float32 of the sums over distances
    own_full: Event
    other_full: Event
    other_empty: Event
    s_ready: Event
    done: Event
    s_read: Event | None = None
    p_ready: Event | None = None
    dp_ready: Event | None = None
    dp_read: Event | None = None
    ds_ready: Event | None = None
    own_moved: Event | None = None
    own_there: Event | None = None
    dq_ready: Event | None = None
    dq_read: Event | None = None
    ds_sent: Event | None = None
    ds_there: Event | None = None
    sum_there: Event | None = None


@dataclass(frozen=True)
class Thread:
    """A compute thread: its row, first column, places in tensor memory, L and delta of its query, if it owns one."""

    row: Int32
    column: Int32
    first_lane: Int32  # address of the warp's lanes, column 0
    lanes: Int32  # the same at the thread's first column
    lse: Float32
    delta: Float32


def cta_of(owner, base) -> CTA:
    """base: the CTA's dynamic shared memory."""
    smem, table = owner.smem, owner.barriers
    mbarriers = cute.recast_ptr(base + smem.mbarriers.offset, dtype=Int64)
    events = {
        row.name: pair.event_of(owner, row.name)(mbarriers + table.first_index(row.name))
        for row in table.rows
    }
    stats = cute.recast_ptr(base + smem.stats.offset, dtype=Float32)
    distances = cute.recast_ptr(base + smem.distances.offset, dtype=Float32)
    return CTA(
        base=base.toint(),
        own_address=base.toint() + smem.own.offset,
        ring_address=base.toint() + smem.ring.offset,
        stats_address=base.toint() + smem.stats.offset,
        stats=cute.make_tensor(stats, cute.make_layout(STATS)),
        ones_address=base.toint() + smem.ones.offset,
        distances=cute.make_tensor(distances, cute.make_layout(max(1, smem.distances.nbytes // 4))),
        **events,
    )


@cute.jit
def thread_of(owner: cutlass.Constexpr, args: OwnerArgs, tmem: Int32, warp: Int32, work) -> Thread:
    """Of a compute warp."""
    row, column = warp % 4 * 32 + cute.arch.lane_idx(), warp // 4 * owner.columns
    first_lane = tmem + (warp % 4) * (32 << 16)
    lse, delta_of_row = Float32(0.0), Float32(0.0)
    if cutlass.const_expr(not owner.owns_keys):
        has_rows = work.count > 0
        if cutlass.const_expr(owner.ctas > 1):  # a pair may have tiles, and this CTA no rows
            has_rows = work.row < work.sequence.length_q
        if has_rows:
            line = work.sequence.stats_tile + work.row // ROWS
            lse = args.stats[work.head, line, row]
            delta_of_row = args.stats[work.head, line, ROWS + row]
    return Thread(row, column, first_lane, first_lane + column, lse, delta_of_row)
