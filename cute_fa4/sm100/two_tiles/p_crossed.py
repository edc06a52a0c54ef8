"""MMA warp where P_0 of 8 bits lies in the columns of S_1 and P_1 in those of S_0: the next S comes before P V.

    p_beside_s.py    | S0 | P0 | S1 | P1 |     the same order of products
    p_crossed.py     | S0 P1   | S1 P0   |

    n = 0            S0 = Q0 K0                       S1 = Q1 K0
    n = 1, 2, ...    S0 = Q0 Kn   O0 += P0 V(n-1)     S1 = Q1 Kn   O1 += P1 V(n-1)
    at the end                    O0 += P0 V(last)                 O1 += P1 V(last)

S_i of the next tile is made while softmax works on this one, as with P beside S. Write hazards in key tile n:

    S0(n) over P1(n-2)    issued after P1 V(n-2)
    P1(n) over S0(n+1)    softmax 1 waits until softmax 0 has read it; of the last tile, until S0(n) has been read
    S1(n) over P0(n-1)    issued after P0 V(n-1)
    P0(n) over S1(n)      softmax 0 waits until softmax 1 has read it

So the warpgroups take turns: P1(n) is stored while softmax 0 works on S0(n+1). s_free tells the MMA warp that S_i may
be made again, and tells the other warpgroup that its columns are free. A warpgroup waits for every phase of the other:
softmax 1 waits for s_free[0] of its tile before it raises its own, for which softmax 0 waits before the next tile.

A work tile ends before the next one begins: its last P1 lies where the next S0 goes.

p_crossed_summed: where V has the 128 columns of a span and P has eight bits, the product also sums P. After V's last
column lie 16 columns of ones, so O_i has 16 more columns. Each holds the row sum of the rounded P, rescaled with O.
Softmax estimates the loss from rounding to zero and hands it over at the end (steps/lost_weights.py).

    0        96    128              224              352  368              496  512
    | S0           |                | O0             | L0 | O1             | L1 |
    | P1     | S1                   |
                   | P0

S0 and S1 share 32 columns, as many as the sums take. softmax reads those first and raises s_apart, for which the other
S waits; with query tiles half a key tile apart, s_apart was raised long before. V's descriptor gives the distance from
the tile to the ones (KVBuffer.get_mma_tile_before): 4 KB of ones serve every slot and every step.

NVIDIA's FP8 kernel for SM107, whose tensor memory is larger, sums P the same way (NVIDIA/cudnn-frontend#580).
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..instructions import tensor_memory
from ..operands.kv_buffer import KVBuffer, KVBufferConfig
from ..steps.products import multiply_pv
from ..steps.warps import MmaWarp, ScoreTile
from ..sync.kernel_args import Events, KernelArgs, Smem
from ..sync.pipelines import KVConsumerPipeline
from ..work.queue import NO_MORE, WorkQueue
from ..work.tile import Work
from .p_beside_s import PBesideSCode, last_products, make_next_s


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    tmem: Int32,
    events: Events,
    kv: KVConsumerPipeline,
    queue: WorkQueue,
):
    mma = MmaWarp(smem, tmem, events, kv)
    v = KVBuffer(KVBufferConfig.for_v(cfg), smem.kv_address)
    at_k = kv.first()
    at_v = kv.advance_to_v(at_k)
    phase = Int32(1)  # of S and P of the key tile before
    number, q_phase, scales = Int32(0), Int32(0), order.first_scales()
    count = queue.next(cfg, args, number).tiles.count
    while count != NO_MORE:
        for n in cutlass.range(count, unroll=1):
            for i in cutlass.range_constexpr(cfg.tiles.num_q):
                if cutlass.const_expr(cfg.tmem.s_meet):
                    events.s_apart.wait(1 - i, phase ^ i)  # S0 and S1 overlap
                s = ScoreTile(i, n, count, q_phase)
                order.make_next_s(cfg, mma, at_k, s, phase, scales)
                if n > 0:
                    if cutlass.const_expr(i == 0):
                        kv.wait_v(at_v)
                    multiply_pv(cfg, v, mma, at_v.slot.index, i, phase, n > 1)
                    events.pv_done.commit(i)
            if n > 0:
                kv.release(at_v)
                at_v = kv.step_tile(at_v)
            at_k = kv.step_tile(at_k)
            phase = phase ^ 1
            scales = order.next_scales(scales)
        if count > 0:
            at_v = last_products(cfg, mma, at_v, (phase, phase), count > 1)
            q_phase = q_phase ^ 1
        number = number + 1
        count = queue.next(cfg, args, number).tiles.count


@cute.jit
def see_the_other(events: Events, i: Int32, phase: Int32):
    """Softmax 1: wait until S0 of this key tile has been read."""
    if i == 1:
        events.s_free.wait(0, phase)


@cute.jit
def wait_for_columns(events: Events, work: Work, n: Int32, i: Int32, phase: Int32):
    """Wait until the columns of P_i are free."""
    if i == 0:
        events.s_free.wait(1, phase)
    elif n != work.tiles.first + work.tiles.count - 1:
        events.s_free.wait(0, phase ^ 1)
    tensor_memory.fence_after()


@dataclass(frozen=True)
class PCrossedCode(PBesideSCode):
    """P_i lies where the other S is: s_free also signals the other warpgroup."""

    holds_p = True  # of eight bits: 32 words

    def run(self, cfg, args, smem, tmem, events, kv, queue):
        run(cfg, self, args, smem, tmem, events, kv, queue)

    def first_scales(self):
        """Where the scales of the first key tile are, for make_next_s; (): S has none
        (two_tiles/block_scaled/products.py)."""
        return ()

    def next_scales(self, scales):
        """Where the scales of the next key tile are."""
        return scales

    def make_next_s(self, cfg, mma, at_k, s, phase, scales):
        """S of a key tile. scales: of first_scales, or next_scales."""
        make_next_s(cfg, mma, at_k, s, phase)

    def first_columns(self, cfg):
        if not cfg.tmem.s_meet:
            return ()
        return cfg.tmem.s[1] - cfg.tmem.s[0], 0  # the shared columns, in S0 and in S1

    def first_columns_read(self, events, i):
        tensor_memory.fence_before()
        events.s_apart.arrive(i)

    def may_free_s(self, events, i, phase):
        see_the_other(events, i, phase)

    def may_store_p(self, events, work, n, i, phase):
        wait_for_columns(events, work, n, i, phase)

    def p_address(self, cfg, s_address, i):
        of_0, of_1 = (p - s for p, s in zip(cfg.tmem.p, cfg.tmem.s, strict=True))
        return s_address + (of_0 + i * (of_1 - of_0))

    def sum_address(self, cfg, tmem, i):
        return tmem + cfg.tmem.sums[i] if cfg.tmem.sums else None
