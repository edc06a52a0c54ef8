"""MMA warp where P has columns of its own: S_i of the next tile is made before P_i V of this one.

    mma.py          S0 = Q0 Kn   O1 += P1 V(n-1)   S1 = Q1 Kn   O0 += P0 Vn
    mma_ahead.py    S0 = Q0 Kn   O0 += P0 V(n-1)   S1 = Q1 Kn   O1 += P1 V(n-1)

P over S makes softmax wait for P V and the next S between two tiles. With P beside S the next S waits only until the
scores are in registers (s_free), and it is there when softmax comes back:

    softmax 0    | read S0(n) | 2^x, P0(n)          | read S0(n+1) | ...
    tensor core               | S0(n+1) | P0(n-1) V |

The price: s_ready no longer says that P_i V of the tile before has completed. pv_done does; softmax waits for it before
it writes P_i, correction before it touches O_i. Tensor memory has the room at depth 64.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from . import tmem_instructions
from .kernel_args import Events, Smem, Work
from .kv_buffer import KVBuffer, KVBufferConfig
from .mma import multiply_pv, multiply_qk
from .pipelines import KVConsumerPipeline


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    smem: Smem,
    tmem: Int32,
    events: Events,
    kv: KVConsumerPipeline,
    work: Work,
):
    k = KVBuffer(KVBufferConfig.for_k(cfg), smem.kv_address)
    v = KVBuffer(KVBufferConfig.for_v(cfg), smem.kv_address)
    if work.tiles.count > 0:
        at_k = kv.first()
        at_v = kv.advance_to_v(at_k)
        for i in cutlass.range_constexpr(cfg.num_q):
            events.q_full.wait(i, 0)
            multiply_qk(cfg, smem, k, tmem, kv, at_k, i, wait=i == 0)
            events.s_ready.commit(i)
        kv.release(at_k)
        accumulate = cutlass.Boolean(False)
        phase = Int32(0)  # of S and P for tile n - 1
        for _ in cutlass.range(1, work.tiles.count, unroll=1):
            at_k = kv.step_tile(at_k)
            for i in cutlass.range_constexpr(cfg.num_q):
                events.s_free.wait(i, phase)
                tmem_instructions.fence_after()
                multiply_qk(cfg, smem, k, tmem, kv, at_k, i, wait=i == 0)
                events.s_ready.commit(i)
                if i == 0:
                    kv.wait_v(at_v)
                else:
                    kv.release(at_k)
                multiply_pv(cfg, v, tmem, events, at_v.slot.index, i, phase, accumulate)
                events.pv_done.commit(i)
            kv.release(at_v)
            at_v = kv.step_tile(at_v)
            accumulate = cutlass.Boolean(True)
            phase = phase ^ 1
        kv.wait_v(at_v)
        for i in cutlass.range_constexpr(cfg.num_q):
            multiply_pv(cfg, v, tmem, events, at_v.slot.index, i, phase, accumulate)
            events.o_ready.commit(i)
