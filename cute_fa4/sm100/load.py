"""Load warp: global memory -> Q, K, V tiles in shared memory.

    order     Q0  K0  Q1  V0  K1  V1  K2  V2 ...
    barrier   q_full[0]  kv_full[0]  q_full[1]  kv_full[1]  kv_full[2] ...

Q0 and K0 come first, because S0 = Q0 K0 is the first thing the tensor core can do. K and V share one ring; the warp
runs ahead of the MMA warp by as many tiles as the ring has slots. The copies up to V0 are issued before the CTA has
come together, as soon as this warp has initialised the mbarriers. Where the rows of a tile lie is looked up once, for
K and V alike (tma/paged_rows.py).
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..tma import copies, paged_rows
from ..tma.paged_rows import PagedRowIndices
from ..tma.tensor_maps import DTYPES
from . import rows
from .kernel_args import Events, KernelArgs, Smem, Work
from .kv_buffer import KVBuffer, KVBufferConfig
from .pipelines import Slot, TMAProducerPipeline


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


def find_rows(cfg, args: KernelArgs, work: Work, n) -> PagedRowIndices:
    """Where the rows of key tile n lie. Dense keys need no look-up: TMA cuts them by the tensor's extent."""
    sequence, first_key = work.sequence, n * cfg.BN
    if cfg.kv_layout == "paged":
        found, valid = paged_rows.populate(
            cfg.BN, cfg.page_size, cfg.page_table_vector, args.page_table, args.rows_per_block[1],
            args.num_pages,
            sequence.batch, first_key, sequence.num_keys,
        )  # fmt: skip
        return PagedRowIndices(found, valid)
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
def begin(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    events: Events,
    kv: TMAProducerPipeline,
    work: Work,
):
    """The queries and the first key tile; nothing is in their places yet."""
    k = KVBuffer(KVBufferConfig.for_k(cfg), smem.kv_address, args.k)
    v = KVBuffer(KVBufferConfig.for_v(cfg), smem.kv_address, args.v)
    if work.tiles.count > 0:
        load_q(cfg, args, smem, events, work, 0)
        found = find_rows(cfg, args, work, work.tiles.first)
        at = load_k(cfg, k, kv, work, kv.first(), found)
        for i in cutlass.range_constexpr(1, cfg.num_q):
            load_q(cfg, args, smem, events, work, i)
        load_v(cfg, v, kv, work, at, found)


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    events: Events,
    kv: TMAProducerPipeline,
    work: Work,
):
    """The key tiles after the first."""
    k = KVBuffer(KVBufferConfig.for_k(cfg), smem.kv_address, args.k)
    v = KVBuffer(KVBufferConfig.for_v(cfg), smem.kv_address, args.v)
    first, count = work.tiles.first, work.tiles.count
    if count > 1:
        at = kv.first().next(kv.slots).next(kv.slots)
        for n in cutlass.range(first + 1, first + count, unroll=1):
            found = find_rows(cfg, args, work, n)
            at = load_k(cfg, k, kv, work, at, found)
            at = load_v(cfg, v, kv, work, at, found)
