"""Every mbarrier of the kernel that dequantizes a latent cache: which role arrives, which waits, number of arrivals.

barrier       number  raised by                              awaited by                means
q_full        1       load 1 (+ bytes)                       mma                       the Q tile is in shared memory
q_free        1       mma 1 (commit)                         load                      the last S of this Q is made
s_ready       2       mma 1 (commit)                         softmax                   S is made
p_ready       1       softmax 128                            mma                       P is stored, O rescaled, S read
pv_done       1       mma 1 (commit)                         softmax                   O is complete so far, P is read
kv_full       3       load 1 (+ bytes)                       dequantize                a slab is ready as it is stored
kv_empty      3       dequantize 256                         load                      the slot has been read
rope_full     1       load 1 (+ bytes)                       mma                       the rotary columns are ready
rope_empty    1       mma 1 (commit)                         load                      S is made; P in the slot is read
slab_wide     4       dequantize 256                         mma                       the slab is ready as K and V
slab_free     2       mma 1 (commit)                         dequantize                V P of slab 0 or 1 is done
k_free        2       mma 1 (commit)                         dequantize                S of slab 0 or 1 is made
work_ready    2       load 1                                 softmax, mma, dequantize  a work tile is announced
work_read     2       softmax 128 + mma 32 + dequantize 256  load                      the announcement has been read
work_claimed  1       load 1 (+ bytes)                       load                      the answer to a claim is ready

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
slab_wide     slab_free
slab_free     slab_wide
k_free        slab_wide
work_ready    work_read
work_read     work_ready
work_claimed  one claim at a time

Rotary columns that are dequantized come through kv_full, as a fifth slab of a key tile. Then dequantize 256 raises
rope_full, and dequantize awaits rope_empty. Rotary columns that are values, too, are in a slab, and the ring of rotary
columns has no slots.
"""

from ...blueprint.barriers import (
    Arrivals,
    Barrier,
    BarrierTable,
    changed_rows,
    commit_by,
    every_thread,
)
from ...few_rows.dequantized.barriers import of_queue
from .. import barriers as latent
from .warp_roles import RowsWarpRoles

SLAB, K_BUFFER = "slab", "k_buffer"
SLABS = 4  # of V per key tile, each with its own buffer
K_BUFFERS = 2  # for slabs in tensor memory: first 0 and 1, then 2 and 3


def table(
    warps: RowsWarpRoles, kv_slots: int, rope_slots: int, dequantizes_rope: bool
) -> BarrierTable:
    """The table of a kernel with rings of this many slots. dequantizes_rope: of a format of rows (formats.py)."""
    numbers = dict(latent.table(warps, kv_slots, rope_slots).numbers)
    more = {SLAB: SLABS, K_BUFFER: K_BUFFERS}
    return BarrierTable(rows(warps, dequantizes_rope), numbers | more)


def rows(warps: RowsWarpRoles, dequantizes_rope: bool) -> tuple[Barrier, ...]:
    """Every barrier, in memory order: those of a latent cache, with dequantization between the ring and the MMA."""
    dequantize = every_thread(warps, "dequantize")
    changed = {
        "kv_full": {"awaited_by": "dequantize", "means": "a slab is ready as it is stored"},
        "kv_empty": {"raised_by": (dequantize,), "means": "the slot has been read"},
        "pv_done": {"means": "O is complete so far, P is read"},
        "rope_empty": {"means": "S is made; P in the slot is read"},
        **of_queue(warps),
    }
    if dequantizes_rope:
        changed["rope_full"] = {"raised_by": (dequantize,)}
        changed["rope_empty"] |= {"awaited_by": "dequantize"}
    return changed_rows(
        latent.rows(warps), changed, after={"rope_empty": _of_dequantized(dequantize)}
    )


def _of_dequantized(dequantize: Arrivals) -> tuple[Barrier, ...]:
    mma = commit_by("mma")
    return (
        Barrier(
            "slab_wide", SLAB, (dequantize,), "mma", "the slab is ready as K and V", "slab_free"
        ),
        Barrier(
            "slab_free", K_BUFFER, (mma,), "dequantize", "V P of slab 0 or 1 is done", "slab_wide"
        ),
        Barrier("k_free", K_BUFFER, (mma,), "dequantize", "S of slab 0 or 1 is made", "slab_wide"),
    )
