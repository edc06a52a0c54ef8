"""Load warp of either CTA: its units of K, one key tile ahead of its units of V, in the order of their use.

    n = 0           Q  K0 K0 K0 K0 rope0
    n = 1, 2, ...      Kn Kn Kn Kn ropen   V(n-1) V(n-1) V(n-1) V(n-1)
    at the end                             V(last) ...

TMA fills rows past the end of a sequence with zeros, because 0 * NaN is NaN.
"""

from dataclasses import dataclass, replace

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cute_fa4.dtypes import DTYPES
from cute_fa4.layouts.scalars import choose, maximum
from cute_fa4.tma import copies, gathered_rows, paged_rows
from cute_fa4.tma.tensor_maps import clipped_load

from ...operands.kv_buffer import SPAN_BYTES, Gathered, gather_chunks
from ...pair.sync import PairProducer
from ...steps.loads import rows_of_tile
from ...steps.warps import LoadWarp, TileToLoad
from ...sync.kernel_args import Events, KernelArgs, Smem
from ...sync.pipelines import Slot
from ...work.tile import Work
from ..gathers import ALONE, KV_HEAD, in_all_lanes, issue
from ..tiles import LATENT_DEPTH
from .tiles import CTAS, UNIT_COLUMNS, UNIT_KEYS


@dataclass(frozen=True)
class LoadPosition:
    """A position in both rings, and the page table entries of the key tile whose V is loaded next."""

    unit: Slot
    rope: Slot
    entries: tuple


@dataclass(frozen=True)
class LatentPairProducer:
    """The end of both rings of a warp that copies rows.

    number   entries that look_up returns per key tile
    share    of the gathers of a unit
    """

    units: PairProducer
    rope: PairProducer
    number: cutlass.Constexpr
    share: cutlass.Constexpr = ALONE

    def first(self) -> LoadPosition:
        return LoadPosition(self.units.first(), self.rope.first(), (Int32(0),) * self.number)

    def drain(self, at: LoadPosition):
        self.units.drain(at.unit)
        self.rope.drain(at.rope)


def number_of_entries(cfg) -> int:
    """Entries that look_up of steps/loads.py returns per key tile."""
    return gathered_rows.pages_of_four(cfg.page_size) if cfg.tiles.gathers_rows else 1


