"""Every mbarrier of the latent kernel: which role arrives, which role waits, and the number of arrivals.

barrier       number  raised by             awaited by    means
q_full        1       load 1 (+ bytes)      mma           the Q tile is in shared memory
q_free        1       mma 1 (commit)        load          the last S of this Q is made
s_ready       2       mma 1 (commit)        softmax       S is made
p_ready       1       softmax 128           mma           P is stored, O rescaled, S read
pv_done       1       mma 1 (commit)        softmax       O is complete up to here and P has been read
kv_full       5       load 1 (+ bytes)      mma           128 columns of a key tile are ready
kv_empty      5       mma 1 (commit)        load          both of the slot's products have completed
rope_full     2       load 1 (+ bytes)      mma           the rotary columns are ready
rope_empty    2       mma 1 (commit)        load          S is made; with P in the slot: P has been read
work_ready    2       load 1                softmax, mma  a work tile is announced
work_read     2       softmax 128 + mma 32  load          the announcement has been read
work_claimed  1       load 1 (+ bytes)      load          the answer to a claim is ready

Where rows are gathered, two gather warps (gathers.py) also wait for kv_empty, rope_empty and work_ready, and their 64
threads arrive on work_read; their bytes are announced by load.

At the first key tile of a work tile p_ready also says that the old O has been read.

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
"""

from ..blueprint.barriers import (
    KV_SLOT,
    Arrivals,
    Barrier,
    BarrierTable,
    announced_bytes,
    changed_rows,
    commit_by,
)
from ..few_rows import barriers as swapped
from ..few_rows.warp_roles import SwappedWarpRoles

ROPE_SLOT = "rope_slot"


def table(warps: SwappedWarpRoles, kv_slots: int, rope_slots: int) -> BarrierTable:
    """The table of a kernel with rings of this many slots."""
    numbers = dict(swapped.table(warps, kv_slots).numbers) | {ROPE_SLOT: rope_slots}
    assert numbers[KV_SLOT] == kv_slots
    return BarrierTable(rows(warps), numbers)


def rows(warps: SwappedWarpRoles) -> tuple[Barrier, ...]:
    """Every barrier, in memory order: those of the swap-AB kernel, and the ring of the rotary columns."""
    changed = {
        "kv_full": {"means": "128 columns of a key tile are ready"},
        "kv_empty": {"means": "both of the slot's products have completed"},
    }
    free = "S is made; with P in the slot: P has been read"
    rope = rope_rows(announced_bytes("load"), free)
    return changed_rows(swapped.rows(warps), changed, after={"kv_empty": rope})


def rope_rows(loaded: Arrivals, made: str) -> tuple[Barrier, ...]:
    """The ring of the rotary columns. loaded: the arrivals that fill a slot; made: the event that frees it."""
    there = "the rotary columns are ready"
    return (
        Barrier("rope_full", ROPE_SLOT, (loaded,), "mma", there, "rope_empty"),
        Barrier("rope_empty", ROPE_SLOT, (commit_by("mma"),), "load", made, "rope_full"),
    )
