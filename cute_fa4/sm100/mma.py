"""MMA warp: S_i = Q_i K^T and O_i += P_i V, issued by one thread.

Two query tiles take turns on the tensor core: while softmax works on one, the other has its products done.

    wait K0, Q0, Q1     S0 = Q0 K0   S1 = Q1 K0                                    release K0
    wait V0, P0                                    O0  = P0 V0
    n = 1, 2, ...       S0 = Q0 Kn   O1 += P1 V(n-1)   S1 = Q1 Kn   O0 += P0 Vn    release V(n-1), Kn
    at the end                                     O1 += P1 V(last)                (its slot is not needed again)

Two products lie between the making of S_i and the use of P_i: that is the time softmax has. No barrier says that S_i
may be overwritten: S_i of the next tile is issued after P_i V, which waited for P_i, which was stored after S_i was
read; and the tensor core works in issue order.

P arrives in two parts, the first three quarters of the keys and the rest, so that its product starts early.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..layouts.operand_tiles import KMajorTile
from ..layouts.umma_descriptors import InstructionDescriptor
from . import mma_instructions, tmem_instructions
from .kernel_args import Events, Smem, Work
from .kv_buffer import KVBuffer, KVBufferConfig, mma_tile
from .pipelines import KVConsumerPipeline, KVPosition


def multiply_qk(
    cfg, smem: Smem, k: KVBuffer, tmem, kv: KVConsumerPipeline, at: KVPosition, i: int, wait: bool
):
    """S_i = Q_i K^T, each depth stage of K as it arrives (`wait`; the second query tile finds K already there)."""
    m, n, depth = cfg.qk_mma_shape
    q = KMajorTile(cfg.rows_per_q_tile, cfg.padded_qk_depth)
    q_start, q_high, q_steps = mma_tile(
        q, smem.q_address + i * cfg.q_tile_bytes, depth // cfg.MMA_K
    )
    k_start, k_high, k_steps = k.get_mma_tile(at.slot.index)
    steps = list(zip(q_steps, k_steps, strict=True))
    idesc = InstructionDescriptor(m, n, cfg.qkv_dtype, cfg.qkv_dtype).encode()
    per_stage = cfg.BK0 // cfg.MMA_K
    for stage in range(cfg.qk_stages):
        if wait:
            kv.wait_k(at, stage)
        part = steps[stage * per_stage : (stage + 1) * per_stage]
        if part:
            mma_instructions.mma_ss(
                tmem + cfg.tmem_s[i],
                q_start,
                k_start,
                part,
                idesc,
                q_high,
                k_high,
                accumulate=stage > 0,
            )


def multiply_pv(cfg, v: KVBuffer, tmem, events: Events, slot, i: int, phase, accumulate):
    """O_i (+)= P_i V, the first part of P as soon as it is stored and O_i is rescaled, then the rest."""
    m, n, _ = cfg.pv_mma_shape
    v_start, v_high, v_steps = v.get_mma_tile(slot)
    columns = cfg.MMA_K * cfg.dtype_bytes // 4  # tensor-memory columns of P in one step
    steps = [(step * columns, offset) for step, offset in enumerate(v_steps)]
    idesc = InstructionDescriptor(m, n, cfg.qkv_dtype, cfg.qkv_dtype, b_mn_major=True).encode()
    first = cfg.p_first_part // cfg.MMA_K
    d, p = tmem + cfg.tmem_o[i], tmem + cfg.tmem_p[i]
    events.p_ready.wait(i, phase)
    tmem_instructions.fence_after()
    mma_instructions.mma_ts(d, p, v_start, steps[:first], idesc, v_high, accumulate)
    events.p_last.wait(i, phase)
    tmem_instructions.fence_after()
    mma_instructions.mma_ts(d, p, v_start, steps[first:], idesc, v_high, accumulate=True)


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
        at = kv.first()
        for i in cutlass.range_constexpr(cfg.num_q):
            events.q_full.wait(i, 0)
            multiply_qk(cfg, smem, k, tmem, kv, at, i, wait=i == 0)
            events.s_ready.commit(i)
        at = kv.release_k(at)
        kv.wait_v(at)
        multiply_pv(cfg, v, tmem, events, at.slot.index, 0, Int32(0), accumulate=False)

        phase = Int32(0)  # of P1 for tile n - 1; P0 of tile n has the other parity
        accumulate_o1 = cutlass.Boolean(False)
        for _ in cutlass.range(1, work.tiles.count, unroll=1):
            at = kv.advance_to_k(at)
            multiply_qk(cfg, smem, k, tmem, kv, at, 0, wait=True)
            events.s_ready.commit(0)
            multiply_pv(cfg, v, tmem, events, at.held_v, 1, phase, accumulate_o1)
            kv.release_v(at)
            multiply_qk(cfg, smem, k, tmem, kv, at, 1, wait=False)
            events.s_ready.commit(1)
            at = kv.release_k(at)
            phase = phase ^ 1
            kv.wait_v(at)
            multiply_pv(cfg, v, tmem, events, at.slot.index, 0, phase, accumulate=True)
            accumulate_o1 = cutlass.Boolean(True)
        events.o_ready.commit(0)
        multiply_pv(cfg, v, tmem, events, at.slot.index, 1, phase, accumulate_o1)
        events.o_ready.commit(1)
