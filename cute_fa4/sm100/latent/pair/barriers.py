"""Every mbarrier of a pair of CTAs over a latent cache: both have all of them, at the same places.

CTA 0 issues the MMAs of both. Both CTAs arrive on the barriers it waits for, in its shared memory ("at 0"); for p_ready
each softmax warp arrives once. Its MMAs commit to both CTAs. The mma warp of CTA 1 waits only for work tiles.

barrier       number  raised by                 awaited by    means
q_full        1       load 1 (+ bytes of both)  mma           the Q tile is in shared memory
q_free        1       mma 1 (commit)            load          the last S of this Q is made
s_ready       2       mma 1 (commit)            softmax       S is made
p_ready       1       softmax 16 (at 0)         mma           P is stored, O rescaled, S read
pv_done       1       mma 1 (commit)            softmax       O is complete up to here and P has been read
kv_full       8       load 1 (+ bytes of both)  mma           a unit of K or V is ready
kv_empty      8       mma 1 (commit)            load          the slot's MMAs have completed
rope_full     1       load 1 (+ bytes of both)  mma           the rotary columns are ready
rope_empty    1       mma 1 (commit)            load          S is made
work_ready    2       load 1                    softmax, mma  a work tile is announced
work_read     2       softmax 256 + mma 32      load          the announcement has been read
work_claimed  1       load 1 (+ bytes)          load          the answer to a claim is ready
claim_read    1       load 1 (of 1, at 0)       load          both have read the last answer

Where rows are gathered, two gather warps (latent/gathers.py) also wait for kv_empty, rope_empty and work_ready, and
their 64 threads arrive on work_read; their bytes are announced by load.

At the first key tile of a work tile p_ready also says that the old O has been read. A kernel that claims no blocks has
no claim_read.

barrier       is not raised again too early because
q_full        q_free
q_free        q_full
s_ready       S of the tile after next is made after P V of this one, which waits for p_ready
p_ready       the next P waits for pv_done, which follows this wait
pv_done       the next P V waits for p_ready, which follows this wait
kv_full       kv_empty
kv_empty      kv_full
rope_full     rope_empty
rope_empty    rope_full
work_ready    work_read
work_read     work_ready
work_claimed  one claim at a time
claim_read    one claim at a time
"""

from ...blueprint.barriers import Arrivals, Barrier, BarrierTable, changed_rows
from ...blueprint.chip import WARP_SIZE
from ...few_rows import barriers as swapped
from ...few_rows.warp_roles import SwappedWarpRoles
from ...pair.barriers import claim_read
from ..barriers import ROPE_SLOT, rope_rows
from .tiles import CTAS


def table(
    warps: SwappedWarpRoles, kv_slots: int, rope_slots: int = 1, claims: bool = True
) -> BarrierTable:
    """The table of a kernel with rings of this many slots. claims: whether pairs claim blocks."""
    numbers = dict(swapped.table(warps, kv_slots).numbers) | {ROPE_SLOT: rope_slots}
    return BarrierTable(rows(warps, claims), numbers)


def rows(warps: SwappedWarpRoles, claims: bool = True) -> tuple[Barrier, ...]:
    """Every barrier, in memory order: those of the swap-AB kernel, each signaled in the CTA that waits for it."""
    loaded = (Arrivals("load", 1, "+ bytes of both"),)
    stored = (Arrivals("softmax", CTAS * warps.threads_of("softmax") // WARP_SIZE, "at 0"),)
    changed = {
        "q_full": {"raised_by": loaded},
        "p_ready": {"raised_by": stored},
        "kv_full": {"raised_by": loaded, "means": "a unit of K or V is ready"},
    }
    rope = rope_rows(*loaded, "S is made")
    found = changed_rows(swapped.rows(warps), changed, after={"kv_empty": rope})
    return (*found, claim_read()) if claims else found
