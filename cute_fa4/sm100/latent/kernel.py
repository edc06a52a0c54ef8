"""SM100MLADecode: decode from a latent cache, multi-head latent attention in its absorbed form.

All heads share one row of 576 columns per token: K is the whole row, V its first 512 columns. A key tile in shared
memory therefore serves both products: it is read K-major for S and MN-major for O. Global memory traffic is 1,152
bytes per token. Keys and columns of V map to the lanes of tensor memory, query rows to its columns, as in mhaswap:

    S^T = K Q^T             128 keys x rows            576 columns: four slabs of 128, and 64 rotary ones
    O_i^T += V_i^T P^T      128 columns of V x rows    slab i, four times

Steady state of one CTA with 64 rows. A line is an issue slot, not a duration; the slab of a tile in parentheses.

    load          mma                     softmax
    Q 0(0)        .                       .
    0(1)          S = 0(0) Q              .
    0(2)          S += 0(1) Q             .
    0(3) 0(rope)  S += 0(2) Q, 0(3) Q     .
    .             S += 0(rope) Q          .
    .             .                       P = 2^(S - m) over 0(rope)
    1(0)          O0 += 0(0) P            .                              a slot is filled again as soon as
    1(1)          O1 += 0(1) P            .                              its product with P is done
    1(2)          O2 += 0(2) P            .
    1(3) 1(rope)  O3 += 0(3) P            .

Up to 32 rows leave room for a fifth slab, which is in flight meanwhile. The softmax warps are those of mhaswap.
Read next: products.py, load.py, tiles.py, smem_map.py, docs/decisions/0011.
"""

from dataclasses import dataclass, replace

import cutlass.cute as cute

from ..few_rows import softmax
from ..few_rows.kernel import SM100MHASwap
from ..kernel import CTA
from ..operands import tma
from ..roles import load as load_role
from ..roles.dispatch import first_column, own_lanes
from ..roles.order import LoadOrder
from ..sync.kernel_args import KernelArgs
from ..sync.pipelines import KVConsumerPipeline, TMAProducerPipeline
from . import gathers, load, products
from .barriers import ROPE_SLOT
from .load import LatentProducer
from .products import LatentConsumer


@dataclass(frozen=True)
class Latent(LoadOrder):
    """Loads a key tile in slabs."""

    load_tile = staticmethod(load.load_tile)


LATENT = Latent()


@dataclass(frozen=True)
class LatentCTA(CTA):
    """producer, consumer: the ends of both rings."""

    producer: LatentProducer
    consumer: LatentConsumer


class SM100MLADecode(SM100MHASwap):
    """Forward attention on SM100 over a latent cache for 8 to 64 query rows a CTA."""

    def kv_operands(self, mK, mV):
        """Operands of one cache: V is ignored. If pages come whole, slabs have their own descriptors."""
        cfg, columns = self.cfg, self.cfg.tiles.swizzle_granule
        if not cfg.tiles.pages_come_whole:
            k, rows = tma.kv_operand(cfg, mK, columns, is_v=True)
            return k, rows, k, rows
        k, rows = tma.kv_operand(cfg, mK, cfg.tiles.slab_columns, is_v=True)
        k = replace(k, rest=tma.boxes_of_pages(cfg, mK, columns))
        return k, rows, k, rows

    def prologue(self, base, mbarriers) -> LatentCTA:
        cta, table, tiles = super().prologue(base, mbarriers), self.cfg.barriers, self.cfg.tiles
        ring = table.ring(mbarriers, "rope", ROPE_SLOT)
        nbytes = tiles.rope_slot_bytes
        rope = TMAProducerPipeline(**ring, k_bytes=(nbytes,), v_bytes=nbytes)
        given = vars(cta) | dict(
            producer=LatentProducer(cta.producer, rope, gathers.of_load(self.cfg)),
            consumer=LatentConsumer(cta.consumer, KVConsumerPipeline(**ring)),
        )
        return LatentCTA(**given)

    @cute.jit
    def roles(self, args: KernelArgs, cta: LatentCTA, warp):
        cfg, warps = self.cfg, self.cfg.warps
        if warp < warps.softmax.stop:
            lanes = own_lanes(cta.tmem_address, warp)
            softmax.run(cfg, args, cta.smem, lanes, cta.events, cta.queue)
        elif warp == warps.mma.start:
            tmem = first_column(cta.tmem_address)
            products.run(cfg, args, cta.smem, tmem, cta.events, cta.consumer, cta.queue)
        elif warp == warps.load.start:
            block, _, _ = cute.arch.block_idx()
            load_role.run(cfg, args, cta.smem, cta.events, cta.producer, cta.queue, block, LATENT)
        gathers.run_warps(cfg, LATENT, args, cta, warp)


KERNEL = SM100MLADecode
