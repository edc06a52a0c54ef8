"""SM100MHAMX: attention of q and k of 8 bits with a power of two for each 32 numbers of a row (MXFP8).

Steady state of one CTA: the additions to two_tiles/kernel.py. A line is an issue slot, not a duration.

    scales            mma                                    note
    Q0 Q1 K0          .                                      three times 512 bytes to an entry of the ring
    K1                copy K0 Q0, S0 = Q0 K0                 scales_full[0]; copies and products go through one pipe
    .                 copy Q1,    S1 = Q1 K0                 the entry is free after S1: scales_empty[0]
    K2                copy K1,    S0 = Q0 K1                 the scales of Q stay in tensor memory
    .                 .           O0 = P0 V0

Read next: schedule.py, orders.py (tensor memory), scales.py, products.py.
"""

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32

from ...kernel import CTA, SM100Kernel
from ...roles import dispatch
from ...sync.kernel_args import KernelArgs
from ..p_crossed import PCrossedCode
from . import products, scales


@dataclass(frozen=True)
class Crossed(PCrossedCode):
    """The order of mha2q with copies of scales between its products."""

    def first_scales(self):
        return Int32(0)  # the number of the key tile in the CTA

    def next_scales(self, scales):
        return scales + 1

    def make_next_s(self, cfg, mma, at_k, s, phase, scales):
        products.make_scaled_s(cfg, mma, at_k, s, phase, scales)


class SM100MHAMX(SM100Kernel):
    """Forward attention on SM100: 512 threads, 256 query rows a CTA, S of operands with scales of blocks."""

    @cute.jit
    def roles(self, args: KernelArgs, cta: CTA, warp):
        dispatch.run(self.cfg, Crossed(), args, cta, warp)
        if warp == self.cfg.warps.scales.start:
            scales.run(self.cfg, args, cta.smem, cta.events, cta.queue)


KERNEL = SM100MHAMX
