"""SM100MHA1Q: forward attention with one query tile a CTA, for decode and other short queries.

Both softmax warpgroups work on the same 128 rows: warpgroup 0 has the even key tiles, warpgroup 1 the odd ones. Steady
state of one CTA; a line is an issue slot, not a duration:

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

Why two O and not one. With one running maximum for even and odd key tiles, the maximum of a tile waits for that of the
tile before: the two warpgroups would take turns instead of working side by side, and each key tile would pay the whole
way from S to the next maximum. Two states need no word from each other until the end. The merge costs a row one more
read of 128 columns and two exponentials a work tile, not a key tile; tensor memory has the columns (S0, S1, O0, O1 are
512 of 512 at depth 128), and a maximum that belongs to half of the keys moves less often.

What limits this kernel is memory: a key tile of depth 128 is 64 KiB, 2,560 clocks of an SM's share of HBM, 1,024 of the
tensor core. So the order of the products is the simplest that keeps two chains apart (alternate.py), and the bytes of
the second query tile have gone to the ring.

Read next: barriers.py (the table), alternate.py, roles/alternate.py (the products and who has which key tile) and
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
