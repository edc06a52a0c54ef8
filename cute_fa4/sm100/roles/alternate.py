"""Even and odd key tiles of one query tile: S0 and O0 for even tiles, S1 and O1 for odd tiles, in one MMA warp.

    n = 0               S0 = Q K0                    release K0
    n = 1               S1 = Q K1    O0  = P0 V0     release K1, V0
    n = 2               S0 = Q K2    O1  = P1 V1     release K2, V1
    n = 3               S1 = Q K3    O0 += P0 V2     release K3, V2
    ...
    at the end                       O  += P V(last)

While one softmax warpgroup works on its key tile, the MMAs of the other run: two MMAs lie between the MMA that makes S
and the one that uses its P, as with two query tiles. P is stored over S: S of tile n + 2 is issued after P V of tile n,
and the tensor core executes in issue order.

Key tiles of warpgroup i, where the first key tile of the CTA is f:

    first f + i    then f + i + 2, f + i + 4, ...    of `count` key tiles (count + 1 - i) / 2
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..operands.kv_buffer import KVBuffer, KVBufferConfig
from ..steps.products import multiply_pv, multiply_qk
from ..steps.warps import MmaWarp
from ..sync.pipelines import KVPosition


@cute.jit
def key_tiles(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    mma: MmaWarp,
    at: KVPosition,
    count: Int32,
    phases: Int32,
    q_phase: Int32,
) -> tuple[KVPosition, Int32, Int32]:
    """All MMAs of a work tile of `count` key tiles; none is pending at the end.

    at: K of the first key tile; phases: bit i is the parity of the next P_i. All three are returned with their values
    for the next work tile.
    """
    events, kv = mma.events, mma.kv
    k = KVBuffer(KVBufferConfig.for_k(cfg), mma.smem.kv_address)
    for n in cutlass.range(count, unroll=1):
        if n == 0:
            events.q_full.wait(0, q_phase)
        order.may_make_s(events, n & 1, phases)
        multiply_qk(cfg, mma, k, at, 0, wait=True, to=n & 1)
        events.s_ready.commit(n & 1)
        kv.release(at)
        if n == count - 1:
            events.q_free.commit(0)
        if n > 0:
            phases = add_product(cfg, order, mma, at, n - 1, phases)
        at = kv.advance_to_v(at)
        kv.wait_v(at)  # it comes before the next K
        at = kv.advance_to_k(at)
    if count > 0:
        phases = add_product(cfg, order, mma, at, count - 1, phases)
        events.o_ready.commit(0)
        q_phase = q_phase ^ 1
    return at, phases, q_phase


@cute.jit
def add_product(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    mma: MmaWarp,
    at: KVPosition,
    n: Int32,
    phases: Int32,
) -> Int32:
    """O_i (+)= P_i V with the held V of key tile n."""
    v = KVBuffer(KVBufferConfig.for_v(cfg), mma.smem.kv_address)
    i = n & 1
    multiply_pv(cfg, v, mma, at.held_v, i, (phases >> i) & 1, n > 1)
    mma.kv.release_v(at)
    order.product_issued(mma.events, i)
    return phases ^ (1 << i)
