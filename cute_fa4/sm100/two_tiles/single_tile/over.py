"""MMA warp, P over S, with single-tile work tiles: the order of p_over_s.py, or that of roles/alternate.py.

The barriers of each warpgroup have their own parity: `phase` is that of S0 and P0 of a key tile, and `apart` is 1 where
that of S1 and P1 differs from it. A single-tile work tile begins once the last product of the previous one has been
issued: its S1 overwrites that P1.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...operands.kv_buffer import KVBuffer, KVBufferConfig
from ...roles import alternate
from ...steps.products import make_s, multiply_pv
from ...steps.warps import MmaWarp, ScoreTile
from ...sync.kernel_args import Events, KernelArgs, Smem
from ...sync.pipelines import KVConsumerPipeline
from ...work.queue import NO_MORE, WorkQueue
from ..p_over_s import POverSCode
from .tile import is_single


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
    mma = MmaWarp(smem, tmem, events, kv)
    v = KVBuffer(KVBufferConfig.for_v(cfg), smem.kv_address)
    at, phase, apart = kv.first(), Int32(0), Int32(0)
    pending, accumulate_o1 = cutlass.Boolean(False), cutlass.Boolean(False)
    number, q_phase = Int32(0), Int32(0)
    work = queue.next(cfg, args, number)
    while work.tiles.count != NO_MORE:
        count = work.tiles.count
        if is_single(cfg, work):
            phases = phase | (phase ^ apart) << 1
            at, phases, q_phase = alternate.key_tiles(
                cfg, POverSCode(), mma, at, count, phases, q_phase
            )
            phase, apart = phases & 1, (phases ^ phases >> 1) & 1
            events.q_full.wait(1, q_phase ^ 1)  # observed before correction can release Q1
            events.o_ready.commit(1)
        else:
            for n in cutlass.range(count, unroll=1):
                make_s(cfg, mma, at, ScoreTile(0, n, count, q_phase), wait=True)
                if pending:
                    before = phase ^ apart ^ 1
                    multiply_pv(cfg, v, mma, at.held_v, 1, before, accumulate_o1)
                    if n == 0:
                        events.o_ready.commit(1)
                    kv.release_v(at)
                make_s(cfg, mma, at, ScoreTile(1, n, count, q_phase), wait=False)
                kv.release(at)
                at = kv.advance_to_v(at)
                kv.wait_v(at)
                multiply_pv(cfg, v, mma, at.slot.index, 0, phase, n > 0)
                phase = phase ^ 1
                if n == count - 1:
                    events.o_ready.commit(0)
                    q_phase = q_phase ^ 1
                at = kv.advance_to_k(at)
                accumulate_o1 = n > 0
                pending = cutlass.Boolean(True)
        number = number + 1
        work = queue.next(cfg, args, number)
        if pending & ((work.tiles.count <= 0) | is_single(cfg, work)):
            multiply_pv(cfg, v, mma, at.held_v, 1, phase ^ apart ^ 1, accumulate_o1)
            kv.release_v(at)
            events.o_ready.commit(1)
            pending = cutlass.Boolean(False)
