"""The barriers of the indexer: who raises each, who waits for it.

Roles: score, warps 0 to 7, two warpgroups that take key tiles in turn, a thread for each key of a tile; mma, warp 8;
load, warp 9.
"""

from ..blueprint.barriers import (
    CTA,
    KV_SLOT,
    Arrivals,
    Barrier,
    BarrierTable,
    announced_bytes,
    commit_by,
)
from ..blueprint.chip import WARP_SIZE

SCORE, MMA, LOAD = range(8), 8, 9
SCORE_THREADS = WARP_SIZE * len(SCORE)
THREADS = WARP_SIZE * (LOAD + 1)
S_BUFFERS = 2  # of S^T in tensor memory: one for each warpgroup of score
GROUP_WARPS = len(SCORE) // S_BUFFERS
S_BUFFER = "s_buffer"


def table(slots: int) -> BarrierTable:
    """slots: of the ring of key tiles."""
    load, mma = announced_bytes("load"), commit_by("mma")
    score = Arrivals("score", SCORE_THREADS // S_BUFFERS)  # of the warpgroup whose buffer it is
    rows = (
        Barrier("q_full", CTA, (load,), "mma", "the queries are ready", "once"),
        Barrier("keys_full", KV_SLOT, (load,), "mma", "a key tile is ready", "keys_empty"),
        Barrier("keys_empty", KV_SLOT, (mma,), "load", "its MMAs have completed", "keys_full"),
        Barrier("s_ready", S_BUFFER, (mma,), "score", "S is ready", "s_read"),
        Barrier("s_read", S_BUFFER, (score,), "mma", "S has been read", "s_ready"),
    )
    return BarrierTable(rows, {CTA: 1, KV_SLOT: slots, S_BUFFER: S_BUFFERS})
