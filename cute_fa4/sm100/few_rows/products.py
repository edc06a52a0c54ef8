"""MMA warp: S^T = K Q^T and O^T += V^T P^T, issued by one thread.

    n = 0               S[0] = K0 Q                       release K0
    n = 1, 2, ...       S[n] = Kn Q     O += V(n-1) P     release Kn, V(n-1)
    at the end                          O += V(last) P    release V(last)

S has two buffers, so the next scores are ready when the softmax needs them. No barrier guards a buffer against being
overwritten: S of tile n + 1 is issued after P V of tile n - 1, which waited for P, which was stored after S of that
tile was read. A work tile ends before the next one begins; meanwhile TMA fills the slots of the ring with K and V of
three key tiles.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cute_fa4.layouts.operand_tiles import KMajorTile
from cute_fa4.layouts.umma_descriptors import InstructionDescriptor

from ..instructions import tensor_core, tensor_memory
from ..operands.kv_buffer import KVBuffer, KVBufferConfig, mma_tile
from ..sync.kernel_args import Events, KernelArgs, Smem
from ..sync.pipelines import KVConsumerPipeline, KVPosition
from ..work.queue import NO_MORE, WorkQueue
from .barriers import S_BUFFERS


def multiply_kq(cfg, smem: Smem, k: KVBuffer, s_address, kv: KVConsumerPipeline, at: KVPosition):
    """S^T = K Q^T, each depth stage of K as it arrives; the first is ready. Keys are the lanes, rows the columns."""
    m, n, depth = cfg.tiles.qk_mma_shape
    q = KMajorTile(cfg.tiles.q_box_rows, cfg.tiles.padded_qk_depth, cfg.tiles.bits)
    q_start, q_high, q_steps = mma_tile(q, smem.q_address, depth // cfg.tiles.MMA_K)
    computes = InstructionDescriptor(m, n, cfg.qkv_dtype, cfg.qkv_dtype)
    done = 0
    for stage, (k_start, k_high, k_steps) in enumerate(k.get_mma_stages(at.slot.index)):
        if stage > 0:
            kv.wait_k(at, stage)
        steps = list(zip(k_steps, q_steps[done : done + len(k_steps)], strict=True))
        done += len(steps)
        tensor_core.mma_ss(
            s_address, k_start, q_start, steps, computes, k_high, q_high, accumulate=stage > 0
        )


def multiply_vp(cfg, smem: Smem, v: KVBuffer, o_address, slot, accumulate):
    """O^T (+)= V^T P^T: the depth is the lanes, query rows the columns."""
    m, n, _ = cfg.tiles.pv_mma_shape
    v_start, v_high, v_steps = v.get_mma_tile(slot)
    p_start, p_high, p_steps = mma_tile(cfg.tiles.p_tile, smem.p_address, len(v_steps))
    computes = InstructionDescriptor(
        m, n, cfg.qkv_dtype, cfg.p_dtype, a_mn_major=True, b_mn_major=True
    )
    steps = list(zip(v_steps, p_steps, strict=True))
    tensor_core.mma_ss(o_address, v_start, p_start, steps, computes, v_high, p_high, accumulate)


@cute.jit
def finish_tile(
    cfg: cutlass.Constexpr,
    smem: Smem,
    o_address: Int32,
    events: Events,
    kv: KVConsumerPipeline,
    at: KVPosition,
    tile: Int32,
    accumulate: cutlass.Boolean,
):
    """P V of key tile number `tile` of the CTA, whose V is held.

    pv_done is the last commit. The softmax waits for it, so no commit is in flight when the CTA exits.
    """
    v = KVBuffer(KVBufferConfig.for_v(cfg), smem.kv_address)
    events.p_ready.wait(0, tile & 1)
    tensor_memory.fence_after()
    multiply_vp(cfg, smem, v, o_address, at.held_v, accumulate)
    kv.release_v(at)
    events.pv_done.commit(0)


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
    """Every work tile of the CTA."""
    k = KVBuffer(KVBufferConfig.for_k(cfg), smem.kv_address)
    o_address = tmem + cfg.tmem.o[0]
    s_apart = cfg.tmem.s[1] - cfg.tmem.s[0]
    at = kv.first()
    tile = Int32(0)  # counted over all work tiles; it determines the parities
    number, q_phase = Int32(0), Int32(0)
    count = queue.next(cfg, args, number).tiles.count
    while count != NO_MORE:
        for n in cutlass.range(count, unroll=1):
            kv.wait_k(at, 0)
            if n == 0:  # Q is loaded after K (loads.py)
                events.q_full.wait(0, q_phase)
            buffer = tile & (S_BUFFERS - 1)
            multiply_kq(cfg, smem, k, tmem + buffer * s_apart, kv, at)
            events.s_ready.commit(buffer)
            if n == count - 1:
                events.q_free.commit(0)
            kv.release(at)
            if n > 0:
                finish_tile(cfg, smem, o_address, events, kv, at, tile - 1, n > 1)
            at = kv.advance_to_v(at)
            kv.wait_v(at)
            at = kv.advance_to_k(at)
            tile = tile + 1
        if count > 0:
            q_phase = q_phase ^ 1
            finish_tile(cfg, smem, o_address, events, kv, at, tile - 1, count > 1)
        number = number + 1
        count = queue.next(cfg, args, number).tiles.count
