"""MMA warp: S_i = Q_i K^T of operands with scales of blocks, and O_i += P_i V, issued by one thread.

The order is that of mha2q/p_crossed.py. Before the products that read them, the scales of a key
tile are copied from their entry of the ring into tensor memory, and at the first key tile those of Q0 and Q1:

    n = 0    copy K, Q0    S0 = Q0 K0                    copy Q1    S1 = Q1 K0                    release the entry
    n > 0    copy K        S0 = Q0 Kn    O0 += P0 V(n-1)            S1 = Q1 Kn    O1 += P1 V(n-1)

Copies and products are executed in the order in which they are issued, so a copy needs no wait for the product before
it, which reads the same columns, nor the product behind it for the copy.
"""

from functools import partial

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...layouts.block_scales import COPY_BYTES
from ..instructions import block_scales, tensor_memory
from ..kernel_args import Events, KernelArgs, Smem
from ..mha2q.p_beside_s import last_products
from ..operands.kv_buffer import KVBuffer, KVBufferConfig
from ..steps.products import make_s, multiply_pv
from ..steps.token_scales import place_of
from ..sync.pipelines import KVConsumerPipeline, KVPosition
from ..work.queue import NO_MORE, WorkQueue
from .orders import OF_K
from .schedule import ENTRY_BYTES


def address_of(smem: Smem, slot, which: int):
    """The shared address of the scales of Q0, Q1 or K (0, 1, OF_K) in an entry of the ring."""
    return smem.scales.iterator.toint() + slot * ENTRY_BYTES + which * COPY_BYTES


def copy(cfg, smem: Smem, tmem, slot, which: int):
    """Those of an entry into their columns."""
    block_scales.copy_scales(tmem + cfg.tmem.scales[which], address_of(smem, slot, which))


def await_entry(events: Events, slot, phase):
    events.scales_full.wait(slot, phase)
    tensor_memory.fence_after()


def release(events: Events, slot):
    """When every copy issued so far has been executed."""
    events.scales_empty.commit(slot)


def scaled(cfg, tmem, i: int):
    """The instructions of S_i."""
    of_q, of_k = cfg.tmem.scales[i], cfg.tmem.scales[OF_K]
    return partial(block_scales.mma_ss, a_scales=tmem + of_q, b_scales=tmem + of_k)


@cute.jit
def make_scaled_s(
    cfg: cutlass.Constexpr,
    smem: Smem,
    tmem: Int32,
    events: Events,
    kv: KVConsumerPipeline,
    at_k: KVPosition,
    i: cutlass.Constexpr,
    n: Int32,
    count: Int32,
    phase: Int32,
    q_phase: Int32,
    entry: Int32,
):
    """p_beside_s.make_next_s behind the copies of its scales. entry: the number of the key tile in the CTA."""
    slot, full = place_of(entry)
    if cutlass.const_expr(i == 0):
        await_entry(events, slot, full)
        copy(cfg, smem, tmem, slot, OF_K)
    if n == 0:
        copy(cfg, smem, tmem, slot, i)
    issue = scaled(cfg, tmem, i)
    place = at_k, i, n, count, q_phase
    make_s(cfg, smem, tmem, events, kv, *place, wait=i == 0, read=phase, issue=issue)
    if cutlass.const_expr(i == cfg.tiles.num_q - 1):
        kv.release(at_k)
        release(events, slot)


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
    at_k = kv.first()
    at_v = kv.advance_to_v(at_k)
    phase = Int32(1)  # of S and P of the key tile before
    number, q_phase, entry = Int32(0), Int32(0), Int32(0)
    count = queue.next(cfg, args, number).tiles.count
    while count != NO_MORE:
        for n in cutlass.range(count, unroll=1):
            for i in cutlass.range_constexpr(cfg.tiles.num_q):
                if cutlass.const_expr(cfg.tmem.s_meet):
                    events.s_apart.wait(1 - i, phase ^ i)  # S0 and S1 overlap
                make_scaled_s(cfg, smem, tmem, events, kv, at_k, i, n, count, phase, q_phase, entry)
                if n > 0:
                    if cutlass.const_expr(i == 0):
                        kv.wait_v(at_v)
                    multiply_pv(cfg, v, tmem, events, at_v.slot.index, i, phase, n > 1)
                    events.pv_done.commit(i)
            if n > 0:
                kv.release(at_v)
                at_v = kv.step_tile(at_v)
            at_k = kv.step_tile(at_k)
            phase = phase ^ 1
            entry = entry + 1
        if count > 0:
            at_v = last_products(cfg, smem, tmem, events, kv, at_v, (phase, phase), count > 1)
            q_phase = q_phase ^ 1
        number = number + 1
        count = queue.next(cfg, args, number).tiles.count
