"""SM100MHARope: prefill of multi-head latent attention, from a cache of 16 bits whose RoPE columns have 8 bits.

Steady state of one CTA. A line is an issue slot, not a duration; R0 stands for the RoPE columns of key tile 0.

    load     dequantize       mma              softmax          note
    Q  K0    .                .                .                three units of 64 columns each, the last one is R0
    K1       R0               .                .                rope_raw of its slot; dequantize raises kv_full
    V0       R1               S[0] = Q K0      .
    K2       .                S[1] = Q K1      P0 = 2^(S-m)
    V1       R2               O = P0 V0        P1, factor 1

Everything else is as in wide/: a slot holds 64 columns, so the 8-bit columns have their own slots, and the ring has
enough key tiles to dequantize one while others are multiplied.

Read next: dequantize.py, barriers.py (the table), wide/kernel.py.
"""

from dataclasses import dataclass

import cutlass.cute as cute

from ...kernel import CTA
from ...roles import dispatch
from ...sync.kernel_args import KernelArgs
from ..kernel import InTwoBuffers, SM100MHAWide
from . import dequantize


@dataclass(frozen=True)
class Dequantized(InTwoBuffers):
    """The order of mhawide; the last unit of K is announced to the warps that dequantize it."""

    def announced(self, cfg, events, kv, at, unit):
        if unit < cfg.tiles.k_units - 1:
            return kv.get_v(at)
        return events.rope_raw.arrive_and_expect(at.index, cfg.tiles.kv_slot_bytes)


class SM100MHARope(SM100MHAWide):
    """Forward attention on SM100: 384 threads, 128 query rows a CTA, RoPE columns of K dequantized in their slots."""

    @cute.jit
    def roles(self, args: KernelArgs, cta: CTA, warp):
        dispatch.run(self.cfg, Dequantized(), args, cta, warp)
        if warp >= self.cfg.warps.dequantize.start:
            dequantize.run(self.cfg, args, cta.smem, cta.events, cta.consumer, cta.queue)


KERNEL = SM100MHARope
