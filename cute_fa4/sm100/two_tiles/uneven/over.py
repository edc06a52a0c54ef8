"""MMA warp, P over S, of query tiles that see different key tiles. With l the leader and f the other warpgroup:

    n = 0, 1, ...        Sl = Q1 Kn   Of += Pf V(n-1)   Sf = Q0 Kn   Ol += Pl Vn     while query tile 0 sees key tile n
    the last n           Sl = Q1 Kn   Of += Pf V(n-1)                                query tile 0 skips it
    next work tile       Sf = Q1 K0   Ol += Pl V(last)  Sl = Q0 K0   Of  = Pf V0     f leads

This is the order of p_over_s.py, half a key tile shorter: at the end of a work tile the pending product is always that
of the warpgroup that does not go first in the next one. Where more than one key tile is skipped, the leader processes
them alone. Under a window (`begins_late`) query tile 0 processes the first key tiles alone in the same way, before the
leader has an S:

    n = 0                Sf = Q0 K0   Ol += Pl V(last)                               query tile 1 skips it
    n = 1, ...           Sl = Q1 Kn   Of += Pf V(n-1)   Sf = Q0 Kn   Ol  = Pl Vn     l leads, as in the work tile before
"""

from dataclasses import replace

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...operands.kv_buffer import KVBuffer, KVBufferConfig
from ...roles import alternate
from ...roles.order import Handshake
from ...steps.products import make_s, multiply_pv
from ...steps.warps import MmaWarp, ScoreTile
from ...sync.kernel_args import Events, KernelArgs, Smem
from ...sync.pipelines import KVConsumerPipeline, KVPosition
from ...work.kv_range import TileRange
from ...work.queue import NO_MORE, WorkQueue
from ..single_tile.tile import is_single
from .turns import Turn, begun, by_warpgroup, ended, from_warpgroups, of_query_tile, with_own_phase


@cute.jit
def alone(
    cfg: cutlass.Constexpr,
    q_tile: cutlass.Constexpr,
    mma: MmaWarp,
    at: KVPosition,
    tiles: TileRange,
    turn: Turn,
    pending: cutlass.Boolean,
    q_phase: Int32,
) -> tuple[KVPosition, Turn]:
    """Run the key tiles that only query tile `q_tile` sees: 0 the first, 1 the last. Its last product stays pending.

    pending: whether the product of the other warpgroup is pending, which completes its O
    """
    events, kv = mma.events, mma.kv
    v = KVBuffer(KVBufferConfig.for_v(cfg), mma.smem.kv_address)
    first, end = (tiles.count_of(0), tiles.count) if q_tile else (0, tiles.before(1))
    own, phase, phase_of_other = of_query_tile(turn, q_tile)
    other = 1 - own
    accumulate = turn.accumulate
    for n in cutlass.range(first, end, unroll=1):
        number = n - tiles.before(q_tile)
        if n > first:  # S lies over this P
            adds = accumulate if cutlass.const_expr(cfg.begins_late) else True
            multiply_pv(cfg, v, mma, at.held_v, own, phase ^ 1, adds)
            kv.release_v(at)
        count = tiles.count_of(q_tile)
        make_s(cfg, mma, at, ScoreTile(own, number, count, q_phase), wait=True)
        if (n == first) & pending:
            before = phase_of_other ^ 1
            multiply_pv(cfg, v, mma, at.held_v, other, before, accumulate)
            events.o_ready.commit(other)
            kv.release_v(at)
        kv.release(at)
        at = kv.advance_to_v(at)
        kv.wait_v(at)
        at = kv.advance_to_k(at)
        phase = phase ^ 1
        accumulate = number > 0 if cutlass.const_expr(cfg.begins_late) else cutlass.Boolean(True)
    return at, with_own_phase(turn, q_tile, phase, accumulate)


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    tmem: Int32,
    events: Events,
    kv: KVConsumerPipeline,
    queue: WorkQueue,
):
    mma = MmaWarp(smem, tmem, events, kv)
    v = KVBuffer(KVBufferConfig.for_v(cfg), smem.kv_address)
    at = kv.first()
    pending = cutlass.Boolean(False)
    turn = Turn.first(0)
    number, q_phase = Int32(0), Int32(0)
    work = queue.next(cfg, args, number)
    while work.tiles.count != NO_MORE:
        tiles = work.tiles
        if is_single_here(cfg, work):
            at, phases, q_phase = alternate.key_tiles(
                cfg, Handshake(), mma, at, tiles.count, by_warpgroup(turn), q_phase
            )
            turn = from_warpgroups(turn, phases)
            events.q_full.wait(1, q_phase ^ 1)  # observed before correction can release Q1
            events.o_ready.commit(1)
        else:
            turn = begun(turn, tiles)
            if cutlass.const_expr(cfg.begins_late):
                at, turn = alone(cfg, 0, mma, at, tiles, turn, pending, q_phase)
                pending = pending | (tiles.late > 0)
            of_both, of_leader, late = tiles.count_of(0), tiles.count_of(1), tiles.before(1)
            leader, other = turn.leader, 1 - turn.leader
            phase, phase_of_other, accumulate = turn.phase, turn.phase_of_other, turn.accumulate
            for n in cutlass.range(late, of_both, unroll=1):
                make_s(cfg, mma, at, ScoreTile(leader, n - late, of_leader, q_phase), wait=True)
                if pending:
                    before = phase_of_other ^ 1
                    multiply_pv(cfg, v, mma, at.held_v, other, before, accumulate)
                    if n == 0:
                        events.o_ready.commit(other)
                    kv.release_v(at)
                make_s(cfg, mma, at, ScoreTile(other, n, of_both, q_phase), wait=False)
                kv.release(at)
                at = kv.advance_to_v(at)
                kv.wait_v(at)
                multiply_pv(cfg, v, mma, at.slot.index, leader, phase, n > late)
                if n == tiles.count - 1:
                    events.o_ready.commit(leader)
                at = kv.advance_to_k(at)
                accumulate = n > 0
                pending = cutlass.Boolean(True)
                phase, phase_of_other = phase ^ 1, phase_of_other ^ 1
            turn = replace(turn, phase=phase, phase_of_other=phase_of_other, accumulate=accumulate)
            goes_on = cutlass.Boolean(True)
            at, turn = alone(cfg, 1, mma, at, tiles, turn, goes_on, q_phase)
            turn = ended(turn, tiles)
            if tiles.count > 0:
                q_phase = q_phase ^ 1
        number = number + 1
        work = queue.next(cfg, args, number)
        if pending & ((work.tiles.count <= 0) | is_single_here(cfg, work)):
            before = turn.phase_of_other ^ 1
            other = 1 - turn.leader
            multiply_pv(cfg, v, mma, at.held_v, other, before, turn.accumulate)
            kv.release_v(at)
            events.o_ready.commit(other)
            pending = cutlass.Boolean(False)


def is_single_here(cfg, work):
    """Whether a work tile alternates key tiles between warpgroups; never where the kernel has no code for it."""
    return is_single(cfg, work) if cfg.schedule.lone_tiles else cutlass.Boolean(False)
