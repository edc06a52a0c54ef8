"""The two MMAs of a key tile, issued by one thread: S_i = Q_i K^T and O_i += P_i V.

    multiply_qk    both operands in shared memory, depth stage by depth stage as K arrives
    multiply_pv    P in tensor memory, V in shared memory; begins with the first part of P
    make_s         multiply_qk with the waits before it and the commits after it

An order determines the sequence of the MMAs (two_tiles/p_over_s.py, p_beside_s.py).
"""

import cutlass
import cutlass.cute as cute

from ...layouts.operand_tiles import KMajorTile
from ...layouts.umma_descriptors import InstructionDescriptor
from ..instructions import tensor_core, tensor_memory
from ..operands.kv_buffer import KVBuffer, KVBufferConfig, mma_tile
from ..sync.kernel_args import Events
from ..sync.pipelines import KVPosition
from . import skipped
from .warps import MmaWarp, ScoreTile


def multiply_qk(
    cfg, mma: MmaWarp, k: KVBuffer, at: KVPosition, i, wait: bool, to=None, issue=tensor_core.mma_ss
):
    """S = Q_i K^T, each depth stage of K as it arrives (`wait`; for the second query tile K is already loaded).

    i: the place of Q, a Python int or an Int32 of the kernel; to: the softmax warpgroup that owns S, likewise; None: i;
    issue: the instructions of a stage, with the arguments of tensor_core.mma_ss
    """
    smem, tmem, events, kv = mma.smem, mma.tmem, mma.events, mma.kv
    m, n, depth = cfg.tiles.qk_mma_shape
    q = KMajorTile(cfg.tiles.rows_per_q_tile, cfg.tiles.padded_qk_depth, cfg.tiles.bits)
    q_start, q_high, q_steps = mma_tile(
        q, smem.q_address + i * cfg.tiles.q_tile_bytes, depth // cfg.tiles.MMA_K
    )
    k_stages = k.get_mma_stages(at.slot.index, at.slot.rest)
    done, parts = 0, []
    for k_start, k_high, k_steps in k_stages:
        part = list(zip(q_steps[done : done + len(k_steps)], k_steps, strict=True))
        done += len(part)
        parts.append((k_start, k_high, part))
    for place, stage in enumerate(cfg.tiles.order_of_stages):
        k_start, k_high, part = parts[stage]
        if wait:
            kv.wait_k(at, stage)
        for turn, (dtype, steps) in enumerate(by_dtype(cfg, part)):
            if turn > 0:
                finish_kind(events)
            issue(
                tmem + column_of(cfg.tmem.s, i if to is None else to),
                q_start,
                k_start,
                steps,
                InstructionDescriptor(m, n, dtype, dtype, cta_group=cfg.tiles.cta_group),
                q_high,
                k_high,
                accumulate=place > 0 or turn > 0,
            )
        if cfg.mixes_rope:
            events.kind_done.commit(0)


def by_dtype(cfg, steps: list) -> list[tuple[str, list]]:
    """The MMA steps of a part of K, separated where their operands have different dtypes; none if the part is empty.

    A step contracts 32 bytes of any dtype, so 16-bit columns follow the 8-bit columns as further 8-bit columns
    would. Both kinds of MMA add to S in float32, the second after the first has completed (finish_kind). If the 8-bit
    columns do not fill a span, the gap after them is skipped.
    """
    if not cfg.tiles.q_comes_in_parts:
        return [(cfg.qkv_dtype, steps)] if steps else []
    after = cfg.tiles.own_qk_depth // cfg.tiles.MMA_K
    own, shared = steps[: cfg.tiles.own_steps], steps[after:]
    if not cfg.mixes_rope:
        return [(cfg.qkv_dtype, own + shared)]
    return [(cfg.qkv_dtype, own), (cfg.rope_dtype, shared)]


def finish_kind(events: Events):
    """Wait until the MMAs of one kind into S have completed, before the first of another kind.

    PTX orders MMAs with the same accumulator only if they have the same shape, and each kind has its own K in the
    shape (PTX ISA, "Pipelined tcgen05 Instructions"). Phases of kind_done come in pairs, the second of which ends with
    S: the phase awaited here always has the same parity.
    """
    events.kind_done.wait(0, 1)  # the previous S
    events.kind_done.commit(0)
    events.kind_done.wait(0, 0)
    tensor_memory.fence_after()


@cute.jit
def make_s(
    cfg: cutlass.Constexpr,
    mma: MmaWarp,
    at: KVPosition,
    s: ScoreTile,
    wait: cutlass.Constexpr,
    read=None,
    issue: cutlass.Constexpr = tensor_core.mma_ss,
):
    """S of a key tile; the first key tile waits for Q, and Q is free after the last.

    wait    for K
    read    parity of s_free: the last S_i has been read; None: the order of the MMAs implies it
    issue   as of multiply_qk
    """
    events, i = mma.events, s.i
    k = KVBuffer(KVBufferConfig.for_k(cfg), mma.smem.kv_address)
    if s.n == 0:
        events.q_full.wait(i, s.q_phase)
    if cutlass.const_expr(read is not None):
        events.s_free.wait(i, read)
        tensor_memory.fence_after()
    multiply_qk(cfg, mma, k, at, i, wait=wait, issue=issue)
    events.s_ready.commit(i)
    if s.n == s.count - 1:
        events.q_free.commit(i)


def column_of(columns: tuple, i):
    """The column of softmax warpgroup i, a Python int or an Int32 of the kernel; columns are evenly spaced."""
    return columns[i] if isinstance(i, int) else columns[0] + i * (columns[1] - columns[0])


def multiply_pv(cfg, v: KVBuffer, mma: MmaWarp, slot, i: int, phase, accumulate):
    """O_i (+)= P_i V, the first part of P as soon as it is stored and O_i is rescaled, then the rest, unless skipped.

    i: a softmax warpgroup, a Python int or an Int32 of the kernel
    """
    m, n, _ = cfg.tiles.pv_mma_shape
    if cfg.tmem.sums:
        n = cfg.tmem.o[1] - cfg.tmem.o[0]
        v_start, v_high, v_steps = v.get_mma_tile_before(
            slot, cfg.smem.ones.offset - cfg.smem.kv.offset
        )
    else:
        v_start, v_high, v_steps = v.get_mma_tile(slot)
    columns = cfg.tiles.tmem_columns_of(cfg.tiles.MMA_K)  # of P in one step
    steps = [(step * columns, offset) for step, offset in enumerate(v_steps)]
    computes = InstructionDescriptor(
        m, n, cfg.p_dtype, cfg.v_dtype, b_mn_major=True, cta_group=cfg.tiles.cta_group
    )
    first = cfg.p_first_part // cfg.tiles.MMA_K
    tmem, events = mma.tmem, mma.events
    d, p = tmem + column_of(cfg.tmem.o, i), tmem + column_of(cfg.tmem.p, i)
    events.p_ready.wait(i, phase)
    tensor_memory.fence_after()
    issue = skipped.unless_skipped(cfg, mma, i, phase)
    issue(lambda: tensor_core.mma_ts(d, p, v_start, steps[:first], computes, v_high, accumulate))
    events.p_last.wait(i, phase)
    tensor_memory.fence_after()
    issue(lambda: tensor_core.mma_ts(d, p, v_start, steps[first:], computes, v_high, True))
