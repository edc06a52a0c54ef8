"""MMA warp of p_beside_s_summed.py: the order of p_beside_s.py in 144 instructions a key tile instead of 198.

Softmax warps are the bound, and the MMA warp takes issue slots from the two that are on its scheduler. Of what a key
tile needs besides 24 MMAs, this is left out:

    positions       K's alone is kept: V of the key tile before lies in the slot before it
    descriptors     those of V serve both query tiles: nothing is awaited between the MMAs of a P V
    first key tile  apart, so that the others ask neither whether Q is there nor whether O is complete
    barriers        s_free says all that S_i waits for, p_ready that all of P is there
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cute_fa4.layouts.operand_tiles import KMajorTile
from cute_fa4.layouts.scalars import choose
from cute_fa4.layouts.umma_descriptors import InstructionDescriptor

from ..instructions import tensor_core, tensor_memory
from ..operands.kv_buffer import DESCRIPTOR_UNIT, LEADING_BIT, KVBuffer, KVBufferConfig, mma_tile
from ..sync.kernel_args import Events, KernelArgs, Smem
from ..sync.pipelines import KVConsumerPipeline, Slot
from ..work.queue import NO_MORE, WorkQueue


def two_further(slot: Slot, slots: int) -> Slot:
    """The slot of the next K."""
    index = slot.index + 2
    over = index >= slots
    return Slot(choose(over, index - slots, index), slot.phase ^ choose(over, 1, 0))


def one_before(slot: Slot, slots: int) -> Slot:
    """The slot of V of the key tile before."""
    first = slot.index == 0
    return Slot(choose(first, slots - 1, slot.index - 1), slot.phase ^ choose(first, 1, 0))


def read_parity(phase, i: int):
    """Of s_free[i], for which S_i waits. phase: of the key tile before.

    S0 lies over columns of S1 of the key tile before, S1 over columns of S0 of this one.
    """
    return phase ^ i


def frees_slot(cfg, i: int) -> bool:
    """Whether the product of query tile i is the last that reads a slot."""
    return i == cfg.tiles.num_q - 1


def issue_qk(cfg, smem: Smem, tmem, i: int, slot):
    """S_i = Q_i K^T."""
    m, n, depth = cfg.tiles.qk_mma_shape
    q = KMajorTile(cfg.tiles.rows_per_q_tile, cfg.tiles.padded_qk_depth, cfg.dtype_bytes)
    steps = depth // cfg.tiles.MMA_K
    q_low, q_high, q_steps = mma_tile(q, smem.q_address + i * cfg.tiles.q_tile_bytes, steps)
    k = KVBufferConfig.for_k(cfg)
    k_low, k_high, k_steps = mma_tile(k.tile, smem.kv_address, steps)
    k_low = k_low + slot * (k.slot_bytes // DESCRIPTOR_UNIT)
    computes = InstructionDescriptor(m, n, cfg.qkv_dtype, cfg.qkv_dtype)
    pairs = list(zip(q_steps, k_steps, strict=True))
    tensor_core.mma_ss(
        *(tmem + cfg.tmem.s[i], q_low, k_low, pairs, computes, q_high, k_high),
        accumulate=False,
        text_of=tensor_core.text_of_wide,
    )


def issue_pv(cfg, smem: Smem, tmem, i: int, slot, accumulate):
    """O_i (+)= P_i V, with the sums behind O_i."""
    m, _, _ = cfg.tiles.pv_mma_shape
    v = KVBuffer(KVBufferConfig.for_v(cfg), smem.kv_address)
    away = cfg.smem.ones.offset - cfg.smem.kv.offset
    v_low, v_high, v_steps = v.get_mma_tile_before(0, away)
    units = v.config.slot_bytes // DESCRIPTOR_UNIT
    v_low = v_low + slot * (units - (units << LEADING_BIT))
    columns = cfg.tiles.MMA_K * cfg.dtype_bytes // 4
    steps = [(step * columns, offset) for step, offset in enumerate(v_steps)]
    n = cfg.tmem.o[1] - cfg.tmem.o[0]
    computes = InstructionDescriptor(m, n, cfg.p_dtype, cfg.qkv_dtype, b_mn_major=True)
    d, p = tmem + cfg.tmem.o[i], tmem + cfg.tmem.p[i]
    tensor_core.mma_ts(d, p, v_low, steps, computes, v_high, accumulate, wide=True)


@cute.jit
def make_s(
    cfg: cutlass.Constexpr,
    smem: Smem,
    tmem: Int32,
    events: Events,
    kv: KVConsumerPipeline,
    at_k: Slot,
    i: cutlass.Constexpr,
    phase: Int32,
    last: cutlass.Boolean,
):
    """S_i of a key tile; phase: parity of the tile before; last: of its work tile."""
    events.s_free.wait(i, read_parity(phase, i))
    tensor_memory.fence_after()
    if cutlass.const_expr(i == 0):
        kv.wait(at_k)
    issue_qk(cfg, smem, tmem, i, at_k.index)
    events.s_ready.commit(i)
    if last:
        events.q_free.commit(i)
    if cutlass.const_expr(frees_slot(cfg, i)):
        kv.release_slot(at_k)


@cute.jit
def add_pv(
    cfg: cutlass.Constexpr,
    smem: Smem,
    tmem: Int32,
    events: Events,
    kv: KVConsumerPipeline,
    at_v: Slot,
    i: cutlass.Constexpr,
    phase: Int32,
    accumulate: cutlass.Boolean,
):
    """O_i (+)= P_i V of the key tile before; phase: its parity."""
    if cutlass.const_expr(i == 0):
        kv.wait(at_v)
    events.p_ready.wait(i, phase)
    tensor_memory.fence_after()
    issue_pv(cfg, smem, tmem, i, at_v.index, accumulate)
    events.pv_done.commit(i)
    if cutlass.const_expr(frees_slot(cfg, i)):
        kv.release_slot(at_v)


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
    """As p_beside_s.run."""
    at_k = Slot(Int32(0), Int32(0))
    phase = Int32(1)  # of S and P of the key tile before
    pending, accumulate = cutlass.Boolean(False), cutlass.Boolean(False)
    number, q_phase = Int32(0), Int32(0)
    count = queue.next(cfg, args, number).tiles.count
    while count != NO_MORE:
        if count > 0:
            at_v = one_before(at_k, kv.slots)
            for i in cutlass.range_constexpr(cfg.tiles.num_q):
                events.q_full.wait(i, q_phase)
                make_s(cfg, smem, tmem, events, kv, at_k, i, phase, count == 1)
                if pending:
                    add_pv(cfg, smem, tmem, events, kv, at_v, i, phase, accumulate)
                    events.o_ready.commit(i)
            at_k = two_further(at_k, kv.slots)
            phase = phase ^ 1
            for n in cutlass.range(1, count, unroll=1):
                at_v = one_before(at_k, kv.slots)
                for i in cutlass.range_constexpr(cfg.tiles.num_q):
                    make_s(cfg, smem, tmem, events, kv, at_k, i, phase, n == count - 1)
                    add_pv(cfg, smem, tmem, events, kv, at_v, i, phase, n > 1)
                at_k = two_further(at_k, kv.slots)
                phase = phase ^ 1
            pending, accumulate = cutlass.Boolean(True), count > 1
            q_phase = q_phase ^ 1
        number = number + 1
        count = queue.next(cfg, args, number).tiles.count
        if count <= 0 and pending:  # the end, or work tiles without keys: nothing to wait for
            at_v = one_before(at_k, kv.slots)
            for i in cutlass.range_constexpr(cfg.tiles.num_q):
                add_pv(cfg, smem, tmem, events, kv, at_v, i, phase, accumulate)
                events.o_ready.commit(i)
            pending = cutlass.Boolean(False)
