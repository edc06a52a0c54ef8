"""The load warp's steps for one tile: announce its bytes, find its rows, copy them."""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32

from ...dtypes import DTYPES
from ...tma import copies, gathered_rows, paged_rows
from ...tma.gathered_rows import GatheredRows
from ...tma.paged_rows import Boxes, PagedRowIndices
from ..operands.kv_buffer import KVBuffer
from ..sync.kernel_args import Events, KernelArgs, Smem
from ..sync.pipelines import Slot, TMAProducerPipeline
from ..work import block_lists, blocks, rows, tile_order
from ..work.tile import Work
from . import rope_rows
from .warps import LoadWarp


def load_q(cfg, args: KernelArgs, smem: Smem, events: Events, work: Work, i: int, place=None):
    """Copy query tile i of the CTA to its place; q_full of the place completes when it has arrived.

    place: a Python int, or an Int32 of the kernel; None: i
    Rows beyond the sequence may belong to the next one: they cost no time and are not stored.
    """
    place = i if place is None else place
    mbarrier = events.q_full.arrive_and_expect(place, cfg.tiles.q_tile_bytes)
    sequence = work.sequence
    position = sequence.q_first_row + work.tile.first_position + i * rows.positions_per_tile(cfg)
    head = rows.scheduled_head(cfg, work)
    further = (head, sequence.batch) if cfg.q_layout == "dense" else (head,)
    address = smem.q_address + place * cfg.tiles.q_tile_bytes
    dtype = DTYPES[cfg.qkv_dtype].cutlass
    if cfg.tiles.pads_groups:
        first = work.tile.head, position
        heads = cfg.tiles.rows_per_position
        copies.load_tile(args.q, dtype, address, mbarrier, first, further[1:], heads=heads)
        return
    copies.load_tile(args.q, dtype, address, mbarrier, position, further)
    if cfg.tiles.q_comes_in_parts:
        after = cfg.tiles.bytes_of(cfg.tiles.rows_per_q_tile * cfg.tiles.own_qk_depth)
        dtype = DTYPES[cfg.rope_stored_dtype].cutlass
        copies.load_tile(args.rope.of_q, dtype, address + after, mbarrier, position, further)


def look_up(cfg, args: KernelArgs, work: Work, n):
    """The page table's entries for key tile n, by lane; 0 where keys are not paged. Several where rows are gathered.

    Where columns of K have their own pages: (the entries, the entries of those pages).
    """
    entries = look_up_keys(cfg, args, work, n)
    return (entries, rope_rows.look_up(cfg, args, work, n)) if cfg.rope_page_size else entries


def look_up_keys(cfg, args: KernelArgs, work: Work, n):
    """The same for K and V alone. Where blocks are listed: the key tile of turn n; of pages (the tile, its entries)."""
    if cfg.lists_blocks:
        tile = block_lists.key_tile(cfg, args, work, n)
        return tile if cfg.kv_layout != "paged" else (tile, look_up_tile(cfg, args, work, tile))
    return look_up_tile(cfg, args, work, n)


def look_up_tile(cfg, args: KernelArgs, work: Work, n):
    """The page table's entries for key tile n; 0 where keys are not paged. Of several key tiles: a PagesOfTiles."""
    if cfg.kv_layout != "paged":
        return Int32(0)
    if cfg.tiles.tiles_of_look_up > 1:
        return pages_from(cfg, args, work, n, look_up_at_once(cfg, args, work, n))
    sequence, row = work.sequence, args.lengths.cache_row(work.sequence.batch)
    if cfg.tiles.gathers_rows:
        return gathered_rows.look_up(
            cfg.tiles.BN, cfg.page_size, cfg.cache_leftpad, args.page_table, row, *rows_in_cache(cfg, work, n)
        )  # fmt: skip
    return paged_rows.look_up(
        boxes_of(cfg),
        args.page_divisor,
        args.page_table,
        row,
        blocks.key_tile(cfg, n) * cfg.tiles.BN,
        sequence.num_keys,
    )


def boxes_of(cfg) -> Boxes:
    """The boxes of key tiles in pages, and the key tiles of a look-up."""
    return Boxes(cfg.tiles.BN, cfg.page_size, cfg.tiles.tiles_of_look_up, cfg.cluster_parts)


@dataclass(frozen=True)
class PagesOfTiles:
    """Of key tiles that are looked up together: rows by lane, as paged_rows.populate has them, and the look-up after.

    following   page-table entries of as many key tiles more; nothing has used them, so memory has time to answer
    """

    row: Int32
    valid: Int32
    following: Int32


