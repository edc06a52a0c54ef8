"""Two CTAs that share their MMAs: 256 own rows of a head, and half of every tile of the other side in each CTA.

    own rows, M = 256             CTA 0, which issues the MMAs     CTA 1
    own tiles, S, dP, results     rows 0..127                      rows 128..255, in tensor memory of their own
    S, dP: tile of n rows         rows 0..n/2 - 1                  rows n/2..n - 1, all columns
    sums: tile of d columns       columns 0..d/2 - 1               columns d/2..d - 1, all n rows

An MMA of M = 256 reads operand B from both CTAs. A tile that S or dP reads and a sum, too, comes in both forms: three
quarters of its bytes. So a CTA copies less, and the tensor core reads half as much of the ring from its shared memory.

The forms are parts of the ring (Owner.parts), because their lives differ. At head dim 256 a part of 32 KiB has one
place, and is loaded while the tensor core makes two other products:

    mma      S[n+1]           dQ[n]            dP[n+1]          S[n+2]           dQ[n+1] ...
    load     V[n+2] rows      K[n+2] rows      K[n+1] columns   V[n+3] rows      in the place that was just read

    who                  raises                                          in
    load warp of CTA 0   other_full, own_full of tiles that stay         its own CTA: the bytes of both
    TMA of either CTA    its bytes, on these                             CTA 0
    a compute warp       s_read, p_ready, dp_read, ds_ready, own_there   CTA 0
    compute threads      own_moved                                       their own CTA
    MMAs of CTA 0        s_ready, dp_ready, other_empty, done            both

Both CTAs pass the tiles that any of the 256 rows sees, and masks hide what a CTA's own rows do not see. Where a
sequence ends within the first 128 rows, CTA 1 has no rows: it takes part in all products and stores nothing. It
waits for `done`, the last commit, so that all others have come.
"""

from ..pair.stored_at_leader import StoredAtLeader
from ..pair.sync import LoadedForBoth, RaisedAtLeader, RaisedInBoth
from ..sync.pipelines import Event
from .barriers import READ_OR_WRITTEN

KINDS = {
    **dict.fromkeys((*READ_OR_WRITTEN, "own_there", "dq_read"), RaisedAtLeader),
    **dict.fromkeys(("s_ready", "dp_ready", "dq_ready", "other_empty", "done"), RaisedInBoth),
    "other_full": LoadedForBoth,
    "ds_there": StoredAtLeader,
}


def event_of(owner, name: str) -> type[Event]:
    """Who raises a barrier, and in which CTA."""
    return KINDS.get(name, Event) if owner.ctas > 1 else Event


def own_full(owner, cta, i: int) -> Event:
    """The event of own tile i for the load warp: the MMA warp waits for both CTAs, unless they move."""
    both = owner.ctas > 1 and i not in owner.moved
    return LoadedForBoth(cta.own_full.mbarriers) if both else cta.own_full
