"""Every mbarrier of a pair of CTAs over rows of 8 bits: both have all of them, at the same places.

As in latent/pair/barriers.py, but units pass through two rings: each CTA fills and empties its own ring of stored
units, and its dequantize warps fill the ring that the MMAs of both CTAs read.

barrier       number  raised by                              awaited by                means
q_full        1       load 1 (+ bytes of both)               mma                       the Q tile is in shared memory
q_free        1       mma 1 (commit)                         load                      the last S of this Q is made
s_ready       2       mma 1 (commit)                         softmax                   S is made
p_ready       1       softmax 16 (at 0)                      mma                       P is stored, O rescaled, S read
pv_done       1       mma 1 (commit)                         softmax                   O is complete so far, P is read
kv_full       4       dequantize 8 (at 0)                    mma                       K or V is ready in both CTAs
kv_empty      4       mma 1 (commit)                         dequantize                the slot's MMAs have completed
stored_full   6       load 1 (+ bytes)                       dequantize                a unit is ready as it is stored
stored_empty  6       dequantize 4                           load                      it has been read
rope_full     1       load 1 (+ bytes of both)               mma                       the rotary columns are ready
rope_empty    1       mma 1 (commit)                         load                      S is made
work_ready    2       load 1                                 softmax, mma, dequantize  a work tile is announced
work_read     2       softmax 256 + mma 32 + dequantize 256  load                      the announcement has been read
work_claimed  1       load 1 (+ bytes)                       load                      the answer to a claim is ready
claim_read    1       load 1 (of 1, at 0)                    load                      both have read the last answer

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
stored_full   stored_empty
stored_empty  stored_full
rope_full     rope_empty
rope_empty    rope_full
work_ready    work_read
work_read     work_ready
work_claimed  one claim at a time
claim_read    one claim at a time

Rotary columns that are dequantized have their own place as they are stored: stored_rope_full and
stored_rope_empty are as stored_full and stored_empty. Then dequantize 8 (at 0) raises rope_full, and dequantize awaits
rope_empty. Rotary columns that are values, too, are in a unit, and the ring of rotary columns has no slots.
"""

from ...blueprint.barriers import Arrivals, Barrier, BarrierTable, announced_bytes, changed_rows
from ...few_rows.dequantized.barriers import of_queue
from ..barriers import ROPE_SLOT
from ..pair import barriers as pair
from ..pair.tiles import CTAS
from .warp_roles import DEQUANTIZE_GROUPS, RowsPairWarpRoles

STORED_SLOT = "stored_slot"


def table(
    warps: RowsPairWarpRoles,
    kv_slots: int,
    stored_slots: int,
    of_rope: tuple[int, bool],
    claims: bool,
) -> BarrierTable:
    """The table of a kernel with rings of this many slots.

    of_rope: (slots of the rotary columns, whether they are dequantized); claims: whether pairs claim blocks
    """
    rope_slots, dequantizes_rope = of_rope
    numbers = dict(pair.table(warps, kv_slots).numbers)
    numbers |= {STORED_SLOT: stored_slots, ROPE_SLOT: rope_slots}
    return BarrierTable(rows(warps, dequantizes_rope, claims), numbers)


def rows(warps: RowsPairWarpRoles, dequantizes_rope: bool, claims: bool) -> tuple[Barrier, ...]:
    """Every barrier, in memory order: those of a pair, with dequantization between two rings."""
    number = len(warps.dequantize) // DEQUANTIZE_GROUPS  # warps that dequantize a unit
    wide = (Arrivals("dequantize", CTAS * number, "at 0"),)
    read = Arrivals("dequantize", number)
    changed = {
        "kv_full": {"raised_by": wide, "means": "K or V is ready in both CTAs"},
        "kv_empty": {"awaited_by": "dequantize"},
        "pv_done": {"means": "O is complete so far, P is read"},
        **of_queue(warps),
    }
    after = {"kv_empty": _of_stored(read, "stored", STORED_SLOT, "a unit is ready as it is stored")}
    if dequantizes_rope:
        changed["rope_full"] = {"raised_by": wide}
        changed["rope_empty"] = {"awaited_by": "dequantize"}
        there = "rotary columns are ready as they are stored"
        after["rope_empty"] = _of_stored(read, "stored_rope", ROPE_SLOT, there)
    return changed_rows(pair.rows(warps, claims), changed, after=after)


def _of_stored(read: Arrivals, ring: str, slot: str, there: str) -> tuple[Barrier, ...]:
    load, full, empty = announced_bytes("load"), f"{ring}_full", f"{ring}_empty"
    return (
        Barrier(full, slot, (load,), "dequantize", there, empty),
        Barrier(empty, slot, (read,), "load", "it has been read", full),
    )
