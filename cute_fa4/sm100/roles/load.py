"""Load warp: global memory -> Q, K, V tiles in shared memory.

    order     Q0  K0  Q1  V0  K1  V1  K2  V2 ...
    barrier   q_full[0]  kv_full[0]  q_full[1]  kv_full[1]  kv_full[2] ...

Q0 and K0 come first, because S0 = Q0 K0 is the first MMA that the tensor core can run. K and V share one ring; the warp
runs ahead of the MMA warp by as many tiles as the ring has slots, also into the next work tile: Q_i is free when the
last S_i has been made, one key tile before the work tile ends. The first copies are issued before the CTA has
synchronised, as soon as this warp has initialised the mbarriers. The rows of a tile are looked up once, for both K and
V (tma/paged_rows.py). Gathered rows need a second warp, which loads V (values.py).
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...layouts.scalars import maximum
from ..operands.kv_buffer import KVBuffer, KVBufferConfig
from ..operands.rope import own_columns
from ..steps import rope_rows
from ..steps.loads import find_rows, load_k, look_up_next
from ..steps.warps import LoadWarp, TileToLoad
from ..sync.kernel_args import Events, KernelArgs, Smem
from ..sync.pipelines import Slot, TMAProducerPipeline
from ..work.queue import NO_MORE, WorkQueue, begin, take_work
from .order import LoadOrder
from .values import copies_of_v

PLAIN = LoadOrder()


@cute.jit
def load_tile(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    warp: LoadWarp,
    tile: TileToLoad,
    at: Slot,
    q_phase: Int32,
) -> Slot:
    """Key tile n, and the queries loaded with it: with the first key tile, unless the order differs.

    q_phase: parity of this use of the Q buffers.
    """
    args, smem, events, kv = warp.args, warp.smem, warp.events, warp.kv
    work, n, entries = tile.work, tile.n, tile.entries
    k = KVBuffer(own_columns(cfg), smem.kv_address, args.k)
    v = KVBuffer(KVBufferConfig.as_it_arrives(cfg, is_v=True), smem.kv_address, args.v)
    of_k, of_v = find_rows(cfg, args, work, n, entries)
    rope = rope_rows.found_of(cfg, args, smem, work, n, entries, of_k)
    for turn in cutlass.range_constexpr(cfg.tiles.num_q):
        i = order.q_tile_of_turn(turn)
        if n == order.key_tile_of_q(cfg, work, i):
            events.q_free.wait(order.q_place(cfg, work, i), q_phase ^ 1)
            order.load_q(cfg, args, smem, events, work, i)
        if cutlass.const_expr(turn == 0):
            at = load_k(cfg, k, kv, work, at, of_k, rope)
    return copies_of_v(cfg)(cfg, v, kv, work, at, of_v)


def loader_of(order):
    """The function that copies a key tile: load_tile, or the order's replacement."""
    return load_tile if order.load_tile is None else order.load_tile


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    events: Events,
    kv: TMAProducerPipeline,
    queue: WorkQueue,
    block: Int32,
    order: cutlass.Constexpr = PLAIN,
):
    """Every work tile of the CTA, starting with the tile of `block`."""
    warp = LoadWarp(args, smem, events, kv)
    number, q_phase, at = Int32(0), Int32(0), kv.first()
    guessed = order.guessed_entries(cfg, args, block)
    block, search = begin(cfg, args, block)
    work, search = take_work(cfg, args, queue, block, search)
    entries, started = Int32(0), None
    if cutlass.const_expr(order.starts_early):
        entries = order.first_entries(cfg, args, work, guessed)
        at, started = order.start(cfg, warp, work, entries, at)
    work = queue.publish(number, work)
    if cutlass.const_expr(not order.starts_early):
        entries = order.first_entries(cfg, args, work, guessed)
        started = order.after_tile(entries)
    while work.tiles.count != NO_MORE:
        first, count = work.tiles.first, work.tiles.count
        following, found = work, order.found_before(entries)
        for n in cutlass.range(first, first + maximum(count, 1), unroll=1):
            takes = n == first + maximum(count - 2, 0)
            asks = takes
            if cutlass.const_expr(order.asks_early):
                asks = n == first + maximum(count - 3, 0)
            asked = queue.nothing_asked()
            if asks:
                asked = queue.ask_next(search, number)
            # This look-up overlaps the wait for the slots of this tile.
            ahead = look_up_next(cfg, args, work, n, entries)
            if count > 0:
                tile = TileToLoad(work, n, entries)
                at = loader_of(order)(
                    cfg, order, warp, tile, at, q_phase, *order.further_arguments(started)
                )
            entries, started = ahead, order.after_tile(entries)
            if takes:
                search, following, number = queue.take_next(cfg, args, search, number, asked)
                found = order.look_up_following(cfg, args, following, found)
        if count > 0:
            q_phase = q_phase ^ order.uses_of_q(cfg, work)
        work, number = queue.copies_issued(cfg, args, following, number)
        entries = order.next_entries(cfg, args, work, found)
    kv.drain(at)
    queue.drain(search, number)
