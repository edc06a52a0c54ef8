"""MMA warp, P over S, of query tiles that see different key tiles. With l the leader and f the other warpgroup:

    n = 0, 1, ...        Sl = Q1 Kn   Of += Pf V(n-1)   Sf = Q0 Kn   Ol += Pl Vn     while query tile 0 sees key tile n
    the last n           Sl = Q1 Kn   Of += Pf V(n-1)                                query tile 0 leaves it out
    next work tile       Sf = Q1 K0   Ol += Pl V(last)  Sl = Q0 K0   Of  = Pf V0     f leads

It is the order of p_over_s.py, half a key tile shorter: what is pending at the end of a work tile is always the product
of the warpgroup that does not lead the next one. Where more than one key tile is left out, the leader has them alone.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...kernel_args import Events, KernelArgs, Smem
from ...operands.kv_buffer import KVBuffer, KVBufferConfig
from ...roles import alternate
from ...roles.order import Order
from ...steps.products import make_s, multiply_pv
from ...sync.pipelines import KVConsumerPipeline, KVPosition
from ...work.kv_range import TileRange
from ...work.queue import NO_MORE, WorkQueue
from ..lone.tile import is_lone
from .turns import Turn, by_warpgroup, changed, from_warpgroups


@cute.jit
def alone(
    cfg: cutlass.Constexpr,
    smem: Smem,
    tmem: Int32,
    events: Events,
    kv: KVConsumerPipeline,
    at: KVPosition,
    tiles: TileRange,
    turn: Turn,
    q_phase: Int32,
) -> tuple[KVPosition, Turn]:
    """The key tiles that query tile 0 leaves out; the leader's last product is pending then."""
    v = KVBuffer(KVBufferConfig.for_v(cfg), smem.kv_address)
    first = tiles.count_of(0)
    leader, other = turn.leader, 1 - turn.leader
    phase, accumulate = turn.phase, turn.accumulate
    for n in cutlass.range(first, tiles.count, unroll=1):
        if n > first:  # S lies over this P
            multiply_pv(cfg, v, tmem, events, at.held_v, leader, phase ^ 1, True)
            kv.release_v(at)
        make_s(cfg, smem, tmem, events, kv, at, leader, n, tiles.count, q_phase, wait=True)
        if n == first:
            multiply_pv(cfg, v, tmem, events, at.held_v, other, turn.phase_of_other ^ 1, accumulate)
            events.o_ready.commit(other)
            kv.release_v(at)
        kv.release(at)
        at = kv.advance_to_v(at)
        kv.wait_v(at)
        at = kv.advance_to_k(at)
        phase = phase ^ 1
        accumulate = cutlass.Boolean(True)
    return at, Turn(leader, phase, turn.phase_of_other, accumulate)


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
    v = KVBuffer(KVBufferConfig.for_v(cfg), smem.kv_address)
    at = kv.first()
    pending = cutlass.Boolean(False)
    turn = Turn.first(0)
    number, q_phase = Int32(0), Int32(0)
    work = queue.next(cfg, args, number)
    while work.tiles.count != NO_MORE:
        tiles = work.tiles
        if is_lone_here(cfg, work):
            at, phases, q_phase = alternate.key_tiles(
                cfg, Order(), smem, tmem, events, kv, at, tiles.count, by_warpgroup(turn), q_phase
            )
            turn = from_warpgroups(turn, phases)
            events.q_full.wait(1, q_phase ^ 1)  # looked at before correction can hand Q1 back
            events.o_ready.commit(1)
        else:
            of_both = tiles.count_of(0)
            leader, other = turn.leader, 1 - turn.leader
            phase, phase_of_other, accumulate = turn.phase, turn.phase_of_other, turn.accumulate
            for n in cutlass.range(of_both, unroll=1):
                make_s(cfg, smem, tmem, events, kv, at, leader, n, tiles.count, q_phase, wait=True)
                if pending:
                    before = phase_of_other ^ 1
                    multiply_pv(cfg, v, tmem, events, at.held_v, other, before, accumulate)
                    if n == 0:
                        events.o_ready.commit(other)
                    kv.release_v(at)
                make_s(cfg, smem, tmem, events, kv, at, other, n, of_both, q_phase, wait=False)
                kv.release(at)
                at = kv.advance_to_v(at)
                kv.wait_v(at)
                multiply_pv(cfg, v, tmem, events, at.slot.index, leader, phase, n > 0)
                if n == tiles.count - 1:
                    events.o_ready.commit(leader)
                at = kv.advance_to_k(at)
                accumulate = n > 0
                pending = cutlass.Boolean(True)
                phase, phase_of_other = phase ^ 1, phase_of_other ^ 1
            turn = Turn(leader, phase, phase_of_other, accumulate)
            at, turn = alone(cfg, smem, tmem, events, kv, at, tiles, turn, q_phase)
            turn = changed(turn, tiles)
            if tiles.count > 0:
                q_phase = q_phase ^ 1
        number = number + 1
        work = queue.next(cfg, args, number)
        if pending & ((work.tiles.count <= 0) | is_lone_here(cfg, work)):
            before = turn.phase_of_other ^ 1
            other = 1 - turn.leader
            multiply_pv(cfg, v, tmem, events, at.held_v, other, before, turn.accumulate)
            kv.release_v(at)
            events.o_ready.commit(other)
            pending = cutlass.Boolean(False)


def is_lone_here(cfg, work):
    """Whether a work tile runs with key tiles in turn; never, where nothing has the code for it."""
    return is_lone(cfg, work) if cfg.schedule.lone_tiles else cutlass.Boolean(False)
