"""SM100MHAWidePair: forward attention with head dims up to 512, by two CTAs that share their MMAs.

Steady state of a pair. A line is an issue slot, not a duration. Both CTAs load, and both do softmax and correction of
their own rows; CTA 0 issues. K0' is half of the rows of K0, V0' half of the columns of V0; S has two buffers:

    CTA 0     CTA 1     mma of CTA 0     softmax of both      correction of both
    Q  K0'    Q  K0'    .                .                    .
    K1'       K1'       S[0] = Q K0      .                    .
    V0'       V0'       S[1] = Q K1      P0 = 2^(S-m)         .
    K2'       K2'       O = P0 V0        P1, factor 1         .
    V1'       V1'       S[0] = Q K2      .                    O *= factor 1
    K3'       K3'       O += P1 V1       P2, factor 2         .

Read next: schedule.py (which CTA has what) and barriers.py (the table). Products, loads and correction are those of
wide/; the signals between the CTAs are those of
pair/sync.py, and sync.py.
"""

from dataclasses import dataclass, replace

from ...kernel import CTA, SM100Kernel
from ...pair.barriers import CTAS
from ...pair.kernel import PAIR, leader_issues
from ...roles import dispatch
from ...sync.kernel_args import KernelArgs
from .. import products
from ..kernel import InTwoBuffers
from .sync import WidePairEvents


@dataclass(frozen=True)
class OfPair(InTwoBuffers):
    """The order of mhawide; CTA 0 issues the MMAs."""

    def run(self, cfg, args, smem, tmem, events, kv, queue):
        leader_issues(cfg, self.products, args, smem, tmem, events, kv, queue)

    def products(self, cfg, args, smem, tmem, events, kv, queue):
        tiles = products.run(cfg, args, smem, tmem, events, kv, queue)
        # Correction has begun the phase of a tile that never comes.
        events.p_ready.close(tiles & 1, CTAS * len(cfg.warps.softmax))

    def may_write_factor(self, events, at, phase):
        # As in two_tiles/pair/kernel.py: between CTAs p_ready orders tensor memory, not the shared memory of factors.
        events.p_ready.wait_one(at, phase ^ 1)

    def close(self, events, i):
        """Nothing: CTA 0 completes the last phase of p_ready (products)."""


class SM100MHAWidePair(SM100Kernel):
    """Forward attention on SM100: two CTAs of 384 threads, 128 query rows each, S, P and O in tensor memory."""

    grouping = replace(PAIR, events_of=WidePairEvents.of)

    def roles(self, args: KernelArgs, cta: CTA, warp):
        dispatch.run(self.cfg, OfPair(), args, cta, warp)


KERNEL = SM100MHAWidePair
