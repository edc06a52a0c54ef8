"""SM100MHAWiden: decode with 16-bit queries over an 8-bit or 4-bit cache, which four warps of the CTA convert to fp16.

Memory delivers half the bytes of a 16-bit cache, and only the cache has 8-bit error: K and V are exact in fp16, and so
is Q once its rows are scaled. P is fp16. The products and the softmax are those of mhaswap.

Steady state of one CTA. A line is an issue slot, not a duration.

    load     dequantize       mma               softmax                           note
    Q K0     .                .                 .
    V0       Q, K0            .                 .                                 a slot is free when it has been read
    K1       V0               S[0] = K0 Q       .
    V1       K1               .                 P0 = 2^(S[0] - m)
    K2       V1               S[1] = K1 Q       P0 to shared memory
    V2       K2               O = V0 P0         P1 = 2^(S[1] - m)                 V0 is free, K0 was with S[0]

A key tile of depth 128 takes 1,280 cycles of a B200's memory, half of a 16-bit tile. It takes 1,024 cycles of shared
memory (128 bytes a cycle): 256 to arrive, 256 to be read, 256 to write V in fp16, and 256 to multiply it. K goes to
tensor memory instead, so it all fits. The conversions take about 300 cycles (docs/decisions/0018). A cache of 4 bits
(NVFP4) delivers 720 cycles of bytes instead, and each conversion is followed by a multiplication by the scale of its
block, which the threads read (steps/cache_blocks.py).

Read next: dequantize.py, queries.py, products.py, tiles.py, barriers.py, and few_rows/kernel.py.
"""

import cutlass.cute as cute

from ...kernel import CTA
from ...roles import load
from ...roles.dispatch import first_column, own_lanes
from ...sync.kernel_args import KernelArgs
from .. import softmax
from ..kernel import SM100MHASwap
from . import dequantize, products
from .queries import WITH_QUERIES


class SM100MHAWiden(SM100MHASwap):
    """Forward attention on SM100 for 8 to 32 query rows of 16 bits a CTA, over keys of 8 or 4 bits: 320 threads."""

    @cute.jit
    def roles(self, args: KernelArgs, cta: CTA, warp):
        cfg, warps, ending = self.cfg, self.cfg.warps, self.ending
        scales = WITH_QUERIES if cfg.tiles.rows_have_scales else softmax.OWN_SCALES
        if warp < warps.softmax.stop:
            lanes = own_lanes(cta.tmem_address, warp)
            softmax.run(cfg, args, cta.smem, lanes, cta.events, cta.queue, ending, scales)
        elif warp == warps.mma.start:
            tmem = first_column(cta.tmem_address)
            smem = ending.in_descriptors(cta.smem)
            products.run(cfg, args, smem, tmem, cta.events, cta.queue)
            ending.after_others()
        elif warp == warps.load.start:
            block, _, _ = cute.arch.block_idx()
            load.run(cfg, args, cta.smem, cta.events, cta.producer, cta.queue, block)
            ending.after_others()
        else:
            lanes = own_lanes(cta.tmem_address, warp)
            dequantize.run(cfg, args, cta.smem, lanes, cta.events, cta.consumer, cta.queue)
            ending.after_others()


KERNEL = SM100MHAWiden
