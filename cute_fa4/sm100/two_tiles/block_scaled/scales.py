"""Scales warp: copy the e8m0 bytes of Q and K from global memory into a shared-memory ring, as tcgen05.cp reads them.

    lane       rows (or keys) lane, lane + 32, lane + 64, lane + 96 of a tile: a line of 16 bytes
    tile n     wait scales_empty -> lines of K, with a first tile those of Q0 and Q1 -> scales_full     mma may copy
    tile n+1   its loads are in flight meanwhile

A row has a byte for each 32 numbers; the bytes of a word are loaded one by one, so the tensor may have any strides.
Keys beyond the sequence get 2^-127, and are hidden by the mask; a byte of 255, NaN, makes the scores of its row NaN.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cute_fa4.layouts.block_scales import LINE_BYTES, words_of

from ...blueprint.chip import WARP_SIZE
from ...steps.store import store_piece
from ...steps.token_scales import place_of
from ...sync.kernel_args import Events, KernelArgs, Smem
from ...work import block_lists, block_scales, rows
from ...work.queue import NO_MORE, WorkQueue
from ...work.tile import Work
from .orders import OF_K
from .products import address_of

WORDS = LINE_BYTES // 4


def of_keys(cfg, args: KernelArgs, work: Work, n, end) -> tuple:
    """The words of this lane's keys of turn n, word by word; arbitrary values from turn `end` on."""
    tile = block_lists.tile_of_turn(cfg, args, work, n)
    first = tile * cfg.tiles.BN + cute.arch.lane_idx()
    return tuple(
        block_scales.of_key(cfg, args, work, first + key, word, n < end)
        for word in range(words_of(cfg.qk_depth))
        for key in range(0, cfg.tiles.BN, WARP_SIZE)
    )


def of_rows(cfg, args: KernelArgs, work: Work, i: int) -> tuple:
    """The same for its rows of query tile i."""
    lane = cute.arch.lane_idx()
    return tuple(
        block_scales.of_row(cfg, args, work, rows.row_of(cfg, work, i, lane + row), word)
        for word in range(words_of(cfg.qk_depth))
        for row in range(0, cfg.tiles.rows_per_q_tile, WARP_SIZE)
    )


def store_lines(cfg, smem: Smem, slot, which: int, words: tuple):
    """Store this lane's line of each word of Q0, Q1 or K in an entry of the ring."""
    number = words_of(cfg.qk_depth)
    each = len(words) // number
    for word in range(number):
        line = words[each * word : each * (word + 1)]
        padded = [*line, *[Int32(0)] * (WORDS - each)]
        address = address_of(cfg, smem, slot, which, word)
        store_piece(address + cute.arch.lane_idx() * LINE_BYTES, padded)


def await_slot(events: Events, slot, phase):
    """Wait until the previous entry in this slot has been copied into tensor memory."""
    events.scales_empty.wait(slot, phase ^ 1)


def hand_over(events: Events, slot):
    """Hand the lines of a warp to the tensor core, which reads shared memory through another proxy."""
    cute.arch.fence_proxy("async.shared", space="cta")
    events.scales_full.arrive(slot)


@cute.jit
def key_tiles(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    events: Events,
    work: Work,
    entry: Int32,
):
    """Every key tile of a work tile, the first with the queries. entry: the number of the first in the CTA."""
    first, end = work.tiles.first, work.tiles.first + work.tiles.count
    held = of_keys(cfg, args, work, first, end)
    for n in cutlass.range(first, end, unroll=1):
        slot, phase = place_of(entry + (n - first))
        await_slot(events, slot, phase)
        store_lines(cfg, smem, slot, OF_K, held)
        if n == first:
            for i in cutlass.range_constexpr(cfg.tiles.num_q):
                store_lines(cfg, smem, slot, i, of_rows(cfg, args, work, i))
        hand_over(events, slot)
        held = of_keys(cfg, args, work, n + 1, end)


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    events: Events,
    queue: WorkQueue,
):
    """Every work tile of the CTA."""
    number, entry = Int32(0), Int32(0)
    work = queue.next(cfg, args, number)
    while work.tiles.count != NO_MORE:
        if work.tiles.count > 0:
            key_tiles(cfg, args, smem, events, work, entry)
            entry = entry + work.tiles.count
        number = number + 1
        work = queue.next(cfg, args, number)