def pages_from(cfg, args: KernelArgs, work: Work, n, entries) -> PagesOfTiles:
    """Those of key tile n and the ones after it, whose entries have been looked up."""
    found = paged_rows.populate(
        boxes_of(cfg), args.page_divisor, entries, args.rows_per_block[1], args.num_pages,
        blocks.key_tile(cfg, n) * cfg.tiles.BN, work.sequence.num_keys,
    )  # fmt: skip
    following = look_up_at_once(cfg, args, work, n + cfg.tiles.tiles_of_look_up)
    return PagesOfTiles(found.row, found.valid, following)


def look_up_next(cfg, args: KernelArgs, work: Work, n, entries) -> Int32 | PagesOfTiles:
    """The entries for key tile n + 1. entries: for key tile n, which may have them already."""
    if cfg.tiles.tiles_of_look_up == 1:
        return look_up(cfg, args, work, n + 1)
    return next_pages(cfg, args, work, n, entries)


@cute.jit
def next_pages(
    cfg: cutlass.Constexpr, args: KernelArgs, work: Work, n: Int32, pages: PagesOfTiles
) -> PagesOfTiles:
    """The pages of key tile n + 1, after those of key tile n: most often the same."""
    if place_in_look_up(cfg, work, n + 1) == 0:
        pages = pages_from(cfg, args, work, n + 1, pages.following)
    return pages


def place_in_look_up(cfg, work: Work, n):
    """The number of key tile n among those that are looked up together, from the first of the work tile on."""
    return n - work.tiles.first & (cfg.tiles.tiles_of_look_up - 1)


def look_up_at_once(cfg, args: KernelArgs, work: Work, n):
    """look_up without a branch, of boxes: the address is there when the entries before it arrive."""
    if cfg.kv_layout != "paged":
        return Int32(0)
    row = args.lengths.cache_row(work.sequence.batch)
    first_key = blocks.key_tile(cfg, n) * cfg.tiles.BN
    return paged_rows.look_up_at_once(
        boxes_of(cfg), args.page_divisor, args.page_table, row, first_key, work.sequence.num_keys
    )


def guess(cfg, args: KernelArgs, block) -> Int32 | tuple | None:
    """The page table's entries for a CTA's first turn, before the sequence length is known, if it has keys there.

    None where the turn is unknown. Entries beyond the sequence may be among them: they are not used.
    """
    elsewhere = (
        cfg.split_keys and not cfg.in_runs
    )  # shared keys and even parts begin where the length says
    of_block = not (elsewhere or cfg.q_layout == "packed" or cfg.lists_blocks)
    if not of_block or cfg.kv_layout != "paged" or cfg.cache_leftpad or cfg.cache_batch_idx:
        return None
    number, turn = guessed_turn(cfg, args, block)
    batch = tile_order.work_tile(cfg, number, args.order).batch
    first_key = blocks.key_tile(cfg, turn) * cfg.tiles.BN
    room = args.seqlen_k
    if cfg.tiles.gathers_rows:
        return gathered_rows.look_up(
            cfg.tiles.BN, cfg.page_size, False, args.page_table, batch, first_key, room
        )
    return paged_rows.look_up_at_once(
        boxes_of(cfg), args.page_divisor, args.page_table, batch, first_key, room
    )


def guessed_turn(cfg, args: KernelArgs, block) -> tuple:
    """-> (the number of a CTA's first block, the turn in its key tiles that it begins with, if no mask hides it)."""
    if not cfg.in_runs:
        return block // cfg.cluster_parts, Int32(0)
    number, part = args.splits.block_and_part(block)
    return number, part * args.splits.tiles_each


@cute.jit
def look_up_guessed(
    cfg: cutlass.Constexpr, args: KernelArgs, work: Work, entries: Int32 | tuple, turn: Int32
) -> Int32 | tuple:
    """The entries for the first turn of a work tile; guess may have found them, those of `turn`, already."""
    several = cutlass.const_expr(cfg.tiles.tiles_of_look_up > 1)
    again = look_up_at_once if several else look_up
    if work.tiles.first != turn:
        entries = again(cfg, args, work, work.tiles.first)
    return pages_from(cfg, args, work, work.tiles.first, entries) if several else entries


def rows_in_cache(cfg, work: Work, n) -> tuple:
    """-> (row of the cache where key tile n begins, end of the sequence's rows)."""
    first, end = blocks.key_tile(cfg, n) * cfg.tiles.BN, work.sequence.num_keys
    if not cfg.cache_leftpad:
        return first, end
    return work.sequence.k_first_row + first, work.sequence.k_first_row + end


def find_rows(cfg, args: KernelArgs, work: Work, n, entries: Int32 | tuple) -> tuple:
    """-> the rows of K and of V that this CTA loads of key tile n; a single CTA loads all rows of both.

    Each of two CTAs that share an MMA loads half of the rows of K, and half of the columns of V.
    """
    found = rows_of_tile(cfg, args, work, n, entries)
    if cfg.tiles.cta_group == 1:
        return found, found
    rows = cfg.tiles.k_rows_per_cta
    first = blocks.rank(cfg) * rows
    if cfg.tiles.gathers_rows:
        return gathered_rows.from_row(found, first), found
    boxes = cfg.tiles.v_box_rows, cfg.tiles.k_box_rows
    return paged_rows.rows_within(found, first, rows, *boxes), found


