"""MMA warp of one query tile: even key tiles make S0 and O0, odd ones S1 and O1, issued by one thread.

    n = 0               S0 = Q K0                    release K0
    n = 1               S1 = Q K1    O0  = P0 V0     release K1, V0
    n = 2               S0 = Q K2    O1  = P1 V1     release K2, V1
    n = 3               S1 = Q K3    O0 += P0 V2     release K3, V2
    ...
    at the end                       O  += P V(last)

While softmax works on one key tile, the other warpgroup has its products done: two of them lie between the making of an
S and the use of its P, as with two query tiles. P is stored over S: S of tile n + 2 is issued behind P V of tile n, and
the tensor core works in issue order.

A work tile ends with its last product, before the next S: the tensor core then waits for one softmax. With one query
tile it is idle most of the time anyway (a K and a V tile take 2,560 cycles of the memory and 1,024 of the tensor core
at depth 128), and the ring goes on filling.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..kernel_args import Events, KernelArgs, Smem
from ..operands.kv_buffer import KVBuffer, KVBufferConfig
from ..roles.order import Order
from ..steps.products import multiply_pv, multiply_qk
from ..sync.pipelines import KVConsumerPipeline, KVPosition
from ..work.queue import NO_MORE, WorkQueue
from . import merge


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
    k = KVBuffer(KVBufferConfig.for_k(cfg), smem.kv_address)
    at = kv.first()
    phases = Int32(0)  # bit i: of P_i, which is used next
    number, q_phase = Int32(0), Int32(0)
    count = queue.next(cfg, args, number).tiles.count
    while count != NO_MORE:
        for n in cutlass.range(count, unroll=1):
            if n == 0:
                events.q_full.wait(0, q_phase)
            multiply_qk(cfg, smem, k, tmem, kv, at, 0, wait=True, to=n & 1)
            events.s_ready.commit(n & 1)
            kv.release(at)
            if n == count - 1:
                events.q_free.commit(0)
            if n > 0:
                phases = add_product(cfg, smem, tmem, events, kv, at, n - 1, phases)
            at = kv.advance_to_v(at)
            kv.wait_v(at)  # it comes before the next K
            at = kv.advance_to_k(at)
        if count > 0:
            phases = add_product(cfg, smem, tmem, events, kv, at, count - 1, phases)
            events.o_ready.commit(0)
            q_phase = q_phase ^ 1
        number = number + 1
        count = queue.next(cfg, args, number).tiles.count


@cute.jit
def add_product(
    cfg: cutlass.Constexpr,
    smem: Smem,
    tmem: Int32,
    events: Events,
    kv: KVConsumerPipeline,
    at: KVPosition,
    n: Int32,
    phases: Int32,
) -> Int32:
    """O_i (+)= P_i V with the held V of key tile n."""
    v = KVBuffer(KVBufferConfig.for_v(cfg), smem.kv_address)
    i = n & 1
    multiply_pv(cfg, v, tmem, events, at.held_v, i, (phases >> i) & 1, n > 1)
    kv.release_v(at)
    return phases ^ (1 << i)


@dataclass(frozen=True)
class Alternate(Order):
    """Softmax warpgroup i has the key tiles i, i + 2, i + 4, ... of the one query tile."""

    sum_early = True
    stride = 2
    writes_lse = False
    run = staticmethod(run)
    correct = staticmethod(merge.run)

    def first_tile(self, first, i):
        return first + i

    def next_tile(self, n, first, i):
        return n + ((n - first - i) & 1)

    def turn(self, distance):
        return distance >> 1

    def turns(self, count, i):
        return (count + 1 - i) >> 1

    def q_tile(self, i):
        return 0

    def has_sink(self, i):
        return i == 0

    def hand_over(self, smem, thread, state):
        smem.row_scale[thread] = state.row_sum
        smem.row_max[thread] = state.row_max
