"""SM100MHA1Q: forward attention with one query tile a CTA, for decode and other short queries.

Both softmax warpgroups work on the same 128 rows: warpgroup 0 takes the even key tiles, warpgroup 1 the odd ones.
Steady state of one CTA; a line is an issue slot, not a duration:

    load     mma             softmax 0       softmax 1       correction      note
    Q  K0    .               .               .               .
    V0 K1    S0 = Q K0       .               .               .               s_ready[0]
    V1 K2    S1 = Q K1       P0 = 2^(S0-m0)  .               .               K0's slot is free after S0
    V2       O0 = P0 V0      .               P1 = 2^(S1-m1)  .               V0's slot is free after O0
    K3       S0 = Q K2       .               .               .
    V3       O1 = P1 V1      P0, factor 0    .               O0 *= factor 0  p_ready[0]: 128 + 128 arrivals
    K4       S1 = Q K3       .               P1, factor 1    .
    V4       O0 += P0 V2     .               .               O1 *= factor 1
    ...
    .        .               sum, maximum 0  sum, maximum 1  .               their last key tiles
    .        .               .               .               O = w0 O0 + w1 O1 (roles/merge.py)

Why two O accumulators: with one running maximum for even and odd key tiles, the maximum of a tile would wait for that
of the previous tile. The two warpgroups would take turns instead of running in parallel, and each key tile would pay
the full latency from S to the next maximum. Two states are independent until the end. Per row, the merge costs one more
read of 128 columns and two exponentials per work tile, not per key tile. Tensor memory has room (S0, S1, O0, O1 are
512 of 512 columns at depth 128), and a maximum over half of the keys moves less often.

This kernel is memory-bound: a key tile of depth 128 is 64 KiB, 2,560 clocks of an SM's share of HBM, and 1,024 of the
tensor core. So the order of the products is the simplest that keeps two chains independent (alternate.py), and the
bytes of the second query tile go to the ring.

Read next: barriers.py (the table), alternate.py, roles/alternate.py (the products and the split of key tiles) and
merge.py, then the roles of the other families: roles/softmax.py, key_tile.py, load.py, work/queue.py.
"""

from ..kernel import CTA, SM100Kernel
from ..roles import dispatch
from ..sync.kernel_args import KernelArgs
from .alternate import Alternate


class SM100MHA1Q(SM100Kernel):
    """Forward attention on SM100: 512 threads, 128 query rows a CTA, S, P and O in tensor memory."""

    def roles(self, args: KernelArgs, cta: CTA, warp):
        dispatch.run(self.cfg, Alternate(), args, cta, warp)


KERNEL = SM100MHA1Q
