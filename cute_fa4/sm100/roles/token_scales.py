"""Scales warp: a float32 per key for K, V or both, from global memory into a ring of shared memory.

    lane       keys lane, lane + 32, lane + 64, lane + 96 of a key tile
    tile n     wait scales_empty -> scales and unit to the ring -> scales_full       softmax may use them
    tile n+1   its loads are in flight meanwhile: a look-up in the page table, and the scales at that place

The ring has as many slots as the softmax warps can lag by, and they release them (blueprint/barriers.py): no MMA uses
the scales. Keys beyond the sequence have scale 0, whatever the tensors hold there; 0 * NaN would be NaN in P V.

Scales of V are divided by a unit: a power of two that no scale of the work tile so far exceeds (steps/token_scales.py
explains why). A scale beyond 2^126, or NaN, makes the unit NaN, and with it the rows of that head.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ...layouts.scalars import choose
from ..blueprint.chip import WARP_SIZE
from ..blueprint.memory_maps import scale_words
from ..steps import token_scales
from ..sync.kernel_args import Events, KernelArgs, Smem
from ..work import block_lists, scales
from ..work.queue import NO_MORE, WorkQueue
from ..work.tile import Work


def load_tile(cfg, args: KernelArgs, work: Work, n, end) -> tuple:
    """The scales of this lane's keys of turn n: for K, for V; 0 from turn `end` on."""
    tile = block_lists.tile_of_turn(cfg, args, work, n)
    first = tile * cfg.tiles.BN + cute.arch.lane_idx()
    keys = [
        scales.of_key(cfg, args, work, first + i, n < end)
        for i in range(0, cfg.tiles.BN, WARP_SIZE)
    ]
    return tuple(value for of_tensor in zip(*keys, strict=True) for value in of_tensor)


def store_tile(cfg, smem: Smem, slot, values: tuple, unit_bits):
    """Store the scales of a key tile to its entry of the ring."""
    each = cfg.tiles.BN // WARP_SIZE
    first = slot * scale_words(cfg, cfg.tiles.BN)
    for i, name in enumerate(cfg.token_scales):
        mine = values[i * each : (i + 1) * each]
        if name == "v":
            unit = Int32(unit_bits).bitcast(Float32)
            smem.scales[first + token_scales.unit_word(cfg)] = unit
            mine = token_scales.in_unit(mine, unit)
        at = first + token_scales.first_word(cfg, name) + cute.arch.lane_idx()
        for j, value in enumerate(mine):
            smem.scales[at + WARP_SIZE * j] = value


@cute.jit
def key_tiles(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    events: Events,
    work: Work,
    before: tuple,
):
    """Every key tile of a work tile. before: tiles of each softmax warpgroup in earlier work tiles."""
    first, end = work.tiles.first, work.tiles.first + work.tiles.count
    held, unit_bits = load_tile(cfg, args, work, first, end), Int32(0)
    for n in cutlass.range(first, end, unroll=1):
        ahead = load_tile(cfg, args, work, n + 1, end)
        if cutlass.const_expr("v" in cfg.token_scales):
            of_v = held[-(cfg.tiles.BN // WARP_SIZE) :]
            unit_bits = token_scales.unit_bits(token_scales.largest_of_warp(of_v), unit_bits)
        i = order.owner(cfg, work, n)
        number = order.number_of_scales(cfg, work, n, i, choose(i == 0, *before))
        slot, phase = token_scales.place_of(number)
        events.scales_empty.wait(slot, phase ^ 1)
        store_tile(cfg, smem, slot, held, unit_bits)
        events.scales_full.arrive(slot)
        held = ahead


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    events: Events,
    queue: WorkQueue,
):
    """Every work tile of the CTA."""
    number, before = Int32(0), (Int32(0), Int32(0))
    work = queue.next(cfg, args, number)
    while work.tiles.count != NO_MORE:
        if work.tiles.count > 0:
            key_tiles(cfg, order, args, smem, events, work, before)
            before = tuple(b + order.number_of_tiles(cfg, work, i) for i, b in enumerate(before))
        number = number + 1
        work = queue.next(cfg, args, number)
