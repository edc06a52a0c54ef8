"""MMA warp: one thread issues S of the next key tile, then P V of the current one.

    n = 0               S[t & 1] = Q K0
    n = 1, 2, ...       S[t & 1] = Q Kn     O (+)= P[(t - 1) & 1] V(n-1)
    at the end                              O += P[t & 1] V(last)

Tile t counts over all work tiles of the CTA. The last product ends a work tile; the load warp keeps filling the ring.
P is stored over its S. S of tile t + 2 is issued after P V of tile t, which read that P, and the tensor core executes
in issue order. While softmax works on a tile, the tensor core computes the product before it and the next S.

A unit of K accumulates 64 columns of the depth into S; a unit of V produces 64 columns of O. Its N is 64, which an MMA
with A in tensor memory runs at the full rate.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cute_fa4.layouts.operand_tiles import KMajorTile
from cute_fa4.layouts.umma_descriptors import InstructionDescriptor

from ..instructions import tensor_core, tensor_memory
from ..operands.kv_buffer import KVBuffer, KVBufferConfig, mma_tile
from ..roles import issue
from ..roles.issue import Products
from ..steps.warps import MmaWarp
from ..sync.kernel_args import Events, KernelArgs, Smem
from ..sync.pipelines import KVConsumerPipeline, Slot
from ..work.queue import WorkQueue
from . import units


def s_column(cfg, buffer):
    """First column of S in a buffer, an Int32 of the kernel."""
    return cfg.tmem.s[0] + buffer * (cfg.tmem.s[1] - cfg.tmem.s[0])


def multiply_qk(cfg, smem: Smem, k: KVBuffer, s_address, kv: KVConsumerPipeline, at: Slot) -> Slot:
    """S = Q K^T, unit by unit as they arrive; -> the ring position after the last unit."""
    m, n, depth = cfg.tiles.qk_mma_shape
    q = KMajorTile(cfg.tiles.rows_per_q_tile, cfg.tiles.padded_qk_depth, cfg.tiles.bits)
    q_start, q_high, q_steps = mma_tile(q, smem.q_address, depth // cfg.tiles.MMA_K)
    computes = InstructionDescriptor(
        m, n, cfg.qkv_dtype, cfg.qkv_dtype, cta_group=cfg.tiles.cta_group
    )
    done = 0
    for unit in range(cfg.tiles.k_units):
        start, high, steps = units.k_unit(cfg, k, unit).get_mma_tile(at.index)
        part = list(zip(q_steps[done : done + len(steps)], steps, strict=True))
        done += len(steps)
        units.wait(kv, at)
        tensor_core.mma_ss(
            s_address, q_start, start, part, computes, q_high, high, accumulate=unit > 0
        )
        units.release(kv, at)
        at = at.next(kv.slots)
    return at


def multiply_pv(
    cfg, v: KVBuffer, tmem, events: Events, kv: KVConsumerPipeline, at: Slot, tile, accumulate
) -> Slot:
    """O (+)= P V of tile number `tile` of the CTA; -> the ring position after its units."""
    buffer, phase = tile & 1, (tile >> 1) & 1
    o, p = tmem + cfg.tmem.o[0], tmem + s_column(cfg, buffer)
    columns = cfg.tiles.tmem_columns_of(cfg.tiles.MMA_K)  # of P in one step
    first = cfg.p_first_part // cfg.tiles.MMA_K
    for unit in range(cfg.tiles.v_units):
        start, high, offsets = units.v_unit(cfg, v, unit).get_mma_tile(at.index)
        steps = [(step * columns, offset) for step, offset in enumerate(offsets)]
        computes = InstructionDescriptor(
            cfg.tiles.MMA_M,
            cfg.tiles.v_columns(unit),
            cfg.p_dtype,
            cfg.v_dtype,
            b_mn_major=True,
            cta_group=cfg.tiles.cta_group,
        )
        d = o + unit * cfg.tiles.unit_columns
        units.wait(kv, at)
        if unit == 0:  # P in two parts, so that its product starts early
            events.p_ready.wait(buffer, phase)
            tensor_memory.fence_after()
            tensor_core.mma_ts(d, p, start, steps[:first], computes, high, accumulate)
            events.p_last.wait(buffer, phase)
            tensor_memory.fence_after()
            tensor_core.mma_ts(d, p, start, steps[first:], computes, high, accumulate=True)
        else:
            tensor_core.mma_ts(d, p, start, steps, computes, high, accumulate)
        units.release(kv, at)
        at = at.next(kv.slots)
    events.pv_done.commit(0)
    return at


@dataclass(frozen=True)
class InUnits(Products):
    """at: the ring position of the next unit."""

    def make_scores(self, cfg, mma, at, tile):
        k = KVBuffer(KVBufferConfig.for_k(cfg), mma.smem.kv_address)
        at = multiply_qk(cfg, mma.smem, k, mma.tmem + s_column(cfg, tile & 1), mma.kv, at)
        mma.events.s_ready.commit(tile & 1)
        return at

    def finish_tile(self, cfg, mma, at, tile, accumulate):
        v = KVBuffer(KVBufferConfig.for_v(cfg), mma.smem.kv_address)
        return multiply_pv(cfg, v, mma.tmem, mma.events, mma.kv, at, tile, accumulate)


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    tmem: Int32,
    events: Events,
    kv: KVConsumerPipeline,
    queue: WorkQueue,
) -> Int32:
    """Every work tile of the CTA; -> its key tiles."""
    mma = MmaWarp(smem, tmem, events, kv)
    return issue.one_ahead(cfg, InUnits(), args, mma, queue, units.first())
