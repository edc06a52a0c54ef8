"""SM100MHAWideWiden: 16-bit queries over 8-bit or 4-bit keys with wide heads or RoPE columns, dequantized in slots.

Steady state of one CTA, 192 columns of K. A line is an issue slot, not a duration; Q K0 has two units, V0 one.

    load     dequantize       mma              softmax          note
    Q  K0    .                .                .                rows of 8 bits: raw_full of each slot
    K1       K0               .                .                kv_full is raised by the 64 threads that dequantize
    V0       K1               S[0] = Q K0      .
    K2       V0               S[1] = Q K1      P0 = 2^(S-m)
    V1       K2               O = P0 V0        P1, factor 1

Everything else is as in wide/: a slot holds 128 columns instead of 64, so that a unit's row of 8 bits and its last 64
columns of 16 bits have the same line.

Read next: tiles.py (what lies where in a slot), dequantize.py, barriers.py (the table), wide/kernel.py.
"""

from dataclasses import dataclass

import cutlass.cute as cute

from ...kernel import CTA, OverRawRows
from ...roles import dispatch
from ...sync.kernel_args import KernelArgs
from ..kernel import InTwoBuffers, SM100MHAWide
from . import dequantize, loads


@dataclass(frozen=True)
class Dequantized(InTwoBuffers):
    """The order of mhawide; columns of K in a separate tensor have a unit of their own."""

    load_units_of_two = staticmethod(loads.load_units_of_two)


class SM100MHAWideWiden(OverRawRows, SM100MHAWide):
    """Forward attention on SM100: 384 threads, 128 16-bit query rows a CTA, 8-bit K and V dequantized in place."""

    @cute.jit
    def roles(self, args: KernelArgs, cta: CTA, warp):
        dispatch.run(self.cfg, Dequantized(), args, cta, warp)
        if warp >= self.cfg.warps.dequantize.start:
            dequantize.run(self.cfg, args, cta.smem, cta.events, cta.consumer, cta.queue)


KERNEL = SM100MHAWideWiden
