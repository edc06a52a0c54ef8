"""SM100MLAPair: decode from a latent cache for 65 to 128 query rows, by two CTAs that share their MMAs.

With 128 heads on one GPU the kernel is bound by the tensor core, not by memory. Two CTAs of 64 rows (latent/) would
both read every key, and their 64-row operand would use three quarters of shared memory bandwidth. A pair runs MMAs with
M = 128. Each CTA reads half of K and half of V, and has room for K of the next key tile in addition to V of this one.

Steady state of a pair. A line is an issue slot, not a duration; K0' is half of the keys of K0, V0' half of the columns:

    CTA 0     CTA 1     mma of CTA 0            softmax of both
    Q  K0'    Q  K0'    .                       .
    K1'       K1'       S[0] = Q K0             .                        five parts, as their columns arrive
    V0'       V0'       S[1] = Q K1             P0 = 2^(S[0] - m)        row maxima: four threads a row
    K2'       K2'       O0, O1 = P0 V0          P1 = 2^(S[1] - m)        P through shared memory
    V1'       V1'       S[0] = Q K2             O *= factor, if a maximum moved
    K3'       K3'       O0, O1 += P1 V1         P2

    begin, end    as in pair/kernel.py: the CTAs synchronize before one signals barriers of the other, and before exit
    next block    as in pair/sync.py: CTA 0 claims it for both while the last key tiles of this one are copied

Read next: tiles.py (data of each CTA), products.py, load.py, softmax.py, barriers.py, docs/decisions/0017.
"""

from dataclasses import dataclass, replace

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cute_fa4.dtypes import DTYPES
from cute_fa4.tma.tensor_maps import (
    clipped_load_view,
    heads_in_rows_view,
    make_operand,
    make_row_operand,
    row_space,
    rows_of_heads_view,
)

from ...kernel import CTA, SM100Kernel
from ...operands.tma import KVOperand
from ...pair.kernel import PAIR
from ...pair.stored_at_leader import events_of
from ...pair.sync import PairConsumer, PairProducer
from ...roles import load as load_role
from ...roles.dispatch import first_column, own_lanes
from ...roles.order import LoadOrder
from ...sync.kernel_args import KernelArgs
from .. import gathers
from . import load, products, softmax
from .barriers import ROPE_SLOT
from .load import LatentPairProducer, number_of_entries
from .products import LatentPairConsumer
from .tiles import CTAS


@dataclass(frozen=True)
class InUnits(LoadOrder):
    """Loads a key tile in units, K ahead of V."""

    load_tile = staticmethod(load.load_tile)
    load_k = staticmethod(load.load_k)
    load_v = staticmethod(load.load_v)


IN_UNITS = InUnits()
# Of 384 threads, which begin with 168.
SOFTMAX_REGISTERS, OTHER_REGISTERS = 208, 88


@dataclass(frozen=True)
class LatentPairCTA(CTA):
    """producer, consumer: the ends of both rings."""

    producer: LatentPairProducer
    consumer: LatentPairConsumer


class SM100MLAPair(SM100Kernel):
    """Forward attention on SM100 over a latent cache for 128 query rows: two CTAs of 320 threads."""

    grouping = replace(PAIR, events_of=events_of)

    def q_operand(self, mQ):
        """Boxes of 64 rows, which may begin at any head."""
        tiles, dtype = self.cfg.tiles, DTYPES[self.cfg.qkv_dtype].cutlass
        view = heads_in_rows_view(mQ, tiles.swizzle_granule, tiles.padded_qk_depth)
        sizes = tiles.q_box_rows, tiles.padded_qk_depth
        return make_operand(view, dtype, *sizes, heads=tiles.heads_of_box, cta_group=CTAS)

    def kv_operands(self, mK, mV):
        """Operands of one cache: V is ignored."""
        tiles, dtype = self.cfg.tiles, DTYPES[self.cfg.qkv_dtype].cutlass
        space = row_space(mK)
        rows = Int32(space.rows_per_block)
        if tiles.gathers_rows:
            view, of_heads = rows_of_heads_view(mK, space)
            k = KVOperand(make_row_operand(view, dtype, tiles.swizzle_granule), of_heads=of_heads)
            return k, rows, k, rows
        sizes, view = (tiles.k_box_rows, tiles.swizzle_granule), clipped_load_view(mK, space)
        k = KVOperand(make_operand(view, dtype, *sizes, cta_group=CTAS))
        return k, rows, k, rows

    def o_operand(self, mO):
        """The tensor itself, because threads store O without TMA."""
        return mO, Int32(0)

    def prologue(self, base, mbarriers) -> LatentPairCTA:
        cta, table = super().prologue(base, mbarriers), self.cfg.barriers
        ring = table.ring(mbarriers, "rope", ROPE_SLOT)
        nbytes = self.cfg.tiles.rope_slot_bytes
        rope = PairProducer(**ring, k_bytes=(nbytes,), v_bytes=nbytes)
        given = vars(cta) | dict(
            producer=LatentPairProducer(
                cta.producer, rope, number_of_entries(self.cfg), gathers.of_load(self.cfg)
            ),
            consumer=LatentPairConsumer(cta.consumer, PairConsumer(**ring)),
        )
        return LatentPairCTA(**given)

    @cute.jit
    def roles(self, args: KernelArgs, cta: CTA, warp):
        cfg, warps = self.cfg, self.cfg.warps
        if warp < warps.softmax.stop:
            if cutlass.const_expr(warps.values):
                cute.arch.setmaxregister_increase(SOFTMAX_REGISTERS)
            lanes = own_lanes(cta.tmem_address, warp)
            softmax.run(cfg, args, cta.smem, lanes, cta.events, cta.queue)
        else:
            self.others(args, cta, warp)

    @cute.jit
    def others(self, args: KernelArgs, cta: CTA, warp):
        """All but softmax."""
        cfg, warps = self.cfg, self.cfg.warps
        if cutlass.const_expr(warps.values):
            cute.arch.setmaxregister_decrease(OTHER_REGISTERS)
        if warp == warps.mma.start:
            tmem = first_column(cta.tmem_address)
            products.run(cfg, args, cta.smem, tmem, cta.events, cta.consumer, cta.queue)
        elif warp == warps.load.start:
            cta_number, _, _ = cute.arch.block_idx()
            block = cta_number // CTAS
            load_role.run(cfg, args, cta.smem, cta.events, cta.producer, cta.queue, block, IN_UNITS)
        gathers.run_warps(cfg, IN_UNITS, args, cta, warp)


KERNEL = SM100MLAPair
