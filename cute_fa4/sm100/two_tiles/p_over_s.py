"""MMA warp, P stored over S: S_i = Q_i K^T and O_i += P_i V, issued by one thread.

Two query tiles take turns: while softmax works on one, the tensor core computes the products of the other.

    n = 0               S0 = Q0 K0                     S1 = Q1 K0   O0  = P0 V0    release K0
    n = 1, 2, ...       S0 = Q0 Kn   O1 += P1 V(n-1)   S1 = Q1 Kn   O0 += P0 Vn    release V(n-1), Kn
    next work tile      S0 = Q0 K0   O1 += P1 V(last)  S1 = Q1 K0   O0  = P0 V0    release V(last), K0
    at the end                       O1 += P1 V(last)

A work tile does not end before the next one begins: its last O1 is issued after the first S0 of the next. Two products
lie between S_i and the use of P_i: that is the time for softmax. No barrier says that S_i may be overwritten, because
S_i of the next tile is issued after P_i V, which waited for P_i, which was stored after S_i was read; and the tensor
core works in issue order. O_i of the next work tile waits for p_ready, which correction raises when it has read the
last one.

P arrives in two parts, so that its product starts early: three quarters of the keys and the rest, or two halves where
P begins before all scores are read (lagged maximum).
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..operands.kv_buffer import KVBuffer, KVBufferConfig
from ..roles.order import Order
from ..steps.products import make_s, multiply_pv
from ..steps.warps import MmaWarp, ScoreTile
from ..sync.kernel_args import Events, KernelArgs, Smem
from ..sync.pipelines import KVConsumerPipeline
from ..work.queue import NO_MORE, WorkQueue


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
    mma = MmaWarp(smem, tmem, events, kv, args.skip)
    v = KVBuffer(KVBufferConfig.for_v(cfg), smem.kv_address)
    at = kv.first()
    phase = Int32(0)  # of S0, S1 and P0 of this key tile; P1 of the one before has the other parity
    pending, accumulate_o1 = cutlass.Boolean(False), cutlass.Boolean(False)
    number, q_phase = Int32(0), Int32(0)
    count = queue.next(cfg, args, number).tiles.count
    while count != NO_MORE:
        for n in cutlass.range(count, unroll=1):
            make_s(cfg, mma, at, ScoreTile(0, n, count, q_phase), wait=True)
            if pending:
                multiply_pv(cfg, v, mma, at.held_v, 1, phase ^ 1, accumulate_o1)
                if n == 0:
                    events.o_ready.commit(1)
                kv.release_v(at)
            make_s(cfg, mma, at, ScoreTile(1, n, count, q_phase), wait=False)
            kv.release(at)
            at = kv.advance_to_v(at)
            kv.wait_v(at)
            multiply_pv(cfg, v, mma, at.slot.index, 0, phase, n > 0)
            if n == count - 1:
                events.o_ready.commit(0)
            at = kv.advance_to_k(at)
            accumulate_o1 = n > 0
            pending = cutlass.Boolean(True)
            phase = phase ^ 1
        if count > 0:
            q_phase = q_phase ^ 1
        number = number + 1
        count = queue.next(cfg, args, number).tiles.count
        if count <= 0 and pending:  # the end, or work tiles without keys: nothing to wait for
            multiply_pv(cfg, v, mma, at.held_v, 1, phase ^ 1, accumulate_o1)
            kv.release_v(at)
            events.o_ready.commit(1)
            pending = cutlass.Boolean(False)


@dataclass(frozen=True)
class POverSCode(Order):
    """P over S: the roles need no hook, see roles/order.py."""

    run = staticmethod(run)
