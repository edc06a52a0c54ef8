"""Every mbarrier of a wide pair of CTAs: both CTAs have all of them, at the same offsets.

CTA 0 issues the MMAs of both. Barriers that CTA 0 waits for are raised in its memory, by one arrival per warp ("at 0").
The commits of its MMAs arrive in both CTAs, as in pair/barriers.py. The buffers are those of wide/barriers.py.

barrier       number  raised by                              awaited by                means
q_full        1       load 1 (+ bytes of both)               mma                       Q is in shared memory
q_free        1       mma 1 (commit)                         load                      the last S of this Q is made
s_ready       2       mma 1 (commit)                         softmax                   S is made
row_scale     2       softmax 128                            correction                the factors, or last the row sums
p_ready       2       softmax 8 + correction 8 (at 0)        mma                       P is stored in part, O rescaled
p_last        2       softmax 8 (at 0)                       mma                       the last part of P is stored
factor_read   2       correction 4                           softmax                   the last factor has been read
pv_done       1       mma 1 (commit)                         correction                O is complete up to here
kv_full       9       load 1 (+ bytes of both)               mma                       the K or V tile is ready
kv_empty      9       mma 1 (commit)                         load                      the slot's MMAs have completed
work_ready    2       load 1                                 softmax, correction, mma  a work tile is announced
work_read     2       softmax 128 + correction 128 + mma 32  load                      the announcement has been read
work_claimed  1       load 1 (+ bytes)                       load                      the answer to a claim is ready
claim_read    1       load 1 (of 1, at 0)                    load                      both have read the last answer
"""

from dataclasses import replace

from ...blueprint.barriers import Barrier, BarrierTable, changed_rows
from ...blueprint.warp_roles import WarpRoles
from ...pair.barriers import claim_read, factor_read, of_pair
from .. import barriers as of_one_cta
from ..barriers import S_BUFFER


def table(warps: WarpRoles, kv_slots: int) -> BarrierTable:
    """The table of a kernel whose ring has `kv_slots` slots."""
    return BarrierTable(rows(warps), of_one_cta.numbers(kv_slots))


def rows(warps: WarpRoles) -> tuple[Barrier, ...]:
    """Every barrier, in memory order."""
    read = replace(factor_read(warps), per=S_BUFFER)
    of_both = tuple(map(of_pair, of_one_cta.rows(warps)))
    return (*changed_rows(of_both, after={"p_last": (read,)}), claim_read())
