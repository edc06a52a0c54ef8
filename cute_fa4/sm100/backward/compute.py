"""Compute warps: P = 2^(c S - L) and dS = P (dP - delta), then the results: each warpgroup has 32 columns of a tile.

A thread has a row of the own side, and 32 columns of the other side. Where queries are owned, its row has one
L and one delta; where keys are owned, every column has its own: the MMAs have subtracted them (subtracted.py), or they
are in shared memory. S is read at once, so that the next one can be made while P is. P stays in registers until dP
comes; where it has columns of its own, it is stored before (Owner.apart).

    keys are owned       S -> s_read   P           dP -> P and dS over dP -> p_ready, ds_ready
    queries are owned    S -> s_read   P           dP -> dS -> ds_ready

The softmax scale is not in dS: dQ and dK are multiplied by it once, when they are stored. The derivative of a
score_mod is in dS: it multiplies P first (weights.py), so that a column takes one register, as without score_mod.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ..instructions import tensor_memory
from ..steps import row_math, visibility
from ..sync.pipelines import Slot
from . import own_tile, store, weights
from .operands import OwnerArgs, place_of_s
from .owner import COLUMNS, ROWS
from .work import Place, Work, bands_of, moved, row_in_line


def numbers(owner, cta, slot: Slot, first) -> list:
    """COLUMNS float32 of a slot's L or delta, from `first` on; the same for all lanes."""
    layout = cute.make_layout(COLUMNS)
    out = cute.make_rmem_tensor(COLUMNS, Float32)
    at = (cta.stats.iterator + (slot.index * owner.stats + first)).align(16)
    cute.autovec_copy(cute.make_tensor(at, layout), out)
    return [out[i] for i in range(COLUMNS)]


@cute.jit
def is_cut(
    cfg: cutlass.Constexpr, owner: cutlass.Constexpr, args: OwnerArgs, work: Work, place: Place
) -> cutlass.Boolean:
    """Whether some row of the tile may not see all of its columns: no band covers them for every row.

    Where lists say so, it may also be mask_mod that hides some.
    """
    sequence, start = work.sequence, place.tile * owner.other_rows
    of_first = bands_of(cfg, owner, args.sizes, sequence, work.row)
    of_last = bands_of(cfg, owner, args.sizes, sequence, work.row + (ROWS - 1))
    cut = cutlass.Boolean(True)
    for (_, hi), (lo, _) in zip(of_first, of_last, strict=True):
        by_band = cutlass.Boolean(False)
        if cutlass.const_expr(lo is not None):
            by_band = by_band | (lo > start)
        if cutlass.const_expr(hi is not None):
            by_band = by_band | (hi < start + owner.other_rows)
        cut = cut & by_band
    if cutlass.const_expr(cfg.listed and cfg.mask_mod is not None):
        cut = cut | (not place.is_full)
    return cut


@cute.jit
def tile(
    cfg: cutlass.Constexpr,
    owner: cutlass.Constexpr,
    args: OwnerArgs,
    cta,
    thread,
    work: Work,
    at: tuple,
    cut: cutlass.Constexpr,
):
    """One tile of scores. thread: a Thread; at: (slot, turn, place); cut: what is_cut says."""
    slot, n, place = at
    if cutlass.const_expr(owner.owns_keys and not owner.subtracts):
        cta.other_full.wait(slot.index, slot.phase)
    s = place_of_s(owner, n)
    cta.s_ready.wait(s.index, s.phase)
    tensor_memory.fence_after()
    scores = loaded(thread.lanes + owner.s_column + s.index * owner.other_rows)
    if cutlass.const_expr(owner.has_dp):
        tensor_memory.fence_before()
        cta.s_read.arrive(0)
    p, words = make_p(cfg, owner, args, cta, thread, work, (slot, scores, place), cut)
    if cutlass.const_expr(owner.apart == "P"):
        await_sums(owner, cta, slot, n)
    if cutlass.const_expr(1 in owner.results and not owner.p_over_dp):
        store_p(owner, cta, thread, s.index, words)
    if cutlass.const_expr(owner.has_dp):
        cta.dp_ready.wait(0, n & 1)
        tensor_memory.fence_after()
        dp = loaded(thread.lanes + owner.dp_column)
        if cutlass.const_expr(owner.apart == "dS"):
            tensor_memory.fence_before()
            cta.dp_read.arrive(0)
        if cutlass.const_expr(owner.p_over_dp):
            store_p(owner, cta, thread, 0, words)
        ds = make_ds(owner, cta, thread, slot, place, (p, dp))
        if cutlass.const_expr(owner.apart == "dS"):
            await_sums(owner, cta, slot, n)
        tensor_memory.store(written_at(owner, thread, owner.ds_place), ds)
        tensor_memory.wait_store()
        tensor_memory.fence_before()
        cta.ds_ready.arrive(0)


