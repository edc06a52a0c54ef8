"""MMA warp, P beside S, of query tiles that see different key tiles. With l the leader and f the other warpgroup:

    n = 1, 2, ...        Sl = Q1 Kn   Ol += Pl V(n-1)   Sf = Q0 Kn   Of += Pf V(n-1)
    the last n           Sl = Q1 Kn   Ol += Pl V(n-1)                Of += Pf V(n-1)    query tile 0 leaves it out
    next work tile       Sf = Q1 K0                     Sl = Q0 K0   Ol += Pl V(last)   f leads

The order of p_beside_s.py, half a key tile shorter. What is pending at the end of a work tile is the products of both
warpgroups, or where key tiles were left out (`cut`) that of the one which does not lead the next one.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...kernel_args import Events, KernelArgs, Smem
from ...operands.kv_buffer import KVBuffer, KVBufferConfig
from ...roles import alternate
from ...steps.products import make_s, multiply_pv
from ...sync.pipelines import KVConsumerPipeline, KVPosition
from ...work.kv_range import TileRange
from ...work.queue import NO_MORE, WorkQueue
from ..lone.beside import Alternating
from .over import is_lone_here
from .turns import Turn, by_warpgroup, changed, from_warpgroups


@cute.jit
def add(
    cfg: cutlass.Constexpr,
    smem: Smem,
    tmem: Int32,
    events: Events,
    at_v: KVPosition,
    warpgroup: Int32,
    completes: cutlass.Boolean,
    phase: Int32,
    accumulate: cutlass.Boolean,
    last_of: cutlass.Constexpr = None,
):
    """The pending product of a warpgroup; completes: O. last_of: the ring, whose V is free behind it."""
    v = KVBuffer(KVBufferConfig.for_v(cfg), smem.kv_address)
    multiply_pv(cfg, v, tmem, events, at_v.slot.index, warpgroup, phase, accumulate)
    if cutlass.const_expr(last_of is not None):
        last_of.release(at_v)
    events.pv_done.commit(warpgroup)
    if completes:
        events.o_ready.commit(warpgroup)


@cute.jit
def alone(
    cfg: cutlass.Constexpr,
    smem: Smem,
    tmem: Int32,
    events: Events,
    kv: KVConsumerPipeline,
    at: tuple,
    tiles: TileRange,
    turn: Turn,
    q_phase: Int32,
) -> tuple:
    """The key tiles that query tile 0 leaves out; the leader's last product is pending then. at: K, V."""
    at_k, at_v = at
    first = tiles.count_of(0)
    leader, other = turn.leader, 1 - turn.leader
    phase, accumulate = turn.phase, turn.accumulate
    for n in cutlass.range(first, tiles.count, unroll=1):
        place = at_k, leader, n, tiles.count, q_phase
        make_s(cfg, smem, tmem, events, kv, *place, wait=True, read=phase)
        kv.release(at_k)
        kv.wait_v(at_v)
        going_on = cutlass.Boolean(False)
        add(cfg, smem, tmem, events, at_v, leader, going_on, phase, accumulate)
        if n == first:
            done = cutlass.Boolean(True)
            add(cfg, smem, tmem, events, at_v, other, done, turn.phase_of_other, accumulate)
        kv.release(at_v)
        at_v = kv.step_tile(at_v)
        at_k = kv.step_tile(at_k)
        phase = phase ^ 1
        accumulate = cutlass.Boolean(True)
    return at_k, at_v, Turn(leader, phase, turn.phase_of_other, accumulate)


@cute.jit
def last_products(
    cfg: cutlass.Constexpr,
    smem: Smem,
    tmem: Int32,
    events: Events,
    kv: KVConsumerPipeline,
    at_v: KVPosition,
    turn: Turn,
    cut: cutlass.Boolean,
) -> KVPosition:
    """What is pending behind the last key tile, with no S ahead of it; -> the next V."""
    done = cutlass.Boolean(True)
    kv.wait_v(at_v)
    if not cut:
        add(cfg, smem, tmem, events, at_v, turn.leader, done, turn.phase, turn.accumulate)
    phase, accumulate = turn.phase_of_other, turn.accumulate
    add(cfg, smem, tmem, events, at_v, 1 - turn.leader, done, phase, accumulate, last_of=kv)
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
    at_k = kv.first()
    at_v = kv.advance_to_v(at_k)
    pending, cut = cutlass.Boolean(False), cutlass.Boolean(False)
    turn = Turn.first(1)  # here parities are those of the key tile before
    number, q_phase = Int32(0), Int32(0)
    work = queue.next(cfg, args, number)
    while work.tiles.count != NO_MORE:
        tiles = work.tiles
        if is_lone_here(cfg, work):
            phases = by_warpgroup(turn) ^ 3  # of the next P, not of the last
            at_k, phases, q_phase = alternate.key_tiles(
                cfg, Alternating(), smem, tmem, events, kv, at_k, tiles.count, phases, q_phase
            )
            at_v = kv.advance_to_v(at_k)
            turn = from_warpgroups(turn, phases ^ 3)
            events.q_full.wait(1, q_phase ^ 1)  # looked at before correction can hand Q1 back
            events.o_ready.commit(1)
        else:
            of_both = tiles.count_of(0)
            leader, other = turn.leader, 1 - turn.leader
            phase, phase_of_other, accumulate = turn.phase, turn.phase_of_other, turn.accumulate
            for n in cutlass.range(of_both, unroll=1):
                place = at_k, leader, n, tiles.count, q_phase
                make_s(cfg, smem, tmem, events, kv, *place, wait=True, read=phase)
                if pending:
                    kv.wait_v(at_v)
                if pending & (not cut):
                    add(cfg, smem, tmem, events, at_v, leader, n == 0, phase, accumulate)
                place = at_k, other, n, of_both, q_phase
                make_s(cfg, smem, tmem, events, kv, *place, wait=False, read=phase_of_other)
                kv.release(at_k)
                if pending:
                    add(cfg, smem, tmem, events, at_v, other, n == 0, phase_of_other, accumulate)
                    kv.release(at_v)
                    at_v = kv.step_tile(at_v)
                at_k = kv.step_tile(at_k)
                accumulate = n > 0
                pending, cut = cutlass.Boolean(True), cutlass.Boolean(False)
                phase, phase_of_other = phase ^ 1, phase_of_other ^ 1
            turn = Turn(leader, phase, phase_of_other, accumulate)
            at = at_k, at_v
            at_k, at_v, turn = alone(cfg, smem, tmem, events, kv, at, tiles, turn, q_phase)
            cut = tiles.early > 0
            turn = changed(turn, tiles)
            if tiles.count > 0:
                q_phase = q_phase ^ 1
        number = number + 1
        work = queue.next(cfg, args, number)
        if pending & ((work.tiles.count <= 0) | is_lone_here(cfg, work)):
            at_v = last_products(cfg, smem, tmem, events, kv, at_v, turn, cut)
            pending, cut = cutlass.Boolean(False), cutlass.Boolean(False)
