"""Load warp: global memory -> Q, K, V tiles in shared memory.

    order     Q0  K0  Q1  V0  K1  V1  K2  V2 ...
    barrier   q_full[0]  kv_full[0]  q_full[1]  kv_full[1]  kv_full[2] ...

Q0 and K0 come first, because S0 = Q0 K0 is the first thing the tensor core can do. K and V share one ring; the warp
runs ahead of the MMA warp by as many tiles as the ring has slots, also into the next work tile: Q_i is free when the
last S_i has been made, a key tile before the work tile ends. The first copies of the CTA are issued before it has come
together, as soon as this warp has initialised the mbarriers. Where the rows of a tile lie is looked up once, for K and
V alike (tma/paged_rows.py).
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..tma import copies, paged_rows
from ..tma.paged_rows import PagedRowIndices
from ..tma.tensor_maps import DTYPES
from . import rows, work_queue
from .kernel_args import Events, KernelArgs, Smem, Work
from .kv_buffer import KVBuffer, KVBufferConfig
from .pipelines import Slot, TMAProducerPipeline
from .scalars import maximum
from .work_queue import Search, WorkQueue


def load_q(cfg, args: KernelArgs, smem: Smem, events: Events, work: Work, i: int):
    """Copy query tile i of the CTA; q_full[i] fires when it is there.

    Rows beyond the sequence may be those of the next one: they cost nothing and are not stored.
    """
    mbarrier = events.q_full.arrive_and_expect(i, cfg.q_tile_bytes)
    sequence = work.sequence
    position = sequence.q_first_row + work.tile.first_position + i * rows.positions_per_tile(cfg)
    head = work.tile.kv_head if cfg.pack_gqa else work.tile.head
    further = (head, sequence.batch) if cfg.q_layout == "dense" else (head,)
    address = smem.q_address + i * cfg.q_tile_bytes
    copies.load_tile(args.q, DTYPES[cfg.qkv_dtype], address, mbarrier, position, further)


def look_up(cfg, args: KernelArgs, work: Work, n) -> Int32:
    """The page table's entries for key tile n, by lane; 0 where keys are not paged."""
    if cfg.kv_layout != "paged":
        return Int32(0)
    sequence = work.sequence
    return paged_rows.look_up(
        cfg.BN, cfg.page_size, args.page_table, sequence.batch, n * cfg.BN, sequence.num_keys
    )


def find_rows(cfg, args: KernelArgs, work: Work, n, entries: Int32) -> PagedRowIndices:
    """Where the rows of key tile n lie. Dense keys need no look-up: TMA cuts them by the tensor's extent."""
    sequence, first_key = work.sequence, n * cfg.BN
    if cfg.kv_layout == "paged":
        return paged_rows.populate(
            cfg.BN, cfg.page_size, entries, args.rows_per_block[1], args.num_pages,
            first_key, sequence.num_keys,
        )  # fmt: skip
    first_row = sequence.k_first_row
    if cfg.kv_layout == "dense":
        first_row = sequence.batch * args.rows_per_block[1] if cfg.clips_keys else Int32(0)
    return paged_rows.populate_contiguous(cfg.BN, first_row, first_key, sequence.num_keys)


def load_k(
    cfg, k: KVBuffer, kv: TMAProducerPipeline, work: Work, at: Slot, found: PagedRowIndices
) -> Slot:
    """Copy a key tile, depth chunk by depth chunk."""
    kv.acquire(at)
    for stage in range(cfg.qk_stages):
        mbarrier = kv.get_k(at, stage)
        k.load_from_dram(at.index, mbarrier, found, work.tile.kv_head, work.sequence.batch, stage)
    return kv.commit_step(at)


def load_v(
    cfg, v: KVBuffer, kv: TMAProducerPipeline, work: Work, at: Slot, found: PagedRowIndices
) -> Slot:
    """Copy a value tile whole."""
    kv.acquire(at)
    mbarrier = kv.get_v(at)
    v.load_from_dram(at.index, mbarrier, found, work.tile.kv_head, work.sequence.batch)
    return kv.commit_step(at)


@cute.jit
def load_tile(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    events: Events,
    kv: TMAProducerPipeline,
    work: Work,
    n: Int32,
    entries: Int32,
    at: Slot,
    q_phase: Int32,
) -> Slot:
    """Key tile n, with the queries if it is the first.

    entries: of look_up; q_phase: parity of this use of the places of Q.
    """
    k = KVBuffer(KVBufferConfig.for_k(cfg), smem.kv_address, args.k)
    v = KVBuffer(KVBufferConfig.for_v(cfg), smem.kv_address, args.v)
    found = find_rows(cfg, args, work, n, entries)
    for i in cutlass.range_constexpr(cfg.num_q):
        if n == work.tiles.first:
            events.q_free.wait(i, q_phase ^ 1)
            load_q(cfg, args, smem, events, work, i)
        if cutlass.const_expr(i == 0):
            at = load_k(cfg, k, kv, work, at, found)
    return load_v(cfg, v, kv, work, at, found)


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    events: Events,
    kv: TMAProducerPipeline,
    queue: WorkQueue,
    block: Int32,
):
    """Every work tile of the CTA, the first of which is that of `block`."""
    number, q_phase, at = Int32(0), Int32(0), kv.first()
    work, search = work_queue.take(cfg, args, queue, block, Search.first(cfg))
    queue.publish(number, work)
    entries = look_up(cfg, args, work, work.tiles.first)
    while work.tiles.count != work_queue.NO_MORE:
        first, count = work.tiles.first, work.tiles.count
        following = work
        for n in cutlass.range(first, first + maximum(count, 1), unroll=1):
            early = n == first + maximum(count - 2, 0)
            if early:
                queue.ask()
            # On its way while the slots of this tile are awaited.
            ahead = look_up(cfg, args, work, n + 1)
            if count > 0:
                at = load_tile(cfg, args, smem, events, kv, work, n, entries, at, q_phase)
            entries = ahead
            if early:
                answer = queue.answer(search.claims)
                search = Search(search.claims + 1, search.held)
                following, search = work_queue.take(cfg, args, queue, answer, search)
                number = number + 1
                queue.publish(number, following)
        if count > 0:
            q_phase = q_phase ^ 1
        work = following
        entries = look_up(cfg, args, work, work.tiles.first)
