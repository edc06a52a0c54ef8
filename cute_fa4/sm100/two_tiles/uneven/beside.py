"""MMA warp, P beside S, of query tiles that see different key tiles. With l the leader and f the other warpgroup:

    n = 1, 2, ...        Sl = Q1 Kn   Ol += Pl V(n-1)   Sf = Q0 Kn   Of += Pf V(n-1)
    the last n           Sl = Q1 Kn   Ol += Pl V(n-1)                Of += Pf V(n-1)    query tile 0 skips it
    next work tile       Sf = Q1 K0                     Sl = Q0 K0   Ol += Pl V(last)   f leads

The order of p_beside_s.py, half a key tile shorter. At the end of a work tile the products of both warpgroups are
pending, or where key tiles were skipped (`cut`) only that of the warpgroup that does not go first in the next one.
Under a window (`begins_late`) query tile 0 processes the first key tiles alone:

    n = 0                Sf = Q0 K0                                  Ol += Pl V(last)   query tile 1 skips it
    n = 1                Sl = Q1 K1                     Sf = Q0 K1   Of  = Pf V0        l leads as before
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, select_

from ...operands.kv_buffer import KVBuffer, KVBufferConfig
from ...roles import alternate
from ...steps.products import make_s, multiply_pv
from ...steps.warps import MmaWarp, ScoreTile
from ...sync.kernel_args import Events, KernelArgs, Smem
from ...sync.pipelines import KVConsumerPipeline, KVPosition
from ...work.kv_range import TileRange
from ...work.queue import NO_MORE, WorkQueue
from ..single_tile.beside import Alternating
from .over import is_single_here
from .turns import (
    Turn,
    begun,
    by_warpgroup,
    ended,
    from_warpgroups,
    leader_accumulates,
    of_query_tile,
    with_own_phase,
)


@cute.jit
def add(
    cfg: cutlass.Constexpr,
    mma: MmaWarp,
    at_v: KVPosition,
    warpgroup: Int32,
    completes: cutlass.Boolean,
    phase: Int32,
    accumulate: cutlass.Boolean,
    is_last: cutlass.Constexpr = False,
):
    """Issue the pending product of a warpgroup; completes: whether that completes O. is_last: V is free after it."""
    events = mma.events
    v = KVBuffer(KVBufferConfig.for_v(cfg), mma.smem.kv_address)
    multiply_pv(cfg, v, mma, at_v.slot.index, warpgroup, phase, accumulate)
    if cutlass.const_expr(is_last):
        mma.kv.release(at_v)
    events.pv_done.commit(warpgroup)
    if completes:
        events.o_ready.commit(warpgroup)


@cute.jit
def alone(
    cfg: cutlass.Constexpr,
    q_tile: cutlass.Constexpr,
    mma: MmaWarp,
    at: tuple,
    tiles: TileRange,
    turn: Turn,
    left: tuple,
    q_phase: Int32,
) -> tuple:
    """Run the key tiles that only query tile `q_tile` sees: 0 the first, 1 the last. Its last product stays pending.

    at: K, V; left: (pending, cut): whether the product of the other warpgroup is pending, which completes its O,
    and unless `cut` also that of this one
    """
    at_k, at_v = at
    pending, cut = left
    kv = mma.kv
    first, end = (tiles.count_of(0), tiles.count) if q_tile else (0, tiles.before(1))
    own, phase, phase_of_other = of_query_tile(turn, q_tile)
    accumulate = turn.accumulate
    for n in cutlass.range(first, end, unroll=1):
        number = n - tiles.before(q_tile)
        s = ScoreTile(own, number, tiles.count_of(q_tile), q_phase)
        make_s(cfg, mma, at_k, s, wait=True, read=phase)
        kv.release(at_k)
        if pending | (n > first):
            kv.wait_v(at_v)
            if (not cut) | (n > first):
                done, adds = cutlass.Boolean(False), accumulate
                if cutlass.const_expr(q_tile == 0):
                    done = n == first
                if cutlass.const_expr(cfg.begins_late):
                    of_leader = turn.leader_accumulates
                    adds = cutlass.Boolean(select_(n == first, of_leader, accumulate))
                add(cfg, mma, at_v, own, done, phase, adds)
            if n == first:
                done = cutlass.Boolean(True)
                before = phase_of_other, turn.accumulate
                add(cfg, mma, at_v, 1 - own, done, *before)
            kv.release(at_v)
            at_v = kv.step_tile(at_v)
        at_k = kv.step_tile(at_k)
        phase = phase ^ 1
        accumulate = number > 0 if cutlass.const_expr(cfg.begins_late) else cutlass.Boolean(True)
    return at_k, at_v, with_own_phase(turn, q_tile, phase, accumulate)


@cute.jit
def last_products(
    cfg: cutlass.Constexpr,
    mma: MmaWarp,
    at_v: KVPosition,
    turn: Turn,
    cut: cutlass.Boolean,
) -> KVPosition:
    """Issue the products pending after the last key tile, with no S ahead of them; -> the next V."""
    kv, done = mma.kv, cutlass.Boolean(True)
    kv.wait_v(at_v)
    if not cut:
        accumulate = leader_accumulates(cfg, turn)
        add(cfg, mma, at_v, turn.leader, done, turn.phase, accumulate)
    phase, accumulate = turn.phase_of_other, turn.accumulate
    add(cfg, mma, at_v, 1 - turn.leader, done, phase, accumulate, is_last=True)
    return kv.step_tile(at_v)


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
    at_k = kv.first()
    at_v = kv.advance_to_v(at_k)
    pending, cut = cutlass.Boolean(False), cutlass.Boolean(False)
    turn = Turn.first(1)  # here parities are those of the key tile before
    number, q_phase = Int32(0), Int32(0)
    work = queue.next(cfg, args, number)
    while work.tiles.count != NO_MORE:
        tiles = work.tiles
        if is_single_here(cfg, work):
            phases = by_warpgroup(turn) ^ 3  # of the next P, not of the last
            at_k, phases, q_phase = alternate.key_tiles(
                cfg, Alternating(), mma, at_k, tiles.count, phases, q_phase
            )
            at_v = kv.advance_to_v(at_k)
            turn = from_warpgroups(turn, phases ^ 3)
            events.q_full.wait(1, q_phase ^ 1)  # observed before correction can release Q1
            events.o_ready.commit(1)
        else:
            turn = begun(turn, tiles)
            if cutlass.const_expr(cfg.begins_late):
                at, left = (at_k, at_v), (pending, cut)
                at_k, at_v, turn = alone(cfg, 0, mma, at, tiles, turn, left, q_phase)
                pending, cut = pending | (tiles.late > 0), cut | (tiles.late > 0)
            of_both, of_leader, late = tiles.count_of(0), tiles.count_of(1), tiles.before(1)
            leader, other = turn.leader, 1 - turn.leader
            phase, phase_of_other, accumulate = turn.phase, turn.phase_of_other, turn.accumulate
            of_leader_adds = turn.leader_accumulates
            for n in cutlass.range(late, of_both, unroll=1):
                s = ScoreTile(leader, n - late, of_leader, q_phase)
                make_s(cfg, mma, at_k, s, wait=True, read=phase)
                if pending:
                    kv.wait_v(at_v)
                if pending & (not cut):
                    adds = of_leader_adds if cutlass.const_expr(cfg.begins_late) else accumulate
                    add(cfg, mma, at_v, leader, n == 0, phase, adds)
                s = ScoreTile(other, n, of_both, q_phase)
                make_s(cfg, mma, at_k, s, wait=False, read=phase_of_other)
                kv.release(at_k)
                if pending:
                    add(cfg, mma, at_v, other, n == 0, phase_of_other, accumulate)
                    kv.release(at_v)
                    at_v = kv.step_tile(at_v)
                at_k = kv.step_tile(at_k)
                accumulate = n > 0
                if cutlass.const_expr(cfg.begins_late):
                    of_leader_adds = n > late
                pending, cut = cutlass.Boolean(True), cutlass.Boolean(False)
                phase, phase_of_other = phase ^ 1, phase_of_other ^ 1
            turn = Turn(leader, phase, phase_of_other, accumulate, of_leader_adds)
            at, goes_on = (at_k, at_v), cutlass.Boolean(True)
            if cutlass.const_expr(not cfg.begins_late):
                cut = cutlass.Boolean(False)
            left = goes_on, cut
            at_k, at_v, turn = alone(cfg, 1, mma, at, tiles, turn, left, q_phase)
            cut = tiles.early > 0
            turn = ended(turn, tiles)
            if tiles.count > 0:
                q_phase = q_phase ^ 1
        number = number + 1
        work = queue.next(cfg, args, number)
        if pending & ((work.tiles.count <= 0) | is_single_here(cfg, work)):
            at_v = last_products(cfg, mma, at_v, turn, cut)
            pending, cut = cutlass.Boolean(False), cutlass.Boolean(False)
