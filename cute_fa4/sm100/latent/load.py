"""Load warp of the latent kernel: a key tile is four slabs and the rotary columns, each with its own barrier.

    order     Q   slab 0      slab 1      slab 2      slab 3      rope          slab 0 of the next tile ...
    barrier   q   kv_full[0]  kv_full[1]  kv_full[2]  kv_full[3]  rope_full[0]  kv_full[4]

TMA fills rows past the end of a sequence with zeros: these rows are V too, and 0 * NaN is NaN.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cute_fa4.dtypes import DTYPES
from cute_fa4.tma import copies
from cute_fa4.tma.tensor_maps import clipped_load

from ..operands.kv_buffer import SPAN_BYTES, Gathered, KVBufferConfig, gather_chunks, load_pages
from ..steps.loads import rows_of_tile
from ..steps.warps import LoadWarp, TileToLoad
from ..sync.kernel_args import KernelArgs
from ..sync.pipelines import Slot, TMAProducerPipeline
from ..work.tile import Work
from .gathers import ALONE, KV_HEAD, in_all_lanes, issue


@dataclass(frozen=True)
class LatentSlots:
    """A position in both rings."""

    slab: Slot
    rope: Slot


@dataclass(frozen=True)
class LatentProducer:
    """The end of both rings of a warp that copies rows. share: of the gathers of a slab"""

    slabs: TMAProducerPipeline
    rope: TMAProducerPipeline
    share: cutlass.Constexpr = ALONE

    def first(self) -> LatentSlots:
        return LatentSlots(self.slabs.first(), self.rope.first())

    def drain(self, at: LatentSlots):
        """Called after the last tile. Nothing to drain: a CTA without a cluster only signals its own barriers."""


def load_columns(cfg, args: KernelArgs, to: tuple, found, work: Work, first: int, end: int):
    """Copy columns [first, end) of a key tile: 64 at a time, or a whole slab if pages come whole.

    to: (address, mbarrier); found: rows, or a share of them as gathers.in_all_lanes has it
    """
    address, mbarrier = to
    tiles, dtype, boxes = cfg.tiles, DTYPES[cfg.qkv_dtype].cutlass, args.k.boxes
    if tiles.pages_come_whole:
        if end - first == tiles.slab_columns:
            slab = KVBufferConfig.for_v(cfg)
            load_pages(slab, args.k, address, mbarrier, found, Int32(KV_HEAD), first)
            return
        boxes = args.k.rest.boxes
    chunks = -(-(end - first) // tiles.swizzle_granule)
    if isinstance(found, tuple):
        issue(args, to, found, first, (tiles.BN, chunks, 1))
        return
    if tiles.gathers_rows:
        shape = Gathered(tiles.BN, chunks)
        gather_chunks(shape, args.k, address, mbarrier, found, Int32(KV_HEAD), first)
        return
    for chunk, column in enumerate(range(first, end, tiles.swizzle_granule)):
        at = address + chunk * tiles.BN * SPAN_BYTES
        if not cfg.clips_keys:
            further = Int32(KV_HEAD), work.sequence.batch
            copies.load_tile(boxes, dtype, at, mbarrier, found.row, further, column)
            continue
        for p in range(found.boxes):
            place, further = clipped_load(*found.box(p), Int32(KV_HEAD))
            box = at + p * tiles.k_box_rows * SPAN_BYTES
            copies.load_tile(boxes, dtype, box, mbarrier, place, further, column)


@cute.jit
def load_tile(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    warp: LoadWarp,
    tile: TileToLoad,
    at: LatentSlots,
    q_phase: Int32,
) -> LatentSlots:
    """Load key tile n, and Q with the first one; arguments as in roles/load.py."""
    args, smem, events, kv = warp.args, warp.smem, warp.events, warp.kv
    work, n, entries = tile.work, tile.n, tile.entries
    found = rows_of_tile(cfg, args, work, n, entries)
    if cutlass.const_expr(kv.share != ALONE):
        found = in_all_lanes(args, kv.share, found, cfg.tiles.BN)
    if cutlass.const_expr(kv.share.announces):
        if n == work.tiles.first:
            events.q_free.wait(0, q_phase ^ 1)
            order.load_q(cfg, args, smem, events, work, 0)
    slab, width = at.slab, cfg.tiles.slab_columns
    for i in cutlass.range_constexpr(cfg.tiles.slabs):
        kv.slabs.acquire(slab)
        mbarrier = kv.share.full_of(kv.slabs, slab)
        address = smem.kv_address + slab.index * cfg.tiles.kv_slot_bytes
        to = address, mbarrier
        load_columns(cfg, args, to, found, work, i * width, (i + 1) * width)
        slab = kv.slabs.commit_step(slab)
    if cutlass.const_expr(cfg.tiles.rope_slot_bytes == 0):
        return LatentSlots(slab, at.rope)
    kv.rope.acquire(at.rope)
    mbarrier = kv.share.full_of(kv.rope, at.rope)
    address = smem.rope_address + at.rope.index * cfg.tiles.rope_slot_bytes
    load_columns(cfg, args, (address, mbarrier), found, work, cfg.ov_depth, cfg.qk_depth)
    return LatentSlots(slab, kv.rope.commit_step(at.rope))
