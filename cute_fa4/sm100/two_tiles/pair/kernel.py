"""SM100MHAPair: forward attention by two CTAs that share their MMAs.

Steady state of a pair. A line is an issue slot, not a duration; both CTAs load, both do softmax and correction of their
own rows, CTA 0 issues. K0' is half of the rows of K0, V0' half of the columns of V0:

    CTA 0     CTA 1     mma of CTA 0     softmax 0 of both    softmax 1 of both    correction of both
    Q0 K0'    Q0 K0'    .                .                    .                    .
    Q1 V0'    Q1 V0'    S0 = Q0 K0       .                    .                    .
    K1'       K1'       S1 = Q1 K0       P0 = 2^(S0-m0)       .                    .
    V1'       V1'       O0 = P0 V0       .                    P1 = 2^(S1-m1)       .
    K2'       K2'       S0 = Q0 K1       .                    .                    .
    V2'       V2'       O1 = P1 V0       P0, factor 0         .                    .
    .         .         S1 = Q1 K1       .                    .                    O0 *= factor 0

    begin    both allocate tensor memory; both initialize mbarriers, and synchronize before either raises the other's
    end      both synchronize before either frees its tensor memory or exits: nothing reaches a CTA that has exited

Read next: schedule.py (the data of each CTA), barriers.py (the table), sync.py (communication between the CTAs). The
orders of the products are those of two_tiles/, and so are the roles.
"""

from dataclasses import dataclass

from ...kernel import CTA, SM100Kernel
from ...pair.barriers import CTAS
from ...pair.kernel import PAIR, leader_issues
from ...roles import dispatch
from ...roles.order import Order
from ...sync.kernel_args import KernelArgs
from ..p_over_s import POverSCode
from ..uneven.hooks import UnevenPOverS


def of_pair(code: Order) -> Order:
    """An order of the products whose MMAs CTA 0 issues."""

    @dataclass(frozen=True)
    class OfPair(type(code)):
        def run(self, cfg, args, smem, tmem, events, kv, queue):
            leader_issues(cfg, self.products, args, smem, tmem, events, kv, queue)

        def products(self, cfg, args, smem, tmem, events, kv, queue):
            code.run(cfg, args, smem, tmem, events, kv, queue)
            for i in range(cfg.tiles.num_q):  # correction has begun a phase
                events.p_ready.close(i, CTAS * len(cfg.warps.softmax) // cfg.tiles.num_q)

        def may_write_factor(self, events, at, phase):
            # In one CTA, p_ready implies through s_ready that the last factor has been read. Between CTAs that chain is
            # relaxed: it orders tensor memory, not the shared memory that holds the factors.
            events.p_ready.wait(at, phase ^ 1)

        def close(self, events, i):
            """Nothing: a warp does not know whether p_ready of the last tile is complete; CTA 0 does (products)."""

    return OfPair()


FULL, CAUSAL = of_pair(POverSCode()), of_pair(UnevenPOverS())


class SM100MHAPair(SM100Kernel):
    """Forward attention on SM100: two CTAs of 512 threads, 256 query rows each, S, P and O in tensor memory."""

    grouping = PAIR

    def roles(self, args: KernelArgs, cta: CTA, warp):
        order = CAUSAL if self.cfg.uneven else FULL
        dispatch.run(self.cfg, order, args, cta, warp)


KERNEL = SM100MHAPair
