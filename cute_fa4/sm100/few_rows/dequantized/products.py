"""MMA warp: S^T = K Q^T and O^T += V^T P^T, issued by one thread, with K in tensor memory.

The order is that of few_rows/products.py. The operands come from the `dequantize` warps, in two buffers by key tile.
These warps have waited for Q of a work tile, or written it, before they raise k_wide for its first K.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cute_fa4.layouts.umma_descriptors import InstructionDescriptor

from ...instructions import tensor_core, tensor_memory
from ...operands.kv_buffer import mma_tile
from ...sync.kernel_args import Events, KernelArgs, Smem
from ...work.queue import NO_MORE, WorkQueue
from .tiles import COLUMNS_OF_COLUMN, WIDE_DTYPE


def multiply_kq(cfg, smem: Smem, s_address, k_address):
    """S^T = K Q^T: keys are the lanes, query rows the columns."""
    m, n, depth = cfg.tiles.qk_mma_shape
    q_start, q_high, q_steps = mma_tile(cfg.tiles.q_tile, smem.q_address, depth // cfg.tiles.MMA_K)
    computes = InstructionDescriptor(m, n, WIDE_DTYPE, WIDE_DTYPE)
    columns = cfg.tiles.MMA_K // COLUMNS_OF_COLUMN
    steps = [(step * columns, offset) for step, offset in enumerate(q_steps)]
    tensor_core.mma_ts(s_address, k_address, q_start, steps, computes, q_high, accumulate=False)


def multiply_vp(cfg, smem: Smem, o_address, v_address, accumulate):
    """O^T (+)= V^T P^T: the depth is the lanes, query rows the columns."""
    m, n, keys = cfg.tiles.pv_mma_shape
    number = keys // cfg.tiles.MMA_K
    v_start, v_high, v_steps = mma_tile(cfg.tiles.v_tile, v_address, number)
    p_start, p_high, p_steps = mma_tile(cfg.tiles.p_tile, smem.p_address, number)
    computes = InstructionDescriptor(
        m, n, WIDE_DTYPE, cfg.p_dtype, a_mn_major=True, b_mn_major=True
    )
    steps = list(zip(v_steps, p_steps, strict=True))
    tensor_core.mma_ss(o_address, v_start, p_start, steps, computes, v_high, p_high, accumulate)


@cute.jit
def finish_tile(
    cfg: cutlass.Constexpr,
    smem: Smem,
    o_address: Int32,
    events: Events,
    tile: Int32,
    accumulate: cutlass.Boolean,
):
    """P V of key tile number `tile` of the CTA.

    pv_done is the last commit. The softmax waits for it, so no commit is in flight when the CTA exits.
    """
    buffer = tile & 1
    events.v_wide.wait(buffer, tile >> 1 & 1)
    events.p_ready.wait(0, tile & 1)
    tensor_memory.fence_after()
    v_address = smem.v_address + buffer * cfg.tiles.v_tile.nbytes
    multiply_vp(cfg, smem, o_address, v_address, accumulate)
    events.v_free.commit(buffer)
    events.pv_done.commit(0)


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    tmem: Int32,
    events: Events,
    queue: WorkQueue,
):
    """Every work tile of the CTA."""
    o_address = tmem + cfg.tmem.o[0]
    s_apart = cfg.tmem.s[1] - cfg.tmem.s[0]
    first_k, second_k = cfg.schedule.k_columns(cfg)
    tile, number = Int32(0), Int32(0)
    count = queue.next(cfg, args, number).tiles.count
    while count != NO_MORE:
        for n in cutlass.range(count, unroll=1):
            buffer = tile & 1
            events.k_wide.wait(buffer, tile >> 1 & 1)
            tensor_memory.fence_after()
            k_address = tmem + first_k + buffer * (second_k - first_k)
            multiply_kq(cfg, smem, tmem + buffer * s_apart, k_address)
            events.s_ready.commit(buffer)
            events.k_free.commit(buffer)
            if n == count - 1:
                events.q_free.commit(0)
            if n > 0:
                finish_tile(cfg, smem, o_address, events, tile - 1, n > 1)
            tile = tile + 1
        if count > 0:
            finish_tile(cfg, smem, o_address, events, tile - 1, count > 1)
        number = number + 1
        count = queue.next(cfg, args, number).tiles.count
