"""Every mbarrier of the kernel that dequantizes RoPE columns: who raises it, who waits, how many arrivals that takes.

barrier       number  raised by                       awaited by    means
q_full        1       load 1 (+ bytes)                mma           Q is in shared memory
q_free        1       mma 1 (commit)                  load          the last S of this Q is made
s_ready       2       mma 1 (commit)                  softmax       S is made
row_scale     2       softmax 128                     correction    the factors, or last the row sums
p_ready       2       softmax 128 + correction 128    mma, softmax  P is stored in part, O rescaled
p_last        2       softmax 128                     mma           the last part of P is stored
pv_done       1       mma 1 (commit)                  correction    O is complete up to here
rope_raw      10      load 1 (+ bytes)                dequantize    rotary columns of 8 bits are ready
kv_full       10      load or dequantize 1 (+ bytes)  mma           the K or V tile is ready
kv_empty      10      mma 1 (commit)                  load          the slot's MMAs have completed
work_ready    2       load 1                          all others    a work tile is announced
work_read     2       all others 352                  load          the announcement has been read
work_claimed  1       load 1 (+ bytes)                load          the answer to a claim is ready

The barriers are those of wide/barriers.py; rope_raw comes before kv_full in the slot of the last unit of K. A slot of
the ring holds a unit of 64 columns of K or V.

barrier       is not raised again too early because
q_full        q_free
q_free        q_full
s_ready       S of the tile after next is made after P V of this one, which waits for P
row_scale     the one after next follows S of two tiles on, the sums wait for p_ready of the last tile
p_ready       P of the tile after next follows its S, which is issued after this wait
p_last        as p_ready
pv_done       the next P V waits for p_ready, which correction raises after this wait
rope_raw      kv_empty of the slot, whose MMA waits for kv_full, raised after this wait
kv_full       kv_empty
kv_empty      kv_full
work_ready    work_read
work_read     work_ready
work_claimed  one claim at a time
"""

from ...blueprint.barriers import KV_SLOT, Arrivals, Barrier, BarrierTable, announced_bytes
from .. import barriers as wide
from ..warp_roles import DequantizingWarpRoles


def table(warps: DequantizingWarpRoles, kv_slots: int) -> BarrierTable:
    """The table of a kernel whose ring has `kv_slots` slots."""
    return BarrierTable(rows(warps), wide.numbers(kv_slots))


def rows(warps: DequantizingWarpRoles) -> tuple[Barrier, ...]:
    """Every barrier, in memory order: those of mhawide, and the one for the arrival of 8-bit columns."""
    rope_raw = Barrier(
        "rope_raw",
        KV_SLOT,
        (announced_bytes("load"),),
        "dequantize",
        "rotary columns of 8 bits are ready",
        "kv_empty of the slot, whose MMA waits for kv_full, raised after this wait",
    )
    return wide.dequantizing_rows(warps, rope_raw, Arrivals("load or dequantize", 1, "+ bytes"))
