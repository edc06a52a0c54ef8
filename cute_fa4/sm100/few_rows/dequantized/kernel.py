"""SM100MHAWiden: decode with 16-bit queries over an 8-bit or 4-bit cache, which eight warps of the CTA make fp16.

Memory delivers half the bytes of a 16-bit cache, or a quarter, and only the cache has the error of its dtype: K and V
are exact in fp16, and so is Q once its rows are scaled. P is fp16. The products and the softmax are those of mhaswap.

Steady state of one CTA. A line is an issue slot, not a duration.

    load  values  scales  dequantize   mma           softmax              note
    Q K0  V0      K0 V0   .            .             .
    K1    V1      K1 V1   Q, K0, V0    .             .                    a slot is free when it has been read
    K2    V2      K2 V2   K1, V1       S[0] = K0 Q   .                    by other warps than K0, V0
    K3    V3      K3 V3   K2, V2       S[1] = K1 Q   P0 = 2^(S[0] - m)    K0 is free with S[0]
    K4    V4      K4 V4   K3, V3       O = V0 P0     P1 = 2^(S[1] - m)    V0 is free

K and V^T go to tensor memory as operands A: keys and depth are the lanes. So a key tile of 4 bits and depth 128 takes
128 cycles of shared memory to arrive, 192 to be read, and 96 for P, Q and scales, where memory takes 695. It takes 630
to 680 issue slots of each scheduler (docs/decisions/0071, 0075). The scales of blocks, if there are any, come through a
ring of their own. Q of a work tile arrives while the one before is multiplied.

Read next: dequantize.py, transposed.py, block_scales.py, queries.py, products.py, tiles.py, barriers.py, and
few_rows/kernel.py.
"""

import cutlass
import cutlass.cute as cute

from ...kernel import CTA
from ...roles import load, values
from ...roles.dispatch import first_column, own_lanes
from ...sync.kernel_args import KernelArgs
from .. import softmax
from ..kernel import SM100MHASwap
from . import block_scales, dequantize, products, queries


class SM100MHAWiden(SM100MHASwap):
    """Forward attention on SM100 for 8 to 32 query rows of 16 bits a CTA, over keys of 8 or 4 bits: 512 threads."""

    @cute.jit
    def roles(self, args: KernelArgs, cta: CTA, warp):
        cfg, warps, ending = self.cfg, self.cfg.warps, self.ending
        scales = queries.WITH_QUERIES if cfg.tiles.rows_have_scales else softmax.OWN_SCALES
        if warp < warps.softmax.stop:
            cute.arch.setmaxregister_increase(warps.softmax_registers)
            lanes = own_lanes(cta.tmem_address, warp)
            softmax.run(cfg, args, cta.smem, lanes, cta.events, cta.queue, ending, scales)
        elif warp < warps.dequantize.start:
            cute.arch.setmaxregister_decrease(warps.other_registers)
            if warp == warps.mma.start:
                tmem = first_column(cta.tmem_address)
                smem = ending.in_descriptors(cta.smem)
                products.run(cfg, args, smem, tmem, cta.events, cta.queue)
            elif warp == warps.load.start:
                block, _, _ = cute.arch.block_idx()
                seen = queries.seen_by_load(cfg, cta.smem, cta.events)
                load.run(cfg, args, *seen, cta.producer, cta.queue, block)
            elif warp == warps.values.start:
                values.run(cfg, args, cta.smem, cta.producer, cta.queue)
            elif cutlass.const_expr(cfg.cache_blocks):
                block_scales.run(cfg, args, cta.smem, cta.events, cta.queue)
            ending.after_others()
        else:
            lanes = own_lanes(cta.tmem_address, warp)
            if warp < warps.dequantize_odd.start:
                dequantize.run(cfg, args, cta.smem, lanes, cta.events, cta.consumer, cta.queue, 0)
            else:
                dequantize.run(cfg, args, cta.smem, lanes, cta.events, cta.consumer, cta.queue, 1)
            ending.after_others()


KERNEL = SM100MHAWiden
