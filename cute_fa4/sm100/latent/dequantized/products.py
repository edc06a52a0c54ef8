"""MMA warp: S^T = K Q^T over four slabs in tensor memory and the rotary columns, O_i^T += V_i^T P^T slab by slab.

    n = 0, 1, ...   S[n] = slab0 Q + slab1 Q + slab2 Q + slab3 Q + rope Q      each as it is dequantized
                    O0 += slab0 P   O1 += slab1 P   ...                        as soon as P[n] is stored

K of slabs 2 and 3 reuses the buffers of slabs 0 and 1; k_free says when they are free. By then V P of the previous
tile is done too, so slab_free is only needed for slabs 0 and 1.
The order is that of latent/products.py; the operands come from the dequantize warps.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cute_fa4.layouts.operand_tiles import KMajorTile
from cute_fa4.layouts.umma_descriptors import InstructionDescriptor

from ...few_rows.barriers import S_BUFFERS
from ...instructions import tensor_core, tensor_memory
from ...operands.kv_buffer import mma_tile
from ...roles import issue
from ...roles.issue import Products
from ...steps.warps import MmaWarp
from ...sync.kernel_args import Events, KernelArgs, Smem
from ...sync.pipelines import KVConsumerPipeline, Slot
from ...work.queue import WorkQueue
from ..products import multiply_kq, multiply_vp
from .barriers import K_BUFFERS
from .tiles import COLUMNS_OF_COLUMN


def multiply_slab(cfg, smem: Smem, k_address, s_address, i: int):
    """S^T (+)= K Q^T over the columns of slab i in tensor memory."""
    m, n, _ = cfg.tiles.qk_mma_shape
    step, each = cfg.tiles.MMA_K, cfg.tiles.slab_columns // cfg.tiles.MMA_K
    q = KMajorTile(cfg.tiles.q_box_rows, cfg.tiles.padded_qk_depth, cfg.tiles.bits)
    q_start, q_high, q_steps = mma_tile(q, smem.q_address, (i + 1) * each)
    steps = [
        (number * step // COLUMNS_OF_COLUMN, offset)
        for number, offset in enumerate(q_steps[i * each :])
    ]
    computes = InstructionDescriptor(m, n, cfg.qkv_dtype, cfg.qkv_dtype)
    tensor_core.mma_ts(s_address, k_address, q_start, steps, computes, q_high, accumulate=i > 0)


@dataclass(frozen=True)
class DequantizedSlabs(Products):
    """at: a position in the ring of rotary columns, mma.kv."""

    def make_scores(self, cfg, mma, at, tile):
        """Compute S of a key tile; accumulate each slab as soon as it is ready."""
        smem, tmem, events, rope = mma.smem, mma.tmem, mma.events, mma.kv
        buffer = tile & (S_BUFFERS - 1)
        s_address = tmem + buffer * (cfg.tmem.s[1] - cfg.tmem.s[0])
        k_columns = cfg.schedule.k_columns(cfg)
        for i in range(cfg.tiles.slabs):
            events.slab_wide.wait(i, tile & 1)
            tensor_memory.fence_after()
            multiply_slab(cfg, smem, tmem + k_columns[i % K_BUFFERS], s_address, i)
            if i < K_BUFFERS:
                events.k_free.commit(i)
        has_rope = cfg.tiles.rope_slot_bytes > 0
        if has_rope:
            rope.wait(at)
            multiply_kq(cfg, smem, cfg.tiles.rope_tile, smem.rope_address, s_address, cfg.ov_depth)
        events.s_ready.commit(buffer)
        if has_rope and not cfg.tiles.p_over_rope:
            rope.release_slot(at)

    def finish_tile(self, cfg, mma, at, tile, accumulate):
        """Accumulate every O_i of a key tile.

        pv_done is the last commit. The softmax waits for it, so no commit is in flight when the CTA exits.
        """
        smem, tmem, events, rope = mma.smem, mma.tmem, mma.events, mma.kv
        events.p_ready.wait(0, tile & 1)
        tensor_memory.fence_after()
        for i, column in enumerate(cfg.tmem.o):
            v_address = smem.v_address + i * cfg.tiles.wide_slab_bytes
            multiply_vp(cfg, smem, v_address, tmem + column, accumulate)
            if i < K_BUFFERS:
                events.slab_free.commit(i)
        if cfg.tiles.p_over_rope:
            rope.release_slot(at)
        events.pv_done.commit(0)
        return at.next(rope.slots)


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    tmem: Int32,
    events: Events,
    rope: KVConsumerPipeline,
    queue: WorkQueue,
):
    """Process every work tile of the CTA."""
    mma = MmaWarp(smem, tmem, events, rope)
    issue.in_turn(cfg, DequantizedSlabs(), args, mma, queue, Slot(Int32(0), Int32(0)))
