"""Load warp: a key tile is the scales, four slabs in their stored format, and the rotary columns.

    order     Q   scales  slab 0   slab 1      slab 2      slab 3      rope          scales, slab 0 of the next tile ...
    barrier   q   kv_full[0]       kv_full[1]  kv_full[2]  kv_full[0]  rope_full[0]  kv_full[1]

The tensor map has byte elements, and a box may begin at any multiple of 16. TMA fills rows past the end of a sequence
with zeros, scales included: these rows are V, and 0 * NaN is NaN. Keys missing from a list are zeros. Rows of 576 bytes
have no scales, and their rotary columns are a fifth slab: TMA fills what is beyond the row with zeros. Over rows of 584
bytes the rotary columns are slab 3, with lines of the 64 values before them; blocks.py reads the scales.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cute_fa4.dtypes import DTYPES
from cute_fa4.tma import copies
from cute_fa4.tma.tensor_maps import clipped_load

from ...operands.kv_buffer import SPAN_BYTES, Gathered, gather_chunks
from ...operands.tma import KVOperand
from ...steps.loads import rows_of_tile
from ...steps.warps import LoadWarp, TileToLoad
from ..load import KV_HEAD, LatentSlots


def load_bytes(cfg, operand: KVOperand, address, mbarrier, found, first: int, line_bytes: int):
    """Copy line_bytes bytes of each key of a tile to shared memory, starting at byte `first` of its row."""
    tiles = cfg.tiles
    if tiles.gathers_rows:
        shape = Gathered(tiles.BN, 1, line_bytes=line_bytes)
        gather_chunks(shape, operand, address, mbarrier, found, Int32(KV_HEAD), first)
        return
    for p in range(found.boxes):
        place, further = clipped_load(*found.box(p), Int32(KV_HEAD))
        box = address + p * tiles.k_box_rows * line_bytes
        copies.load_tile(
            operand.boxes, DTYPES[cfg.stored_dtype].cutlass, box, mbarrier, place, further, first
        )


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
    if n == work.tiles.first:
        events.q_free.wait(0, q_phase ^ 1)
        order.load_q(cfg, args, smem, events, work, 0)
    slab, row = at.slab, cfg.tiles.row
    for i in cutlass.range_constexpr(cfg.tiles.stored_slabs):
        kv.slabs.acquire(slab)
        if cutlass.const_expr(row.lines is not None and row.lines.slab == i):
            mbarrier, lines = kv.slabs.get_k(slab, 0), (row.lines.first, row.lines.nbytes)
            load_bytes(cfg, args.k.rest, smem.lines_address, mbarrier, found, *lines)
        else:
            mbarrier = kv.slabs.get_v(slab)
        address = smem.kv_address + slab.index * cfg.tiles.kv_slot_bytes
        load_bytes(cfg, args.k, address, mbarrier, found, row.first_byte(i), SPAN_BYTES)
        slab = kv.slabs.commit_step(slab)
    rope = at.rope
    if cutlass.const_expr(not (row.dequantizes_rope or row.rope_in_v)):
        kv.rope.acquire(rope)
        mbarrier = kv.rope.get_v(rope)
        load_bytes(cfg, args.k, smem.rope_address, mbarrier, found, row.rope_at, SPAN_BYTES)
        rope = kv.rope.commit_step(rope)
    return LatentSlots(slab, rope)
