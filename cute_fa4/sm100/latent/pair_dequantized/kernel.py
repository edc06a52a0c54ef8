"""SM100MLAWidenPair: decode from a latent cache of 8 bits for 33 to 128 query rows of 16, by pairs of CTAs.

Tiles of 32 rows (latent/dequantized/) each dequantize every row of the cache. Here two CTAs share 128 rows and every
MMA, as in latent/pair/, and each dequantizes its own operands: half of the keys as K, half of the columns as V.

Steady state of a CTA of the pair. A line is an issue slot, not a duration; K1' is half of the keys, V0' half of the
columns, in units of 64 keys and 128 columns:

    load           dequantize  mma of CTA 0       softmax of both
    K1' rope1      K1'         S[1] = Q K1        P0 = 2^(S[0] - m)
    V0'            V0'         O0, O1 += P0 V0    .
    K2' rope2      K2'         S[0] = Q K2        P1 = 2^(S[1] - m)
    V1'            V1'         O0, O1 += P1 V1    .

Softmax, products and store are those of latent/pair/. Read next: tiles.py, dequantize.py, load.py, barriers.py,
docs/decisions/0029.
"""

from dataclasses import dataclass, replace

import cutlass.cute as cute

from cute_fa4.dtypes import DTYPES
from cute_fa4.tma.tensor_maps import clipped_load_view, make_operand, row_space

from ...instructions import mbarriers
from ...operands import tma
from ...operands.tma import KVOperand
from ...pair.sync import PairConsumer
from ...roles import load as load_role
from ...roles.dispatch import first_column, own_lanes
from ...roles.order import LoadOrder
from ...sync.kernel_args import KernelArgs
from ...sync.pipelines import KVConsumerPipeline, Slot, TMAProducerPipeline
from ..barriers import ROPE_SLOT
from ..dequantized.tiles import COLUMNS_OF_SCALE
from ..pair import load as pair_load
from ..pair import products, softmax
from ..pair.kernel import LatentPairCTA, SM100MLAPair
from ..pair.tiles import CTAS
from . import dequantize, load
from .barriers import STORED_SLOT
from .dequantize import Dequantizer


@dataclass(frozen=True)
class StoredUnits(LoadOrder):
    """Loads a key tile in stored units, K ahead of V."""

    load_tile = staticmethod(pair_load.load_tile)
    load_k = staticmethod(load.load_k)
    load_v = staticmethod(load.load_v)


STORED_UNITS = StoredUnits()


@dataclass(frozen=True)
class WideConsumer(PairConsumer):
    """The mma warp's end of the ring that the dequantize warps of both CTAs fill."""

    def wait(self, slot: Slot):
        mbarriers.wait_for_cluster(self.full + slot.index, slot.phase)
        mbarriers.acquire_shared()


@dataclass(frozen=True)
class RowsPairCTA(LatentPairCTA):
    """dequantizer: the dequantize warps' end of the rings of units."""

    dequantizer: Dequantizer


class SM100MLAWidenPair(SM100MLAPair):
    """Forward attention on SM100 over a latent cache of 8 bits: two CTAs of 640 threads."""

    grouping = replace(SM100MLAPair.grouping, consumer=WideConsumer)

    def kv_operands(self, mK, mV):
        """Operands of one cache, all in mK: units and lines take the place of K, rotary columns that of V."""
        k, rows = tma.kv_operand(self.cfg, mK, COLUMNS_OF_SCALE, is_v=True)
        row = self.cfg.tiles.row
        rope = k if row.dequantizes_rope or row.rope_in_v else self.rope_operand(mK, k)
        if row.line_bytes:
            k = replace(k, rest=tma.narrow_operand(self.cfg, mK, row.line_bytes))
        return k, rows, rope, rows

    def rope_operand(self, mK, k: KVOperand) -> KVOperand:
        """Boxes as for units, but they signal the mbarrier of CTA 0; gathered rows select it in each copy."""
        tiles = self.cfg.tiles
        if tiles.gathers_rows:
            return k
        view, dtype = clipped_load_view(mK, row_space(mK)), DTYPES[self.cfg.stored_dtype].cutlass
        return KVOperand(
            make_operand(view, dtype, tiles.k_box_rows, COLUMNS_OF_SCALE, cta_group=CTAS)
        )

    def prologue(self, base, mbarriers) -> RowsPairCTA:
        cta, cfg = super().prologue(base, mbarriers), self.cfg
        table, tiles = cfg.barriers, cfg.tiles
        ring = table.ring(mbarriers, "stored", STORED_SLOT)
        with_lines, without = (tiles.stored_bytes,), tiles.lines_at
        stored = TMAProducerPipeline(**ring, k_bytes=with_lines, v_bytes=without)
        producer = replace(cta.producer, units=stored)
        dequantizer = Dequantizer(KVConsumerPipeline(**ring), cta.producer.units)
        consumer = cta.consumer
        if tiles.row.dequantizes_rope:
            consumer = replace(
                consumer, rope=WideConsumer(**table.ring(mbarriers, "rope", ROPE_SLOT))
            )
            ring, nbytes = table.ring(mbarriers, "stored_rope", ROPE_SLOT), tiles.stored_rope_bytes
            stored_rope, wide_rope = KVConsumerPipeline(**ring), producer.rope
            dequantizer = replace(dequantizer, stored_rope=stored_rope, wide_rope=wide_rope)
            rope = TMAProducerPipeline(**ring, k_bytes=(nbytes,), v_bytes=nbytes)
            producer = replace(producer, rope=rope)
        given = vars(cta) | dict(producer=producer, consumer=consumer, dequantizer=dequantizer)
        return RowsPairCTA(**given)

    @cute.jit
    def roles(self, args: KernelArgs, cta: RowsPairCTA, warp):
        cfg, warps = self.cfg, self.cfg.warps
        if warp < warps.softmax.stop:
            cute.arch.setmaxregister_increase(warps.softmax_registers)
            lanes = own_lanes(cta.tmem_address, warp)
            softmax.run(cfg, args, cta.smem, lanes, cta.events, cta.queue)
        elif warp < warps.idle.stop:
            cute.arch.setmaxregister_decrease(warps.other_registers)
            if warp == warps.mma.start:
                tmem = first_column(cta.tmem_address)
                products.run(cfg, args, cta.smem, tmem, cta.events, cta.consumer, cta.queue)
            elif warp == warps.load.start:
                cta_number, _, _ = cute.arch.block_idx()
                block = cta_number // CTAS
                load_role.run(
                    cfg, args, cta.smem, cta.events, cta.producer, cta.queue, block, STORED_UNITS
                )
        else:
            cute.arch.setmaxregister_decrease(warps.dequantize_registers)
            dequantize.run(cfg, args, cta.smem, cta.dequantizer, cta.queue)


KERNEL = SM100MLAWidenPair
