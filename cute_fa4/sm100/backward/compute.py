"""Compute warps: P = 2^(c S - L) and dS = P (dP - delta), then the results: two warpgroups with 64 columns each.

A thread has a row of the own side, and half of the columns of the other side. Where queries are owned, its row has one
L and one delta; where keys are owned, every column has its own, in shared memory. P stays in registers until dP comes.

    keys are owned       S -> P over S -> s_read      dP -> dS over dP -> ds_ready
    queries are owned    S -> s_read                  the same

The softmax scale is not in dS: dQ and dK are multiplied by it once, when they are stored. The derivative of a
score_mod is in dS: it multiplies P first (weights.py), so that a column takes one register, as without score_mod.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ..instructions import tensor_memory
from ..steps import row_math, visibility
from ..sync.pipelines import Slot
from . import store, weights
from .config import ROWS
from .operands import OwnerArgs, place_of_dp, place_of_s
from .work import Place, Work, bands_of, moved, row_in_line

BATCH = 32  # columns in registers at a time, in addition to P


def numbers(owner, cta, slot: Slot, first) -> list:
    """BATCH float32 of a slot's L or delta, from `first` on; the same for all lanes."""
    layout = cute.make_layout(BATCH)
    out = cute.make_rmem_tensor(BATCH, Float32)
    at = (cta.stats.iterator + (slot.index * owner.stats + first)).align(16)
    cute.autovec_copy(cute.make_tensor(at, layout), out)
    return [out[i] for i in range(BATCH)]


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
    if cutlass.const_expr(owner.owns_keys):
        cta.other_full.wait(slot.index, slot.phase)
    s = place_of_s(owner, n)
    cta.s_ready.wait(s.index, s.phase)
    tensor_memory.fence_after()
    p = make_p(cfg, owner, args, cta, thread, work, (slot, s, place), cut)
    if cutlass.const_expr(1 in owner.results):
        tensor_memory.wait_store()
    tensor_memory.fence_before()
    cta.s_read.arrive(s.index)
    if cutlass.const_expr(owner.has_dp):
        dp = place_of_dp(owner, n)
        cta.dp_ready.wait(dp.index, dp.phase)
        tensor_memory.fence_after()
        make_ds(owner, cta, thread, at, dp, p)
        tensor_memory.wait_store()
        tensor_memory.fence_before()
        cta.ds_ready.arrive(dp.index)


def make_p(cfg, owner, args: OwnerArgs, cta, thread, work: Work, at: tuple, cut: bool) -> list:
    """The weights that dS uses for the thread's row and columns; where keys are owned, P is stored, too.

    at: (slot, place of S, place)
    """
    slot, of_s, place = at
    lanes, kept, words = thread.lanes + of_s.index * owner.other_rows, [], []
    s, to = lanes + owner.s_column, lanes + owner.p_column
    if owner.shares:
        to = to - thread.column // owner.columns * (owner.columns - owner.p_columns)
    first, bands = place.tile * owner.other_rows + thread.column, []
    if cut:
        ends = bands_of(cfg, owner, args.sizes, work.sequence, work.row + thread.row)
        bands = [(moved(lo, -first), moved(hi, -first)) for lo, hi in ends]
    for column, scores in tensor_memory.load_batches(s, owner.columns, BATCH):
        lse = [thread.lse] * BATCH
        if owner.owns_keys:
            lse = numbers(owner, cta, slot, row_in_line(owner, place, thread.column + column))
        places = [None] * BATCH
        if cfg.has_functions:
            columns = [first + column + i for i in range(BATCH)]
            places = weights.places(cfg, owner, args, work, place, thread.row, columns)
        full = place.is_full if cfg.listed and cut else cfg.listed
        p, of_ds = weights.of_scores(cfg, args, scores, lse, places, full)
        if cut:
            word = visibility.visibility(bands, column)
            p, of_ds = (visibility.selected(x, word, hidden=0.0) for x in (p, of_ds))
        words += row_math.pack(p, owner.dtype)
        kept += of_ds
    if 1 in owner.results:
        tensor_memory.store(to, words)
    return kept


def make_ds(owner, cta, thread, at: tuple, of_dp: Slot, p: list):
    """dS without the scale, stored over dP. at: (slot, turn, place); of_dp: its place; p: as make_p returns it."""
    slot, _, place = at
    ds, to = [], thread.lanes + owner.dp_column + of_dp.index * owner.other_rows
    for column, dp in tensor_memory.load_batches(to, owner.columns, BATCH):
        delta = [thread.delta] * BATCH
        if owner.owns_keys:
            delta = numbers(
                owner, cta, slot, ROWS + row_in_line(owner, place, thread.column + column)
            )
        part = p[column : column + BATCH]
        ds += [x * (y - z) for x, y, z in zip(part, dp, delta, strict=True)]
    tensor_memory.store(to, row_math.pack(ds, owner.dtype))


@cute.jit
def run(cfg: cutlass.Constexpr, owner: cutlass.Constexpr, args: OwnerArgs, cta, thread, work: Work):
    """Every tile of a CTA, and its results."""
    slot, place = Slot(Int32(0), Int32(0)), Place.of(work)
    for n in cutlass.range(work.count, unroll=1):
        at = (slot, n, place)
        if is_cut(cfg, owner, args, work, place):
            tile(cfg, owner, args, cta, thread, work, at, True)
        else:
            tile(cfg, owner, args, cta, thread, work, at, False)
        slot, place = slot.next(owner.slots[0]), place.next(work)
    store.run(cfg, owner, args, cta, thread, work)
