"""MMA warp of the latent kernel: S^T = K Q^T over four slabs and the rotary columns, O_i^T += V_i^T P^T slab by slab.

    n = 0, 1, ...   S[n] = slab0 Q + slab1 Q + slab2 Q + slab3 Q + rope Q      each as it arrives; release rope
                    O0 += slab0 P   release slab0                              as soon as P[n] is stored
                    O1 += slab1 P   release slab1
                    ...

A slab is used twice and released once. The next tile's slabs arrive while the products of this one run: slots beyond
four are filled at once, the others as they are released. S of the next tile cannot be computed earlier, because its
slabs reuse the slots of this tile.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cute_fa4.layouts.operand_tiles import KMajorTile, OperandTile
from cute_fa4.layouts.umma_descriptors import InstructionDescriptor

from ..few_rows.barriers import S_BUFFERS
from ..instructions import tensor_core, tensor_memory
from ..operands.kv_buffer import mma_tile
from ..roles import issue
from ..roles.issue import Products
from ..steps.warps import MmaWarp
from ..sync.kernel_args import Events, KernelArgs, Smem
from ..sync.pipelines import KVConsumerPipeline, Slot
from ..work.queue import WorkQueue
from .load import LatentSlots


@dataclass(frozen=True)
class LatentConsumer:
    """The MMA warp's end of both rings."""

    slabs: KVConsumerPipeline
    rope: KVConsumerPipeline

    def first(self) -> LatentSlots:
        return LatentSlots(self.slabs.first().slot, self.rope.first().slot)


def multiply_kq(cfg, smem: Smem, k: OperandTile, address, s_address, first: int):
    """S^T (+)= K Q^T over the columns of the tile k at a shared address, starting at column `first`."""
    m, n, depth = cfg.tiles.qk_mma_shape
    step, columns = cfg.tiles.MMA_K, min(k.cols, depth - first)
    q = KMajorTile(cfg.tiles.q_box_rows, cfg.tiles.padded_qk_depth, cfg.tiles.bits)
    q_start, q_high, q_steps = mma_tile(q, smem.q_address, (first + columns) // step)
    k_start, k_high, k_steps = mma_tile(k, address, columns // step)
    computes = InstructionDescriptor(m, n, cfg.qkv_dtype, cfg.qkv_dtype)
    steps = list(zip(k_steps, q_steps[first // step :], strict=True))
    tensor_core.mma_ss(
        s_address, k_start, q_start, steps, computes, k_high, q_high, accumulate=first > 0
    )


def multiply_vp(cfg, smem: Smem, address, o_address, accumulate):
    """O_i^T (+)= V_i^T P^T for the slab at a shared address; its columns map to the lanes."""
    m, n, keys = cfg.tiles.pv_mma_shape
    v = cfg.tiles.slab_tile(walks_keys=True)
    v_start, v_high, v_steps = mma_tile(v, address, keys // cfg.tiles.MMA_K)
    p_start, p_high, p_steps = mma_tile(cfg.tiles.p_tile, smem.p_address, len(v_steps))
    computes = InstructionDescriptor(
        m, n, cfg.qkv_dtype, cfg.p_dtype, a_mn_major=True, b_mn_major=True
    )
    steps = list(zip(v_steps, p_steps, strict=True))
    tensor_core.mma_ss(o_address, v_start, p_start, steps, computes, v_high, p_high, accumulate)


def address_of(cfg, smem: Smem, slab: Slot):
    return smem.kv_address + slab.index * cfg.tiles.kv_slot_bytes


@dataclass(frozen=True)
class InSlabs(Products):
    """at: a position in both rings."""

    def make_scores(self, cfg, mma, at, tile):
        """Compute S of a key tile; accumulate each slab as soon as it arrives."""
        smem, tmem, events, kv = mma.smem, mma.tmem, mma.events, mma.kv
        buffer = tile & (S_BUFFERS - 1)
        s_address = tmem + buffer * (cfg.tmem.s[1] - cfg.tmem.s[0])
        slab, k = at.slab, cfg.tiles.slab_tile(walks_keys=False)
        for i in range(cfg.tiles.slabs):
            kv.slabs.wait(slab)
            multiply_kq(cfg, smem, k, address_of(cfg, smem, slab), s_address, i * k.cols)
            slab = slab.next(kv.slabs.slots)
        has_rope = cfg.tiles.rope_slot_bytes > 0
        if has_rope:
            kv.rope.wait(at.rope)
            address = smem.rope_address + at.rope.index * cfg.tiles.rope_slot_bytes
            multiply_kq(cfg, smem, cfg.tiles.rope_tile, address, s_address, cfg.ov_depth)
        events.s_ready.commit(buffer)
        if has_rope and not cfg.tiles.p_over_rope:
            kv.rope.release_slot(at.rope)

    def finish_tile(self, cfg, mma, at, tile, accumulate):
        """Accumulate every O_i of a key tile; return the position of the next tile.

        pv_done is the last commit. The softmax waits for it, so no commit is in flight when the CTA exits.
        """
        smem, tmem, events, kv = mma.smem, mma.tmem, mma.events, mma.kv
        events.p_ready.wait(0, tile & 1)
        tensor_memory.fence_after()
        slab = at.slab
        for column in cfg.tmem.o:
            multiply_vp(cfg, smem, address_of(cfg, smem, slab), tmem + column, accumulate)
            kv.slabs.release_slot(slab)
            slab = slab.next(kv.slabs.slots)
        if cfg.tiles.p_over_rope:
            kv.rope.release_slot(at.rope)
        events.pv_done.commit(0)
        return LatentSlots(slab, at.rope.next(kv.rope.slots))


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    tmem: Int32,
    events: Events,
    kv: LatentConsumer,
    queue: WorkQueue,
):
    """Process every work tile of the CTA."""
    mma = MmaWarp(smem, tmem, events, kv)
    issue.in_turn(cfg, InSlabs(), args, mma, queue, kv.first())
