"""SM100MLAWiden: decode from a latent cache of 8 bits, which eight warps dequantize to 16 bits in the CTA.

Rows of 656 bytes are those of FlashMLA's FP8 cache, which vLLM calls fp8_ds_mla: 512 e4m3 values, four float32 scales,
one per 128 values, and 64 rotary columns in bf16. Rows of 576 bytes are 8-bit values alone; their scales belong to the
call. Rows of 584 bytes are 448 e4m3 values and 64 rotary columns in bf16, which are values, too, and e8m0 scales
(formats.py). Products and softmax are those of mla_decode in 16 bits; only the bytes read from memory are about
half.

Steady state of one CTA. A line is an issue slot, not a duration; the slab of a tile in parentheses.

    load            dequantize  mma                     softmax                 note
    Q 0(0)          .           .                       .
    0(1) 0(2)       0(0)        .                       .                       a slot is free when it has been read
    0(3) 0(rope)    0(1)        S = 0(0) Q              .                       K of a slab is free after its part of S
    1(0)            0(2)        S += 0(1) Q             .
    .               0(3)        S += 0(2) Q             .
    .               .           S += 0(3) Q, 0(rope) Q  .
    1(1)            .           .                       P = 2^(S - m)
    1(2)            1(0)        O0 += 0(0) P            .                       a slab is written again as soon as its
    1(3) 1(rope)    1(1)        O1 += 0(1) P            .                       product with P is done
    2(0)            1(2)        O2 += 0(2) P            .
    2(1)            1(3)        O3 += 0(3) P            .

Read next: dequantize.py, products.py, load.py, tiles.py, barriers.py, and latent/kernel.py.
"""

from dataclasses import dataclass, replace

import cutlass.cute as cute

from ...few_rows import softmax
from ...operands import tma
from ...roles import load as load_role
from ...roles.dispatch import first_column, own_lanes
from ...roles.order import LoadOrder
from ...sync.kernel_args import KernelArgs
from ..kernel import LatentCTA, SM100MLADecode
from . import dequantize, load, products
from .tiles import COLUMNS_OF_SCALE


@dataclass(frozen=True)
class Rows(LoadOrder):
    """Loads a key tile in slabs, with its scales."""

    load_tile = staticmethod(load.load_tile)


ROWS = Rows()


class SM100MLAWiden(SM100MLADecode):
    """Forward attention on SM100 over a latent cache of 8 bits for 8 to 32 query rows a CTA: 512 threads."""

    def kv_operands(self, mK, mV):
        """Operands of one cache: mK holds all its bytes, V is ignored. Lines of rows have their own descriptor."""
        k, rows = tma.kv_operand(self.cfg, mK, COLUMNS_OF_SCALE, is_v=True)
        of_lines = self.cfg.tiles.row.line_bytes
        if of_lines:
            k = replace(k, rest=tma.narrow_operand(self.cfg, mK, of_lines))
        return k, rows, k, rows

    @cute.jit
    def roles(self, args: KernelArgs, cta: LatentCTA, warp):
        cfg, warps = self.cfg, self.cfg.warps
        if warp < warps.softmax.stop:
            cute.arch.setmaxregister_increase(warps.softmax_registers)
            lanes = own_lanes(cta.tmem_address, warp)
            softmax.run(cfg, args, cta.smem, lanes, cta.events, cta.queue)
        elif warp < warps.idle.stop:
            cute.arch.setmaxregister_decrease(warps.other_registers)
            if warp == warps.mma.start:
                tmem = first_column(cta.tmem_address)
                rope = cta.consumer.rope
                products.run(cfg, args, cta.smem, tmem, cta.events, rope, cta.queue)
            elif warp == warps.load.start:
                block, _, _ = cute.arch.block_idx()
                load_role.run(cfg, args, cta.smem, cta.events, cta.producer, cta.queue, block, ROWS)
        else:
            cute.arch.setmaxregister_decrease(warps.dequantize_registers)
            lanes = own_lanes(cta.tmem_address, warp)
            slabs = cta.consumer.slabs
            dequantize.run(cfg, args, cta.smem, lanes, cta.events, slabs, cta.queue)


KERNEL = SM100MLAWiden
