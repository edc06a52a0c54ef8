"""SM100MHASwap: forward attention for few query rows, with the operands of both products swapped.

A decode step has one query or a few per head; packed GQA heads make 8 to 64 rows of them, which would leave most of the
128 lanes of an MMA unused. So the kernel swaps the operands: keys and depth are the lanes, rows are the columns.

    S^T = K Q^T       128 keys x rows      lanes: keys      a softmax thread owns a key, and has 8 to 64 scores
    O^T += V^T P^T    depth x rows         lanes: depth     P^T comes from shared memory, a line for each key

Steady state of one CTA. A line is an issue slot, not a duration.

    load     mma               softmax                           note
    Q K0     .                 .
    V0       S[0] = K0 Q       .                                 s_ready[0]; K0's slot is free
    K1       .                 P0 = 2^(S[0] - m)                 maxima over lanes and warps
    V1       S[1] = K1 Q       P0 to shared memory               s_ready[1]; p_ready
    K2       O = V0 P0         P1 = 2^(S[1] - m)                 V0's slot is free
    V2       S[0] = K2 Q       O *= factor, if a maximum moved   pv_done before it, then P1 to shared memory
    K3       O += V1 P1        P2 = 2^(S[0] - m)

For a key tile of depth 128, a CTA needs 2,550 cycles of a B200's memory, about 600 of the tensor core and 130 of the
exponentials (docs/decisions/0008): the kernel is memory-bound as long as enough loads are in flight.

Read next: products.py, softmax.py, columns.py (exchanges between threads), store.py or cluster.py, barriers.py.
"""

from dataclasses import replace

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..kernel import CTA, SM100Kernel
from ..roles import load, values
from ..roles.dispatch import first_column, own_lanes
from ..sync.kernel_args import KernelArgs
from . import cluster, products, softmax
from .loads import order_of


class SM100MHASwap(SM100Kernel):
    """Forward attention on SM100 for 8 to 64 query rows a CTA: 192 threads, S^T and O^T in tensor memory."""

    def __init__(self, cfg):
        super().__init__(cfg)
        self.ending = softmax.ALONE
        if cfg.cluster_parts > 1:
            self.ending = cluster.InCluster()
            self.grouping = replace(self.grouping, cluster=(cfg.cluster_parts, 1, 1))

    def o_operand(self, mO):
        """The threads store O directly, so this is the tensor itself."""
        return mO, Int32(0)

    def set_up(self, args: KernelArgs, cta: CTA, warp, mbarriers):
        super().set_up(args, cta, warp, mbarriers)
        self.ending.set_up()

    @cute.jit
    def roles(self, args: KernelArgs, cta: CTA, warp):
        cfg, warps, ending = self.cfg, self.cfg.warps, self.ending
        if warp < warps.softmax.stop:
            lanes = own_lanes(cta.tmem_address, warp)
            softmax.run(cfg, args, cta.smem, lanes, cta.events, cta.queue, ending)
        elif warp == warps.mma.start:
            tmem = first_column(cta.tmem_address)
            smem = ending.in_descriptors(cta.smem)
            products.run(cfg, args, smem, tmem, cta.events, cta.consumer, cta.queue)
            ending.after_others()
        elif warp == warps.load.start:
            block, _, _ = cute.arch.block_idx()
            order = order_of(cfg)
            load.run(cfg, args, cta.smem, cta.events, cta.producer, cta.queue, block, order)
            ending.after_others()
        if cutlass.const_expr(warps.values):
            if warp == warps.values.start:
                values.run(cfg, args, cta.smem, cta.producer, cta.queue)
                ending.after_others()


KERNEL = SM100MHASwap
