"""SM100MHA2Q: forward attention with two query tiles a CTA.

Steady state of one CTA. A line is an issue slot, not a duration; S0 and S1 belong to query tile 0 and 1.

    load     mma             softmax 0       softmax 1       correction      note
    Q0 K0    .               .               .               .
    Q1 V0    S0 = Q0 K0      .               .               .               s_ready[0]
    K1       S1 = Q1 K0      P0 = 2^(S0-m0)  .               .               K0's slot is free after S1
    V1       O0 = P0 V0      .               P1 = 2^(S1-m1)  .               tile 0: nothing to rescale
    K2       S0 = Q0 K1      .               .               .
    V2       O1 = P1 V0      P0, factor 0    .               .               V0's slot is free after O1
    .        S1 = Q1 K1      .               .               O0 *= factor 0  K1's slot is free after S1
    K3       O0 += P0 V1     .               P1, factor 1    .               p_ready[0]: 128 + 128 arrivals
    V3       S0 = Q0 K2      .               .               O1 *= factor 1

Read next: barriers.py (the table), p_over_s.py and p_beside_s.py (two orders of the products), then roles/softmax.py,
correction.py, load.py, steps/store.py, and work/queue.py (a CTA runs several such tiles, one after the other).
"""

import cutlass.cute as cute

from ..kernel import CTA, SM100Kernel, first_column, own_lanes
from ..kernel_args import KernelArgs
from ..roles import correction, load, softmax
from .p_beside_s import PBesideSCode
from .p_over_s import POverSCode

ORDER_CODE = {"p_over_s": POverSCode(), "p_beside_s": PBesideSCode()}


class SM100MHA2Q(SM100Kernel):
    """Forward attention on SM100: 512 threads, 256 query rows a CTA, S, P and O in tensor memory."""

    def __init__(self, cfg):
        super().__init__(cfg)
        self.order = ORDER_CODE[cfg.schedule.order]

    @cute.jit
    def roles(self, args: KernelArgs, cta: CTA, warp):
        cfg, warps = self.cfg, self.cfg.schedule.warps
        if warp < warps.softmax.stop:
            cute.arch.setmaxregister_increase(warps.softmax_registers)
            i = warp // 4
            s_address = own_lanes(cta.tmem_address, warp) + i * (cfg.tmem.s[1] - cfg.tmem.s[0])
            softmax.run(cfg, self.order, args, cta.smem, s_address, cta.events, cta.queue, i)
        elif warp < warps.correction.stop:
            cute.arch.setmaxregister_decrease(warps.correction_registers)
            lanes = own_lanes(cta.tmem_address, warp)
            correction.run(cfg, self.order, args, cta.smem, lanes, cta.events, cta.queue)
        else:
            cute.arch.setmaxregister_decrease(warps.other_registers)
            if warp == warps.mma.start:
                tmem = first_column(cta.tmem_address)
                self.order.run(cfg, args, cta.smem, tmem, cta.events, cta.consumer, cta.queue)
            elif warp == warps.load.start:
                block, _, _ = cute.arch.block_idx()
                load.run(cfg, args, cta.smem, cta.events, cta.producer, cta.queue, block)


KERNEL = SM100MHA2Q
