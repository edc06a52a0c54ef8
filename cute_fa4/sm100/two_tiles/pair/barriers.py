"""Every mbarrier of a pair of CTAs: both have all of them, at the same places.

CTA 0 issues the MMAs of both. Both CTAs raise the barriers that it waits for in its shared memory ("at 0"), with one
arrival a warp: 32 arrivals of threads would be 32 messages from one SM to the other. The MMAs of CTA 0 signal
completion in both CTAs. The mma warp of CTA 1 waits only for work tiles.

barrier       number  raised by                              awaited by                means
q_full        2       load 1 (+ bytes of both)               mma                       the Q tile is in shared memory
q_free        2       mma 1 (commit)                         load                      the last S of this Q is made
s_ready       2       mma 1 (commit)                         softmax                   S is made; P over S: all P V too
row_scale     2       softmax 128                            correction                the factors, or last the row sums
p_ready       2       softmax 8 + correction 8 (at 0)        mma                       P is stored in part, O rescaled
p_last        2       softmax 8 (at 0)                       mma                       the last part of P is stored
factor_read   2       correction 4                           softmax                   the last factor has been read
o_ready       2       mma 1 (commit)                         correction                O is complete
kv_full       8       load 1 (+ bytes of both)               mma                       the K or V tile is ready
kv_empty      8       mma 1 (commit)                         load                      the slot's MMAs have completed
work_ready    3       load 1                                 softmax, correction, mma  a work tile is announced
work_read     3       softmax 256 + correction 128 + mma 32  load                      the announcement has been read
work_claimed  1       load 1 (+ bytes)                       load                      the answer to a claim is ready
claim_read    1       load 1 (of 1, at 0)                    load                      both have read the last answer
work_checked  3       softmax 256                            load                      whether a work tile is run again
verdict       3       load 1 (of the other)                  load                      whether the other CTA does

The last two exist where the running maximum lags (`checked.py`).

Reasons for reuse are those of two_tiles/barriers.py. There softmax also waits for p_ready before it hands over the
row sums; here it waits for factor_read, of its own CTA.
"""

from ...blueprint.barriers import Barrier, BarrierTable, changed_rows, checked_rows
from ...blueprint.entries import CHECKED_ENTRIES, WORK_ENTRIES
from ...blueprint.tiles import Tiles
from ...blueprint.warp_roles import WarpRoles
from ...pair.barriers import claim_read, factor_read, of_pair, other_verdict
from .. import barriers as of_one_cta


def table(tiles: Tiles, warps: WarpRoles, kv_slots: int, checked: bool = False) -> BarrierTable:
    """The table of a kernel; arguments as in two_tiles/barriers.py."""
    return BarrierTable.of(
        (*rows(warps), *((*checked_rows(warps), other_verdict()) if checked else ())),
        q_tiles=tiles.num_q,
        warps=warps,
        work_entries=CHECKED_ENTRIES if checked else WORK_ENTRIES,
        kv_slots=kv_slots,
        qk_stages=tiles.qk_stages,
    )


def rows(warps: WarpRoles) -> tuple[Barrier, ...]:
    """Every barrier, in memory order."""
    of_both = tuple(map(of_pair, of_one_cta.rows(warps)))
    return (*changed_rows(of_both, after={"p_last": (factor_read(warps),)}), claim_read())
