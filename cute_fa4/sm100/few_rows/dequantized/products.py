"""MMA warp: S^T = K Q^T and O^T += V^T P^T, issued by one thread, with K and V^T in tensor memory.

The order is one_ahead of roles/issue.py. The operands come from the `dequantize` warps, in two buffers by key tile, and
Q of bf16 does, too.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cute_fa4.layouts.umma_descriptors import InstructionDescriptor

from ...instructions import tensor_core, tensor_memory
from ...operands.kv_buffer import mma_tile
from ...roles import issue
from ...roles.issue import Products
from ...steps.warps import MmaWarp
from ...sync.kernel_args import Events, KernelArgs, Smem
from ...work.queue import WorkQueue
from .tiles import COLUMNS_OF_COLUMN, WIDE_DTYPE


def multiply_kq(cfg, smem: Smem, s_address, k_address):
    """S^T = K Q^T: keys are the lanes, query rows the columns."""
    m, n, depth = cfg.tiles.qk_mma_shape
    q_start, q_high, q_steps = mma_tile(cfg.tiles.q_tile, smem.q_address, depth // cfg.tiles.MMA_K)
    computes = InstructionDescriptor(m, n, WIDE_DTYPE, WIDE_DTYPE)
    steps = steps_in_tmem(cfg, q_steps)
    tensor_core.mma_ts(s_address, k_address, q_start, steps, computes, q_high, accumulate=False)


def multiply_vp(cfg, smem: Smem, o_address, v_address, accumulate):
    """O^T (+)= V^T P^T: the depth is the lanes, query rows the columns."""
    m, n, keys = cfg.tiles.pv_mma_shape
    p_start, p_high, p_steps = mma_tile(cfg.tiles.p_tile, smem.p_address, keys // cfg.tiles.MMA_K)
    computes = InstructionDescriptor(m, n, WIDE_DTYPE, cfg.p_dtype, b_mn_major=True)
    steps = steps_in_tmem(cfg, p_steps)
    tensor_core.mma_ts(o_address, v_address, p_start, steps, computes, p_high, accumulate)


def steps_in_tmem(cfg, offsets: list) -> list:
    """(columns of A, offset of B) of each step, from the offsets of B."""
    columns = cfg.tiles.MMA_K // COLUMNS_OF_COLUMN
    return [(step * columns, offset) for step, offset in enumerate(offsets)]


@dataclass(frozen=True)
class InBuffers(Products):
    """K, V and S have a buffer for even key tiles and one for odd ones.

    at: the address of O; the key tile's number is its position. of_bf16: of queries
    """

    of_bf16: bool

    def await_q(self, events, phase):
        """Q of bf16 is ready when it has been converted."""
        (events.q_ready if self.of_bf16 else events.q_full).wait(0, phase)

    def make_scores(self, cfg, mma, at, tile):
        buffer, events = tile & 1, mma.events
        events.k_wide.wait(buffer, tile >> 1 & 1)
        tensor_memory.fence_after()
        first_k, second_k = cfg.schedule.k_columns(cfg)
        k_address = mma.tmem + first_k + buffer * (second_k - first_k)
        s_address = mma.tmem + buffer * (cfg.tmem.s[1] - cfg.tmem.s[0])
        multiply_kq(cfg, mma.smem, s_address, k_address)
        events.s_ready.commit(buffer)
        events.k_free.commit(buffer)
        return at

    def finish_tile(self, cfg, mma, at, tile, accumulate):
        """pv_done is the last commit. The softmax waits for it, so no commit is in flight when the CTA exits."""
        buffer, events = tile & 1, mma.events
        events.v_wide.wait(buffer, tile >> 1 & 1)
        events.p_ready.wait(0, tile & 1)
        tensor_memory.fence_after()
        first_v, second_v = cfg.schedule.v_columns(cfg)
        v_address = mma.tmem + first_v + buffer * (second_v - first_v)
        multiply_vp(cfg, mma.smem, at, v_address, accumulate)
        events.v_free.commit(buffer)
        events.pv_done.commit(0)
        return at


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
    mma = MmaWarp(smem, tmem, events, None)
    issue.one_ahead(
        cfg, InBuffers(cfg.tiles.rows_have_scales), args, mma, queue, tmem + cfg.tmem.o[0]
    )