def load_q(cfg, args: KernelArgs, smem: Smem, events: Events, work: Work):
    """Load this CTA's 64 of the 128 rows: half of the heads, or half of the positions."""
    tiles, dtype, rank = cfg.tiles, DTYPES[cfg.qkv_dtype].cutlass, cute.arch.block_idx_in_cluster()
    mbarrier = events.q_full.arrive_and_expect(0, tiles.q_tile_bytes)
    head, position = work.tile.head, work.tile.first_position
    if tiles.rows_per_position > tiles.q_box_rows:
        head = head + rank * tiles.q_box_rows
    else:
        position = position + rank * (tiles.q_box_rows // tiles.rows_per_position)
    first, batch = (head, position), (work.sequence.batch,)
    copies.load_tile(
        args.q, dtype, smem.q_address, mbarrier, first, batch, heads=tiles.heads_of_box
    )


def rows_of_unit(cfg, found, first_key):
    """Where keys [first_key, first_key + 64) of a looked-up tile lie: gathered rows, or the place of each box."""
    tiles = cfg.tiles
    if tiles.gathers_rows:
        return gathered_rows.from_row(found, first_key)
    boxes = paged_rows.box_rows(tiles.BN, cfg.page_size)
    rows = paged_rows.rows_within(found, first_key, UNIT_KEYS, boxes, tiles.k_box_rows)
    return [clipped_load(*rows.box(p), Int32(KV_HEAD)) for p in range(rows.boxes)]


def own_rows(cfg, args: KernelArgs, kv: LatentPairProducer, found, first_key):
    """rows_of_unit of the rows that this warp copies; of a share, as gathers.in_all_lanes has them."""
    rows = rows_of_unit(cfg, found, first_key)
    return rows if kv.share == ALONE else in_all_lanes(args, kv.share, rows, UNIT_KEYS)


def load_unit(
    cfg, args: KernelArgs, kv: LatentPairProducer, to: tuple, rows, first_column, columns
):
    """Copy `columns` columns of the rows that own_rows returned. to: (address, mbarrier)"""
    address, mbarrier = to
    tiles, dtype = cfg.tiles, DTYPES[cfg.qkv_dtype].cutlass
    chunks = -(-columns // tiles.swizzle_granule)
    if kv.share != ALONE:
        issue(args, to, rows, first_column, (UNIT_KEYS, chunks, CTAS))
        return
    if tiles.gathers_rows:
        shape = Gathered(UNIT_KEYS, chunks, CTAS)
        gather_chunks(shape, args.k, address, mbarrier, rows, Int32(KV_HEAD), first_column)
        return
    for p, (place, further) in enumerate(rows):
        for chunk in range(chunks):
            at = address + (chunk * UNIT_KEYS + p * tiles.k_box_rows) * SPAN_BYTES
            column = first_column + chunk * tiles.swizzle_granule
            copies.load_tile(args.k.boxes, dtype, at, mbarrier, place, further, column)


def load_k(cfg, args: KernelArgs, smem, kv: LatentPairProducer, found, at: LoadPosition):
    """Load this CTA's half of the keys, with all columns."""
    slot = at.unit
    rows = own_rows(cfg, args, kv, found, cute.arch.block_idx_in_cluster() * UNIT_KEYS)
    for i in range(cfg.tiles.k_units):
        kv.units.acquire(slot)
        mbarrier = kv.share.full_of(kv.units, slot)
        address = smem.kv_address + slot.index * cfg.tiles.kv_slot_bytes
        load_unit(cfg, args, kv, (address, mbarrier), rows, i * UNIT_COLUMNS, UNIT_COLUMNS)
        slot = kv.units.commit_step(slot)
    if not cfg.tiles.rope_slot_bytes:
        return replace(at, unit=slot)
    kv.rope.acquire(at.rope)
    mbarrier, rest = kv.share.full_of(kv.rope, at.rope), cfg.qk_depth - LATENT_DEPTH
    address = smem.rope_address + at.rope.index * cfg.tiles.rope_slot_bytes
    load_unit(cfg, args, kv, (address, mbarrier), rows, LATENT_DEPTH, rest)
    return replace(at, unit=slot, rope=kv.rope.commit_step(at.rope))


def load_v(cfg, args: KernelArgs, smem, kv: LatentPairProducer, found, slot: Slot) -> Slot:
    """Load all keys, with this CTA's half of the columns of each product."""
    tiles, own = cfg.tiles, cute.arch.block_idx_in_cluster() * UNIT_COLUMNS
    parts = [own_rows(cfg, args, kv, found, Int32(i * UNIT_KEYS)) for i in range(tiles.key_parts)]
    for output in range(tiles.outputs):
        for rows in parts:
            kv.units.acquire(slot)
            mbarrier = kv.share.full_of(kv.units, slot)
            address = smem.kv_address + slot.index * tiles.kv_slot_bytes
            column = own + output * tiles.pv_mma_shape[1]
            load_unit(cfg, args, kv, (address, mbarrier), rows, column, UNIT_COLUMNS)
            slot = kv.units.commit_step(slot)
    return slot


@cute.jit
def load_tile(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    warp: LoadWarp,
    tile: TileToLoad,
    at: LoadPosition,
    q_phase: Int32,
) -> LoadPosition:
    """Load K of key tile n (with Q for the first tile) and V of the previous tile; for the last tile also its own V."""
    args, smem, events, kv = warp.args, warp.smem, warp.events, warp.kv
    work, n, entries = tile.work, tile.n, tile.entries
    first = work.tiles.first
    if cutlass.const_expr(kv.share.announces):
        if n == first:
            events.q_free.wait(0, q_phase ^ 1)
            load_q(cfg, args, smem, events, work)
    at = order.load_k(cfg, args, smem, kv, rows_of_tile(cfg, args, work, n, entries), at)
    end = choose(n == first + work.tiles.count - 1, n + 1, n)
    before, slot = at.entries, at.unit
    these = entries if cfg.tiles.gathers_rows else (entries,)
    for m in cutlass.range(maximum(n - 1, first), end, unroll=1):
        of_m = tuple(choose(m == n, new, old) for new, old in zip(these, before, strict=True))
        of_m = of_m if cfg.tiles.gathers_rows else of_m[0]
        slot = order.load_v(cfg, args, smem, kv, rows_of_tile(cfg, args, work, m, of_m), slot)
    return LoadPosition(slot, at.rope, these)
