"""MMA warp of the latent kernel: S^T = K Q^T over four slabs and the rotary columns, O_i^T += V_i^T P^T slab by slab.

    n = 0, 1, ...   S[n] = slab0 Q + slab1 Q + slab2 Q + slab3 Q + rope Q      each as it arrives; release rope
                    O0 += slab0 P   release slab0                              as soon as P[n] is stored
                    O1 += slab1 P   release slab1
                    ...

A slab is used twice and released once. The next tile's slabs arrive while the products of this one run: those that the
ring has beyond four at once, the others as slots are released. S of the next tile cannot be made before: its slabs
take the slots of these.
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
from ..sync.kernel_args import Events, KernelArgs, Smem
from ..sync.pipelines import KVConsumerPipeline, Slot
from ..work.queue import NO_MORE, WorkQueue
from .load import LatentSlots


@dataclass(frozen=True)
class LatentConsumer:
    """The MMA warp's end of both rings."""

    slabs: KVConsumerPipeline
    rope: KVConsumerPipeline

    def first(self) -> LatentSlots:
        return LatentSlots(self.slabs.first().slot, self.rope.first().slot)


def multiply_kq(cfg, smem: Smem, k: OperandTile, address, s_address, first: int):
    """S^T (+)= K Q^T over the columns of the tile k at a shared address, of which `first` is the first."""
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
    """O_i^T (+)= V_i^T P^T: the columns of the slab at a shared address are the lanes."""
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


def make_scores(cfg, smem: Smem, tmem, events: Events, kv: LatentConsumer, at: LatentSlots, tile):
    """S of a key tile, each part of the sum as its columns arrive."""
    buffer = tile & (S_BUFFERS - 1)
    s_address = tmem + buffer * (cfg.tmem.s[1] - cfg.tmem.s[0])
    slab, k = at.slab, cfg.tiles.slab_tile(walks_keys=False)
    for i in range(cfg.tiles.slabs):
        kv.slabs.wait(slab)
        multiply_kq(cfg, smem, k, address_of(cfg, smem, slab), s_address, i * k.cols)
        slab = slab.next(kv.slabs.slots)
    kv.rope.wait(at.rope)
    address = smem.rope_address + at.rope.index * cfg.tiles.rope_slot_bytes
    multiply_kq(cfg, smem, cfg.tiles.rope_tile, address, s_address, cfg.ov_depth)
    events.s_ready.commit(buffer)
    if not cfg.tiles.p_over_rope:
        kv.rope.release_slot(at.rope)


def finish_tile(
    cfg,
    smem: Smem,
    tmem,
    events: Events,
    kv: LatentConsumer,
    at: LatentSlots,
    tile,
    accumulate,
) -> LatentSlots:
    """Every O_i of a key tile -> the position of the next one.

    pv_done is the last commit: the softmax waits for it, so that none is in flight when the CTA ends.
    """
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
    """Every work tile of the CTA."""
    at, tile = kv.first(), Int32(0)  # tile: of all work tiles; parities follow from it
    number, q_phase = Int32(0), Int32(0)
    count = queue.next(cfg, args, number).tiles.count
    while count != NO_MORE:
        for n in cutlass.range(count, unroll=1):
            if n == 0:
                events.q_full.wait(0, q_phase)
            make_scores(cfg, smem, tmem, events, kv, at, tile)
            if n == count - 1:
                events.q_free.commit(0)
            at = finish_tile(cfg, smem, tmem, events, kv, at, tile, n > 0)
            tile = tile + 1
        if count > 0:
            q_phase = q_phase ^ 1
        number = number + 1
        count = queue.next(cfg, args, number).tiles.count
