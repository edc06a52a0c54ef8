"""MMA warp where P has its own columns: S_i of the next tile is issued before P_i V of this one.

    p_over_s.py          S0 = Q0 Kn   O1 += P1 V(n-1)   S1 = Q1 Kn   O0 += P0 Vn
    p_beside_s.py    S0 = Q0 Kn   O0 += P0 V(n-1)   S1 = Q1 Kn   O1 += P1 V(n-1)

P over S makes softmax wait for P V and the next S between two tiles. With P beside S the next S waits only until the
scores are in registers (s_free), and it is ready when softmax returns:

    softmax 0    | read S0(n) | 2^x, P0(n)          | read S0(n+1) | ...
    tensor core               | S0(n+1) | P0(n-1) V |

The price: s_ready no longer says that P_i V of the previous tile has completed. pv_done says so; softmax waits for it
before it writes P_i, and correction before it touches O_i. Tensor memory has the room at depth 64. The last P V of a
work tile are issued after the first S of the next one.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..instructions import tensor_memory
from ..operands.kv_buffer import KVBuffer, KVBufferConfig
from ..roles.order import Order
from ..steps.products import make_s, multiply_pv
from ..steps.warps import MmaWarp, ScoreTile
from ..sync.kernel_args import Events, KernelArgs, Smem
from ..sync.pipelines import KVConsumerPipeline, KVPosition
from ..work.queue import NO_MORE, WorkQueue


@cute.jit
def make_next_s(
    cfg: cutlass.Constexpr,
    mma: MmaWarp,
    at_k: KVPosition,
    s: ScoreTile,
    phase: Int32,
):
    """Issue S of a key tile once the previous S has been read (phase: its parity); K is free after S_1."""
    make_s(cfg, mma, at_k, s, wait=s.i == 0, read=phase)
    if cutlass.const_expr(s.i == cfg.tiles.num_q - 1):
        mma.kv.release(at_k)


@cute.jit
def add_pending(
    cfg: cutlass.Constexpr,
    mma: MmaWarp,
    at_v: KVPosition,
    i: cutlass.Constexpr,
    n: Int32,
    phase: Int32,
    accumulate: cutlass.Boolean,
):
    """O_i (+)= P_i V of the key tile before n; phase: of its P_i. The last one of a work tile completes O_i."""
    events = mma.events
    v = KVBuffer(KVBufferConfig.for_v(cfg), mma.smem.kv_address)
    if cutlass.const_expr(i == 0):
        mma.kv.wait_v(at_v)
    multiply_pv(cfg, v, mma, at_v.slot.index, i, phase, accumulate)
    events.pv_done.commit(i)
    if n == 0:
        events.o_ready.commit(i)


def last_products(cfg, mma: MmaWarp, at_v, phases, accumulate) -> KVPosition:
    """O_i (+)= P_i V of a work tile's last key tile, with no S ahead of them; -> the next V. phases: of each P."""
    events, kv = mma.events, mma.kv
    v = KVBuffer(KVBufferConfig.for_v(cfg), mma.smem.kv_address)
    kv.wait_v(at_v)
    for i in range(cfg.tiles.num_q):
        multiply_pv(cfg, v, mma, at_v.slot.index, i, phases[i], accumulate)
        if i == cfg.tiles.num_q - 1:
            kv.release(at_v)
        events.pv_done.commit(i)
        events.o_ready.commit(i)
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
    mma = MmaWarp(smem, tmem, events, kv, args.skip)
    at_k = kv.first()
    at_v = kv.advance_to_v(at_k)
    phase = Int32(1)  # of S and P of the key tile before
    pending, accumulate = cutlass.Boolean(False), cutlass.Boolean(False)
    number, q_phase = Int32(0), Int32(0)
    count = queue.next(cfg, args, number).tiles.count
    while count != NO_MORE:
        for n in cutlass.range(count, unroll=1):
            for i in cutlass.range_constexpr(cfg.tiles.num_q):
                make_next_s(cfg, mma, at_k, ScoreTile(i, n, count, q_phase), phase)
                if pending:
                    add_pending(cfg, mma, at_v, i, n, phase, accumulate)
            if pending:
                kv.release(at_v)
                at_v = kv.step_tile(at_v)
            at_k = kv.step_tile(at_k)
            accumulate = n > 0
            pending = cutlass.Boolean(True)
            phase = phase ^ 1
        if count > 0:
            q_phase = q_phase ^ 1
        number = number + 1
        count = queue.next(cfg, args, number).tiles.count
        if count <= 0 and pending:  # the end, or work tiles without keys: nothing to wait for
            at_v = last_products(cfg, mma, at_v, (phase, phase), accumulate)
            pending = cutlass.Boolean(False)


@dataclass(frozen=True)
class PBesideSCode(Order):
    """P beside S: s_free and pv_done signal the events that s_ready does not cover here."""

    sum_early = True
    run = staticmethod(run)

    def scores_read(self, events, i):
        tensor_memory.fence_before()
        events.s_free.arrive(i)

    def may_write_p(self, events, i, phase):
        events.pv_done.wait(i, phase ^ 1)
        tensor_memory.fence_after()

    def o_complete(self, events, i, phase):
        events.pv_done.wait(i, phase)


@dataclass(frozen=True)
class SkippingBesideS(PBesideSCode):
    """Where key tiles may be skipped: then no MMA lies between p_ready and pv_done, and softmax waits for both."""

    def may_write_factor(self, events, at, phase):
        events.p_ready.wait(at, phase ^ 1)