def rows_of_tile(
    cfg, args: KernelArgs, work: Work, n, entries: Int32 | tuple
) -> PagedRowIndices | GatheredRows:
    """The rows of key tile n. Dense keys need no look-up: TMA clips them at the tensor's extent."""
    if cfg.lists_blocks:
        n, entries = entries if cfg.kv_layout == "paged" else (entries, entries)
    sequence, first_key = work.sequence, blocks.key_tile(cfg, n) * cfg.tiles.BN
    if cfg.rope_page_size:
        entries, _ = entries
    if cfg.tiles.gathers_rows:
        return gathered_rows.populate(
            cfg.page_size, entries, args.rows_per_block[1], args.num_pages, *rows_in_cache(cfg, work, n)
        )  # fmt: skip
    if cfg.kv_layout == "paged":
        sizes = boxes_of(cfg)
        if sizes.tiles > 1:
            first = place_in_look_up(cfg, work, n) * sizes.of_tile
            return PagedRowIndices(entries.row, entries.valid, sizes.of_tile, first)
        return paged_rows.populate(
            sizes, args.page_divisor, entries, args.rows_per_block[1], args.num_pages,
            first_key, sequence.num_keys,
        )  # fmt: skip
    first_row = sequence.k_first_row
    if cfg.kv_layout == "dense":
        first_row = Int32(0)
        if cfg.clips_keys:
            first_row = args.lengths.cache_row(sequence.batch) * args.rows_per_block[1]
        if cfg.cache_leftpad:
            first_row = first_row + sequence.k_first_row
    return paged_rows.populate_contiguous(cfg.tiles.BN, first_row, first_key, sequence.num_keys)


@cute.jit
def load_first_k(
    cfg: cutlass.Constexpr,
    of_k: cutlass.Constexpr,
    warp: LoadWarp,
    work: Work,
    entries: Int32 | tuple,
    at: Slot,
) -> tuple[Slot, Boolean]:
    """K of a CTA's first key tile, before its work tile is announced -> (the slot after it, whether there is a tile).

    of_k: the KVBufferConfig of its own columns; entries: of the page table
    """
    args, smem = warp.args, warp.smem
    k = KVBuffer(of_k, smem.kv_address, args.k)
    started = work.tiles.count > 0
    if started:
        n = work.tiles.first
        found, _ = find_rows(cfg, args, work, n, entries)
        rope = rope_rows.found_of(cfg, args, smem, work, n, entries, found)
        at = load_k(cfg, k, warp.kv, work, at, found, rope, fresh=True)
    return at, started


def load_k(
    cfg,
    k: KVBuffer,
    kv: TMAProducerPipeline,
    work: Work,
    at: Slot,
    found: PagedRowIndices | GatheredRows,
    rope: tuple | None = None,
    fresh: bool = False,
) -> Slot:
    """Copy a key tile: the part that its slot holds, then the rest of the depth, if any.

    rope: of rope_rows.found_of, where the last columns come from a tensor that all heads share. Their bytes count on
    the barrier of the last part.
    fresh: the ring has not been used yet
    """
    if cfg.tiles.k_rests > 1:
        place = work.tile.kv_head, work.sequence.batch
        k.load_from_dram(at.rest, kv.get_rest(at), found, *place, of_rest=True)
        if cfg.tiles.row_in_rest:
            return kv.commit_step(at)
    if not fresh:
        kv.acquire(at)
    for stage in range(cfg.tiles.qk_stages):
        if stage:
            kv.acquire_rest(at)
        mbarrier, batch = kv.get_k(at, stage), work.sequence.batch
        if stage == 0 or rope is None:
            slot = at.rest if stage else at.index
            k.load_from_dram(slot, mbarrier, found, work.tile.kv_head, batch, of_rest=stage > 0)
        if rope is not None and stage == cfg.tiles.qk_stages - 1:
            shared, of_rope = rope
            shared.load_from_dram(at.index, mbarrier, of_rope, Int32(0), batch)
    return kv.commit_step(at)


def load_v(
    cfg,
    v: KVBuffer,
    kv: TMAProducerPipeline,
    work: Work,
    at: Slot,
    found: PagedRowIndices | GatheredRows,
) -> Slot:
    """Copy a whole value tile."""
    kv.acquire(at)
    mbarrier = kv.get_v(at)
    column = blocks.rank(cfg) * cfg.tiles.v_cols_of_mma
    v.load_from_dram(
        at.index, mbarrier, found, work.tile.kv_head, work.sequence.batch, first_column=column
    )
    return kv.commit_step(at)
