"""MMA warp, P beside S, with single-tile work tiles: the order of p_beside_s.py, or that of roles/alternate.py.

Parities as in over.py, but of the previous key tile: S_i waits for its s_free[i], and then its P_i is used.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...instructions import tensor_memory
from ...roles import alternate
from ...steps.warps import MmaWarp, ScoreTile
from ...sync.kernel_args import Events, KernelArgs, Smem
from ...sync.pipelines import KVConsumerPipeline
from ...work.queue import NO_MORE, WorkQueue
from ..p_beside_s import PBesideSCode, add_pending, last_products, make_next_s
from .tile import is_single


class Alternating(PBesideSCode):
    """The hooks of alternate.py: an S waits until the last one of its warpgroup has been read."""

    def may_make_s(self, events, i, phases):
        events.s_free.wait(i, ((phases >> i) & 1) ^ 1)
        tensor_memory.fence_after()

    def product_issued(self, events, i):
        events.pv_done.commit(i)


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
    phase, apart = Int32(1), Int32(0)
    pending, accumulate = cutlass.Boolean(False), cutlass.Boolean(False)
    number, q_phase = Int32(0), Int32(0)
    work = queue.next(cfg, args, number)
    while work.tiles.count != NO_MORE:
        count = work.tiles.count
        if is_single(cfg, work):
            phases = (phase | (phase ^ apart) << 1) ^ 3  # of the next P, not of the last
            at_k, phases, q_phase = alternate.key_tiles(
                cfg, Alternating(), mma, at_k, count, phases, q_phase
            )
            at_v = kv.advance_to_v(at_k)
            phase, apart = phases & 1 ^ 1, (phases ^ phases >> 1) & 1
            events.q_full.wait(1, q_phase ^ 1)  # observed before correction can release Q1
            events.o_ready.commit(1)
        else:
            for n in cutlass.range(count, unroll=1):
                for i in cutlass.range_constexpr(cfg.tiles.num_q):
                    parity = phase ^ apart if cutlass.const_expr(i == 1) else phase
                    make_next_s(cfg, mma, at_k, ScoreTile(i, n, count, q_phase), parity)
                    if pending:
                        add_pending(cfg, mma, at_v, i, n, parity, accumulate)
                if pending:
                    kv.release(at_v)
                    at_v = kv.step_tile(at_v)
                at_k = kv.step_tile(at_k)
                accumulate = n > 0
                pending = cutlass.Boolean(True)
                phase = phase ^ 1
                if n == count - 1:
                    q_phase = q_phase ^ 1
        number = number + 1
        work = queue.next(cfg, args, number)
        if pending & ((work.tiles.count <= 0) | is_single(cfg, work)):
            phases_of_p = (phase, phase ^ apart)
            at_v = last_products(cfg, mma, at_v, phases_of_p, accumulate)
            pending = cutlass.Boolean(False)