@cute.jit
def await_sums(owner: cutlass.Constexpr, cta, slot: Slot, n: Int32):
    """Until the sums of the turn before have read P and dS: one has columns of its own, which the next overwrites."""
    if n > 0:
        part = owner.last_of_tile_0
        before = slot.previous(owner.slots[part])
        cta.other_empty.wait(before.index + owner.first_slot(part), before.phase)
        tensor_memory.fence_after()


def loaded(address) -> list:
    """The thread's columns of S or dP, in registers: their places may be overwritten."""
    out = tensor_memory.load(address, COLUMNS)
    tensor_memory.wait_load()
    return out


def store_p(owner, cta, thread, place, words: list):
    """P of a tile, rounded, for the sum of dV. place: of S, where P is written over S."""
    to = written_at(owner, thread, owner.p_place) + place * owner.other_rows
    tensor_memory.store(to, words)
    tensor_memory.wait_store()
    tensor_memory.fence_before()
    cta.p_ready.arrive(place)


def make_p(cfg, owner, args: OwnerArgs, cta, thread, work: Work, at: tuple, cut: bool) -> tuple:
    """-> (the weights that dS uses for the thread's row and columns, the words of P for dV).

    at: (slot, scores, place)
    """
    slot, scores, place = at
    first, bands = place.tile * owner.other_rows + thread.column, []
    if cut:
        ends = bands_of(cfg, owner, args.sizes, work.sequence, work.row + thread.row)
        bands = [(moved(lo, -first), moved(hi, -first)) for lo, hi in ends]
    lse = [None if owner.subtracts else thread.lse] * COLUMNS
    if owner.owns_keys and not owner.subtracts:
        lse = numbers(owner, cta, slot, row_in_line(owner, place, thread.column))
    places = [None] * COLUMNS
    if cfg.has_functions:
        columns = [first + i for i in range(COLUMNS)]
        places = weights.places(cfg, owner, args, work, place, thread.row, columns)
    full = place.is_full if cfg.listed and cut else cfg.listed
    p, of_ds = weights.of_scores(cfg, args, scores, lse, places, full)
    if cut:
        word = visibility.visibility(bands, 0)
        p, of_ds = (visibility.selected(x, word, hidden=0.0) for x in (p, of_ds))
    return of_ds, row_math.pack(p, owner.dtype) if 1 in owner.results else []


def written_at(owner, thread, place: tuple[int, int]):
    """Where the thread's warpgroup writes P or dS. place: Owner.p_place or ds_place."""
    first, apart = place
    return thread.first_lane + first + thread.column // owner.columns * apart


def make_ds(owner, cta, thread, slot: Slot, place: Place, of: tuple) -> list:
    """dS without the scale, rounded, two in a word. of: (weights of make_p, dP)"""
    p, dp = of
    if not owner.subtracts:
        delta = [thread.delta] * COLUMNS
        if owner.owns_keys:
            delta = numbers(owner, cta, slot, ROWS + row_in_line(owner, place, thread.column))
        dp = row_math.differences(dp, delta)
    return row_math.pack(row_math.products(p, dp), owner.dtype)


@cute.jit
def run(cfg: cutlass.Constexpr, owner: cutlass.Constexpr, args: OwnerArgs, cta, thread, work: Work):
    """Every tile of a CTA, and its results."""
    slot, place = Slot(Int32(0), Int32(0)), Place.of(work)
    if work.count > 0:
        for i in cutlass.range_constexpr(len(owner.moved)):
            own_tile.move(owner, cta, thread, owner.moved[i])
    for n in cutlass.range(work.count, unroll=1):
        at = (slot, n, place)
        if is_cut(cfg, owner, args, work, place):
            tile(cfg, owner, args, cta, thread, work, at, True)
        else:
            tile(cfg, owner, args, cta, thread, work, at, False)
        slot, place = slot.next(owner.slots[owner.last_of_tile_0]), place.next(work)
    store.run(cfg, owner, args, cta, thread, work)
